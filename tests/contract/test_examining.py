"""What a store tells of how it is set up, for `issuer doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from persistence.contract import Store
from persistence.memory import MemoryStore
from persistence.mongodb import MongoStore
from persistence.records import StoreFacts, now_ms
from tests.contract.benches import TIMEOUT, create, get, ranges, reserve

if TYPE_CHECKING:
    from tests.contract.benches import Bench, MongoBench, SQLiteBench

FULL = 2


def test_examining_names_the_kind_and_changes_nothing(bench: Bench) -> None:
    create(bench.store)
    reserve(bench.store)
    before = get(bench.store), ranges(bench.store)
    seen = bench.store.examine(timeout=TIMEOUT)
    assert bench.store.url.startswith(seen.kind)
    assert seen.lasting is bench.store.shared
    assert (get(bench.store), ranges(bench.store)) == before


def test_a_store_of_somebody_else_need_not_tell_anything() -> None:
    assert Store.examine(MemoryStore(), timeout=TIMEOUT) == StoreFacts(kind="memory")


def test_sqlite_tells_what_is_in_force(sqlite_bench: SQLiteBench) -> None:
    store = sqlite_bench.make()
    seen = store.examine(timeout=TIMEOUT)
    assert (seen.journal, seen.synchronous) == ("wal", FULL)
    assert seen.time is None
    assert store._connection is not None
    store._connection.execute("PRAGMA synchronous = OFF")
    assert store.examine(timeout=TIMEOUT).synchronous == 0
    store.close()


def test_mongodb_tells_what_is_in_force_and_what_the_url_asks_for(mongo_bench: MongoBench) -> None:
    before = now_ms()
    plain = mongo_bench.store.examine(timeout=TIMEOUT)
    assert plain.time is not None
    assert before - 60_000 <= plain.time <= now_ms() + 60_000
    assert plain.version
    assert plain.replica_set is not None
    assert plain.write_concern == {"w": "majority", "j": True}
    assert (plain.asked_concern, plain.retry_writes) == ({}, True)

    query = "&" if "?" in mongo_bench.url else "?"
    weak = MongoStore.open(f"{mongo_bench.url}{query}w=1&journal=false&retryWrites=false")
    seen = weak.examine(timeout=TIMEOUT)
    weak.close()
    assert seen.write_concern == {"w": "majority", "j": True}
    assert (seen.asked_concern, seen.retry_writes) == ({"w": 1, "j": False}, False)
