"""Both SQL databases, each with tables of a test's own."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import pytest

import issuer
from issuer_persistence.opening import open_store
from issuer_persistence.sql.layouts import LAYOUTS
from issuer_persistence.sql.store import SQLStore
from tests.servers.absent import absent
from tests.servers.pgbouncer import PgBouncer, find_pgbouncer
from tests.servers.postgres import PostgresServer
from tests.stores.benches import TIMEOUT, SQLBench
from tests.stores.shared_rows import SharedRowBench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from issuer.values import Finding
    from tests.servers.mariadb import MariaDBServer

T = TypeVar("T")


@dataclass
class Database:
    """A server, and the URL of a store in it. The tables have the prefix `prefix`."""

    server: PostgresServer | MariaDBServer
    prefix: str = field(default_factory=lambda: f"t{secrets.token_hex(4)}_")
    ends: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"{self.server.url}?prefix={self.prefix}"

    @property
    def is_postgres(self) -> bool:
        return isinstance(self.server, PostgresServer)

    def session(self, store: SQLStore) -> int:
        """Return the id of the session that the store's next call uses."""
        with store.transaction(TIMEOUT, writes=False) as transaction:
            return int(transaction.rows(f"SELECT {'pg_backend_pid' if self.is_postgres else 'connection_id'}()")[0][0])

    @property
    def commit(self) -> bytes:
        """What a request to commit contains, and no other one."""
        return b"COMMIT\0" if self.is_postgres else b"\x03COMMIT"

    def opened(self, url: str = "") -> SQLStore:
        """Return a store, which is closed after the test. `url`: another way to the same server."""
        store = open_store(f"{url}?prefix={self.prefix}" if url else self.url)
        assert isinstance(store, SQLStore)
        self.ends.callback(store.close)
        return store

    def threads(self, count: int = 1) -> ThreadPoolExecutor:
        """Return threads, which are awaited after the test."""
        return self.ends.enter_context(ThreadPoolExecutor(count))


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> Iterator[Database]:
    made = Database(postgres_server)
    with made.ends:
        yield made


@pytest.fixture
def mariadb(mariadb_server: MariaDBServer) -> Iterator[Database]:
    made = Database(mariadb_server)
    with made.ends:
        yield made


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """Each database in turn."""
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["postgres", "mariadb"])
def bench(request: pytest.FixtureRequest) -> SQLBench:
    """The bench of each database in turn."""
    found: SQLBench = request.getfixturevalue(f"{request.param}_bench")
    return found


@pytest.fixture
def bouncer(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pgbouncer in transaction mode. Its parameter is the number of sessions that all clients share."""
    program = find_pgbouncer() or absent("pgbouncer", "pgbouncer")
    with PgBouncer(program, postgres_server.port, sessions=getattr(request, "param", 3)) as made:
        yield made


def shared_row(server: MariaDBServer, layout: str) -> Iterator[SharedRowBench]:
    """The table of another program as its database would have it: names that differ in case are the same."""
    with SharedRowBench(server.url, layout, collation="utf8mb4_general_ci") as made:
        yield made


@pytest.fixture(params=LAYOUTS)
def beside(request: pytest.FixtureRequest, mariadb_server: MariaDBServer) -> Iterator[SharedRowBench]:
    """The table of each program in turn."""
    yield from shared_row(mariadb_server, request.param)


@pytest.fixture
def leaf(mariadb_server: MariaDBServer) -> Iterator[SharedRowBench]:
    yield from shared_row(mariadb_server, "leaf")


@pytest.fixture
def tinyid(mariadb_server: MariaDBServer) -> Iterator[SharedRowBench]:
    yield from shared_row(mariadb_server, "tinyid")


def found(url: str) -> dict[str, Finding]:
    """Return what `doctor` finds in the settings of the server, by the setting."""
    with issuer.connect(redis="none", store=url, scheduler=None) as ids:
        ids.create("a", exist_ok=True)
        return {each.what.partition(":")[0]: each for each in ids.doctor() if each.check == "store-settings"}
