"""Each way from the sources to a package that can be imported."""

import os
import sys
import zipfile
from pathlib import Path
from shutil import copytree, ignore_patterns, which

import pytest

from tests.house.packaging.test_wheel import REPO, data_in, run
from tests.servers.absent import absent

pytestmark = pytest.mark.live

#: What is needed to build.
PARTS = (
    "issuer", "pytest_issuer.py", "persistence", "lua", "hatch_version.py", "pyproject.toml", "README.md", "LICENSE",
)  # fmt: skip
PROGRAM = """
import issuer, issuer_persistence, pytest_issuer
print(issuer.__file__, issuer_persistence.__file__, issuer.next("orders"), sep="|")
"""


def git(at: Path, *words: str) -> None:
    run("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main", *words, at=at)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A git repository with the sources as they are now."""
    _ = which("git") or absent("git", "git")
    folder = tmp_path_factory.mktemp("repository")
    for name in PARTS:
        if (REPO / name).is_dir():
            copytree(REPO / name, folder / name, symlinks=True, ignore=ignore_patterns("__pycache__"))
        else:
            (folder / name).write_bytes((REPO / name).read_bytes())
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "Sources")
    return folder


@pytest.fixture
def unzipped(repository: Path, tmp_path: Path) -> Path:
    """A zip of the tree, as GitHub makes them, unpacked by a tool that knows no links."""
    archive = tmp_path / "tree.zip"
    git(repository, "archive", "--format=zip", f"--output={archive}", "HEAD")
    with zipfile.ZipFile(archive) as file:
        file.extractall(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.fixture
def linkless(repository: Path, tmp_path: Path) -> Path:
    """A clone as on a system without links."""
    clone = tmp_path / "linkless"
    git(tmp_path, "clone", "--quiet", "--config", "core.symlinks=false", f"file://{repository}", str(clone))
    return clone


def installed(source: str | Path, tmp_path: Path) -> None:
    """Install it with pip, and draw from it. No network: what builds and what it needs are there."""
    site = tmp_path / "site"
    offline = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")
    run(sys.executable, "-m", "pip", "install", *offline, "--target", site, source)
    imported(str(site), site, site, tmp_path)


def imported(path: str, source: Path, stores: Path, tmp_path: Path) -> None:
    told = run(sys.executable, "-c", PROGRAM, PYTHONPATH=path, **data_in(tmp_path))
    assert told == f"{source}/issuer/__init__.py|{stores}/issuer_persistence/__init__.py|1\n"


def built(source: Path, target: str, tmp_path: Path) -> Path:
    folder = tmp_path / target.replace(":", "-")
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", folder, at=source)
    (made,) = folder.iterdir()
    return made


def test_a_clone(repository: Path, tmp_path: Path) -> None:
    installed(f"segment-issuer @ git+file://{repository}", tmp_path)


def test_a_zip_of_the_tree(unzipped: Path, tmp_path: Path) -> None:
    installed(unzipped, tmp_path)


@pytest.mark.parametrize("tree", ["repository", "unzipped"])
def test_a_source_distribution(tree: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    sdist = built(request.getfixturevalue(tree), "sdist", tmp_path)
    installed(sdist, tmp_path)


def test_a_clone_on_a_system_without_links(linkless: Path, tmp_path: Path) -> None:
    installed(linkless, tmp_path)
    assert [each for each in linkless.rglob("*") if each.is_symlink()] == []


def test_an_editable_install(repository: Path, tmp_path: Path) -> None:
    wheel = built(repository, "wheel:editable", tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        (paths,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith(".pth"))
    assert paths.split() == [str(repository), str(repository / "persistence")]
    imported(os.pathsep.join(paths.split()), repository, repository / "persistence", tmp_path)
