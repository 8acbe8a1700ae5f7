"""What the errors of the MongoDB store say, and how soon it goes on after them. The server fails by `failCommand`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from bson.int64 import Int64
from pymongo.errors import ExecutionTimeout

from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.mongodb.server import translated
from issuer_persistence.records import TagSettings
from tests.servers.mongo import MongoServers, needed_mongod
from tests.stores.benches import TIMEOUT, MongoBench, create, get, reserve, spans
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
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


def test_a_certificate_that_is_rejected_is_told_as_what_it_is(certificates: Certificates, tmp_path: Path) -> None:
    both = tmp_path / "server.pem"
    both.write_text("".join((certificates.folder / f"server.{each}").read_text() for each in ("crt", "key")))
    options = ("--tlsMode", "preferTLS", "--tlsCertificateKeyFile", str(both))
    with MongoServers(needed_mongod(), 1, *options) as servers:
        for authority, error in ((certificates.stranger, Misconfigured), (certificates.authority, None)):
            url = f"mongodb://{servers.members[0].address}/ids?tls=true&tlsCAFile={authority}"
            with closing(MongoStore.open(f"{url}&serverSelectionTimeoutMS=1000" if error else url)) as store:
                if error:
                    with pytest.raises(error, match="certificate verify failed"):
                        store.get("orders", timeout=5)
                else:
                    assert create(store).max == 0


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
