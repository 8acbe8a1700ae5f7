"""How MongoDB keeps a scheme, and how programs that know of none are kept out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from bson.int64 import Int64

from persistence.errors import Misconfigured, VersionMoved
from persistence.mongodb import _Session
from persistence.mongotags import stored
from tests.contract.benches import TIMEOUT, create, get, reserve

if TYPE_CHECKING:
    from persistence.records import Tag
    from tests.contract.benches import MongoBench

SCHEME: dict[str, Any] = {"stride": [{"from": 1, "first": 3, "stride": 2}], "cycle": False, "id": "9f2c"}


def schema(bench: MongoBench) -> int:
    found = bench.database["meta"].find_one({"_id": "store"})
    assert found is not None
    return int(found["schema"])


def test_a_scheme_is_a_document_of_its_own(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, "users")
    create(mongo_bench.store, scheme=SCHEME)
    assert (mongo_bench.document("users")["scheme"], mongo_bench.document()["scheme"]) == ({}, SCHEME)
    mongo_bench.store.configure("orders", scheme={"options": {"a": 1}}, timeout=TIMEOUT)
    assert mongo_bench.document()["scheme"] == {"options": {"a": 1}}


def test_its_integers_are_sent_as_64_bits_and_nothing_else_is() -> None:
    sent = stored({"scheme": {"a": [1, {"b": (2,)}], "c": True, "d": None, "e": "5"}, "max": 7, "halted": False})
    assert sent == {"scheme": {"a": [1, {"b": [2]}], "c": True, "d": None, "e": "5"}, "max": 7, "halted": False}
    first, second = sent["scheme"]["a"]
    assert [type(each) for each in (first, second["b"][0], sent["max"])] == [Int64] * 3
    assert [type(each) for each in (sent["scheme"]["c"], sent["halted"])] == [bool, bool]


def test_an_older_document_without_a_scheme_is_of_a_plain_tag(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    mongo_bench.database["tags"].update_one({"_id": "orders"}, {"$unset": {"scheme": ""}})
    assert get(mongo_bench.store).scheme == {}
    assert reserve(mongo_bench.open()).tag.scheme == {}
    assert mongo_bench.store.configure("orders", scheme=SCHEME, timeout=TIMEOUT).scheme == SCHEME


@pytest.mark.parametrize("way", ["create", "configure", "again"])
def test_a_program_that_knows_of_no_scheme_is_refused_once_a_tag_has_one(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    create(mongo_bench.store)
    create(mongo_bench.store, "users", scheme={})
    mongo_bench.store.configure("users", scheme={}, timeout=TIMEOUT)
    assert schema(mongo_bench) == 1
    if way == "create":
        create(mongo_bench.store, "new", scheme=SCHEME)
    elif way == "configure":
        mongo_bench.store.configure("orders", scheme=SCHEME, timeout=TIMEOUT)
    else:
        mongo_bench.store.delete("orders", timeout=TIMEOUT)
        create(mongo_bench.store, scheme={"format": "{seq}"})
    assert schema(mongo_bench) == 2
    mongo_bench.store.configure("orders", scheme={}, timeout=TIMEOUT)
    assert get(mongo_bench.open()).scheme == {}
    monkeypatch.setattr("persistence.mongodb.SCHEMA", 1)
    with pytest.raises(Misconfigured, match="upgrade"):
        get(mongo_bench.open())


def _overtaken(bench: MongoBench, monkeypatch: pytest.MonkeyPatch) -> Tag:
    """Change the scheme while somebody else does, between what the store reads and what it writes."""
    store, other, live = bench.store, bench.open(), _Session.live
    seen = create(store).version

    def slow(self: _Session, tag: str) -> Any:
        found = live(self, tag)
        monkeypatch.setattr(_Session, "live", live)
        other.configure("orders", scheme={"format": "theirs"}, timeout=TIMEOUT)
        return found

    monkeypatch.setattr(_Session, "live", slow)
    return store.configure("orders", scheme={"format": "mine"}, seen=seen, timeout=TIMEOUT)


def test_a_change_between_the_reading_and_the_writing_is_noticed(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VersionMoved):
        _overtaken(mongo_bench, monkeypatch)
    assert get(mongo_bench.store).scheme == {"format": "theirs"}


def test_mutation_without_the_version_in_the_filter_a_change_is_lost(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = _Session.change

    def weak(self: _Session, tag: str, condition: dict[str, Any], update: Any) -> Any:
        return change(self, tag, {name: each for name, each in condition.items() if name != "version"}, update)

    monkeypatch.setattr(_Session, "change", weak)
    assert _overtaken(mongo_bench, monkeypatch).scheme == {"format": "mine"}
    assert get(mongo_bench.open()).scheme == {"format": "mine"}
