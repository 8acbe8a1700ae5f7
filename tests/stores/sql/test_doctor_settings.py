"""What `doctor` finds in the settings of real servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import issuer
from tests.servers.absent import absent
from tests.servers.mariadb import MariaDBServer, find_mariadb
from tests.servers.postgres import PostgresServer, find_postgres
from tests.stores.benches import TIMEOUT, SQLBench, create
from tests.stores.sql.conftest import found
from tests.stores.sql.test_failover import follows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


def test_a_server_as_it_comes_has_no_weakness(database: Database) -> None:
    assert {each.level for each in found(database.url).values()} == {"ok"}


@pytest.fixture
def careless_postgres() -> Iterator[PostgresServer]:
    binaries = find_postgres() or absent("postgres and initdb", "postgresql")
    with PostgresServer(binaries, fsync="off", full_page_writes="off") as server:
        yield server


def test_a_postgresql_that_loses_or_tears_what_is_committed(careless_postgres: PostgresServer) -> None:
    seen = found(careless_postgres.url)
    assert {name for name, each in seen.items() if each.level == "weak"} == {"fsync", "full_page_writes"}
    assert "reserved twice" in seen["fsync"].why
    assert "fsync = on" in seen["fsync"].remedy
    assert "full_page_writes = on" in seen["full_page_writes"].remedy
    with careless_postgres.standby("late"):
        follows(careless_postgres, "late", "async")
        behind = found(careless_postgres.url)["synchronous_standby_names"]
        assert (behind.level, behind.what) == ("weak", "synchronous_standby_names: ''")
        assert "synchronous_standby_names" in behind.remedy
        careless_postgres.execute("ALTER SYSTEM SET synchronous_standby_names = 'late'")
        careless_postgres.execute("SELECT pg_reload_conf()")
        assert "synchronous_standby_names" not in found(careless_postgres.url)


def test_a_plain_role_sees_it_all(postgres: Database) -> None:
    """No privilege beyond its own schema is needed."""
    name = postgres.prefix.rstrip("_")
    for statement in (f"CREATE ROLE {name} LOGIN", f"CREATE SCHEMA {name} AUTHORIZATION {name}"):
        postgres.server.execute(statement)
    url = postgres.server.url.replace("tester@", f"{name}@")
    assert {each.level for each in found(url).values()} == {"ok"}
    for statement in (f"DROP SCHEMA {name} CASCADE", f"DROP ROLE {name}"):
        postgres.server.execute(statement)


@pytest.fixture
def careless_mariadb() -> Iterator[MariaDBServer]:
    program = find_mariadb() or absent("mariadbd and mariadb-install-db", "mariadb-server")
    careless = {
        "log-bin": "bin", "server-id": 5, "sync-binlog": 0, "innodb-flush-log-at-trx-commit": 2,
        "innodb-doublewrite": 0,
    }  # fmt: skip
    with MariaDBServer(program, **careless) as server:
        yield server


def test_a_mariadb_that_loses_or_tears_what_is_committed(careless_mariadb: MariaDBServer) -> None:
    seen = found(careless_mariadb.url)
    weak = {name for name, each in seen.items() if each.level == "weak"}
    assert weak == {"innodb_flush_log_at_trx_commit", "sync_binlog", "innodb_doublewrite"}
    for name in weak:
        assert f"{name}=" in seen[name].remedy
    # Whether it has replicas at all, it does not show.
    assert seen["semi-synchronous replicas"].level == "unknown"
    assert "rpl_semi_sync" in seen["semi-synchronous replicas"].remedy
    with (
        careless_mariadb.configured("sync_binlog", "1"),
        careless_mariadb.configured("innodb_flush_log_at_trx_commit", "1"),
    ):
        seen = found(careless_mariadb.url)
        assert {name for name, each in seen.items() if each.level == "weak"} == {"innodb_doublewrite"}


def test_a_read_only_mariadb_and_another_server_with_the_tables(mariadb: Database) -> None:
    store = mariadb.opened()
    create(store)
    with mariadb.server.configured("read_only", "1"):
        [seen] = [each for each in store.examine(timeout=TIMEOUT).settings if each.name == "read_only"]
        assert (seen.value, seen.good) == ("ON", False)
    with mariadb.server.configured("server_id", "99"):
        fresh = mariadb.opened()
        [server] = [each for each in fresh.examine(timeout=TIMEOUT).settings if each.name == "server"]
        assert server.good is False
        assert "server_id 99" in server.value
        fresh.upgrade(timeout=TIMEOUT)
        [server] = [each for each in fresh.examine(timeout=TIMEOUT).settings if each.name == "server"]
        assert server.good is True


@pytest.fixture
def numbers(bench: SQLBench) -> Iterator[issuer.Issuer]:
    with issuer.connect(redis="none", store=bench.url, scheduler=None) as ids:
        yield ids


@pytest.mark.covers("N.7")
def test_the_doctor_shows_the_settings_of_the_server(numbers: issuer.Issuer) -> None:
    numbers.create("a")
    found = {each.check: each for each in numbers.doctor()}
    assert found["store-lasting"].level == "ok"
    assert any(name in found["store-settings"].what for name in ("fsync: on", "innodb_doublewrite: ON"))
    assert numbers.next("a") == 1


def test_the_doctor_tells_tables_that_another_server_had(bench: SQLBench, numbers: issuer.Issuer) -> None:
    numbers.create("a")
    with bench.cursor() as cursor:
        table = f"{bench.prefix}meta"
        cursor.execute(f'UPDATE "{table}" SET "value" = %s WHERE "name" = %s', ("elsewhere", "server"))  # noqa: S608
    [found] = [each for each in numbers.doctor() if each.check == "store-settings" and each.level == "weak"]
    assert "elsewhere" in found.why
    assert "issuer upgrade" in found.remedy
    numbers.upgrade()
    assert [each for each in numbers.doctor() if each.check == "store-settings" and each.level == "weak"] == []
