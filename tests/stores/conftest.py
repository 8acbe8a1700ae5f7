"""Stores for the contract tests: each kind behind the same handle, empty, and gone after the test."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pymongo
import pytest

from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.postgresql import PostgreSQLStore
from tests.stores.benches import BENCHES, PATIENT, SHARED, Bench, DoubleBench, MongoBench, SQLBench, SQLiteBench
from tests.stores.shared_rows import DELETES, WEAKER, SharedRowBench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from issuer_persistence.contract import Store
    from tests.servers.mariadb import MariaDBServer
    from tests.servers.postgres import PostgresServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a store on Leaf's table does not promise."""
    for item in [*items]:
        callspec = getattr(item, "callspec", None)
        on_leaf = callspec is not None and "leaf" in callspec.params.values()
        if on_leaf and WEAKER.keys() & {item.name, getattr(item, "originalname", "")}:
            items.remove(item)


def mongo_bench_at(url: str) -> Iterator[MongoBench]:
    """A database of its own on that server, which is gone afterwards."""
    base, _, query = url.partition("?")
    name = f"issuer_test_{secrets.token_hex(4)}"
    patient = f"{base.rstrip('/')}/{name}?{PATIENT}{query and '&'}{query}"
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(patient)
    bench = MongoBench(patient, client[name])
    try:
        yield bench
    finally:
        bench.close()
        client.drop_database(name)
        client.close()


@pytest.fixture
def mongo_bench(mongo_url: str) -> Iterator[MongoBench]:
    yield from mongo_bench_at(mongo_url)


@pytest.fixture
def sqlite_bench(tmp_path: Path) -> Iterator[SQLiteBench]:
    bench = SQLiteBench(tmp_path / "store.db")
    yield bench
    bench.close()


@pytest.fixture
def double_bench(tmp_path: Path) -> Iterator[DoubleBench]:
    bench = DoubleBench(tmp_path / "store.db")
    yield bench
    bench.close()


@pytest.fixture
def postgres_bench(postgres_server: PostgresServer) -> Iterator[SQLBench]:
    bench = SQLBench(PostgreSQLStore, postgres_server.url, f"t{secrets.token_hex(4)}_")
    yield bench
    bench.drop()


@pytest.fixture
def mariadb_bench(mariadb_server: MariaDBServer) -> Iterator[SQLBench]:
    bench = SQLBench(MySQLStore, mariadb_server.url, f"t{secrets.token_hex(4)}_")
    yield bench
    bench.drop()


@pytest.fixture
def leaf_bench(mariadb_server: MariaDBServer, request: pytest.FixtureRequest) -> Iterator[SharedRowBench]:
    """Leaf's table. For a test that deletes tags, Leaf has gone: as long as it draws, nobody can delete one."""
    bench = SharedRowBench(mariadb_server.url, "leaf", adopted=request.node.originalname in DELETES)
    yield bench
    bench.drop()


@pytest.fixture(params=[*BENCHES, "mongo", "postgres", "mariadb", "leaf"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each kind of store in turn."""
    if request.param not in BENCHES:
        yield request.getfixturevalue(f"{request.param}_bench")
        return
    made = BENCHES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "double", "postgres", "mariadb", "leaf"])
def transactional_bench(request: pytest.FixtureRequest) -> SQLiteBench | SQLBench:
    """Each kind of store whose batches are transactions."""
    found: SQLiteBench | SQLBench = request.getfixturevalue(f"{request.param}_bench")
    return found


@pytest.fixture
def store(bench: Bench) -> Store:
    """The store of each kind in turn."""
    return bench.store


@pytest.fixture(params=SHARED)
def shared_bench(request: pytest.FixtureRequest) -> SQLiteBench | MongoBench:
    """Each kind of store that processes can share."""
    found: SQLiteBench | MongoBench = request.getfixturevalue(f"{request.param}_bench")
    return found
