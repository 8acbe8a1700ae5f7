"""From a URL to a store or a Redis, what is refused of it, and what of it may be shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import redis

import issuer
from issuer.drivers.servers import from_url
from issuer.errors import ConfigurationError
from issuer_persistence.contract import Store
from issuer_persistence.errors import Misconfigured
from issuer_persistence.memory import MemoryStore
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.opening import GROUP, OURS, file_path, open_store
from issuer_persistence.sql.shared_row import SharedRowStore
from issuer_persistence.sqlite import SQLiteStore
from tests.refusals import refused

REPOSITORY = Path(__file__).resolve().parents[2]


def test_mongodb_urls_open_a_mongo_store_without_io() -> None:
    for url in ("mongodb://u:p@h1:1,h2:2/db?replicaSet=rs", "mongodb+srv://cluster.example.net/db"):
        store = open_store(url)
        assert isinstance(store, MongoStore), url
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


def test_a_url_that_cannot_be_meant_is_refused_without_its_secrets() -> None:
    for url in ("oracle://u:secret@h/db", "orders.db", "", "mongo://h", "SQLITE:///x", "memory"):
        told = str(refused(Misconfigured, "", open_store, url))
        assert all(form in told for form in OURS)
        assert "secret" not in told
    mongo = ("", "h:99999999", "h/db?w=0", "h/?readConcernLevel=local&W=0", "u:secret@h/admin", "h/db?tls=maybe")
    for url in (
        "sqlite://orders.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a.db?key=secret",
        *(f"mongodb://{each}" for each in mongo),
    ):
        assert "secret" not in str(refused(Misconfigured, "", open_store, url))


@pytest.mark.parametrize(
    ("given", "usual"),
    [
        ("postgres://h/db", "postgresql://h/db"),
        ("postgresql+psycopg://h:5/db?sslmode=require", "postgresql://h:5/db?***"),
        ("mysql+pymysql://u:secret@h/db", "mysql://***@h/db"),
        ("mariadb+pymysql://h/db", "mariadb://h/db"),
        ("mysql+pymysql://h/db?layout=leaf", "mysql://h/db?***"),
    ],
)
def test_a_url_of_a_hosting_provider_or_of_sqlalchemy_opens_the_same_store(given: str, usual: str) -> None:
    store = open_store(given)
    assert (store.url, "layout=" in given) == (usual, isinstance(store, SharedRowStore))
    store.close()


def test_parameters_that_pymongo_would_refuse_at_each_call_are_refused_at_once() -> None:
    for scheme in ("mongodb", "mongodb+srv"):
        for parameters, said in {
            "datetime_conversion=x": "its value is invalid",
            "maxStalenessSeconds=120": "maxStalenessSeconds",
            "readPreferenceTags=dc:ny": "tags",
            "loadBalanced=true&replicaSet=r": "replicaSet with loadBalanced=true",
            "authMechanism=SCRAM-SHA-1": "username",
        }.items():
            refused(Misconfigured, said, open_store, f"{scheme}://h.example/db?{parameters}")
        open_store(f"{scheme}://h.example/db?tls=true&readPreference=secondary&maxStalenessSeconds=120").close()
    refused(Misconfigured, r"mongodb\+srv", open_store, "mongodb://h.example/db?srvMaxHosts=1")
    open_store("mongodb+srv://h.example/db?srvMaxHosts=1").close()


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, module, url, extra in (
        ("psycopg", "postgresql", "postgresql://h/d", 'pip install ".[postgresql]"'),
        ("pymysql", "mysql", "mysql://h/d", 'pip install ".[mysql]"'),
    ):
        for name in [each for each in sys.modules if each.partition(".")[0] == driver]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, driver, None)
        monkeypatch.delitem(sys.modules, f"issuer_persistence.sql.{module}", raising=False)
        with pytest.raises(Misconfigured, match="install") as caught:
            open_store(url)
        assert extra in str(caught.value)


def test_a_file_is_known_by_its_url_and_a_relative_one_is_left_as_it_is() -> None:
    files = {"sqlite:///data/issuer.db": "data/issuer.db", "sqlite:////var/issuer.db": "/var/issuer.db"}
    others = ("sqlite://", "mongodb:///x", "mongodb://h/x", "memory://a", "nobodys:///x", "x", "none", "")
    assert {url: file_path(url) for url in (*files, *others)} == {**files, **dict.fromkeys(others, "")}


def test_the_documentation_has_a_row_for_each_store() -> None:
    page = (REPOSITORY / "docs/reference/stores.md").read_text(encoding="utf-8")
    assert [form for form in OURS if f"`{form}`" not in page] == []


def test_only_the_wiring_opens_stores_and_no_other_module_names_one() -> None:
    # The server of a remote store shares the messages of the store.
    parts = {place.partition(":")[0] for place in OURS.values()} - {"remote"}
    for file in (REPOSITORY / "issuer").rglob("*.py"):
        source = file.read_text(encoding="utf-8")
        if file.parent.name == "testing":  # the test double has a store of its own kind
            continue
        assert not parts & {*re.findall(r"issuer_persistence\.(\w+)", source)}, file
        assert file.name == "wiring.py" or "open_store" not in source, file


def test_drivers_are_imported_only_when_asked_for() -> None:
    program = "import sys, issuer_persistence.opening; print(sorted({'pymongo', 'sqlite3'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


POOL = redis.ConnectionPool
SENTINELS = "redis+sentinel://127.0.0.1/mymaster"


def test_a_database_that_is_no_number_is_refused_and_not_shown() -> None:
    """It may be the rest of a password with a / in it."""
    for url in ("redis://127.0.0.1", "rediss://127.0.0.1:6380", SENTINELS):
        for path in ("x", "0/x", "-1", "1.0", "\u0661", "half-of-it@127.0.0.1:6379/0"):
            said = "%2F for /"
            assert path not in str(refused(ConfigurationError, said, from_url, f"{url}/{path}", "main", POOL))


def test_a_number_is_the_database() -> None:
    for path, number in {"": 0, "/": 0, "/3": 3, "/3/": 3, "/3?health_check_interval=0": 3}.items():
        assert from_url(f"redis://127.0.0.1{path}", "main", POOL).data.settings.get("db", 0) == number, path


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
