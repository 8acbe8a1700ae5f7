"""From a URL to a store, and what of a URL may be shown."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from persistence.errors import Misconfigured
from persistence.memory import MemoryStore
from persistence.mongodb import MongoStore
from persistence.opening import FORMS, mask, open_store
from persistence.sqlite import SQLiteStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "url", ["mongodb://localhost", "mongodb://u:p@h1:1,h2:2/db?replicaSet=rs", "mongodb+srv://cluster.example.net/db"]
)
def test_mongodb_urls_open_a_mongo_store_without_io(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, MongoStore)
    store.close()


def test_sqlite_paths_are_relative_with_three_slashes_and_absolute_with_four(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = open_store("sqlite:///data/issuer.db")
    assert isinstance(relative, SQLiteStore)
    assert relative.url == f"sqlite:///{tmp_path}/data/issuer.db"
    assert open_store(f"sqlite:///{tmp_path}/x y?#%20ü.db").url == f"sqlite:///{tmp_path}/x y?#%20ü.db"
    assert list(tmp_path.iterdir()) == []


def test_a_name_makes_a_memory_store_shared_in_the_process() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    assert open_store("memory://") is not open_store("memory://")
    assert open_store("memory://opening") is open_store("memory://opening")
    assert open_store("memory://opening").url == "memory://opening"


@pytest.mark.parametrize("url", ["postgresql://u:secret@h/db", "orders.db", "", "mongo://h", "SQLITE:///x", "memory"])
def test_an_unknown_scheme_is_refused_with_those_that_exist(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        open_store(url)
    assert all(form in str(caught.value) for form in FORMS)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://orders.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "mongodb://",
        "mongodb://h:99999999",
        "mongodb://h/db?w=0",
        "mongodb://h/?readConcernLevel=local&W=0",
        "mongodb://u:secret@h/admin",
        "mongodb://h/db?tls=maybe",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mongodb://u:p@h/db", "mongodb://u:***@h/db"),
        ("mongodb://u:p@ss/w:rd@h/db", "mongodb://u:***@h/db"),
        ("mongodb://u@h/db", "mongodb://u@h/db"),
        ("mongodb://h/db?tlsCertificateKeyFilePassword=x&w=1", "mongodb://h/db?tlsCertificateKeyFilePassword=***&w=1"),
        ("redis://:p@h:6379/0", "redis://:***@h:6379/0"),
        ("http://h/?a=1&api_token=x", "http://h/?a=1&api_token=***"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("memory://x", "memory://x"),
    ],
)
def test_secrets_of_a_url_are_never_shown(url: str, shown: str) -> None:
    assert mask(url) == shown


def test_drivers_are_imported_only_when_asked_for() -> None:
    program = "import sys, persistence.opening; print(sorted({'pymongo', 'sqlite3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
