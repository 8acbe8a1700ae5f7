"""What the MongoDB store makes of each reply: an outage of the majority, a refusal, a retry, an index that is missing.

The server fails by `failCommand`, and a proxy loses what it says.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.server import service, translated
from tests.servers.mongo import MongoServers
from tests.servers.ports import LOOPBACK
from tests.servers.proxy import FaultProxy
from tests.stores.benches import PATIENT, TIMEOUT, MongoBench, create, get, reserve, spans
from tests.stores.conftest import mongo_bench_at
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


#: Of the stores that fail; others go on.
FAR = "far"
WRITES = ("findAndModify", "insert", "update")
#: A write that was done on the primary, and that no majority has yet.
NO_MAJORITY = {"code": 64, "errmsg": "waiting for replication timed out"}


@pytest.fixture
def mongo_bench(mongo_server: MongoServers) -> Iterator[MongoBench]:
    yield from mongo_bench_at(mongo_server.url)


@pytest.fixture
def wire(mongo_server: MongoServers) -> Iterator[FaultProxy]:
    with FaultProxy((LOOPBACK, mongo_server.port)) as proxy:
        yield proxy


@pytest.fixture
def far_url(mongo_bench: MongoBench, wire: FaultProxy) -> str:
    return f"mongodb://{LOOPBACK}:{wire.port}/{mongo_bench.database.name}?directConnection=true&appname={FAR}&{PATIENT}"


@pytest.fixture
def far(far_url: str) -> Iterator[Callable[[], MongoStore]]:
    """Stores behind the proxy."""
    stores = []

    def opening() -> MongoStore:
        stores.append(MongoStore.open(far_url))
        return stores[-1]

    yield opening
    for store in stores:
        store.close()


def sent(mongo_server: MongoServers) -> Counter[str]:
    """How many commands of each kind the server has had so far."""
    with mongo_server.client() as client:
        commands = client.admin.command("serverStatus")["metrics"]["commands"]
    return Counter({name: commands[name]["total"] for name in (*WRITES, "find", "aggregate", "delete")})


def test_without_a_majority_an_outage_costs_a_segment_and_not_one_an_attempt(
    mongo_bench: MongoBench, mongo_server: MongoServers, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    create(mongo_bench.store, "users", step=10)
    store = far()
    assert spans([reserve(store)]) == [(0, 10)]
    with mongo_server.failing(*WRITES, writeConcernError=NO_MAJORITY, appName=FAR):
        for tag in ("orders", "users") * 5:
            with pytest.raises(Unconfirmed):
                reserve(store, tag=tag)
        assert [get(mongo_bench.store, tag).max for tag in ("orders", "users")] == [20, 0]
        # A process that begins meanwhile can read.
        assert get(far()).max == 20
    assert spans([reserve(store), reserve(store)]) == [(20, 30), (30, 40)]
    until(lambda: not building(), TIMEOUT, "no thread sends anything beside it")
    before = sent(mongo_server)
    reserve(store)
    assert sent(mongo_server) - before == {"findAndModify": 1, "insert": 1}  # nothing is asked twice once it goes well


def test_a_ledger_that_may_not_be_written_to_costs_a_segment_and_not_one_an_attempt(
    mongo_bench: MongoBench, mongo_server: MongoServers, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    store = far()
    reserve(store)
    ledger = mongo_bench.database["issuer_segments"].full_name
    with mongo_server.failing("insert", "update", errorCode=13, namespace=ledger, appName=FAR):
        with pytest.raises(Unconfirmed, match="Unauthorized"):
            reserve(store)
        for _ in range(5):
            with pytest.raises(Misconfigured, match="Unauthorized"):
                reserve(store)
    assert get(mongo_bench.store).max == 20


def test_a_store_that_was_replaced_meanwhile_is_looked_at_again(
    mongo_bench: MongoBench, mongo_server: MongoServers, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    store = far()
    reserve(store)
    until(lambda: not building(), TIMEOUT, "no index is made, which would be struck instead")
    with mongo_server.failing(*WRITES, writeConcernError=NO_MAJORITY, appName=FAR), pytest.raises(Unconfirmed):
        reserve(store)
    other = "0123456789abcdef01234567"
    mongo_bench.database["issuer_meta"].update_one({"_id": "store"}, {"$set": {"id": other}})
    with pytest.raises(Unconfirmed, match="a backup was restored"):
        reserve(store)
    assert store.store_id(timeout=TIMEOUT) == other
    assert reserve(store).low >= 20


def test_a_refusal_says_misconfigured_only_if_nothing_can_have_changed(
    mongo_bench: MongoBench, mongo_server: MongoServers, wire: FaultProxy, far: Callable[[], MongoStore], far_url: str
) -> None:
    create(mongo_bench.store, step=10)
    client: pymongo.MongoClient[dict[str, Any]]
    with pymongo.MongoClient(far_url) as client:
        kinds = (far(), Misconfigured), (MongoStore(client.get_default_database()), Unconfirmed)
        for (store, clean), code in product(kinds, (13, 18, 8000)):
            failing = partial(mongo_server.failing, errorCode=code, appName=FAR)
            reserve(store)
            before = get(mongo_bench.store).max
            # Refused at once: nothing has changed. Of another's client it can't be known what it had sent before.
            with failing("findAndModify"), pytest.raises(clean, match="failCommand"):
                reserve(store)
            assert get(mongo_bench.store).max == before
            reserve(store)
            # Its entry in the ledger is refused, or what pymongo sends again by itself: the range is spent.
            with failing("insert"), pytest.raises(Unconfirmed, match="failCommand"):
                reserve(store)
            wire.drop_replies(b"findAndModify", times=1)
            with failing("findAndModify", skip=1), pytest.raises(Unconfirmed, match="failCommand"):
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
def test_the_words_of_a_server_without_retryable_writes_are_understood(code: int, message: str) -> None:
    understood = translated(OperationFailure(message, code), "mongodb://h", in_doubt=False)
    assert isinstance(understood, Misconfigured)
    assert "add retryWrites=false" in str(understood)
    assert isinstance(translated(OperationFailure("another bad value", 2), "mongodb://h", in_doubt=False), Unconfirmed)


def test_where_writes_cannot_be_retried_nothing_has_changed(
    mongo_bench: MongoBench, mongo_server: MongoServers, far: Callable[[], MongoStore]
) -> None:
    create(mongo_bench.store, step=10)
    with mongo_server.failing("findAndModify", errorCode=301), pytest.raises(Misconfigured, match="retryWrites=false"):
        reserve(far())
    with mongo_server.failing("findAndModify", errorCode=2), pytest.raises(Unconfirmed, match="BadValue"):
        reserve(far())
    assert get(mongo_bench.store).max == 0


def test_no_call_waits_for_the_ledgers_index_and_none_fails_for_it(
    mongo_bench: MongoBench,
    mongo_server: MongoServers,
    wire: FaultProxy,
    far: Callable[[], MongoStore],
    caplog: pytest.LogCaptureFixture,
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
    wire.pass_through()
    assert until(lambda: not building(), TIMEOUT)
    refused = mongo_server.failing("createIndexes", errorCode=13, appName=FAR)
    with refused, caplog.at_level(logging.WARNING, "issuer.store"):
        assert reserve(far()).low == 10  # the index is there
        assert until(lambda: not building(), TIMEOUT)
        assert not caplog.records
        ledger.drop_indexes()
        store = far()
        assert reserve(store).low == 20
        assert until(lambda: not building(), TIMEOUT)
        for name in ("issuer_meta", "issuer_tags", "issuer_segments"):
            mongo_bench.database.drop_collection(name)
        create(far())  # in a new store it is made at once, and needn't be there
    assert [each.message.count("the index of the ledger could not be created") for each in caplog.records] == [1, 1]
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
