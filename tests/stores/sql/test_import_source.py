"""The source of `issuer import` on servers that lag, or that stand still."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from issuer.care.importing import database as importing
from issuer.care.importing.database import ImportDatabase
from issuer.care.importing.layouts import Choice, Query
from issuer.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.mariadb import MariaDBServer
    from tests.servers.postgres import PostgresServer
    from tests.stores.sql.conftest import Database

pytestmark = [pytest.mark.live, pytest.mark.covers("U.13")]


def read(url: str) -> list[tuple[Any, ...]]:
    return ImportDatabase(url).rows("SELECT 1", Choice())


@pytest.fixture
def user(mariadb_server: MariaDBServer) -> Iterator[str]:
    """A user of MariaDB who may read tables, and nothing else."""
    name = f"reader_{secrets.token_hex(4)}"
    mariadb_server.execute(f"CREATE USER {name}")
    mariadb_server.execute(f"GRANT SELECT ON issuer.* TO {name}")
    yield name
    mariadb_server.execute(f"DROP USER {name}")


def test_a_server_that_is_read_only_is_refused(database: Database) -> None:
    url = database.server.url
    assert read(url) == [(1,)]
    setting = ("default_transaction_read_only", "on") if database.is_postgres else ("read_only", "1")
    rejected = pytest.raises(ConfigurationError, match="or read-only")
    with database.server.configured(*setting), rejected as caught:
        read(url)
    assert f"127.0.0.1:{database.server.port}" in str(caught.value)


def test_a_standby_is_refused_until_it_is_promoted(postgres_server: PostgresServer) -> None:
    with postgres_server.standby() as standby:
        with pytest.raises(ConfigurationError, match="is a replica, or read-only"):
            read(standby.url)
        standby.promote()
        assert read(standby.url) == [(1,)]


@pytest.mark.parametrize("name", ["", "'named'"])
def test_a_replica_that_accepts_writes_is_refused_although_it_has_stopped(
    mariadb_server: MariaDBServer, name: str
) -> None:
    mariadb_server.execute(f"CHANGE MASTER {name} TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1")
    try:
        with pytest.raises(ConfigurationError, match="is a replica, or read-only"):
            read(mariadb_server.url)
    finally:
        mariadb_server.execute(f"RESET SLAVE {name} ALL")
    assert read(mariadb_server.url) == [(1,)]


def test_a_user_who_may_not_see_a_replica_is_told_which_right_is_missing(
    mariadb_server: MariaDBServer, user: str
) -> None:
    url = mariadb_server.url.replace("tester", user)
    with pytest.raises(ConfigurationError, match=r"(REPLICA|SLAVE) MONITOR"):
        read(url)
    mariadb_server.execute(f"GRANT REPLICA MONITOR ON *.* TO {user}")
    assert read(url) == [(1,)]


def test_an_import_from_a_server_that_stands_still_ends(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "TIMEOUT", 2.0)
    source = ImportDatabase(database.server.url)
    with ExitStack() as frozen:

        def read(query: Query, _: Choice) -> list[tuple[Any, ...]]:
            query("SELECT 1")
            frozen.enter_context(database.server.frozen())
            return query("SELECT 1")

        call = database.threads().submit(source.rows, read, Choice())
        assert isinstance(call.exception(30), StoreUnavailable)
