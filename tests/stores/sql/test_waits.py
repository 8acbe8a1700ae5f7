"""Calls that wait: for a row that another session holds, for a server that stands still, for a standby."""

from __future__ import annotations

import gc
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import psycopg
import pytest

from issuer_persistence.errors import Full, TagPresent, Unconfirmed
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.records import HIGHEST, TagChanges, TagSettings
from issuer_persistence.sql import mysql
from issuer_persistence.sql.connections import GIVEN_UP_MOST, Deadlines, SQLLink
from issuer_persistence.sql.transaction import Conflict
from tests.stores.benches import TIMEOUT, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.sql.test_connections import raise_and
from tests.stores.test_races import at_once
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from issuer_persistence.contract import Store
    from issuer_persistence.sql.store import SQLStore
    from issuer_persistence.sql.transaction import SQLTransaction
    from tests.servers.pgbouncer import PgBouncer
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live

#: Seconds of a call that must not get what it waits for.
SHORT = 0.7
PURPOSE = Purpose("test")


def conflicts(store: SQLStore, monkeypatch: pytest.MonkeyPatch) -> list[Conflict]:
    """Return a list of the conflicts that the store meets from now on."""
    met: list[Conflict] = []
    translated = store.translated

    def noting(error: Exception) -> Exception | None:
        known = translated(error)
        if isinstance(known, Conflict):
            met.append(known)
        return known

    monkeypatch.setattr(store, "translated", noting)
    return met


def unconfirmed(call: Future[Any]) -> None:
    """The call ends by itself, and is in doubt."""
    error = call.exception(TIMEOUT)
    assert isinstance(error, Unconfirmed)
    assert not isinstance(error, Full)


@pytest.mark.covers("2.14")
def test_a_call_ends_at_its_deadline_while_another_session_holds_the_row(database: Database) -> None:
    store, other, threads = database.opened(), database.opened(), database.threads()
    create(store)
    held = reserve(store, 10)
    calls: list[Callable[[], object]] = [
        lambda: store.reserve("orders", 10, purpose=PURPOSE, timeout=SHORT),
        lambda: store.configure("orders", TagChanges(step=7), timeout=SHORT),
        lambda: store.halt("orders", timeout=SHORT),
        lambda: store.hand_back([held], 5, timeout=SHORT),
        lambda: store.delete("orders", timeout=SHORT),
    ]
    before = get(store)
    with other.transaction(TIMEOUT) as holding:
        holding.read("orders")
        for call in calls:
            unconfirmed(threads.submit(call))
        assert get(store) == before  # to read needs no lock
    assert get(store) == before
    assert spans([reserve(store, 10)]) == [(10, 20)]
    check_contiguous(ranges(store), 0, 20)


def test_a_call_that_waits_for_a_row_sees_what_was_changed_meanwhile(database: Database) -> None:
    """The ledger and the row that it reads must be of the same age: else what was handed back looks reserved."""
    store, other, threads = database.opened(), database.opened(), database.threads()
    create(store)
    held = reserve(store, 100)
    with other.transaction(TIMEOUT) as handing_back:
        handing_back.shorten(held.entry, 50)
        now = handing_back.read("orders")
        assert now
        waiting = threads.submit(reserve, store, 100)
        until(database.server.waiting, message="it waits for the row")
        handing_back.write(now.changed(max=50))
    assert spans([waiting.result(TIMEOUT)]) == [(50, 150)]
    check_contiguous(ranges(store), 0, 150)


def test_a_call_of_a_batch_sees_what_was_handed_back_since_the_batch_began(database: Database) -> None:
    """The first call of the batch reads: from then on, its transaction may see the tables as they were."""
    store, other = database.opened(), database.opened()
    create(store)
    held = reserve(store, 100)

    def handed_back_before(within: Store, left: float) -> Reservation:
        assert other.hand_back([held], 50, timeout=TIMEOUT)
        return within.reserve("orders", 100, purpose=PURPOSE, timeout=left)

    _, got = store.batch([lambda within, left: within.get("orders", timeout=left), handed_back_before], timeout=TIMEOUT)
    assert isinstance(got, Reservation)
    assert spans([got]) == [(50, 150)]
    check_contiguous(ranges(store), 0, 150)


