"""Connections: servers and sessions that are killed, stopped, read-only, or whose replies are lost; and TLS."""

from __future__ import annotations

import errno
import os
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

import issuer
from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.opening import open_store
from issuer_persistence.records import Tag
from issuer_persistence.sql import connections
from issuer_persistence.sql.mysql import MySQLStore
from tests.audit import assert_increasing
from tests.deadlines import refused_by_store
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.ports import LOOPBACK
from tests.servers.proxy import FaultProxy
from tests.stores.benches import TIMEOUT, SQLBench, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.test_races import at_once
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from issuer_persistence.sql.store import SQLStore
    from issuer_persistence.sql.transaction import SQLTransaction
    from tests.colours import Connect
    from tests.servers.postgres import PostgresServer
    from tests.servers.tls import Certificates
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


@pytest.mark.covers("3.27", "0.16", "4.18")
def test_a_server_killed_and_started_again_costs_no_number(
    redis_url: str, database: Database, connect: Connect
) -> None:
    with connect(redis=redis_url, store=database.url, timeout=40) as ids:
        ids.create("a", step=100)
        numbers = [ids.next("a")]
        database.server.kill()
        try:
            numbers += [ids.next("a") for _ in range(99)]
            assert numbers == list(range(1, 101))
            assert refused_by_store(ids, "a", 0.5).retry_after > 0
        finally:
            database.server.start()
        numbers += ids.take("a", 300)
        assert_increasing(numbers)
        assert max(numbers) <= ids.inspect("a").store.max


@pytest.mark.covers("3.27", "0.16")
def test_what_is_loaded_goes_on_while_the_server_stands_still(redis_url: str, database: Database) -> None:
    with issuer.connect(redis=redis_url, store=database.url, timeout=40) as ids:
        ids.create("a", step=100)
        numbers = [ids.next("a")]
        with database.server.frozen():
            numbers += [ids.next("a") for _ in range(99)]
            assert numbers == list(range(1, 101))
            refused_by_store(ids, "a", 0.5)
        numbers += ids.take("a", 300)
        assert_increasing(numbers)
        assert max(numbers) <= ids.inspect("a").store.max


def test_sessions_that_the_server_has_ended_between_calls_are_replaced(database: Database) -> None:
    store = database.opened()
    create(store)
    at_once([lambda: reserve(store, 10)] * connections.IDLE_MOST)
    before = database.session(store)
    database.server.end_sessions()
    assert spans([reserve(store, 10)]) == [(40, 50)]
    assert database.session(store) != before
    assert database.session(store) == database.session(store)


def raise_and(
    store: SQLStore, disturb: Callable[[SQLTransaction], object], meanwhile: Callable[[], object] = bool
) -> None:
    """Raise `max` to 10. Call `meanwhile` between the read and the write, and `disturb` before the commit."""
    with store.transaction(TIMEOUT) as transaction:
        found = transaction.read("orders")
        assert found
        meanwhile()
        transaction.write(found.changed(max=10))
        disturb(transaction)


