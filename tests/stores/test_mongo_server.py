"""What the MongoDB store makes of errors (by `failCommand`), of replies that a proxy loses, and of rollbacks."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pymongo
import pytest
from bson.int64 import Int64
from pymongo.errors import ExecutionTimeout, OperationFailure

from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.server import service, translated
from issuer_persistence.records import TagChanges, TagSettings
from tests.servers.mongo import ROLLED_BACK, MongoServers, needed_mongod
from tests.servers.ports import LOOPBACK
from tests.servers.proxy import FaultProxy
from tests.stores.benches import PATIENT, TIMEOUT, MongoBench, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.conftest import mongo_bench_at
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.servers.tls import Certificates


PURPOSE = Purpose("test")
DONE = "the write did not reach a majority of the servers, and may be rolled back: "


@pytest.fixture
def store(mongo_server: MongoServers) -> Iterator[MongoStore]:
    store = MongoStore.open(f"{mongo_server.url}/ids?serverSelectionTimeoutMS=60000")
    create(store, step=10)
    yield store
    store.close()


def refusal(error: type[StoreError], store: MongoStore) -> str:
    with pytest.raises(error) as caught:
        reserve(store)
    address, said = str(caught.value).split("/ids?***: ")
    assert address.startswith("mongodb://")
    return said


def test_the_server_is_quoted_with_its_name_for_the_error_and_without_the_drivers_dump(
    store: MongoStore, mongo_server: MongoServers
) -> None:
    reserve(store)
    for code, error, name in (
        (13, Misconfigured, "Unauthorized"),
        (50, Unconfirmed, "MaxTimeMSExpired"),
        (112, Unconfirmed, "WriteConflict"),
        (14031, Unconfirmed, "OutOfDiskSpace"),
    ):
        with mongo_server.failing("findAndModify", errorCode=code):
            assert refusal(error, store) == f"Failing command via 'failCommand' failpoint ({name})"
    for code, name in ((64, "WriteConcernFailed"), (100, "UnsatisfiableWriteConcern")):
        unconfirmed = {"code": code, "codeName": name, "errmsg": "waited in vain", "errInfo": {"wtimeout": True}}
        for command in ("findAndModify", "insert"):
            reserve(store)  # confirmed, so that it is this command which fails
            with mongo_server.failing(command, writeConcernError=unconfirmed):
                assert refusal(Unconfirmed, store) == f"{DONE}waited in vain ({name})"
        with mongo_server.failing("insert", writeConcernError=unconfirmed), pytest.raises(Unconfirmed) as caught:
            store.create_many({f"a{code}": TagSettings(), f"b{code}": TagSettings()}, timeout=TIMEOUT)
        assert str(caught.value) == f"{store.url}: {DONE}waited in vain ({name})"


def test_the_times_that_the_driver_has_measured_are_left_out() -> None:
    said = "operation would exceed time limit"
    measured = f"{said}, remaining timeout:-0.02905 <= network round trip time:0.00021 (configured timeouts: ...)"
    error = ExecutionTimeout(measured, code=50, details={"ok": 0, "errmsg": measured, "code": 50})
    assert str(translated(error, "mongodb://h", in_doubt=False)) == f"mongodb://h: {said}"


@pytest.mark.live
def test_a_missing_right_is_said_without_the_command_and_what_was_in_it() -> None:
    with MongoServers(needed_mongod(), password="secret") as servers:
        login = f"mongodb://root:secret@{servers.members[0].address}/ids?authSource=admin"
        owner = MongoStore.open(login)
        create(owner, step=10)
        with servers.client() as client:
            client.admin.command("createUser", "reader", pwd="x", roles=[{"role": "read", "db": "ids"}])
        reader = MongoStore.open(login.replace("root:secret", "reader:x"))
        assert refusal(Misconfigured, reader) == (
            "not authorized on ids to execute command findAndModify on issuer_tags (Unauthorized)"
        )
        stranger = MongoStore.open(login.replace("root:secret", "root:x"))
        assert refusal(Misconfigured, stranger) == "Authentication failed. (AuthenticationFailed)"
        for each in (owner, reader, stranger):
            each.close()


@pytest.mark.parametrize("code", [91, 11600])
def test_a_server_that_says_it_shuts_down_and_does_not_is_used_again_within_the_call(
    store: MongoStore, mongo_server: MongoServers, code: int
) -> None:
    """With the driver's own heartbeat, it is after 10 s from the first call."""
    with mongo_server.failing("findAndModify", times=1, errorCode=code):
        assert store.reserve("orders", None, purpose=PURPOSE, timeout=8).low == 0


