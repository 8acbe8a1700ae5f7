"""What the MongoDB store promises on a replica set: rollbacks, errors of each kind, logins and TLS, on real servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.records import TagChanges
from tests.servers.mongo import ROLLED_BACK, MongoServers, needed_mongod
from tests.stores.benches import PATIENT, TIMEOUT, check_contiguous, create, get, ranges, reserve, spans
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.servers.tls import Certificates


pytestmark = [pytest.mark.live, pytest.mark.covers("U.28")]

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
        for login, trusted in (
            ("issuer:guessed@", query),
            ("issuer:of%2Fissuer@", query.replace("authority", "stranger")),
        ):
            store = MongoStore.open(f"mongodb://{login}{address}/ids?{trusted}")
            with closing(store), pytest.raises(Misconfigured):
                store.get("orders", timeout=2)
