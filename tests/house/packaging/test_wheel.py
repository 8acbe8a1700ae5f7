"""The wheel: what is in it, and that it works where there is nothing else of ours."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.live


def run(*command: str | Path, at: str | Path = "/", **environment: str) -> str:
    """Run it outside the checkout, and return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ISSUER_", "PYTHON"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=at, env={**clean, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", target, at=REPO)
    return next(target.glob("*.whl"))


def built(tree: Path, target: str, folder: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, at=tree)
    (found,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


def test_a_version_tells_of_which_commit_a_build_is(tmp_path: Path) -> None:
    # Of a checkout as a wheel, as a source distribution and a wheel of that, and as an archive of git's.
    for name in run("git", "ls-files", "-co", "--exclude-standard", at=REPO).splitlines():
        if (REPO / name).exists():
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, tmp_path / "tree" / name, follow_symlinks=False)
    tree = tmp_path / "tree"
    assert built(tree, "wheel", tmp_path / "bare").name == "segment_issuer-0.1.0-py3-none-any.whl"
    git = ("git", "-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "All")):
        run(*git, *words, at=tree)
    version = f"0.1.0+g{run('git', 'rev-parse', 'HEAD', at=tree)[:9]}"
    assert version in built(tree, "wheel", tmp_path / "wheel").name
    source = built(tree, "sdist", tmp_path / "sdist")
    assert version in source.name
    run("tar", "xf", source, at=tmp_path / "sdist")
    assert version in built(tmp_path / "sdist" / source.name.removesuffix(".tar.gz"), "wheel", tmp_path / "again").name
    (tmp_path / "archive").mkdir()
    run("git", "archive", "-o", tmp_path / "archive.tar", "HEAD", at=tree)
    run("tar", "xf", tmp_path / "archive.tar", at=tmp_path / "archive")
    assert version in built(tmp_path / "archive", "wheel", tmp_path / "third").name
    run(*git, "tag", "-a", "-m", "A release", "v0.1.0", at=tree)
    assert built(tree, "wheel", tmp_path / "tagged").name == "segment_issuer-0.1.0-py3-none-any.whl"
    (tree / "README.md").write_text("changed\n")
    asked = ("-c", "import issuer; print(issuer.__version__)")
    assert (
        run(sys.executable, *asked, PYTHONPATH=f"{tree}{os.pathsep}{tree / 'persistence'}") == f"{version}.changed\n"
    ), "as an editable install does"
    with zipfile.ZipFile(next((tmp_path / "wheel").glob("*.whl"))) as archive:
        archive.extractall(tmp_path / "site")
    assert run(sys.executable, "-m", "issuer", "--version", PYTHONPATH=str(tmp_path / "site")) == f"issuer {version}\n"


def test_a_source_distribution_has_what_contributors_and_reviewers_read(tmp_path: Path) -> None:
    listed = run("tar", "tf", built(REPO, "sdist", tmp_path))
    names = {name.partition("/")[2] for name in listed.splitlines()}
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "Makefile"} <= names
    assert {
        "docs/index.md",
        "tests/conftest.py",
        "persistence/issuer_persistence/contract.py",
        "pytest_issuer.py",
        ".github/workflows/ci.yml",
    } <= names
    assert not [name for name in names if name.startswith((".venv", ".site"))]


def data_in(folder: Path) -> dict[str, str]:
    """Return the environment of a program of its own there, on a machine that may stand still for seconds."""
    times = {"ISSUER_TIMEOUT": "100", "ISSUER_STORE_TIMEOUT": "60"}
    return {**dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"), str(folder)), **times}


def test_it_holds_the_packages_the_scripts_the_types_and_the_licence_and_works_from_there(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(site)
    (commands,) = site.glob("*.dist-info/entry_points.txt")
    assert "issuer = issuer.cli:main" in commands.read_text()
    tops = {name.split("/")[0] for name in names}
    modules = {"issuer", "issuer_persistence", "pytest_issuer.py"}
    assert {name for name in tops if not name.endswith(".dist-info")} == modules
    in_repo = {f"issuer/_lua/{path.relative_to(REPO / 'lua')}" for path in (REPO / "lua").rglob("*.lua")}
    assert len(in_repo) >= 4
    assert in_repo <= names
    assert {"issuer/py.typed", "issuer_persistence/py.typed"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    shown = "issuer.__file__, s.folder(), issuer.next('orders')"
    program = f"import issuer, issuer.gateway.commands as s; print({shown}, sep='|')"
    told = run(sys.executable, "-c", program, PYTHONPATH=str(site), **data_in(tmp_path))
    assert told == f"{site}/issuer/__init__.py|{site}/issuer/_lua|1\n"
    # A package of the user's that is called as our folder is: ours is nowhere on the way of an import.
    (tmp_path / "persistence").mkdir()
    (tmp_path / "persistence" / "__init__.py").write_text("raise RuntimeError('of the user')\n")
    program = "import issuer; print(issuer.next('orders')); import issuer_persistence.sqlite, persistence"
    with pytest.raises(AssertionError, match="of the user") as told_too:
        run(sys.executable, "-c", program, PYTHONPATH=f"{tmp_path}{os.pathsep}{site}", **data_in(tmp_path))
    assert str(told_too.value).startswith("2\n")


def test_its_fixtures_are_there_for_pytest(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "test_it.py").write_text(
        "def test_it(issuer, issuer_double):\n"
        "    import issuer as module, pytest_issuer\n"
        "    issuer.create('orders')\n"
        "    assert [issuer.next('orders'), module.next('orders')] == [1, 2]\n"
        f"    assert module.__file__.startswith({str(tmp_path / 'site')!r})\n"
        f"    assert pytest_issuer.__file__.startswith({str(tmp_path / 'site')!r})\n"
        "    with module.connect() as other:\n"
        "        assert other.next('orders') == 3\n"
    )
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "test_it.py")
    assert "1 passed" in run(sys.executable, *words, at=tmp_path, PYTHONPATH=str(tmp_path / "site"))


@pytest.mark.soak  # it downloads what the wheel depends on; the test above shows what is ours
def test_the_command_and_the_package_work_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "clean")
    python, data = tmp_path / "clean" / "bin" / "python", data_in(tmp_path)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    issuer = python.parent / "issuer"
    assert run(issuer, "next", "orders", **data) == "1\n"
    assert run(issuer, "next", "orders", **data) == "2\n"
    assert run(python, "-c", "import issuer; print(issuer.next('orders'))", **data) == "3\n"
    text = "from issuer.gateway.commands import script; print(script('next').text)"
    assert "KEYS[1]" in run(python, "-c", text, **data)