def test_with_one_server_of_three_nothing_is_read(mongo_set: MongoServers) -> None:
    """It has no primary, and what another server has may be older than what was issued."""
    store = MongoStore.open(f"{mongo_set.url}/ids")
    create(store)
    for each in mongo_set.secondaries():
        each.kill()

    def refused() -> str:
        try:
            store.get("orders", timeout=0.5)
        except Unconfirmed as error:
            return str(error)
        return ""

    until(lambda: "Primary" in refused(), TIMEOUT, "the last server gives up its office")
    mongo_set.start()
    assert until(lambda: get(store).max == 0, TIMEOUT, "there is a majority again", ignoring=(Unconfirmed,))
    store.close()


def test_numbers_that_were_stored_as_doubles_are_named_with_the_repair(mongo_bench: MongoBench) -> None:
    store = mongo_bench.store
    create(store, step=10)
    reserve(store)
    mongo_bench.tamper("orders", max=1000.0, step=20.0)
    for call in (get, reserve, lambda store: store.recover("orders", at_least=1, timeout=TIMEOUT)):
        with pytest.raises(Corrupt, match=r'\$set: \{max: NumberLong\("1000"\), step: NumberLong\("20"\)\}\}$'):
            call(store)
    mongo_bench.tamper("orders", max=Int64("1000"), step=Int64("20"))
    assert spans([reserve(store)]) == [(1000, 1020)]
    for other in (1000.5, -1.0, 2.0**63):  # what was meant can't be known
        mongo_bench.tamper("orders", max=other)
        with pytest.raises(Corrupt, match=r"not .* \(float\)$"):
            get(store)


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


#: Options that a user may have copied from elsewhere, and that weaken what other programs write and read.
OPTIONS = (
    "", "w=1", "w=2", "w=3", "w=majority", "w=1&journal=false", "journal=true", "w=1&wtimeoutMS=50", "wtimeoutMS=1",
    "fsync=true", "retryWrites=false", "retryWrites=true", "retryReads=false", "w=1&retryWrites=false&journal=false",
    "readConcernLevel=local", "readConcernLevel=available", "readConcernLevel=majority", "readConcernLevel=snapshot",
    "readConcernLevel=linearizable", "readPreference=primary", "readPreference=primaryPreferred",
    "readPreference=secondary", "readPreference=secondaryPreferred", "readPreference=nearest",
    "readPreference=nearest&w=1", "localThresholdMS=500", "maxPoolSize=1", "minPoolSize=2", "maxIdleTimeMS=100",
    "waitQueueTimeoutMS=100", "socketTimeoutMS=300", "timeoutMS=5000", "compressors=zlib", "maxConnecting=1",
    "serverMonitoringMode=poll", "heartbeatFrequencyMS=500", "appname=mine", "uuidRepresentation=standard",
    "tz_aware=true", "unicode_decode_error_handler=replace", "replicaSet=r&w=1", "zlibCompressionLevel=9",
)  # fmt: skip


@pytest.mark.live
@pytest.mark.covers("U.28")
def test_what_a_primary_loses_was_issued_to_nobody_whatever_the_url_says() -> None:
    with MongoServers(needed_mongod(), 3, election=10_000) as servers:
        stores = {f"t{at}": MongoStore.open(f"{servers.url}/issuer?{options}") for at, options in enumerate(OPTIONS)}
        held: dict[str, list[Reservation]] = {}
        for tag, store in stores.items():
            create(store, tag, step=10)
            held[tag] = [reserve(store, tag=tag)]

        def tried(tag: str) -> None:
            with suppress(Unconfirmed):
                held[tag].append(stores[tag].reserve(tag, None, purpose=Purpose("lost"), timeout=2))

        old = servers.primary()

        def written() -> None:
            with ThreadPoolExecutor(len(stores)) as pool:
                [*pool.map(tried, stores)]
            with old.client() as client:
                reached = {each["_id"]: each["max"] for each in client["issuer"]["issuer_tags"].find()}
            assert reached == dict.fromkeys(stores, 20)  # the server has done them all

        servers.diverge(old, written)
        until(lambda: old.log(ROLLED_BACK), message="the writes are rolled back")
        servers.whole()
        for tag, store in stores.items():
            held[tag] += [reserve(store, tag=tag) for _ in range(2)]
            # Nothing that was rolled back had been confirmed, so nothing comes twice, and what is left has no gap.
            check_contiguous(spans(held[tag]), 0, 30)
            assert spans(held[tag]) == ranges(store, tag)
            store.close()


