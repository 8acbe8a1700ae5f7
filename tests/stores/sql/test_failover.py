"""Standbys: one takes over that lacks commits, or none; and semi-synchronous replicas of MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer_persistence.errors import Unconfirmed
from tests.audit import assert_increasing
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer, Standby, find_postgres
from tests.servers.proxy import FaultProxy
from tests.stores.benches import TIMEOUT, create, get, ranges, reserve, spans
from tests.stores.sql.conftest import Database, found
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from issuer_persistence.sql.store import SQLStore

pytestmark = pytest.mark.live


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


@dataclass
class Pair:
    """A primary that is semi-synchronous, and its replica."""

    primary: MariaDBServer
    replica: MariaDBServer

    def status(self) -> dict[str, str]:
        rows = self.primary.execute("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_master_%'")
        return {name.removeprefix("Rpl_semi_sync_master_"): value for name, value in rows}

    def stop(self) -> None:
        self.replica.execute("STOP SLAVE")
        until(lambda: self.status()["clients"] == "0", message="the replica is gone")

    def start(self) -> None:
        self.replica.execute("START SLAVE")
        until(lambda: self.status()["status"] == "ON", message="the replica is back")


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    program = find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server")
    waits = {"rpl-semi-sync-master-enabled": "ON", "rpl-semi-sync-master-timeout": 100}
    with (
        MariaDBServer(program, **{"server-id": 1, "log-bin": "bin", **waits}) as primary,
        MariaDBServer(program, **{"server-id": 2, "rpl-semi-sync-slave-enabled": "ON"}) as replica,
    ):
        pair = Pair(primary, replica)
        replica.follow(primary)
        until(lambda: pair.status()["status"] == "ON", 60, "the replica follows")
        yield pair


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    yield servers
    with suppress(Exception):
        servers.start()


@pytest.fixture
def database(pair: Pair) -> Iterator[Database]:
    made = Database(pair.primary)
    with made.ends:
        yield made


def refused(store: SQLStore) -> None:
    with pytest.raises(Unconfirmed, match="semi-synchronous"):
        reserve(store, 10)


@pytest.mark.covers("2.9")
def test_what_no_replica_has_is_not_reserved_and_a_promotion_repeats_no_number(pair: Pair, database: Database) -> None:
    """After its timeout, the primary confirms all commits."""
    store = database.opened()
    create(store)
    assert spans([reserve(store, 10)]) == [(0, 10)]
    pair.stop()
    refused(store)
    assert pair.status()["status"] == "OFF"
    for each in (store, store, database.opened()):
        refused(each)
    assert get(store).max == 20  # it is lost by the first one alone; to read needs no replica
    promoted = Database(pair.replica, database.prefix)
    with promoted.ends:
        assert ranges(promoted.opened()) == [(0, 10)]
    pair.start()
    assert spans([reserve(store, 10)]) == [(20, 30)]
    until(lambda: ranges(promoted.opened())[-1:] == [(20, 30)])
    promoted.ends.close()


@pytest.mark.parametrize("how", ["QUERY", "CONNECTION"])
def test_a_commit_whose_wait_is_killed_is_in_doubt_though_the_status_is_on(
    pair: Pair, database: Database, how: str
) -> None:
    store, threads = database.opened(), database.threads()
    create(store)
    waiters = "SELECT id FROM information_schema.processlist WHERE state LIKE '%semi-sync ACK%'"
    with pair.primary.configured("rpl_semi_sync_master_timeout", "60000"):
        pair.stop()
        call = threads.submit(reserve, store, 10)
        [(session,)] = until(lambda: pair.primary.execute(waiters), message="it waits for the replica")
        pair.primary.execute(f"KILL {how} {session}")
        assert isinstance(call.exception(TIMEOUT), Unconfirmed)
        assert pair.status()["status"] == "ON"
        pair.start()
    assert spans([reserve(store, 10)]) == [(10, 20)]


def test_an_outage_of_the_replica_between_two_calls_costs_nothing(pair: Pair, database: Database) -> None:
    store = database.opened()
    create(store)
    assert spans([reserve(store, 10)]) == [(0, 10)]
    pair.stop()
    pair.primary.execute("CREATE OR REPLACE TABLE of_another_program (n INT)")
    pair.start()
    assert spans([reserve(store, 10)]) == [(10, 20)]


def test_who_turns_it_off_goes_on_without_a_replica(pair: Pair, database: Database) -> None:
    store = database.opened()
    create(store)
    pair.stop()
    refused(store)
    with pair.primary.configured("rpl_semi_sync_master_enabled", "0"):
        assert spans([reserve(store, 10)]) == [(10, 20)]


def test_an_issuer_waits_for_the_replica(pair: Pair, database: Database) -> None:
    with issuer.connect(redis="none", store=database.url, scheduler=None, timeout=40) as ids:
        ids.create("a", step=10)
        numbers = ids.take("a", 10)
        pair.stop()
        with pytest.raises(issuer.StoreUnavailable) as caught:
            ids.take("a", 50, timeout=2)
        assert caught.value.retry_after
        pair.start()
        numbers += ids.take("a", 10)
        assert len(set(numbers)) == 20


def test_the_doctor_names_the_timeout(pair: Pair, database: Database) -> None:
    assert [
        each.level for each in found(database.url).values() if "rpl_semi_sync_master_timeout 100 ms" in each.what
    ] == ["ok"]
    store = database.opened()
    create(store)
    pair.stop()
    refused(store)
    [setting] = [each for each in store.examine(timeout=TIMEOUT).settings if each.name.startswith("semi")]
    assert (setting.good, setting.value.split(",")[:2]) == (False, ["0", " status OFF"])
