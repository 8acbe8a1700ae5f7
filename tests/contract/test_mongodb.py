"""What only the MongoDB store promises: its documents, its guarantees, and what it makes of faults."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pymongo
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from pymongo import ReadPreference
from pymongo.uri_parser import parse_uri

from persistence.errors import Corrupt, LeaseOnStrict, Misconfigured, StoreError, TagMissing, Unavailable
from persistence.mongodb import SCHEMA, MongoStore, _Session
from persistence.records import LEASE_MOST
from tests.contract.benches import TIMEOUT, MongoBench, check_contiguous, create, get, ranges, reserve
from tests.contract.processes import finish, run_python
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from persistence.contract import Store
    from tests.servers.mongo import MongoServer


@pytest.fixture
def proxy(mongo_bench: MongoBench) -> Iterator[FaultProxy]:
    host, port = parse_uri(mongo_bench.url)["nodelist"][0]
    with FaultProxy((host, port)) as proxy:
        yield proxy


@pytest.fixture
def far(mongo_bench: MongoBench, proxy: FaultProxy) -> Iterator[MongoStore]:
    """A store that reaches the database through the proxy, and doesn't send anything twice by itself."""
    name = mongo_bench.database.name
    options = "directConnection=true&retryWrites=false&retryReads=false"
    store = MongoStore.open(f"mongodb://127.0.0.1:{proxy.port}/{name}?{options}")
    yield store
    store.close()


# ---------------------------------------------------------------------------------------------------------- documents


@pytest.mark.covers("3.15")
def test_a_tag_is_one_document(mongo_bench: MongoBench) -> None:
    made = create(mongo_bench.store, above=2**40, step=2**41)
    for extended in (False, True):
        document = mongo_bench.document()
        assert {"_id", "bizTag", "max", "step", "timestamp", "version"} <= set(document)
        assert document["_id"] == document["bizTag"] == "orders"
        assert (document["max"], document["step"]) == (2**40 + extended * 2**41, 2**41)
        assert all(isinstance(document[name], Int64) for name in ("max", "step", "limit", "timestamp"))
        assert abs(document["timestamp"] / 1000 - time.time()) < 60
        if not extended:
            assert document["version"] == made.version
            assert reserve(mongo_bench.store).version == mongo_bench.document()["version"] != made.version


def test_a_lease_is_an_int64_or_absent(mongo_bench: MongoBench) -> None:
    for lease in (0, 5, LEASE_MOST):
        create(mongo_bench.store, str(lease), order="trend", lease=lease)
        document = mongo_bench.document(str(lease))
        assert document["lease"] == lease
        assert isinstance(document["lease"], Int64)
    create(mongo_bench.store, order="trend", lease=7)
    mongo_bench.store.delete("orders", timeout=TIMEOUT)
    create(mongo_bench.store, step=10, limit=15, order="trend")
    for _ in range(2):  # the second, at the limit, writes the whole document
        reserve(mongo_bench.store)
        assert "lease" not in mongo_bench.document()


