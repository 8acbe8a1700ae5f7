"""What only the MongoDB store promises: its documents, its guarantees, and what it makes of faults."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pymongo
import pytest
from bson.int64 import Int64
from pymongo import ReadPreference
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.uri_parser import parse_uri

from issuer_persistence.errors import (
    LeaseOnStrict,
    LimitHit,
    LimitTooLow,
    Misconfigured,
    StepsCrossed,
    TagPresent,
    Unconfirmed,
    VersionMoved,
)
from issuer_persistence.ledger import Purpose
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.call import SCHEMA, MongoCall
from issuer_persistence.records import LEASE_MOST, TagChanges, TagSettings, now_ms
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.stores.benches import (
    PATIENT,
    SCHEME,
    TIMEOUT,
    MongoBench,
    before,
    check_contiguous,
    create,
    get,
    ranges,
    reserve,
    spans,
)
from tests.stores.processes import finish, run_python, segments
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from issuer_persistence.records import Tag

    Overtake = Callable[[Callable[[], object]], None]


@pytest.fixture
def proxy(mongo_bench: MongoBench) -> Iterator[FaultProxy]:
    host, port = parse_uri(mongo_bench.url)["nodelist"][0]
    with FaultProxy((host, port)) as proxy:
        yield proxy


@pytest.fixture
def far(mongo_bench: MongoBench, proxy: FaultProxy) -> Iterator[MongoStore]:
    """A store that reaches the database through the proxy, and doesn't send anything twice by itself."""
    name = mongo_bench.database.name
    options = f"directConnection=true&retryWrites=false&retryReads=false&{PATIENT}"
    store = MongoStore.open(f"mongodb://127.0.0.1:{proxy.port}/{name}?{options}")
    yield store
    store.close()


@pytest.fixture
def overtake(monkeypatch: pytest.MonkeyPatch) -> Overtake:
    """Let something happen once, after the store has read a tag and before it sends the change."""
    reads = {name: getattr(MongoCall, name) for name in ("read", "read_many")}

    def take(what: Callable[[], object]) -> None:
        def slow(name: str) -> Callable[..., Any]:
            def read(self: MongoCall, wanted: Any) -> Any:
                found = reads[name](self, wanted)
                for each, real in reads.items():
                    monkeypatch.setattr(MongoCall, each, real)
                what()
                return found

            return read

        for each in reads:
            monkeypatch.setattr(MongoCall, each, slow(each))

    return take


@pytest.mark.covers("3.15")
def test_a_tag_is_one_document(mongo_bench: MongoBench) -> None:
    made = create(mongo_bench.store, above=2**40, step=2**41, order="trend", lease=LEASE_MOST, scheme=SCHEME)
    for extended in (False, True):
        document = mongo_bench.raw()
        assert {"_id", "bizTag", "max", "step", "timestamp", "version"} <= set(document)
        assert document["_id"] == document["bizTag"] == "orders"
        assert (document["max"], document["step"]) == (2**40 + extended * 2**41, 2**41)
        assert all(isinstance(document[name], Int64) for name in ("max", "step", "limit", "timestamp", "lease"))
        assert abs(document["timestamp"] / 1000 - time.time()) < 60
        assert document["scheme"] == SCHEME
        assert isinstance(document["scheme"]["stride"][0]["from"], Int64)
        if not extended:
            assert document["version"] == made.version
            assert reserve(mongo_bench.store).version == mongo_bench.raw()["version"] != made.version
    mongo_bench.store.configure("orders", TagChanges(scheme={"options": {"a": 1}}), timeout=TIMEOUT)
    assert mongo_bench.raw()["scheme"] == {"options": {"a": 1}}
    index = [("tag", 1), ("high", -1), ("low", -1), ("_id", -1)]
    found = mongo_bench.database["issuer_segments"].list_indexes()
    assert index in [list(each["key"].items()) for each in found]
    # What it doesn't have is absent, or empty.
    mongo_bench.store.delete("orders", timeout=TIMEOUT)
    create(mongo_bench.store, "users", step=10, limit=15, order="trend")
    for _ in range(2):  # the second, at the limit, writes the whole document
        reserve(mongo_bench.store, tag="users")
        assert "lease" not in mongo_bench.raw("users")
        assert mongo_bench.raw("users")["scheme"] == {}


