"""A scratch copy of the source tree, for tests that add a part to it and run the checks of its structure there."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

REPO = Path(__file__).resolve().parents[3]
PARTS = ("issuer", "persistence", "lua", "tests", "docs")


class Scratch:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in PARTS:
            copytree(REPO / name, folder / name, ignore=ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "hatch_version.py"):
            (folder / name).write_bytes((REPO / name).read_bytes())

    def replace(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, (path, old)
        (self.folder / path).write_text(text.replace(old, new), encoding="utf-8")

    def run(self, *words: str) -> str:
        """Run Python in the copy; return what it printed."""
        path = os.pathsep.join(map(str, (self.folder, self.folder / "persistence")))
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env={**os.environ, "PYTHONPATH": path, "HOME": str(self.folder)},
            capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def check(self, *tests: str) -> None:
        """Write the generated pages; run the linter of imports and the tests."""
        self.run("-m", "tests.reference")
        assert "0 broken" in self.run(
            "-c", "import sys; from importlinter.cli import lint_imports_command as run; run()"
        )
        self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not live", *tests)
