"""The wheel: what is in it, and that it works in an environment that has nothing else of ours."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.live


def run(*command: str | Path, **environment: str) -> str:
    """Run it outside the checkout, and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ISSUER_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**clean, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", target, REPO)
    return next(target.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it depends on."""
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", home)
    python = home / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    return python


def test_its_top_level_names_are_issuer_and_persistence(wheel: Path) -> None:
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"issuer", "persistence"}


def test_it_holds_the_scripts_the_types_and_the_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    in_repo = {f"issuer/_lua/{path.relative_to(REPO / 'lua')}" for path in (REPO / "lua").rglob("*.lua")}
    assert len(in_repo) >= 4
    assert in_repo <= names
    assert {"issuer/py.typed", "persistence/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_and_the_package_work_where_it_is_installed(python: Path, tmp_path: Path) -> None:
    issuer = python.parent / "issuer"
    data = {"XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    assert run(issuer, "next", "orders", **data) == "1\n"
    assert run(issuer, "next", "orders", **data) == "2\n"
    assert run(python, "-c", "import issuer; print(issuer.next('orders'))", **data) == "3\n"
    assert "KEYS[1]" in run(issuer, "lua", "next", **data)
