"""An old copy of a store brings back its records, its ledger and its indexes, and nothing younger stays."""

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymongo
import pytest
from pymongo.database import Database

from persistence.contract import Store
from persistence.opening import open_store
from tests.chaos.copies import copied

pytestmark = pytest.mark.live


def made(store: Store, tag: str) -> None:
    store.create(tag, above=2**53, step=10, limit=2**62, order="trend", description="", timeout=5)


@pytest.mark.parametrize("kind", ["sqlite", "mongodb"])
def test_what_came_after_the_copy_is_forgotten(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "store").mkdir()
    url = f"sqlite:///{tmp_path / 'store' / 'issuer.db'}"
    if kind == "mongodb":
        url = f"{request.getfixturevalue('mongo_server').url}/copies?directConnection=true"
    world: Any = SimpleNamespace(folder=tmp_path, store=url)
    with closing(open_store(url)) as store:
        made(store, "a")
        first = store.reserve("a", None, reason="direct", timeout=5)
        before = store.get("a", timeout=5), store.store_id(timeout=5), [*store.ledger("a", newest=9, timeout=5)]
        with copied(world) as put_back:
            store.reserve("a", None, reason="direct", timeout=5)
            made(store, "b")
            put_back()
        assert (
            store.get("a", timeout=5),
            store.store_id(timeout=5),
            [*store.ledger("a", newest=9, timeout=5)],
        ) == before
        assert store.get("b", timeout=5) is None
        # The same numbers again: what the faults that use it are about.
        assert store.reserve("a", None, reason="direct", timeout=5).low == first.high


def test_the_indexes_of_a_mongodb_are_put_back_too(mongo_server: Any, tmp_path: Path) -> None:
    url = f"{mongo_server.url}/copies?directConnection=true"
    client: pymongo.MongoClient[dict[str, Any]]
    with closing(open_store(url)) as store, pymongo.MongoClient(url) as client:
        made(store, "a")
        store.reserve("a", None, reason="direct", timeout=5)
        database: Database[dict[str, Any]] = client["copies"]

        def indexes() -> dict[str, Any]:
            return {name: database[name].index_information() for name in database.list_collection_names()}

        before = indexes()
        assert any(len(of_one) > 1 for of_one in before.values())
        world: Any = SimpleNamespace(folder=tmp_path, store=url)
        with copied(world) as put_back:
            put_back()
        assert indexes() == before
