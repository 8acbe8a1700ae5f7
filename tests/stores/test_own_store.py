"""A store of somebody else's: one distribution with one entry point, found by the scheme of its URL."""

import subprocess
import sys
from pathlib import Path

import pytest

import issuer
from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.opening import GROUP, open_store

MODULE = """
from issuer_persistence.memory import MemoryStore

class Shelf(MemoryStore):
    @classmethod
    def open(cls, url):
        return cls(url.removeprefix("shelf://"))

no_store = object()
"""
PROGRAM = """
import issuer
with issuer.connect(redis="none", store="shelf://a") as ids:
    ids.create("orders")
    print(ids.next("orders"), type(ids.engine.config.store).__name__)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder in which a distribution with a store is installed."""
    (tmp_path / "shelf.py").write_text(MODULE)
    known = tmp_path / "shelf-1.0.dist-info"
    known.mkdir()
    (known / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf\nVersion: 1.0\n")
    (known / "entry_points.txt").write_text(f"[{GROUP}]\nshelf = shelf:Shelf\nbroken = shelf:no_store\n")
    return tmp_path


def test_a_store_is_found_by_an_entry_point_and_issues_numbers(site: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(site)!r}){PROGRAM}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("1 Shelf\n", 0), done.stderr


def test_what_is_no_store_and_a_scheme_that_nobody_has_are_rejected(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(site)
    with pytest.raises(Misconfigured, match=r"is not a subclass of issuer\.Store"):
        open_store("broken://a")
    with pytest.raises(Misconfigured, match="is not the URL of a store"):
        open_store("nobodys://a")
    with pytest.raises(issuer.ConfigurationError, match="is not the URL of a store"):
        issuer.connect(redis="none", store="nobodys://a")


def test_a_store_that_has_no_url_says_so() -> None:
    with pytest.raises(Misconfigured, match="Store cannot be opened by a URL; pass a store object"):
        Store.open("x://y")
