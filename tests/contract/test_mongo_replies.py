"""What the MongoDB store makes of each reply: an outage of the majority, a refusal, a retry, an index that is missing.

The replies are falsified in a proxy.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pymongo
import pytest
from pymongo.uri_parser import parse_uri

from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.server import service
from tests.contract.benches import PATIENT, TIMEOUT, MongoBench, create, get, reserve, spans
from tests.servers.mongo_wire import MongoProxy
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def wire(mongo_bench: MongoBench) -> Iterator[MongoProxy]:
    host, port = parse_uri(mongo_bench.url)["nodelist"][0]
    with MongoProxy((host, port)) as proxy:
        yield proxy


@pytest.fixture
def far(mongo_bench: MongoBench, wire: MongoProxy) -> Iterator[Callable[[], MongoStore]]:
    """Stores behind the proxy."""
    stores = []

    def opening() -> MongoStore:
        stores.append(MongoStore.open(wire.mongo_url(mongo_bench.database.name, PATIENT)))
        return stores[-1]

    yield opening
    for store in stores:
        store.close()


def test_without_a_majority_an_outage_costs_a_segment_and_not_one_an_attempt(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    create(mongo_bench.store, "users", step=10)
    store = far()
    assert spans([reserve(store)]) == [(0, 10)]
    wire.spoil()
    for tag in ("orders", "users") * 5:
        with pytest.raises(Unconfirmed):
            reserve(store, tag=tag)
    assert [get(mongo_bench.store, tag).max for tag in ("orders", "users")] == [20, 0]
    # A process that begins meanwhile can read.
    assert get(far()).max == 20
    wire.pass_through()
    assert spans([reserve(store), reserve(store)]) == [(20, 30), (30, 40)]
    until(lambda: not building(), TIMEOUT, "no thread sends anything beside it")
    wire.delivered.clear()
    reserve(store)
    assert wire.delivered == ["findAndModify", "insert"]  # nothing is asked twice once it goes well


def test_a_ledger_that_may_not_be_written_to_costs_a_segment_and_not_one_an_attempt(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    store = far()
    reserve(store)
    wire.refuse_collection("issuer_segments", 13, "not authorized on issuer_segments")
    with pytest.raises(Unconfirmed, match="not authorized"):
        reserve(store)
    for _ in range(5):
        with pytest.raises(Misconfigured, match="not authorized"):
            reserve(store)
    assert get(mongo_bench.store).max == 20


def test_a_store_that_was_replaced_meanwhile_is_looked_at_again(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    store = far()
    reserve(store)
    until(lambda: not building(), TIMEOUT, "no index is made, which would be struck instead")
    wire.spoil(times=1)
    with pytest.raises(Unconfirmed):
        reserve(store)
    other = "0123456789abcdef01234567"
    mongo_bench.database["issuer_meta"].update_one({"_id": "store"}, {"$set": {"id": other}})
    with pytest.raises(Unconfirmed, match="a backup was restored"):
        reserve(store)
    assert store.store_id(timeout=TIMEOUT) == other
    assert reserve(store).low >= 20


@pytest.mark.parametrize(
    ("code", "message"), [(13, "not authorized on x"), (18, "Authentication failed."), (8000, "user is not allowed")]
)
def test_a_refusal_says_misconfigured_only_if_nothing_can_have_changed(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore], code: int, message: str
) -> None:
    create(mongo_bench.store, step=10)
    client: pymongo.MongoClient[dict[str, Any]]
    with pymongo.MongoClient(wire.mongo_url(mongo_bench.database.name, PATIENT)) as client:
        for store, clean in ((far(), Misconfigured), (MongoStore(client.get_default_database()), Unconfirmed)):
            reserve(store)
            before = get(mongo_bench.store).max
            # Refused at once: nothing has changed. Of another's client it can't be known what it had sent before.
            wire.fail("findAndModify", code, message)
            with pytest.raises(clean, match=message):
                reserve(store)
            assert get(mongo_bench.store).max == before
            reserve(store)
            # Its entry in the ledger is refused, or what pymongo sends again by itself: the range is spent.
            wire.fail("insert", code, message)
            with pytest.raises(Unconfirmed, match=message):
                reserve(store)
            wire.lose_then_fail("findAndModify", code, message)
            with pytest.raises(Unconfirmed, match=message):
                reserve(store)
            wire.pass_through()
            assert get(mongo_bench.store).max == before + 30


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (2, "Retryable writes are not supported. Please disable retryable writes by specifying retrywrites=false"),
        (301, "Not supported"),
        (20, "Transaction numbers are only allowed on a replica set member or mongos"),
    ],
)
def test_a_server_without_retryable_writes_is_told_as_what_it_is(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore], code: int, message: str
) -> None:
    create(mongo_bench.store, step=10)
    wire.fail("findAndModify", code, message, times=None)
    with pytest.raises(Misconfigured, match="add retryWrites=false"):
        reserve(far())
    wire.fail("findAndModify", 2, "some other bad value")
    with pytest.raises(Unconfirmed, match="some other bad value"):
        reserve(far())
    assert get(mongo_bench.store).max == 0


def test_no_call_waits_for_the_ledgers_index_and_none_fails_for_it(
    mongo_bench: MongoBench, wire: MongoProxy, far: Callable[[], MongoStore], caplog: pytest.LogCaptureFixture
) -> None:
    create(mongo_bench.store, step=10)
    ledger = mongo_bench.database["issuer_segments"]
    ledger.drop_indexes()
    wire.hold(match=b"createIndexes")
    store = far()
    assert spans([reserve(store)]) == [(0, 10)]
    assert until(lambda: wire.held, TIMEOUT)
    assert get(store).max == 10
    wire.release()
    assert until(lambda: not building(), TIMEOUT)
    with caplog.at_level(logging.WARNING, "issuer.store"):
        wire.fail("createIndexes", 13, "not authorized")
        assert reserve(far()).low == 10  # the index is there
        assert until(lambda: not building(), TIMEOUT)
        assert not caplog.records
        ledger.drop_indexes()
        store = far()
        assert reserve(store).low == 20
        assert until(lambda: not building(), TIMEOUT)
        mongo_bench.database.drop_collection("issuer_meta")
        mongo_bench.database.drop_collection("issuer_tags")
        mongo_bench.database.drop_collection("issuer_segments")
        wire.fail("createIndexes", 13, "not authorized")
        create(far())  # in a new store it is made at once, and needn't be there
    assert [each.message.count("the index of the ledger could not be created") for each in caplog.records] == [1, 1]
    assert wire.hits == 3
    # Once in a process.
    get(store)
    reserve(store)
    assert not building()


def building() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "issuer-index"]


def test_services_whose_regions_can_repeat_a_range_are_known_by_their_hosts() -> None:
    assert service(["acct-westeurope.mongo.cosmos.azure.com", "x"]) == "cosmos-ru"
    assert service(["fc-1.global.MONGOCLUSTER.cosmos.azure.com"]) == "cosmos-vcore"
    assert service(["cluster0.abc.mongodb.net", "mongo.cosmos.azure.com.example.org"]) is None
