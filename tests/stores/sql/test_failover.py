"""A standby takes over that lacks commits, or none; and a pgbouncer stands in front of the server."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer_persistence.sql.postgresql import PostgreSQLStore
from tests.audit import assert_increasing, repeats
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer, Standby, find_postgres
from tests.servers.proxy import FaultProxy
from tests.stores import test_batches, test_races, test_stores
from tests.stores.benches import TIMEOUT, Bench, SQLBench, check_contiguous, create, ranges, reserve, spans
from tests.stores.test_races import at_once
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.pgbouncer import PgBouncer
    from tests.stores.sql.conftest import Database

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("patient")]


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """A primary that waits for its standby `safe`, if it has one."""
    binaries = find_postgres() or absent("postgres and initdb", "postgresql")
    with PostgresServer(binaries) as server:
        yield server


@pytest.fixture
def safe(primary: PostgresServer) -> Iterator[Standby]:
    with primary.standby("safe") as standby:
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'safe'")
        primary.execute("SELECT pg_reload_conf()")
        follows(primary, "safe", "sync")
        yield standby


@pytest.fixture
def late(primary: PostgresServer) -> Iterator[Standby]:
    with primary.standby("late") as standby:
        follows(primary, "late", "async")
        yield standby


def follows(primary: PostgresServer, name: str, how: str) -> None:
    seen = f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' AND sync_state = '{how}'"  # noqa: S608
    until(lambda: primary.execute(seen), message=f"{name} follows")


def caught_up(primary: PostgresServer, standby: Standby) -> None:
    [(position,)] = primary.execute("SELECT pg_current_wal_flush_lsn()")
    until(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == [(True,)], 60)


@pytest.mark.covers("1.11", "N.6")
@pytest.mark.usefixtures("safe")
@pytest.mark.parametrize("knows", ["redis", "journal"])
def test_a_promotion_that_lost_commits_is_found_out_where_redis_or_a_journal_knows_better(
    redis_url: str, tmp_path: Path, primary: PostgresServer, late: Standby, knows: str
) -> None:
    """The asynchronous standby lags, and is promoted all the same. The synchronous one has everything."""
    options: dict[str, Any] = (
        {"redis": redis_url} if knows == "redis" else {"redis": "none", "journal": str(tmp_path / "journal")}
    )
    with FaultProxy((LOOPBACK, primary.port)) as proxy:
        url = primary.url.replace(f":{primary.port}/", f":{proxy.port}/")
        with issuer.connect(store=url, scheduler=None, timeout=40, **options) as ids:
            ids.create("a", step=10)
            numbers = ids.take("a", 25)
            caught_up(primary, late)
            # It receives nothing any more: a standby that is cut off.
            late.stop()
            numbers += ids.take("a", 40)
            primary.kill()
            late.promote()
            # It would wait for the other standby, by the setting that it has copied.
            late.execute("ALTER SYSTEM RESET synchronous_standby_names")
            late.execute("SELECT pg_reload_conf()")
            proxy.redirect((LOOPBACK, late.port))
            with pytest.raises(issuer.StoreBehind) as behind:
                # What is in hand may be issued.
                numbers.extend(ids.next("a") for _ in range(100))
            assert behind.value.taken is not None
            [server] = [each for each in ids.doctor() if "server: " in str(each)]
            assert (server.check, server.level) == ("store-settings", "weak")
            assert "recover" in str(server)
            again = {"redis": {}, "journal": {"from_journal": [str(tmp_path / "journal")]}}[knows]
            ids.recover("a", **again)  # type: ignore[arg-type]
            numbers += ids.take("a", 30)
            assert_increasing(numbers)
        proxy.redirect((LOOPBACK, late.port))
        with issuer.connect(store=url, redis=redis_url, scheduler=None, timeout=40) as ids:
            ids.upgrade()
            assert not [each for each in ids.doctor() if each.level == "weak" and "server: " in str(each)]


def test_a_promotion_of_the_synchronous_standby_loses_nothing(
    redis_url: str, primary: PostgresServer, safe: Standby
) -> None:
    with FaultProxy((LOOPBACK, primary.port)) as proxy:
        url = primary.url.replace(f":{primary.port}/", f":{proxy.port}/")
        with issuer.connect(redis=redis_url, store=url, scheduler=None, timeout=40) as ids:
            ids.create("a", step=10)
            numbers = ids.take("a", 65)
            primary.kill()
            safe.promote()
            proxy.redirect((LOOPBACK, safe.port))
            numbers += ids.take("a", 65)
            assert_increasing(numbers)
            assert max(numbers) - len(numbers) <= 20


# ------------------------------------------------------------------------------------------------ pgbouncer


def central() -> list[Callable[..., None]]:
    """Return the tests of the contract that take one store of any kind, and nothing else."""
    found = []
    for module in (test_stores, test_batches, test_races):
        for name, test in vars(module).items():
            if name.startswith("test_") and [*inspect.signature(test).parameters] in (["bench"], ["store"]):
                found.append(test)
    assert len(found) > 20
    return found


def played(test: Callable[..., None], bench: Bench) -> None:
    test(bench if "bench" in inspect.signature(test).parameters else bench.store)


def test_the_contract_holds_behind_a_pgbouncer_in_transaction_mode(postgres: Database, bouncer: PgBouncer) -> None:
    for number, test in enumerate(central()):
        bench = SQLBench(PostgreSQLStore, bouncer.url, f"{postgres.prefix}{number}_")
        try:
            played(test, bench)
        except Exception as error:
            error.add_note(f"in {test.__name__}")
            raise
        finally:
            bench.drop()


def test_threads_behind_a_pgbouncer_share_few_sessions(postgres: Database, bouncer: PgBouncer) -> None:
    stores = [postgres.opened(bouncer.url) for _ in range(4)]
    create(stores[0], step=5)
    gate = threading.Barrier(8)

    def some(number: int) -> list[tuple[int, int]]:
        gate.wait(TIMEOUT)
        return spans([reserve(stores[number % 4]) for _ in range(12)])

    found = [each for answer in postgres.threads(8).map(some, range(8)) for each in answer]
    check_contiguous(found, 0, 8 * 12 * 5)
    assert sorted(found) == ranges(stores[0])
    # Nothing of a transaction's settings is left in a session.
    [(left,)] = postgres.server.execute("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in trans%'")
    assert left == 0


# ------------------------------------------------------------------------------------------------ an unusual MariaDB


ODD = {
    "log-bin": "bin", "server-id": 7, "binlog-format": "STATEMENT", "transaction-isolation": "READ-COMMITTED",
    "sql-mode": "", "innodb-snapshot-isolation": "ON", "autocommit": 0, "innodb-lock-wait-timeout": 1,
    "lower-case-table-names": 1, "character-set-server": "latin1", "completion-type": "CHAIN",
}  # fmt: skip


@pytest.fixture
def odd_server() -> Iterator[MariaDBServer]:
    program = find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server")
    with MariaDBServer(program, **ODD) as server:
        yield server


def test_the_contract_holds_on_a_mariadb_whose_defaults_are_others(odd_server: MariaDBServer) -> None:
    """Statements in the binary log, READ COMMITTED, no strict mode, conflicts for snapshots, chained transactions."""
    from issuer_persistence.sql.mysql import MySQLStore

    assert odd_server.execute("SELECT @@sql_mode, @@binlog_format, @@completion_type") == [("", "STATEMENT", "CHAIN")]
    for number, test in enumerate(central()):
        bench = SQLBench(MySQLStore, odd_server.url, f"t{number}_")
        try:
            played(test, bench)
        except Exception as error:
            error.add_note(f"in {test.__name__}")
            raise
        finally:
            bench.drop()
    bench = SQLBench(MySQLStore, odd_server.url, "t_")
    create(bench.store)
    answers = at_once([lambda: spans([reserve(bench.store, 5) for _ in range(10)])] * 6)
    assert repeats([each for answer in answers if isinstance(answer, list) for each, _ in answer]) == []
    check_contiguous(ranges(bench.store), 0, 300)
    bench.close()
    bench.past.close()