def test_a_lease_never_reaches_a_strict_tag_that_took_the_place(mongo_bench: MongoBench, overtake: Overtake) -> None:
    store, other = mongo_bench.store, mongo_bench.open()
    create(store, order="trend")

    def made_again() -> None:
        other.delete("orders", timeout=TIMEOUT)
        create(other, order="strict")

    overtake(made_again)
    with pytest.raises(LeaseOnStrict):
        store.configure("orders", TagChanges(lease=5), timeout=TIMEOUT)
    assert "lease" not in mongo_bench.raw()


def test_two_changes_at_once_never_set_a_lowest_step_above_the_highest_one(
    mongo_bench: MongoBench, overtake: Overtake
) -> None:
    store, other = mongo_bench.store, mongo_bench.open()
    create(store, min_step=40)
    mongo_bench.database["issuer_tags"].update_one({}, {"$unset": {"max_step": ""}})  # as an older program writes it
    overtake(lambda: other.configure("orders", TagChanges(max_step=50), timeout=TIMEOUT))
    with pytest.raises(StepsCrossed):
        store.configure("orders", TagChanges(min_step=60), timeout=TIMEOUT)
    assert (get(other).min_step, get(other).max_step) == (40, 50)
    assert store.configure("orders", TagChanges(min_step=50), timeout=TIMEOUT).min_step == 50