def test_a_row_that_has_changed_since_it_was_read_is_not_written(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that sends the two statements over different connections takes the lock away."""
    store, other = database.opened(), database.opened()
    create(store)
    monkeypatch.setattr("issuer_persistence.sql.transaction.SQLTransaction._lock", "")
    with pytest.raises(Unconfirmed, match="'orders': its row has changed in spite of the lock"):
        raise_and(store, bool, lambda: reserve(other, 50))
    assert get(store).max == 50


@pytest.mark.parametrize("times", [1, 2])
def test_a_call_whose_session_is_ended_is_made_once_more_on_a_new_connection(database: Database, times: int) -> None:
    store = database.opened()
    create(store)
    ends = iter([database.server.end_sessions] * times)

    def change(found: Tag) -> Tag:
        for end in islice(ends, 1):
            end()
        return found.changed(max=10)

    with nullcontext() if times == 1 else pytest.raises(Unconfirmed):
        store.change("orders", TIMEOUT, change)
    assert get(store).max == (10 if times == 1 else 0)
    assert len(spans([reserve(store, 10)])) == 1


def test_a_setting_that_was_changed_by_hand_holds_for_the_next_reservation(bench: SQLBench) -> None:
    """Neither a hand nor an older release moves the version of the row."""
    create(bench.store, step=10)
    reserve(bench.store)
    with bench.cursor() as cursor:
        cursor.execute(f'UPDATE "{bench.prefix}tags" SET "step" = 70')  # noqa: S608 - ours
    assert spans([reserve(bench.store), reserve(bench.store)]) == [(10, 80), (80, 150)]
    assert get(bench.store).step == 70


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have dropped it, and answers nothing."""
    store = database.opened()
    create(store)
    before = database.session(store)
    assert database.session(store) == before
    monkeypatch.setattr(connections, "IDLE_TIME", 0.0)
    assert database.session(store) != before


@pytest.fixture
def proxy(database: Database) -> Iterator[FaultProxy]:
    with FaultProxy((LOOPBACK, database.server.port)) as made:
        yield made


def through(proxy: FaultProxy, database: Database) -> str:
    return database.server.url.replace(f":{database.server.port}/", f":{proxy.port}/")


@pytest.mark.covers("2.9")
def test_a_lost_reply_of_commit_is_a_gap_and_never_a_repeat(database: Database, proxy: FaultProxy) -> None:
    store, direct = database.opened(through(proxy, database)), database.opened()
    create(store)
    reserve(store, 10)
    proxy.drop_replies(database.commit, times=1)
    with pytest.raises(Unconfirmed):
        reserve(store, 10)
    assert get(direct).max == 20
    assert spans([reserve(store, 10)]) == [(20, 30)]
    check_contiguous(ranges(direct), 0, 30)


def test_a_lost_commit_reserves_nothing(database: Database, proxy: FaultProxy) -> None:
    store, direct = database.opened(through(proxy, database)), database.opened()
    create(store)
    reserve(store, 10)
    proxy.drop_requests(database.commit, times=1)
    with pytest.raises(Unconfirmed):
        reserve(store, 10)
    assert spans([reserve(direct, 10), reserve(store, 10)]) == [(10, 20), (20, 30)]


@pytest.mark.covers("2.9", "0.16")
@pytest.mark.parametrize("lose", [FaultProxy.drop_requests, FaultProxy.drop_replies])
@pytest.mark.parametrize("statement", [b"COMMIT", b"INSERT INTO", b"FOR UPDATE"])
def test_an_issuer_goes_on_over_lost_requests_and_replies(
    database: Database, proxy: FaultProxy, lose: Callable[[FaultProxy, bytes, int], None], statement: bytes
) -> None:
    statement = database.commit if statement == b"COMMIT" else statement
    url = f"{through(proxy, database)}?prefix={database.prefix}"
    with issuer.connect(redis="none", store=url, scheduler=None, timeout=40) as ids:
        ids.create("a", step=10)
        numbers = ids.take("a", 15)
        lose(proxy, statement, 1)
        before = proxy.hits
        with suppress(issuer.StoreUnavailable):
            numbers += ids.take("a", 15)
        assert proxy.hits > before
        proxy.pass_through()
        numbers += ids.take("a", 25)
        assert_increasing(numbers)
        store = database.opened()
        check_contiguous([each for each in ranges(store, "a") if each[0] < each[1]], 0, get(store, "a").max)


def test_a_reservation_takes_so_many_round_trips(database: Database, proxy: FaultProxy) -> None:
    """PostgreSQL: BEGIN, a statement, COMMIT. MariaDB: three statements, COMMIT."""
    store = database.opened(through(proxy, database))
    create(store)
    before = proxy.count()
    reserve(store, 10)
    assert proxy.count() - before == (3 if database.is_postgres else 4)


def test_a_server_that_was_made_read_only_reserves_nothing_until_it_is_writable(
    redis_url: str, database: Database
) -> None:
    url, setting = database.url, ("default_transaction_read_only", "on")
    if not database.is_postgres:
        setting = ("read_only", "1")
        # The tests' own user may write to a server that is read-only.
        database.server.execute("CREATE OR REPLACE USER plain@'%'")
        database.server.execute("GRANT ALL ON issuer.* TO plain@'%'")
        url = url.replace("tester@", "plain@")
    with issuer.connect(redis=redis_url, store=url, scheduler=None, timeout=40) as ids:
        ids.create("a", step=50)
        numbers = ids.take("a", 50)
        with database.server.configured(*setting):
            for _ in range(2):  # on the connection that is there, and on a fresh one
                with pytest.raises(issuer.StoreUnavailable):
                    ids.take("a", 200, timeout=2)
                with pytest.raises(issuer.StoreUnavailable):
                    ids.create("b")
            assert ids.inspect("a").store.max <= 100
        numbers += ids.take("a", 200)
        assert_increasing(numbers)


def test_a_standby_is_refused_and_reads_only(postgres_server: PostgresServer, postgres: Database) -> None:
    store = postgres.opened()
    create(store)
    reserve(store, 10)
    with postgres_server.standby() as standby:
        there = postgres.opened(standby.url)
        until(lambda: there.get("orders", timeout=TIMEOUT) == get(store), message="it has caught up")
        with pytest.raises(Unconfirmed, match="read-only"):
            reserve(there, 10)
        assert ranges(there) == [(0, 10)]
        facts = there.examine(timeout=TIMEOUT)
        [recovery] = [each for each in facts.settings if each.name == "in recovery"]
        assert (recovery.good, recovery.value) == (False, "True")


def test_without_a_file_descriptor_left_a_call_is_unconfirmed(bench: SQLBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(bench.store)
    with closing(bench.make()) as fresh:
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
            with pytest.raises(Unconfirmed, match="Too many open files"):
                reserve(fresh, 10)
        assert spans([reserve(fresh, 10)]) == [(0, 10)]


def test_a_server_that_is_away_is_unconfirmed_and_found_again(bench: SQLBench) -> None:
    with closing(bench.kind.open(f"{bench.url.partition(':')[0]}://x@127.0.0.1:1/d")) as store:
        with pytest.raises(Unconfirmed, match=r"127\.0\.0\.1"):
            store.get("a", timeout=5)
        with pytest.raises(StoreError):
            store.examine(timeout=5)


@pytest.fixture
def tls_server(certificates: Certificates) -> Iterator[MariaDBServer]:
    """A server that offers TLS."""
    server = MariaDBServer(find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server"))
    for name in ("server.crt", "server.key"):
        copied = shutil.copy(certificates.folder / name, server.directory)
        server.settings[f"ssl-{name[-3:].replace('crt', 'cert')}"] = copied
        if server._user is not None:
            shutil.chown(copied, server._user)
    with server:
        yield server


def test_connections_share_one_context(
    tls_server: MariaDBServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the certificates of the system takes 45 ms of processor time."""
    made = list[object]()
    really = ssl.create_default_context

    def counting(*args: Any, **options: Any) -> ssl.SSLContext:
        made.append(options)
        return really(*args, **options)

    monkeypatch.setattr(ssl, "create_default_context", counting)
    for options, contexts in (("", 0), (f"?ssl_ca={certificates.authority}", 1)):
        made.clear()
        store = open_store(f"{tls_server.url}{options}")
        assert isinstance(store, MySQLStore)
        for _ in range(3):
            link = store.connect(TIMEOUT)
            link.cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
            assert link.cursor.fetchone()[1]  # without options, too, because the server offers it
            link.close()
        assert len(made) == contexts
        store.close()


@pytest.mark.parametrize(("options", "good"), [("", False), ("&ssl_verify_identity=false", True)])
def test_a_certificate_of_another_host_is_rejected(
    tls_server: MariaDBServer, certificates: Certificates, options: str, *, good: bool
) -> None:
    """Whoever has any certificate of the authority could pass for the database."""
    elsewhere = tls_server.url.replace("127.0.0.1", "127.1")
    store = open_store(f"{elsewhere}?ssl_ca={certificates.authority}{options}")
    with nullcontext() if good else pytest.raises(Misconfigured, match="Hostname mismatch"):
        assert store.get("a", timeout=TIMEOUT) is None
    store.close()


def test_a_certificate_of_another_authority_is_rejected(tls_server: MariaDBServer, certificates: Certificates) -> None:
    store = open_store(f"{tls_server.url}?ssl_ca={certificates.stranger}")
    with pytest.raises(Misconfigured, match="certificate verify failed"):
        store.get("a", timeout=TIMEOUT)
    store.close()
