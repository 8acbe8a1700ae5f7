"""Both SQL databases, each with tables of a test's own."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from issuer_persistence.opening import open_store
from issuer_persistence.sql.store import SQLStore
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer
from tests.servers.pgbouncer import PgBouncer, find_pgbouncer
from tests.servers.postgres import PostgresServer

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
    def session(self) -> str:
        """SQL expression for the id of a session."""
        return "pg_backend_pid()" if isinstance(self.server, PostgresServer) else "connection_id()"

    @property
    def commit(self) -> bytes:
        """What a request to commit contains, and no other one."""
        return b"COMMIT\0" if isinstance(self.server, PostgresServer) else b"\x03COMMIT"

    def opened(self, url: str = "") -> SQLStore:
        """Return a store, which is closed after the test. `url`: another way to the same server."""
        store = open_store(f"{url}?prefix={self.prefix}" if url else self.url)
        assert isinstance(store, SQLStore)
        self.ends.callback(store.close)
        return store

    def threads(self, count: int = 1) -> ThreadPoolExecutor:
        """Return threads, which are awaited after the test."""
        return self.ends.enter_context(ThreadPoolExecutor(count))


@pytest.fixture(params=["postgres", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Each database in turn."""
    made = Database(request.getfixturevalue(f"{request.param}_server"))
    with made.ends:
        yield made


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


@pytest.fixture
def bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """A pgbouncer in transaction mode with three sessions."""
    with PgBouncer(find_pgbouncer() or absent("pgbouncer", "pgbouncer"), postgres_server.port) as made:
        yield made


@pytest.fixture
def small_bouncer(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """The same with a single session: all clients get it in turn."""
    program = find_pgbouncer() or absent("pgbouncer", "pgbouncer")
    with PgBouncer(program, postgres_server.port, sessions=1) as made:
        yield made
