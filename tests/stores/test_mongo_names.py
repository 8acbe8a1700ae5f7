"""Whose collections are whose: a store takes none that holds another program's documents, and touches no such document.

Beside the store lies a CRM's database, whose documents look as much like ours as another program's may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import bson
import pytest
from bson.int64 import Int64

from issuer_persistence.errors import Corrupt, Misconfigured
from issuer_persistence.mongodb import MongoStore, server
from issuer_persistence.records import TagChanges, now_ms
from tests.stores.benches import TIMEOUT, MongoBench, create, get, reserve, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("tags", "segments", "meta")

HEX = "0123456789abcdef01234567"

#: A CRM's segments of its customers, all of them long ago.
SEGMENTS: list[dict[str, Any]] = [
    {"name": "wholesale", "tag": "orders", "time": Int64(5)},
    {"_id": "gold", "tag": "orders", "low": 0, "high": Int64(10**12), "time": 5, "reason": "", "host": "", "pid": 1},
    {"_id": HEX, "tag": "orders", "low": 0, "high": Int64(10**12), "time": 5, "reason": "spent", "host": "crm"},
    {"_id": HEX[::-1], "tag": "orders", "low": 0.0, "high": 9.5, "time": 5, "reason": "", "host": "", "pid": 7},
    {"tag": {"name": "orders"}, "time": 5},
    {"tag": 7, "time": 5, "customers": [1, 2, {"three": None}]},
]

#: Its tags: one is a record of ours but for the field that says so, the other but for the type of one field.
RECORD = {"max": 5, "step": 5, "limit": 500, "order": "trend", "description": "", "created": 1, "timestamp": 1}
TAGS: list[dict[str, Any]] = [
    {"_id": "vip", "colour": "red", "used": 17},
    {"_id": "regular", **RECORD, "version": "v", "halted": False, "deleted": False},
    {"_id": "lost", "bizTag": "lost", **RECORD, "version": "v", "halted": 0, "deleted": False},
]


@pytest.fixture
def opened(mongo_bench: MongoBench) -> Iterator[Callable[[str | None], MongoStore]]:
    """Stores in that database, with the URL saying which prefix, or nothing of it."""
    stores = []

    def opening(prefix: str | None) -> MongoStore:
        store = MongoStore.open(mongo_bench.url + ("" if prefix is None else f"&collectionPrefix={prefix}"))
        stores.append(store)
        return store

    yield opening
    for store in stores:
        store.close()


def stored(mongo_bench: MongoBench) -> dict[str, dict[Any, bytes]]:
    """All that is in the database, byte for byte."""
    names = mongo_bench.database.list_collection_names()
    return {name: {str(each["_id"]): bson.encode(each) for each in mongo_bench.database[name].find()} for name in names}


def put(mongo_bench: MongoBench, collection: str, documents: list[dict[str, Any]]) -> dict[Any, bytes]:
    """Write documents past the store, and return them as they lie there."""
    copies = [dict(each) for each in documents]
    mongo_bench.database[collection].insert_many(copies)
    ids = {str(each["_id"]) for each in copies}
    return {name: raw for name, raw in stored(mongo_bench)[collection].items() if name in ids}


@pytest.mark.parametrize("prefix", ["", "issuer_", "shop_"])
def test_no_document_of_another_program_is_changed_by_anything_that_a_store_does(
    mongo_bench: MongoBench, opened: Callable[[str | None], MongoStore], prefix: str
) -> None:
    store = opened(prefix)
    create(store, step=10)
    theirs = {f"{prefix}segments": put(mongo_bench, f"{prefix}segments", SEGMENTS)}
    theirs |= {f"{prefix}tags": put(mongo_bench, f"{prefix}tags", TAGS)}

    held = [reserve(store) for _ in range(5)]
    # One of ours that is none any more, as its shape says.
    mongo_bench.database[f"{prefix}segments"].update_one({"_id": held[4].entry}, {"$set": {"pid": "theirs"}})
    theirs[f"{prefix}segments"] |= {held[4].entry: stored(mongo_bench)[f"{prefix}segments"][held[4].entry]}
    assert store.hand_back(held[3:], 35, timeout=TIMEOUT)
    store.configure("orders", TagChanges(description="ours", scheme={"format": "{seq}"}), timeout=TIMEOUT)
    for tag in ("vip", "regular", "lost"):
        for call in (
            lambda tag=tag: reserve(store, tag=tag),
            lambda tag=tag: store.configure(tag, TagChanges(step=7), timeout=TIMEOUT),
            lambda tag=tag: store.halt(tag, timeout=TIMEOUT),
            lambda tag=tag: store.recover(tag, at_least=9, timeout=TIMEOUT),
            lambda tag=tag: store.delete(tag, timeout=TIMEOUT),
            lambda tag=tag: create(store, tag),
        ):
            with pytest.raises(Corrupt):
                call()
    store.halt("orders", timeout=TIMEOUT)
    store.recover("orders", at_least=35, timeout=TIMEOUT)
    assert store.prune(before=now_ms() + 1, timeout=TIMEOUT).deleted == 3
    store.delete("orders", timeout=TIMEOUT)
    create(store, step=10)
    after = stored(mongo_bench)
    for name, documents in theirs.items():
        assert {each: after[name].get(each) for each in documents} == documents, name
    # The newest entry of ours is kept, though one of theirs has a higher number.
    page = store.segments("orders", count=100, timeout=TIMEOUT)
    assert (30, 35) in spans(page.entries)
    assert get(opened(prefix)).max == 35


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefix", [None, "shop_"])
def test_a_collection_that_holds_anything_is_not_taken_for_a_store(
    mongo_bench: MongoBench, opened: Callable[[str | None], MongoStore], prefix: str | None, name: str
) -> None:
    taken = (prefix or "issuer_") + name
    put(mongo_bench, taken, [{"_id": "store", "id": "crm", "schema": 1, "customers": 5}])
    before = stored(mongo_bench)
    for call in (create, get):
        with pytest.raises(Misconfigured, match=rf"'{taken}'.*Use another database, or .*collectionPrefix"):
            call(opened(prefix))
    assert stored(mongo_bench) == before
    create(opened("other_"))
    lent = MongoStore(mongo_bench.database, prefix="other_")
    assert get(lent).max == 0
    after = stored(mongo_bench)
    assert {name: after[name] for name in before} == before


def test_a_store_without_a_prefix_is_recognised_and_goes_on(
    mongo_bench: MongoBench, opened: Callable[[str | None], MongoStore]
) -> None:
    before = opened("")
    create(before, step=10)
    assert spans([reserve(before), reserve(opened(None))]) == [(0, 10), (10, 20)]
    assert opened(None).store_id(timeout=TIMEOUT) == before.store_id(timeout=TIMEOUT)
    assert set(mongo_bench.database.list_collection_names()) == set(NAMES)
    # Another prefix is another store; and which of two counts has to be said.
    assert opened("issuer_").made_id(timeout=TIMEOUT) != before.store_id(timeout=TIMEOUT)
    with pytest.raises(Misconfigured, match=r"two stores.*collectionPrefix=issuer_"):
        get(opened(None))
    assert get(opened("")).max == 20


def test_a_process_that_comes_while_another_one_makes_the_store_is_not_refused(
    mongo_bench: MongoBench, opened: Callable[[str | None], MongoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = server.find

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(server, "find", find)
        found = find(*arguments)
        assert found is None
        create(mongo_bench.store, step=10)
        return found

    monkeypatch.setattr(server, "find", overtaken)
    assert get(opened(None)) == get(mongo_bench.store)
    assert mongo_bench.database["issuer_meta"].count_documents({}) == 1


def test_the_option_is_ours_and_pymongo_never_sees_it() -> None:
    for prefix in ("a.b", "system$", "a b", "x" * 41):
        with pytest.raises(Misconfigured, match="collection prefix"):
            MongoStore.open(f"mongodb://localhost/x?appName=a&collectionPrefix={prefix}")
    for url, left in (
        ("mongodb://h/d?collectionPrefix=a_&w=1", "mongodb://h/d?w=1"),
        ("mongodb://h/d?w=1&collectionprefix=a_&ssl=true", "mongodb://h/d?w=1&ssl=true"),
        ("mongodb+srv://h/d?collectionPrefix=a_", "mongodb+srv://h/d"),
        ("mongodb://h/?w=1;collectionPrefix=a_", "mongodb://h/?w=1"),
    ):
        assert server.without_prefix(url) == (left, "a_")
    assert server.without_prefix("mongodb://h/d?w=1") == ("mongodb://h/d?w=1", None)
