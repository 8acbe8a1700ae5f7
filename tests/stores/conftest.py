"""Stores for the contract tests: each kind behind the same handle, empty, and gone after the test."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pymongo
import pytest

from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.postgresql import PostgreSQLStore
from tests.stores.benches import (
    BENCHES,
    OF_THE_SERVER,
    PATIENT,
    SHARED,
    Bench,
    DoubleBench,
    MongoBench,
    SQLBench,
    SQLiteBench,
)
from tests.stores.shared_rows import DELETES, WEAKER, SharedRowBench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from issuer_persistence.contract import Store
    from tests.servers.mariadb import MariaDBServer
    from tests.servers.postgres import PostgresServer


@pytest.fixture(autouse=True)
def _patient(patient: None) -> None:
    """All tests of this room have the time that a busy machine needs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what a store on Leaf's table, or one over HTTP, does not promise."""
    for item in [*items]:
        callspec: Any = getattr(item, "callspec", Mock(params={}))
        kinds = [*callspec.params.values()]
        names = {item.name, getattr(item, "originalname", ""), item.path.name}
        if ("leaf" in kinds and WEAKER.keys() & names) or ("remote" in kinds and OF_THE_SERVER.keys() & names):
            items.remove(item)


def mongo_bench_at(url: str) -> Iterator[MongoBench]:
    """A database of its own on that server, which is gone afterwards."""
    base, _, query = url.partition("?")
    name = f"issuer_test_{secrets.token_hex(4)}"
    patient = f"{base.rstrip('/')}/{name}?{PATIENT}{query and '&'}{query}"
    client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(patient)
    with client, MongoBench(patient, client[name]) as bench:
        yield bench


@pytest.fixture
def mongo_bench(mongo_url: str) -> Iterator[MongoBench]:
    yield from mongo_bench_at(mongo_url)


@pytest.fixture
def sqlite_bench(tmp_path: Path) -> Iterator[SQLiteBench]:
    with SQLiteBench(tmp_path / "store.db") as bench:
        yield bench


@pytest.fixture
def double_bench(tmp_path: Path) -> Iterator[DoubleBench]:
    with DoubleBench(tmp_path / "store.db") as bench:
        yield bench


@pytest.fixture
def postgres_bench(postgres_server: PostgresServer) -> Iterator[SQLBench]:
    with SQLBench(PostgreSQLStore, postgres_server.url, f"t{secrets.token_hex(4)}_") as bench:
        yield bench


@pytest.fixture
def mariadb_bench(mariadb_server: MariaDBServer) -> Iterator[SQLBench]:
    with SQLBench(MySQLStore, mariadb_server.url, f"t{secrets.token_hex(4)}_") as bench:
        yield bench


@pytest.fixture
def leaf_bench(mariadb_server: MariaDBServer, request: pytest.FixtureRequest) -> Iterator[SharedRowBench]:
    """Leaf's table. For a test that deletes tags, Leaf has gone: as long as it draws, nobody can delete one."""
    with SharedRowBench(mariadb_server.url, "leaf", adopted=request.node.originalname in DELETES) as bench:
        yield bench


@pytest.fixture(params=[*BENCHES, "mongo", "postgres", "mariadb", "leaf"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each kind of store in turn."""
    if request.param not in BENCHES:
        yield request.getfixturevalue(f"{request.param}_bench")
        return
    with BENCHES[request.param](tmp_path) as made:
        yield made


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
