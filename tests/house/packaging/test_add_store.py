"""A new store of ours, added to a copy of the sources in the five places that docs/architecture.md lists."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

from tests.house.packaging.test_wheel import REPO

PARTS = ("issuer", "persistence", "lua", "tests", "docs")
STORES = "persistence/issuer_persistence"

#: Draws from the new store, and prints the names that the doctor and the spans have for it.
PROGRAM = """
import issuer
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
with issuer.connect(redis="none", store="shelf://orders") as ids:
    ids.create("orders", order="trend", start=7)
    print(ids.next("orders"))
    print(*{each.subject for each in ids.doctor() if each.check == "store-lasting"})
print(*{each.attributes["db.system.name"] for each in spans.get_finished_spans()})
try:
    issuer.connect(redis="none", store="nobodys://x")
except issuer.ConfigurationError as error:
    print("shelf://name" in str(error))
"""


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in PARTS:
        copytree(REPO / name, folder / name, ignore=ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_bytes((REPO / "pyproject.toml").read_bytes())
    # 1. The module: here the store in memory under another name.
    source = (folder / STORES / "memory.py").read_text(encoding="utf-8")
    for old, new in (("Memory", "Shelf"), ("memory://", "shelf://"), ('"memory"', '"shelf"')):
        source = source.replace(old, new)
    (folder / STORES / "shelf.py").write_text(source, encoding="utf-8")
    # 2. Its URL, 3. its layer, and its driver if it needs one.
    edit(folder / STORES / "opening.py", "OURS = {\n", 'OURS = {\n    "shelf://name": "shelf:ShelfStore",\n')
    edit(folder / "pyproject.toml", " | memory | ", " | memory | shelf | ")
    # 4. Its bench, with which the contract suite runs.
    bench = """
from issuer_persistence.shelf import ShelfStore


class ShelfBench(MemoryBench):
    def __init__(self) -> None:
        self.memory = ShelfStore()  # type: ignore[assignment]
        Bench.__init__(self)


BENCHES["shelf"] = lambda _: ShelfBench()
"""
    with (folder / "tests/stores/benches.py").open("a", encoding="utf-8") as file:
        file.write(bench)
    # 5. Its row in the documentation.
    edit(folder / "docs/reference/stores.md", "| `memory://`,", "| `shelf://name` | A shelf | none |\n| `memory://`,")
    return folder


def run(copy: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'persistence'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_url_opens_it_and_the_doctor_and_the_spans_name_it(copy: Path) -> None:
    told = run(copy, sys.executable, "-c", PROGRAM)
    assert told.splitlines() == ["7", "shelf://orders", "shelf", "True"]


def test_the_contract_suite_and_the_checks_of_the_documentation_know_it(copy: Path) -> None:
    suite = ("tests/stores/test_stores.py", "tests/stores/test_opening.py")
    told = run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "shelf or opening", *suite)
    assert int(told.splitlines()[-1].split(" passed")[0].split()[-1]) > 30


def test_its_imports_pass(copy: Path) -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    assert "0 broken" in run(copy, sys.executable, "-c", program, "--no-cache")