#: Errors by `failCommand`: of a server that stops, steps down, has just started or is cut off, of a command that is
#: refused, and of a write that reached no majority.
ERRORS: tuple[dict[str, Any], ...] = (
    *({"errorCode": code} for code in (11600, 11602, 10107, 13435, 189, 91, 6, 7, 89, 9001, 262, 134, 317)),
    *({"errorCode": code} for code in (50, 112, 24, 46, 251, 13, 18, 20, 2, 8000, 301)),
    *({"writeConcernError": {"code": code, "errmsg": "of a test"}} for code in (64, 79, 91, 100, 11600)),
    {"closeConnection": True},
)


@pytest.mark.covers("U.28")
@pytest.mark.parametrize("command", ["find", "findAndModify", "insert", "update"])
def test_after_each_error_of_each_command_no_range_comes_twice(mongo_server: MongoServers, command: str) -> None:
    url = f"{mongo_server.url}/failing?{PATIENT}"
    with closing(MongoStore.open(f"{url}&appname=failing")) as store, closing(MongoStore.open(url)) as other:
        create(store, step=10)
        issued = spans([reserve(store)])

        def handed_back() -> None:
            last = reserve(other)
            issued.append((last.low, last.low + 5))
            store.hand_back([last], last.low + 5, timeout=TIMEOUT)

        calls: dict[str, Callable[[], object]] = {
            "find": lambda: get(store),
            "findAndModify": lambda: issued.extend(spans([reserve(store)])),
            "insert": lambda: issued.extend(spans([reserve(store)])),
            "update": handed_back,
        }
        # What is refused once the driver's own retry can mend, what is refused twice it can't.
        for manner, times in product(ERRORS, (1, 2)):
            if command == "find" and "writeConcernError" in manner:
                continue
            before = get(other).max
            with mongo_server.failing(command, times=times, appName="failing", **manner):
                try:
                    calls[command]()
                except Misconfigured:
                    assert command == "update" or get(other).max == before, f"{manner}: something was done"
                except StoreError:
                    pass
            issued += spans([reserve(store), reserve(other)])
        assert all(high <= low for (_, high), (low, _) in pairwise(issued))


@pytest.mark.live
@pytest.mark.covers("U.28")
def test_a_user_who_may_read_and_write_is_enough_and_tls_is_spoken(certificates: Certificates, tmp_path: Path) -> None:
    folder, both = certificates.folder, tmp_path / "server.pem"
    both.write_text((folder / "server.crt").read_text() + (folder / "server.key").read_text())
    tls = ("--tlsMode", "requireTLS", "--tlsCertificateKeyFile", str(both), "--tlsCAFile", str(certificates.authority))
    trust: dict[str, Any] = {"tls": True, "tlsCAFile": str(certificates.authority)}
    quiet = ("--tlsAllowConnectionsWithoutCertificates",)
    with MongoServers(needed_mongod(), 1, *tls, *quiet, password="of-root", **trust) as servers:
        with servers.client() as client:
            client["ids"].command("createUser", "issuer", pwd="of/issuer", roles=[{"role": "readWrite", "db": "ids"}])
        address = servers.url.removeprefix("mongodb://")
        query = f"tls=true&tlsCAFile={certificates.authority}&{PATIENT}"
        with closing(MongoStore.open(f"mongodb://issuer:of%2Fissuer@{address}/ids?{query}")) as store:
            create(store, step=10)
            held = [reserve(store), reserve(store)]
            assert store.hand_back(held[-1:], 15, timeout=TIMEOUT)
            store.configure("orders", TagChanges(step=20), timeout=TIMEOUT)
            store.halt("orders", timeout=TIMEOUT)
            store.recover("orders", at_least=100, timeout=TIMEOUT)
            assert reserve(store).low == 100
            store.delete("orders", timeout=TIMEOUT)
        for login, trusted, said in (
            ("issuer:guessed@", query, "Authentication failed"),
            ("issuer:of%2Fissuer@", query.replace("authority", "stranger"), "certificate verify failed"),
        ):
            store = MongoStore.open(f"mongodb://{login}{address}/ids?{trusted}")
            with closing(store), pytest.raises(Misconfigured, match=said):
                store.get("orders", timeout=5)