def test_a_call_to_a_server_that_stands_still_ends_at_its_deadline(database: Database) -> None:
    store, fresh, threads = database.opened(), database.opened(), database.threads(3)
    create(store)
    reserve(store, 10)
    with database.server.frozen():
        unconfirmed(threads.submit(store.reserve, "orders", 10, purpose=PURPOSE, timeout=SHORT))
        unconfirmed(threads.submit(store.get, "orders", timeout=SHORT))
        unconfirmed(threads.submit(fresh.get, "orders", timeout=SHORT))  # it has no connection yet
    assert spans([reserve(store, 10), reserve(fresh, 10)]) == [(10, 20), (20, 30)]
    check_contiguous(ranges(store), 0, 30)


def test_a_call_to_a_server_that_stands_still_ends_though_its_store_is_closed_meanwhile(database: Database) -> None:
    store, threads = database.opened(), database.threads()
    create(store)
    reserve(store, 10)
    with database.server.frozen():
        call = threads.submit(store.reserve, "orders", 10, purpose=PURPOSE, timeout=SHORT)
        until(lambda: store._links._deadlines._ends, message="the call is under way")
        store.close()
        unconfirmed(call)


@pytest.mark.parametrize("end", ["given up", "closed"])
def test_a_call_that_is_given_up_or_outlives_its_store_leaves_no_connection(database: Database, end: str) -> None:
    """What cancels a call that was given up may reach the server only after the call has ended."""
    store = database.opened()
    create(store)
    with store.transaction(TIMEOUT) as transaction:
        assert transaction.read("orders")
        if end == "closed":
            store.close()
        else:
            transaction._link.given_up = True
    assert store._links._idle == []


@pytest.mark.covers("2.14")
def test_a_server_that_stands_still_in_a_transaction_commits_nothing_after_the_deadline(database: Database) -> None:
    store, threads = database.opened(), database.threads()
    create(store)
    begun, frozen = threading.Event(), threading.Event()

    def change() -> None:
        with store.transaction(5 * SHORT) as transaction:
            found = transaction.read("orders")
            assert found
            begun.set()
            assert frozen.wait(TIMEOUT)
            transaction.write(found.changed(max=10))

    call = threads.submit(change)
    assert begun.wait(TIMEOUT)
    with database.server.frozen():
        frozen.set()
        unconfirmed(call)
    assert get(store).max == 0
    assert spans([reserve(store, 10)]) == [(0, 10)]