def test_a_lease_never_reaches_a_strict_tag_that_took_the_place(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, live = mongo_bench.store, mongo_bench.open(), _Session.live
    create(store, order="trend")

    def slow(self: _Session, tag: str) -> Any:
        found = live(self, tag)
        monkeypatch.undo()
        other.delete("orders", timeout=TIMEOUT)
        create(other, order="strict")
        return found

    monkeypatch.setattr("persistence.mongodb._Session.live", slow)
    with pytest.raises(LeaseOnStrict):
        store.configure("orders", lease=5, timeout=TIMEOUT)
    assert "lease" not in mongo_bench.document()


def test_what_an_older_program_wrote_is_understood(mongo_bench: MongoBench) -> None:
    # It knows no lease: a new document has none, and a tag made again keeps the field that it found there.
    store, tags = mongo_bench.store, mongo_bench.database["tags"]
    create(store, step=10, order="trend", lease=5)
    tags.update_one({"_id": "orders"}, {"$set": {"order": "strict"}})
    assert (get(store).order, get(store).lease, reserve(store).tag.lease) == ("strict", None, None)
    assert store.configure("orders", lease=0, timeout=TIMEOUT).lease == 0


def test_the_guarantees_are_forced_whatever_the_url_says(mongo_bench: MongoBench) -> None:
    weak = MongoStore.open(f"{mongo_bench.url}?w=1&journal=false&readPreference=secondaryPreferred")
    with weak._session(TIMEOUT) as session:
        for collection in (session.tags, session.segments, session.meta):
            assert collection.write_concern.document == {"w": "majority", "j": True}
            assert collection.read_preference == ReadPreference.PRIMARY
    weak.close()


def test_a_reservation_is_one_update_and_one_insert(mongo_bench: MongoBench) -> None:
    sent: list[str] = []

    class Listener(pymongo.monitoring.CommandListener):
        def started(self, event: pymongo.monitoring.CommandStartedEvent) -> None:
            sent.append(event.command_name)
            if event.command_name == "findAndModify":
                assert event.command["writeConcern"]["w"] == "majority"

        def succeeded(self, event: pymongo.monitoring.CommandSucceededEvent) -> None: ...

        def failed(self, event: pymongo.monitoring.CommandFailedEvent) -> None: ...

    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(mongo_bench.url, event_listeners=[Listener()])
    store = MongoStore(client.get_default_database())
    create(store, step=10)
    reserve(store)
    sent.clear()
    reserve(store)
    assert sent == ["findAndModify", "insert"]
    store.close()
    assert client.admin.command("ping")["ok"]  # a client that isn't ours stays open
    client.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max", 5.0), ("max", 2.0**60), ("max", Decimal128("5")), ("max", "5"), ("max", None), ("max", True),
        ("max", Int64(-1)), ("step", 10.0), ("step", 0), ("limit", 1e6), ("order", "other"), ("order", 3),
        ("halted", 0), ("deleted", None), ("version", 7), ("description", None), ("created", "now"),
        ("lease", 5.0), ("lease", True), ("lease", Decimal128("5")), ("lease", "5"), ("lease", LEASE_MOST + 1),
    ],
)  # fmt: skip
def test_a_foreign_document_is_corrupt_and_left_alone(mongo_bench: MongoBench, field: str, value: object) -> None:
    create(mongo_bench.store, step=10)
    mongo_bench.tamper("orders", **{field: value})
    before, store = mongo_bench.document(), mongo_bench.store
    for call in (
        lambda: reserve(store),
        lambda: reserve(store, 5),
        lambda: store.get("orders", timeout=TIMEOUT),
        lambda: store.tags(timeout=TIMEOUT),
        lambda: store.configure("orders", step=5, timeout=TIMEOUT),
        lambda: create(store),
    ):
        with pytest.raises(Corrupt):
            call()
    assert mongo_bench.document() == before
    assert ranges(store) == []


