"""The contract of every store, behind a pgbouncer and on a MariaDB with unusual settings."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pytest

from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.postgresql import PostgreSQLStore
from tests.audit import repeats
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.stores import test_batches, test_ledger, test_races, test_stores
from tests.stores.benches import SQLBench, check_contiguous, create, ranges, reserve, spans
from tests.stores.test_races import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from issuer_persistence.sql.store import SQLStore
    from tests.servers.pgbouncer import PgBouncer
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


def central() -> list[Callable[..., None]]:
    """Return the tests of the contract that take one store of any kind, and nothing else."""
    found = []
    for module in (test_stores, test_ledger, test_batches, test_races):
        for name, test in vars(module).items():
            if name.startswith("test_") and [*inspect.signature(test).parameters] in (["bench"], ["store"]):
                found.append(test)
    assert len(found) > 20
    return found


def play_all(kind: type[SQLStore], url: str, prefix: str) -> None:
    for number, test in enumerate(central()):
        with SQLBench(kind, url, f"{prefix}{number}_") as bench:
            try:
                test(bench if "bench" in inspect.signature(test).parameters else bench.store)
            except Exception as error:
                error.add_note(f"in {test.__name__}")
                raise


def test_the_contract_holds_behind_a_pgbouncer_in_transaction_mode(postgres: Database, bouncer: PgBouncer) -> None:
    play_all(PostgreSQLStore, bouncer.url, postgres.prefix)
    # Nothing of a transaction's settings is left in a session.
    [(left,)] = postgres.server.execute("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in trans%'")
    assert left == 0


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
    assert odd_server.execute("SELECT @@sql_mode, @@binlog_format, @@completion_type") == [("", "STATEMENT", "CHAIN")]
    play_all(MySQLStore, odd_server.url, "t")
    with SQLBench(MySQLStore, odd_server.url, "t_") as bench:
        create(bench.store)
        answers = at_once([lambda: spans([reserve(bench.store, 5) for _ in range(10)])] * 6)
        assert repeats([each for answer in answers if isinstance(answer, list) for each, _ in answer]) == []
        check_contiguous(ranges(bench.store), 0, 300)