def test_a_client_that_stands_still_in_a_transaction_keeps_the_row_for_a_while_only(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine has lost its power: nobody shuts its connection down."""
    monkeypatch.setattr(SQLLink, "cut", lambda _: None)
    monkeypatch.setattr(mysql, "_SESSION_IDLE", 1)
    store, other = database.opened(), database.opened()
    create(store)

    def stand_still() -> None:
        with other.transaction(SHORT) as holding:
            holding.read("orders")
            assert spans([reserve(store, 10)]) == [(0, 10)]

    with pytest.raises(Unconfirmed):
        stand_still()
    assert spans([reserve(store, 10), reserve(other, 10)]) == [(10, 20), (20, 30)]


def test_a_deadline_that_an_interrupt_has_left_behind_ends_the_connection_and_itself(database: Database) -> None:
    store = database.opened()
    create(store)
    links = store._links
    link, _ = links.take(TIMEOUT)
    interrupted = links.until(link, 0.1)
    interrupted.__enter__()
    until(lambda: not links._deadlines._ends, message="the deadline has passed")
    link.close()


def test_the_thread_that_watches_the_deadlines_outlives_calls_that_end_while_it_collects_garbage() -> None:
    """A finalizer that it runs lets other threads run, which end their calls."""
    deadlines, passed = Deadlines(), threading.Event()
    call = type("Call", (), {"given_up": False})
    before = gc.get_threshold()

    def end_a_call(phase: str, _: object) -> None:
        if phase == "start" and threading.current_thread() is deadlines._thread and len(deadlines._ends) > 1:
            del deadlines._ends[next(iter(deadlines._ends))]

    with ExitStack() as calls:
        calls.callback(deadlines.close)
        calls.callback(gc.set_threshold, *before)
        calls.callback(gc.callbacks.remove, end_a_call)
        gc.callbacks.append(end_a_call)
        gc.set_threshold(20)
        for _ in range(5000):
            calls.enter_context(deadlines.until(cast("SQLLink", call()), TIMEOUT))
        calls.enter_context(deadlines.until(Mock(cut=passed.set, given_up=True), 0))
        assert passed.wait(10)


def test_a_deadlock_with_another_session_is_no_error(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hand-back locks the ledger entry, then the tag's row. The other session does it the other way round."""
    store, other, threads = database.opened(), database.opened(), database.threads(2)
    create(store)
    met = conflicts(store, monkeypatch)

    def both_locked() -> bool:
        held = reserve(store, 10)
        with other.transaction(TIMEOUT) as holding:
            if database.is_postgres:
                holding.cursor.execute("SET LOCAL deadlock_timeout = '30s'")  # so that the store finds it first
            else:
                # The one that has changed less is rolled back.
                holding.cursor.execute("CREATE TEMPORARY TABLE ballast (n INT) ENGINE=InnoDB")
                holding.cursor.executemany("INSERT INTO ballast VALUES (%s)", [(n,) for n in range(200)])
            holding.read("orders")
            handing_back = threads.submit(store.hand_back, [held], held.low + 5, timeout=TIMEOUT)
            until(database.server.waiting, message="the hand-back waits for the row")
            holding.shorten(held.entry, held.high - 1)
        if not database.is_postgres:
            with other.transaction(TIMEOUT) as after:
                after.cursor.execute("DROP TEMPORARY TABLE IF EXISTS ballast")
        assert handing_back.result(TIMEOUT)
        assert get(store).max == held.low + 5
        return bool(met)

    until(both_locked, 120, "the store's transaction was rolled back", ignoring=(Conflict,))
    check_contiguous([each for each in ranges(store) if each[0] < each[1]], 0, get(store).max)


def settings() -> TagSettings:
    return TagSettings(above=0, step=10, limit=HIGHEST, order="strict", description="")


def test_tags_that_several_make_at_once_in_opposite_orders_are_made_once(database: Database) -> None:
    stores = [database.opened() for _ in range(4)]
    for turn in range(8):
        names = [f"{turn}-{number}" for number in range(5)]
        orders = [names, names[::-1], names, names[::-1]]
        calls = [
            partial(store.create_many, {name: settings() for name in order}, timeout=TIMEOUT)
            for store, order in zip(stores, orders, strict=True)
        ]
        answers = at_once(calls)
        assert sorted(type(each).__name__ for each in answers) == ["TagPresent"] * 3 + ["list"]
        assert all(isinstance(each, list | TagPresent) for each in answers)


def test_the_first_calls_of_many_make_the_tables_once(database: Database) -> None:
    stores = [database.opened() for _ in range(6)]
    answers = at_once([partial(store.create_many, {"a": settings()}, timeout=TIMEOUT) for store in stores])
    assert sorted(type(each).__name__ for each in answers) == ["TagPresent"] * 5 + ["list"]
    [identity] = {store.store_id(timeout=TIMEOUT) for store in stores}
    assert identity
    assert {reserve(store, tag="a").store_id for store in stores} == {identity}


@pytest.mark.parametrize("lost", ["id", "server", "schema"])
def test_a_process_that_ended_while_it_made_the_tables_leaves_the_rest_to_the_next(
    database: Database, lost: str
) -> None:
    store = database.opened()
    create(store)
    with store.transaction(TIMEOUT) as transaction:
        for name in (lost, "schema"):
            transaction.cursor.execute(f"DELETE FROM {store.statements.meta} WHERE \"name\" = '{name}'")  # noqa: S608
    other = database.opened()
    assert reserve(other, 10).store_id == other.store_id(timeout=TIMEOUT) != ""


# ------------------------------------------------------------------------------------------------ PostgreSQL


def sync_waiter(database: Database) -> int | None:
    """Return the process id of a session that waits for a standby."""
    assert not hasattr(database.server, "_process")
    found = database.server.execute("SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
    return int(found[0][0]) if found else None


@contextmanager
def no_standby(postgres: Database) -> Iterator[None]:
    """Let each commit wait for a standby that is not there.

    Sessions learn from the checkpointer that commits must wait: some time after `SHOW` has the new setting.
    """
    threads = postgres.threads()

    def waits() -> bool:
        probe = threads.submit(postgres.server.execute, "SELECT pg_logical_emit_message(true, 'probe', '')")
        until(lambda: probe.done() or sync_waiter(postgres))
        if pid := sync_waiter(postgres):
            postgres.server.execute(f"SELECT pg_cancel_backend({pid})")
            probe.result(TIMEOUT)
        return pid is not None

    with postgres.server.configured("synchronous_standby_names", "nobody"):
        until(waits, message="commits wait for a standby")
        yield


@pytest.mark.parametrize("way", ["direct", "pgbouncer"])
def test_a_commit_that_waits_for_a_standby_is_cut_off_at_the_deadline_and_is_a_gap(
    postgres: Database, bouncer: PgBouncer, way: str
) -> None:
    """No timeout of the server ends it, and it is committed already: the standby alone is missing."""
    store, threads = postgres.opened(bouncer.url if way == "pgbouncer" else ""), postgres.threads()
    create(store)
    reserve(store, 10)

    def cut_off() -> bool:
        unconfirmed(threads.submit(store.reserve, "orders", 10, purpose=PURPOSE, timeout=SHORT))
        return get(store).max == 20

    with no_standby(postgres):
        until(cut_off)  # a machine that stands still may not come as far as the commit within that time
        # Its session is ended on the server, and what comes after it takes no numbers.
        for _ in range(3):
            until(lambda: sync_waiter(postgres) is None, message="no session is left")
            unconfirmed(threads.submit(store.reserve, "orders", 10, purpose=PURPOSE, timeout=SHORT))
        assert get(store).max == 20
    assert spans([reserve(store, 10)]) == [(20, 30)]
    check_contiguous(ranges(store), 0, 30)


def test_a_server_that_ends_no_session_gets_no_further_ones(postgres: Database) -> None:
    store = postgres.opened()
    create(store)
    assert all(isinstance(each, Reservation) for each in at_once([lambda: reserve(store, 10)] * GIVEN_UP_MOST))
    links = [store._links.take(TIMEOUT)[0] for _ in range(GIVEN_UP_MOST)]
    for link in links:
        store._links.put_back(link)
    with postgres.server.frozen():
        short = partial(store.reserve, "orders", 10, purpose=PURPOSE, timeout=SHORT)
        for each in at_once([short] * GIVEN_UP_MOST):
            assert isinstance(each, Unconfirmed)
        with pytest.raises(Unconfirmed, match="not yet ended 4 sessions"):
            reserve(store, 10)
    assert until(lambda: reserve(store, 10), ignoring=(Unconfirmed,)).high <= 100


def reserve_without_a_standby(postgres: Database, store: SQLStore, end: str = "pg_cancel_backend") -> str:
    """Reserve 10 numbers, and end the commit's wait for a standby. Return the text of the error."""
    threads = postgres.threads()
    with no_standby(postgres):
        call = threads.submit(reserve, store, 10)
        pid = until(lambda: sync_waiter(postgres), message="it waits for the standby")
        postgres.server.execute(f"SELECT {end}({pid})")
        unconfirmed(call)
    return str(call.exception())


@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_that_no_standby_has_is_in_doubt_though_the_server_reports_success(
    postgres: Database, end: str
) -> None:
    store = postgres.opened()
    create(store)
    problem = reserve_without_a_standby(postgres, store, end)
    assert "replicated" in problem or end != "pg_cancel_backend"
    assert spans([reserve(store, 10)]) == [(10, 20)]


def test_a_role_that_hides_warnings_does_not_hide_that_a_commit_has_no_standby(postgres: Database) -> None:
    with postgres.server.configured("client_min_messages", "error"):
        store = postgres.opened()
        create(store)
        assert "replicated" in reserve_without_a_standby(postgres, store)
        assert spans([reserve(store, 10)]) == [(10, 20)]


def test_a_transaction_in_which_a_statement_has_failed_is_not_committed_and_says_so(postgres: Database) -> None:
    """COMMIT is no error then: the server rolls back."""
    store = postgres.opened()
    create(store)

    def fail(transaction: SQLTransaction) -> None:
        with suppress(psycopg.Error):
            transaction.cursor.execute("SELECT nothing")

    with pytest.raises(Unconfirmed, match="ROLLBACK"):
        raise_and(store, fail)
    assert spans([reserve(store, 10)]) == [(0, 10)]


@pytest.mark.parametrize(("value", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_waits_for_the_disk_whatever_the_default_of_the_role_is(
    postgres: Database, value: str, used: str
) -> None:
    shown = "SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')"
    with (
        postgres.server.configured("synchronous_commit", value),
        postgres.server.configured("default_transaction_isolation", "serializable"),
    ):
        assert postgres.server.execute(shown) == [(value, "serializable")]
        store = postgres.opened()
        create(store)
        with store.transaction(TIMEOUT) as transaction:
            assert transaction.rows(shown) == [(used, "read committed")]


def test_threads_on_a_server_that_is_serializable_by_default_have_no_conflicts(
    postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.server.configured("default_transaction_isolation", "serializable"):
        store = postgres.opened()
        create(store)
        met = conflicts(store, monkeypatch)
        answers = at_once([lambda: [reserve(store, 5) for _ in range(10)]] * 6)
    assert all(isinstance(each, list) for each in answers)
    check_contiguous(ranges(store), 0, 300)
    assert met == []


# ------------------------------------------------------------------------------------------------ MariaDB


def test_a_lock_wait_of_mariadb_that_is_too_long_is_begun_again(
    mariadb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time-out rolls the statement back, not the transaction."""
    monkeypatch.setattr(mysql, "_LOCK_WAIT", 1)
    store, other, threads = mariadb.opened(), mariadb.opened(), mariadb.threads()
    create(store)
    met = conflicts(store, monkeypatch)
    with other.transaction(TIMEOUT) as holding:
        holding.read("orders")
        waiting = threads.submit(reserve, store, 10)
        until(lambda: len(met) >= 2, message="it has waited twice")
    assert spans([waiting.result(TIMEOUT)]) == [(0, 10)]
    check_contiguous(ranges(store), 0, 10)


def test_a_statement_that_mariadb_ends_is_in_doubt(mariadb: Database) -> None:
    with mariadb.server.configured("max_statement_time", "0.3"):
        store, other, threads = mariadb.opened(), mariadb.opened(), mariadb.threads()
        create(store)
        with other.transaction(TIMEOUT) as holding:
            holding.read("orders")
            unconfirmed(threads.submit(reserve, store, 10))
        assert spans([reserve(store, 10)]) == [(0, 10)]
