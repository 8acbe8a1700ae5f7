"""Servers and sessions that are killed, stopped, made read-only, or whose replies are lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import issuer
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.sql import connections
from issuer_persistence.sql.store import SQLStore
from tests.audit import assert_increasing
from tests.colours import COLOURS
from tests.deadlines import refused_by_store
from tests.servers.mariadb import MariaDBServer
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy
from tests.stores.benches import TIMEOUT, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.test_races import at_once
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from issuer_persistence.sql.transaction import SQLTransaction
    from tests.stores.sql.conftest import Database

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("patient")]


def session(store: SQLStore, database: Database) -> int:
    """Return the id of the session that the store's next call uses."""
    with store.transaction(TIMEOUT, writes=False) as transaction:
        return int(transaction.rows(f"SELECT {database.session}")[0][0])


@pytest.mark.covers("3.27", "0.16", "4.18")
@pytest.mark.parametrize("colour", ["blocking", "asyncio"])
def test_a_server_killed_and_started_again_costs_no_number(redis_url: str, database: Database, colour: str) -> None:
    with COLOURS[colour](redis=redis_url, store=database.url, timeout=40) as ids:
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
    before = session(store, database)
    database.server.end_sessions()
    assert spans([reserve(store, 10)]) == [(40, 50)]
    assert session(store, database) != before
    assert session(store, database) == session(store, database)


def raise_and(store: SQLStore, disturb: Callable[[SQLTransaction], object]) -> None:
    """Raise `max` to 10, and call `disturb` before the commit."""
    with store.transaction(TIMEOUT) as transaction:
        found = transaction.read("orders")
        assert found
        transaction.write(found.changed(max=10))
        disturb(transaction)


def test_a_session_that_is_ended_within_a_call_leaves_it_in_doubt_and_nothing_reserved(database: Database) -> None:
    store = database.opened()
    create(store)
    with pytest.raises(Unconfirmed):
        raise_and(store, lambda _: database.server.end_sessions())
    assert get(store).max == 0
    assert spans([reserve(store, 10)]) == [(0, 10)]


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have dropped it, and answers nothing."""
    store = database.opened()
    create(store)
    before = session(store, database)
    assert session(store, database) == before
    monkeypatch.setattr(connections, "IDLE_TIME", 0.0)
    assert session(store, database) != before


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


def test_a_proxy_that_swallows_everything_costs_a_call_its_time_alone(database: Database, proxy: FaultProxy) -> None:
    store = database.opened(through(proxy, database))
    create(store)
    proxy.blackhole()
    with pytest.raises(Unconfirmed):
        store.get("orders", timeout=0.5)
    proxy.pass_through()
    assert spans([reserve(store, 10)]) == [(0, 10)]


@pytest.mark.parametrize(("kind", "trips"), [("postgres", 3), ("mariadb", 5)])
def test_a_reservation_takes_so_many_round_trips(request: pytest.FixtureRequest, kind: str, trips: int) -> None:
    """PostgreSQL: BEGIN, a statement, COMMIT. MariaDB: two statements more."""
    database: Database = request.getfixturevalue(kind)
    with FaultProxy((LOOPBACK, database.server.port)) as proxy:
        store = database.opened(through(proxy, database))
        create(store)
        before = proxy.count()
        reserve(store, 10)
        assert proxy.count() - before == trips


READ_ONLY = {"postgres": ("default_transaction_read_only", "on"), "mariadb": ("read_only", "1")}


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_server_that_was_made_read_only_reserves_nothing_until_it_is_writable(
    request: pytest.FixtureRequest, redis_url: str, kind: str
) -> None:
    database: Database = request.getfixturevalue(kind)
    url = database.url
    if isinstance(database.server, MariaDBServer):
        # The tests' own user may write to a server that is read-only.
        database.server.execute("CREATE OR REPLACE USER plain@'%'")
        database.server.execute("GRANT ALL ON issuer.* TO plain@'%'")
        url = url.replace("tester@", "plain@")
    with issuer.connect(redis=redis_url, store=url, scheduler=None, timeout=40) as ids:
        ids.create("a", step=50)
        numbers = ids.take("a", 50)
        with database.server.configured(*READ_ONLY[kind]):
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