def test_a_max_that_became_a_float_behind_our_back_is_never_counted_up(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    reserve(mongo_bench.store)  # the step and the limit are known now: no read precedes the next update
    mongo_bench.tamper("orders", max=10.0)
    with pytest.raises(Corrupt):
        reserve(mongo_bench.store)
    assert mongo_bench.document()["max"] == 10.0


def test_a_document_without_any_of_our_fields_is_corrupt(mongo_bench: MongoBench) -> None:
    mongo_bench.database["tags"].insert_one({"_id": "orders", "counter": 5})
    with pytest.raises(Corrupt):
        reserve(mongo_bench.store)
    mongo_bench.database["segments"].insert_one({"tag": "users", "high": 5})
    with pytest.raises(Corrupt):
        mongo_bench.store.ledger("users", newest=5, timeout=TIMEOUT)


def test_a_newer_schema_is_refused(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store)
    for change in ({"schema": SCHEMA + 1}, {"schema": "x"}):
        mongo_bench.database["meta"].update_one({"_id": "store"}, {"$set": change})
        with pytest.raises(Misconfigured):
            reserve(mongo_bench.open())


def test_the_ledger_has_an_index_by_tag_and_number(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store)
    keys = [list(each["key"].items()) for each in mongo_bench.database["segments"].list_indexes()]
    assert [("tag", 1), ("high", -1), ("low", -1), ("_id", -1)] in keys


# ------------------------------------------------------------------------------------------------------------- faults


@pytest.mark.covers("2.4")
def test_a_dead_or_mute_server_costs_no_more_than_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for port in (free_port(), mute.getsockname()[1]):
            store = MongoStore.open(f"mongodb://127.0.0.1:{port}/x")
            for call in (
                partial(store.get, "orders", timeout=0.3),
                partial(store.reserve, "orders", None, reason="test", timeout=0.3),
            ):
                started = time.monotonic()
                with pytest.raises(Unavailable):
                    call()
                assert time.monotonic() - started < 1.5
            store.close()


def test_a_server_that_falls_silent_costs_no_more_than_the_timeout(
    mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy
) -> None:
    create(mongo_bench.store, step=10)
    reserve(far)
    proxy.blackhole()
    started = time.monotonic()
    with pytest.raises(Unavailable):
        far.reserve("orders", None, reason="test", timeout=0.3)
    assert time.monotonic() - started < 1.5
    proxy.pass_through()
    assert reserve(far).low >= 10


def test_a_lost_reply_is_a_gap_and_never_a_repeat(mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy) -> None:
    create(mongo_bench.store, step=10)
    got = [reserve(far)]
    for lost in (b"findAndModify", b"insert"):
        proxy.drop_replies(match=lost, times=1)
        with pytest.raises(Unavailable) as caught:
            reserve(far)
        assert caught.value.__cause__ is not None
        proxy.pass_through()
        got.append(reserve(far))
    assert [each.low for each in got] == [0, 20, 40]


def test_without_its_ledger_entry_a_reservation_is_not_usable(
    mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy
) -> None:
    create(mongo_bench.store, step=10)
    reserve(far)
    proxy.drop_requests(match=b"insert", times=1)
    with pytest.raises(Unavailable):
        reserve(far)
    assert get(mongo_bench.store).max == 20
    assert ranges(mongo_bench.store) == [(0, 10)]


def test_a_hand_back_that_arrives_late_cuts_nobody(mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy) -> None:
    create(mongo_bench.store, step=10)
    mine = reserve(far)
    proxy.hold(match=b"findAndModify", times=1)
    with pytest.raises(Unavailable):
        far.hand_back([mine], 0, timeout=0.5)
    other = reserve(mongo_bench.store)
    far.close()
    proxy.release()
    until(lambda: proxy.open == 0)  # delivered and answered
    assert get(mongo_bench.store) == other.tag
    assert ranges(mongo_bench.store) == [(0, 0), (10, 20)]


def test_a_driver_that_sends_twice_costs_a_gap(mongo_bench: MongoBench, far: MongoStore, proxy: FaultProxy) -> None:
    create(mongo_bench.store, step=10)
    reserve(far)
    proxy.duplicate(match=b"findAndModify", times=1)
    got = reserve(far)
    assert (got.low, got.high) == (20, 30)
    assert ranges(mongo_bench.store) == [(0, 10), (20, 30)]


def test_kill_and_restart_of_the_server_keeps_what_was_given(mongo_server: MongoServer) -> None:
    store = MongoStore.open(f"{mongo_server.url}/x")
    create(store, step=10)
    got = [reserve(store) for _ in range(5)]
    mongo_server.kill()
    with pytest.raises(Unavailable):
        store.reserve("orders", None, reason="test", timeout=0.5)
    mongo_server.start()
    store.store_id(timeout=TIMEOUT)
    got += [reserve(store) for _ in range(5)]
    check_contiguous([(each.low, each.high) for each in got], 0, 100)
    assert ranges(store) == [(each.low, each.high) for each in got]
    store.close()


# ------------------------------------------------------------------------------------------------- set up wrongly; fork


def test_a_database_without_acknowledgement_is_refused(mongo_bench: MongoBench) -> None:
    unacknowledged = mongo_bench.database.with_options(write_concern=pymongo.WriteConcern(w=0))
    with pytest.raises(Misconfigured, match="w=0"):
        MongoStore(unacknowledged)


def test_a_lack_of_rights_is_misconfigured(mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(mongo_bench.store)

    def refuse(*_: object, **__: object) -> None:
        raise pymongo.errors.OperationFailure("not authorized on x to execute command", code=13)

    monkeypatch.setattr("pymongo.synchronous.collection.Collection.find_one", refuse)
    with pytest.raises(Misconfigured, match="not authorized"):
        mongo_bench.store.get("orders", timeout=TIMEOUT)


def test_any_other_error_of_the_driver_is_unavailable(mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(mongo_bench.store)
    for error in (
        pymongo.errors.WriteConcernError("waiting for replication timed out", code=64),
        pymongo.errors.NotPrimaryError("not primary"),
        OverflowError("MongoDB can only handle up to 8-byte ints"),
    ):

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        with monkeypatch.context() as broken:
            broken.setattr("pymongo.synchronous.collection.Collection.find_one_and_update", fail)
            with pytest.raises(Unavailable) as caught:
                mongo_bench.store.configure("orders", step=5, timeout=TIMEOUT)
        assert caught.value.__cause__ is error


_FORK = """
import os, sys
import pymongo
from persistence.errors import Misconfigured
from persistence.mongodb import MongoStore, _Session
own, given = MongoStore.open(sys.argv[1]), pymongo.MongoClient(sys.argv[1])
lent = MongoStore(given.get_default_database())
lent.get("orders", timeout=5)

def show(store):
    for _ in range(5):
        got = store.reserve("orders", None, reason="fork", timeout=5)
        os.write(1, f'{got.low} {got.high}{os.linesep}'.encode())  # in one piece, whoever else writes

show(own)
children = []
for _ in range(8):
    if (child := os.fork()) == 0:
        try:
            lent.get("orders", timeout=5)
        except Misconfigured:
            show(own)
            own.close()
            os._exit(0)
        os._exit(1)
    children.append(child)
show(own)
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
show(own)
own.close(), given.close()
"""


@pytest.mark.covers("U.14")
def test_forked_children_make_clients_of_their_own(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    lines = finish(run_python(["-c", _FORK, mongo_bench.url])).split("\n")
    got = [(int(low), int(high)) for low, high in (line.split() for line in lines if line)]
    assert len(got) == 11 * 5
    check_contiguous(got, 0, 550)


# ---------------------------------------------------------------- each guard taken out: then a promise must be broken


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take a field, or one operator of it, out of the conditions of every update."""
    change = _Session.change

    def take(field: str, operator: str = "") -> None:
        def weak(self: _Session, tag: str, condition: dict[str, Any], update: dict[str, Any]) -> Any:
            left = {name: value for name, value in condition.items() if name != field or operator}
            if operator and operator in left.get(field, {}):
                left[field] = {name: value for name, value in left[field].items() if name != operator}
            return change(self, tag, left, update)

        monkeypatch.setattr("persistence.mongodb._Session.change", weak)

    return take


def test_mutation_without_the_version_a_hand_back_cuts_a_foreign_segment(mongo_bench: MongoBench, without: Any) -> None:
    create(mongo_bench.store, step=100)
    mine = reserve(mongo_bench.store)
    mongo_bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    other = reserve(mongo_bench.store)
    without("version")
    assert mongo_bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    assert reserve(mongo_bench.store).low < other.high  # handed out twice


def is_legal(store: MongoStore, other: Store, at_least: int) -> bool:
    """Reserve, and say whether that was refused or gave what the record, as others see it, allows."""
    try:
        got = reserve(store, at_least=at_least)
    except StoreError:
        return True
    now = get(other)
    in_bounds = at_least <= got.low and got.high <= now.limit
    sized = got.high - got.low == now.segment or got.high == now.limit
    return in_bounds and sized and not now.halted and not now.deleted


SPOILERS: dict[str, Callable[[Store], object]] = {
    "limit": lambda other: other.configure("orders", limit=12, timeout=TIMEOUT),
    "step": lambda other: other.configure("orders", step=77, timeout=TIMEOUT),
    "ahead": lambda other: other.configure("orders", ahead=3, timeout=TIMEOUT),
    "halted": lambda other: other.halt("orders", below=500, timeout=TIMEOUT),
    "deleted": lambda other: other.delete("orders", timeout=TIMEOUT),
    "max $lte": lambda other: other.recover("orders", at_least=995, timeout=TIMEOUT),
    "max $gte": get,
}


@pytest.mark.parametrize("guard", SPOILERS)
@pytest.mark.parametrize("guarded", [True, False])
def test_mutation_each_guard_of_a_reservation_is_needed(
    mongo_bench: MongoBench, without: Any, guard: str, guarded: bool
) -> None:
    store, other = MongoStore(mongo_bench.database), mongo_bench.open()
    create(store, step=10, limit=1000)
    reserve(store)  # from now on it reserves without reading first
    SPOILERS[guard](other)
    if not guarded:
        without(*guard.split())
    assert is_legal(store, other, at_least=15 if guard == "max $gte" else 0) is guarded


def test_mutation_a_ledger_addressed_by_its_end_cuts_a_foreign_entry(
    mongo_bench: MongoBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(mongo_bench.store, step=100)
    mine = reserve(mongo_bench.store)
    mongo_bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    reserve(mongo_bench.store)
    mongo_bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    assert (0, 100) in ranges(mongo_bench.store)
    monkeypatch.setattr(
        "persistence.mongodb.UpdateOne",
        lambda _, update: pymongo.UpdateOne({"tag": "orders", "high": Int64(mine.high)}, update),
    )
    mongo_bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    assert (0, 100) not in ranges(mongo_bench.store)  # the ledger denies what is in use


def test_a_tag_deleted_behind_a_hint_is_missing(mongo_bench: MongoBench) -> None:
    create(mongo_bench.store, step=10)
    reserve(mongo_bench.store)
    mongo_bench.open().delete("orders", timeout=TIMEOUT)
    with pytest.raises(TagMissing):
        reserve(mongo_bench.store)