def test_a_delete_that_comes_late_buries_no_tag_that_was_made_again(
    mongo_bench: MongoBench, overtake: Overtake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller has given up by then, and so doesn't ask for another one."""
    store, other = mongo_bench.store, mongo_bench.open()
    create(store)
    mongo_bench.tamper("orders", created=Int64(5))  # long ago

    def given_up(_: MongoCall) -> None:
        raise Unconfirmed("the caller's time is over")

    def made_again() -> None:
        other.delete("orders", timeout=TIMEOUT)
        create(other)
        monkeypatch.setattr(MongoCall, "pause", given_up)

    overtake(made_again)
    with pytest.raises(Unconfirmed, match="time is over"):
        store.delete("orders", timeout=TIMEOUT)
    assert not get(other).deleted


@pytest.mark.covers("2.12")
def test_who_loses_the_race_for_a_block_tries_again(mongo_bench: MongoBench, overtake: Overtake) -> None:
    other, won = mongo_bench.open(), []
    create(other, step=10, limit=25)
    overtake(lambda: won.append(reserve(other)))
    assert spans([reserve(mongo_bench.open())]) == [(10, 20)]  # opened now, so that it has to read
    overtake(lambda: won.append(reserve(other)))
    with pytest.raises(LimitHit):
        reserve(mongo_bench.open())
    assert spans(won) == [(0, 10), (20, 25)]
    assert ranges(other) == [(0, 10), (10, 20), (20, 25)]
    other.delete("orders", timeout=TIMEOUT)
    overtake(lambda: create(other, limit=100))  # and the race for a tombstone
    with pytest.raises(TagPresent):
        create(mongo_bench.store, limit=1000)
    assert get(other).limit == 100


def test_what_max_and_limit_have_become_meanwhile_holds(mongo_bench: MongoBench, overtake: Overtake) -> None:
    store, other = mongo_bench.store, mongo_bench.open()
    create(store, step=10, limit=1000)
    overtake(lambda: reserve(other, 20))
    with pytest.raises(LimitTooLow):
        store.configure("orders", TagChanges(limit=15), timeout=TIMEOUT)
    overtake(lambda: other.configure("orders", TagChanges(limit=500), timeout=TIMEOUT))
    with pytest.raises(LimitTooLow):
        store.configure("orders", TagChanges(raise_to=900), timeout=TIMEOUT)
    assert (get(other).max, get(other).limit) == (20, 500)
    overtake(lambda: reserve(other, 20))
    assert store.configure("orders", TagChanges(raise_to=30), timeout=TIMEOUT).max == 40  # never lowered


def test_the_guarantees_are_forced_whatever_the_url_says(mongo_bench: MongoBench) -> None:
    began = now_ms()
    plain = mongo_bench.store.examine(timeout=TIMEOUT)
    assert plain.time is not None
    assert began - 60_000 <= plain.time <= now_ms() + 60_000
    assert plain.version
    assert plain.replica_set is not None
    assert (plain.asked_concern, plain.retry_writes) == ({}, True)
    options = "w=1&journal=false&retryWrites=false&readPreference=secondaryPreferred"
    weak = MongoStore.open(f"{mongo_bench.url}&{options}")
    with weak._call(TIMEOUT) as call:
        for collection in (call.tags, call.segments, call.meta):
            assert collection.write_concern.document == {"w": "majority", "j": True}
            assert collection.read_preference == ReadPreference.PRIMARY
    seen = weak.examine(timeout=TIMEOUT)
    weak.close()
    assert plain.write_concern == seen.write_concern == {"w": "majority", "j": True}
    assert (seen.asked_concern, seen.retry_writes) == ({"w": 1, "j": False}, False)
    with pytest.raises(Misconfigured, match="w=0"):
        MongoStore(mongo_bench.database.with_options(write_concern=pymongo.WriteConcern(w=0)))


@pytest.mark.skipif(not hasattr(ClientSession, "bind"), reason="this pymongo is older than 4.17: sessions aren't bound")
@pytest.mark.covers("2.6", "2.7", "2.14")
def test_a_session_that_the_caller_has_bound_is_not_joined(mongo_bench: MongoBench) -> None:
    """Nor its transaction: rolled back, it would take the reservations with it."""
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(mongo_bench.url)
    lent = MongoStore(client.get_default_database())
    create(lent, step=10)
    with client.start_session() as session, session.bind(end_session=False):
        session.start_transaction()
        got = spans([reserve(lent), reserve(mongo_bench.store), reserve(lent)])
        session.abort_transaction()
    check_contiguous([*got, *spans([reserve(lent)])], 0, 40)
    assert ranges(mongo_bench.store)[:-1] == got
    lent.close()
    assert client.admin.command("ping")["ok"]  # a client that isn't ours stays open
    client.close()


@pytest.mark.covers("2.4")
def test_a_server_that_is_dead_or_falls_silent_costs_no_more_than_the_timeout(
    mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy
) -> None:
    create(mongo_bench.store, step=10)
    reserve(far)
    proxy.blackhole()
    for url in ("", f"mongodb://127.0.0.1:{free_port()}", f"mongodb://127.0.0.1:{proxy.port}"):
        store = MongoStore.open(f"{url}/x?{PATIENT}") if url else far  # without a connection, or with one
        started = time.monotonic()
        with pytest.raises(Unconfirmed):
            store.reserve("orders", None, purpose=Purpose("test"), timeout=0.2)
        assert time.monotonic() - started < 20
        if url:
            store.close()
    proxy.pass_through()
    # The monitor of the connections may still find a connection dead, and pause the pool, as a call begins.
    assert until(lambda: reserve(far), ignoring=(Unconfirmed,)).low >= 10


@pytest.mark.covers("0.24", "1.22")
def test_what_is_lost_or_sent_twice_on_the_way_is_a_gap_and_never_a_repeat(
    mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy
) -> None:
    create(mongo_bench.store, step=10)
    assert reserve(far).low == 0
    for lose, lost in (
        (proxy.drop_replies, b"findAndModify"),
        (proxy.drop_replies, b"insert"),
        (proxy.drop_requests, b"insert"),  # without its ledger entry it is not usable
    ):
        lose(match=lost, times=1)
        with pytest.raises(Unconfirmed) as caught:
            reserve(far)
        assert caught.value.__cause__ is not None
        proxy.pass_through()
    assert get(mongo_bench.store).max == 40
    proxy.duplicate(match=b"findAndModify", times=1)
    assert spans([reserve(far)]) == [(50, 60)]
    assert ranges(mongo_bench.store) == [(0, 10), (20, 30), (50, 60)]


def test_errors_of_the_driver_are_unavailable(mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(mongo_bench.store)
    for error in (
        pymongo.errors.WriteConcernError("waiting for replication timed out", code=64),
        pymongo.errors.NotPrimaryError("not primary"),
        OverflowError("MongoDB can only handle up to 8-byte ints"),
    ):
        monkeypatch.setattr(Collection, "find_one_and_update", Mock(side_effect=error))
        with pytest.raises(Unconfirmed) as caught:
            mongo_bench.store.configure("orders", TagChanges(step=5), timeout=TIMEOUT)
        assert caught.value.__cause__ is error


_FORK = """
import os, sys
import pymongo
from issuer_persistence.errors import Misconfigured
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.ledger import Purpose
own, given = MongoStore.open(sys.argv[1]), pymongo.MongoClient(sys.argv[1])
lent = MongoStore(given.get_default_database())
lent.get("orders", timeout=60)

def show():
    for _ in range(3):
        got = own.reserve("orders", None, purpose=Purpose("fork"), timeout=60)
        os.write(1, f'{got.low} {got.high}{os.linesep}'.encode())  # in one piece, whoever else writes

def child():
    try:
        lent.get("orders", timeout=60)
    except Misconfigured:
        show()
        own.close()
        os._exit(0)
    os._exit(1)

show()
children = [os.fork() or child() for _ in range(8)]
show()
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
show()
own.close(), given.close()
"""


@pytest.mark.covers("U.14")
def test_forked_children_make_clients_of_their_own(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    got = segments(finish(run_python(["-c", _FORK, mongo_bench.url])))
    assert len(got) == 11 * 3
    check_contiguous(got, 0, 330)


def test_an_older_document_without_a_scheme_is_of_a_plain_tag(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    mongo_bench.database["issuer_tags"].update_one({"_id": "orders"}, {"$unset": {"scheme": ""}})
    assert get(mongo_bench.store).scheme == {}
    assert reserve(mongo_bench.open()).tag.scheme == {}
    assert mongo_bench.store.configure("orders", TagChanges(scheme=SCHEME), timeout=TIMEOUT).scheme == SCHEME


def test_a_server_that_hangs_keeps_no_program_from_its_end(far: MongoStore, proxy: FaultProxy) -> None:
    """The driver sends it the end of its sessions, and would wait for an answer as long as for any other."""
    create(far)
    proxy.hold()
    ending = threading.Thread(target=far.close, daemon=True)
    ending.start()
    ending.join(TIMEOUT / 2)
    hangs = ending.is_alive()
    proxy.release()
    assert not hangs
    ending.join()


def test_who_reads_writes_nothing_into_an_empty_database(mongo_bench: MongoBench) -> None:
    """Nor an index into one that an older version has made."""
    store, database = mongo_bench.store, mongo_bench.database
    assert (store.store_id(timeout=TIMEOUT), store.tags(count=1000, timeout=TIMEOUT)) == ("", [])
    assert store.get("orders", timeout=TIMEOUT) is None
    assert not ranges(store)
    assert not store.segments("orders", count=9, timeout=TIMEOUT).entries
    assert store.examine(timeout=TIMEOUT).kind == "mongodb"
    assert database.list_collection_names() == []
    assert store.upgrade(timeout=TIMEOUT) == (1, 1)
    create(store)
    assert store.store_id(timeout=TIMEOUT) == mongo_bench.open().store_id(timeout=TIMEOUT) != ""
    database["issuer_segments"].drop_indexes()
    reader = mongo_bench.open()
    assert (get(reader), ranges(reader)) == (get(store), [])
    assert list(database["issuer_segments"].index_information()) in ([], ["_id_"])
    reserve(reader)
    until(lambda: len(database["issuer_segments"].index_information()) > 1, TIMEOUT)


def test_a_newer_schema_is_refused_and_a_tag_with_a_scheme_is_one(mongo_bench: MongoBench) -> None:
    """So a program that knows of no scheme does no harm to it."""
    store, meta = mongo_bench.store, mongo_bench.database["issuer_meta"]
    ways: list[Callable[[], object]] = [
        partial(create, store, "new", scheme=SCHEME),
        partial(store.configure, "orders", TagChanges(scheme=SCHEME), timeout=TIMEOUT),
        partial(create, store, "buried", scheme={"format": "{seq}"}),
    ]
    create(store)
    create(store, "buried", scheme={})
    store.configure("buried", TagChanges(scheme={}), timeout=TIMEOUT)
    store.delete("buried", timeout=TIMEOUT)
    for way in ways:
        assert [each["schema"] for each in meta.find()] == [1]
        way()
        assert [each["schema"] for each in meta.find()] == [2]
        meta.update_one({}, {"$set": {"schema": 1}})
    for other, message in ((SCHEMA + 1, "upgrade"), ("x", "has documents")):
        meta.update_one({}, {"$set": {"schema": other}})
        with pytest.raises(Misconfigured, match=message):
            get(mongo_bench.open())


def test_a_change_between_the_reading_and_the_writing_is_noticed(mongo_bench: MongoBench, overtake: Overtake) -> None:
    store, other = mongo_bench.store, mongo_bench.open()
    seen = create(store).version
    overtake(partial(other.configure, "orders", TagChanges(scheme={"format": "theirs"}), timeout=TIMEOUT))
    with pytest.raises(VersionMoved):
        store.configure("orders", TagChanges(scheme={"format": "mine"}, seen=seen), timeout=TIMEOUT)
    assert get(other).scheme == {"format": "theirs"}


def create_between(mongo_bench: MongoBench, tag: str) -> AbstractContextManager[None]:
    """Another process creates the tag after `create_many` has read the records, and before it writes."""
    return before(MongoCall, "_insert", partial(create, mongo_bench.open(), tag), once=True)


@pytest.mark.covers("U.20")
@pytest.mark.parametrize("late", ["b", "dead2"])
def test_tags_created_before_one_that_exists_are_removed(mongo_bench: MongoBench, late: str) -> None:
    store = mongo_bench.store
    for tag in ("dead1", "dead2"):
        create(store, tag, above=5)
        store.delete(tag, timeout=TIMEOUT)
    with create_between(mongo_bench, late), pytest.raises(TagPresent) as caught:
        store.create_many(dict.fromkeys(("a", "dead1", "b", "dead2", "c"), TagSettings()), timeout=TIMEOUT)
    assert caught.value.tag == late
    assert [each.tag for each in store.tags(count=9, timeout=TIMEOUT)] == [late]
    assert [store.get(tag, timeout=TIMEOUT) for tag in ("a", "c")] == [None, None]
    assert (get(store, "dead1").deleted, get(store, "dead1").max) == (True, 5)


@pytest.mark.covers("U.20")
@pytest.mark.parametrize("used", ["a", "dead"])
def test_a_tag_that_is_used_before_its_creation_is_undone_keeps_its_numbers(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    store, other, undo = mongo_bench.store, mongo_bench.open(), MongoCall._undo
    for tag in ("dead", "dead2"):
        create(store, tag)
        store.delete(tag, timeout=TIMEOUT)

    def undo_late(call: MongoCall, done: Mapping[str, Tag], found: Mapping[str, Tag]) -> None:
        if done:  # the other process's own attempts to create a tag undo nothing
            reserve(other, tag=used)
        undo(call, done, found)

    monkeypatch.setattr(MongoCall, "_undo", undo_late)
    with create_between(mongo_bench, "dead2"), pytest.raises(Unconfirmed, match="in use already"):
        store.create_many(dict.fromkeys(("a", "dead", "c", "dead2"), TagSettings(step=10)), timeout=TIMEOUT)
    assert [each.tag for each in store.tags(count=9, timeout=TIMEOUT)] == sorted([used, "dead2"])
    assert reserve(store, tag=used).low == 10
