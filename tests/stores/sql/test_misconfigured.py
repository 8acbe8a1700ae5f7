"""What an operator must correct is reported at once, with the text of the driver. A call does not wait for it."""

from __future__ import annotations

import re
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

import issuer
from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.opening import open_store
from issuer_persistence.sql.postgresql import PostgreSQLStore
from issuer_persistence.urls import parameters
from tests.stores.benches import TIMEOUT, SQLBench, create, get, ranges, reserve, spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.colours import Connect
    from tests.servers.mariadb import MariaDBServer
    from tests.servers.pgbouncer import PgBouncer
    from tests.servers.postgres import PostgresServer
    from tests.servers.tls import Certificates
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


@contextmanager
def user(database: Database, made: str, password: str = "") -> Iterator[str]:
    """Make a user `someone` by a statement, with all rights on the tables. Yield the URL of the store for it."""
    server, postgres = database.server, database.is_postgres
    who = "someone" if postgres else "someone@'%'"
    server.execute(made.format(who=who))
    server.execute(f"GRANT ALL ON {'ALL TABLES IN SCHEMA public' if postgres else 'issuer.*'} TO {who}")
    try:
        yield database.url.replace("tester@", f"someone{password and ':'}{password}@")
    finally:
        if postgres:
            server.execute(f"DROP OWNED BY {who}")
        server.execute(f"DROP {'ROLE' if postgres else 'USER'} {who}")


def refused(url: str, connect: Connect = issuer.connect) -> str:
    """Draw from a tag in vain, and return the text of the ConfigurationError."""
    with (
        connect(redis="none", store=url, scheduler=None, timeout=40) as ids,
        pytest.raises(issuer.ConfigurationError) as caught,
    ):
        ids.next("orders")
    return str(caught.value)


@pytest.mark.parametrize(
    ("database", "made", "said"),
    [
        ("postgres", "CREATE ROLE {who} NOLOGIN", "not permitted to log in"),
        ("mariadb", "CREATE USER {who} ACCOUNT LOCK", "account is locked"),
        (
            "postgres",
            "CREATE ROLE {who} LOGIN; ALTER ROLE {who} SET default_transaction_read_only = on",
            "read-only transaction",
        ),
    ],
    indirect=["database"],
)
def test_an_account_that_is_locked_or_only_reads_is_refused_at_once(
    connect: Connect, database: Database, made: str, said: str
) -> None:
    create(database.opened(), order="trend")
    with user(database, made) as url:
        assert said in refused(url, connect)


def test_a_mariadb_with_sessions_that_only_read_is_refused_at_once(mariadb: Database) -> None:
    create(mariadb.opened(), order="trend")
    with mariadb.server.configured("tx_read_only", "ON"):
        assert "READ ONLY" in refused(mariadb.url)


def test_a_user_with_too_many_sessions_waits_for_one(database: Database) -> None:
    create(database.opened(), order="trend")
    limit = "CREATE ROLE {who} LOGIN CONNECTION LIMIT 1"
    if not database.is_postgres:
        limit = "CREATE USER {who} WITH MAX_USER_CONNECTIONS 1"
    with user(database, limit) as url:
        first, second = open_store(url), open_store(url)
        with first.transaction(TIMEOUT), pytest.raises(Unconfirmed):  # type: ignore[attr-defined]  # an SQLStore
            reserve(second)
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("database", "query", "said"),
    [
        ("mariadb", "ssl_ca=/nowhere.crt", "No such file.*certificates"),
        ("mariadb", "ssl_ca={nonsense}", "no certificate"),
        ("mariadb", "ssl_ca={authority}", "SSL is required"),
        ("postgres", "sslmode=require", "SSL was required"),
    ],
    indirect=["database"],
)
def test_tls_without_its_file_or_a_server_for_it_is_refused_at_once(
    database: Database, certificates: Certificates, tmp_path: Path, query: str, said: str
) -> None:
    create(database.opened(), order="trend")
    nonsense = tmp_path / "nonsense.crt"
    nonsense.write_text("nonsense")
    with pytest.raises(Misconfigured, match=said):
        get(open_store(f"{database.url}&{query.format(nonsense=nonsense, authority=certificates.authority)}"))


def test_a_pgbouncer_that_rejects_a_parameter_is_told_at_once(bouncer: PgBouncer) -> None:
    assert "unsupported startup parameter" in refused(f"{bouncer.url}?options=-csearch_path%3Dpublic")


def test_a_server_of_the_other_kind_is_told_at_once(
    postgres_server: PostgresServer, mariadb_server: MariaDBServer
) -> None:
    there = mariadb_server.url.replace(f":{mariadb_server.port}/", f":{postgres_server.port}/")
    assert "this is a PostgreSQL server" in refused(there)
    for tls in ("prefer", "disable"):
        there = postgres_server.url.replace(f":{postgres_server.port}/", f":{mariadb_server.port}/")
        assert "SSL negotiation" in refused(f"{there}?sslmode={tls}") or tls == "disable"


@contextmanager
def trigger(database: Database, body: str, *more: str) -> Iterator[None]:
    """Run a statement before each ledger entry is written. `more`: statements to begin with."""
    server, table = database.server, f"{database.prefix}segments"
    for each in (*more, f"CREATE TABLE {database.prefix}audit (tag VARCHAR(50) PRIMARY KEY)"):
        server.execute(each)
    body = body.format(table=f"{database.prefix}audit")
    if database.is_postgres:
        server.execute(
            f"CREATE FUNCTION {database.prefix}own() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN {body}; RETURN NEW; END $$"
        )
        body = f"EXECUTE FUNCTION {database.prefix}own()"
    server.execute(f"CREATE TRIGGER {database.prefix}own BEFORE INSERT ON {table} FOR EACH ROW {body}")
    try:
        yield
    finally:
        on = f" ON {table}" if database.is_postgres else ""
        server.execute(f"DROP TRIGGER {database.prefix}own{on}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "the budget is used up"),
        ("INSERT INTO {table} VALUES ('x'), ('x')", "(?i)duplicate"),
        ("INSERT INTO {table}_2 VALUES ('x')", "audit_2"),
    ],
)
def test_a_trigger_that_fails_is_told_at_once_by_its_own_error(
    connect: Connect, database: Database, body: str, said: str
) -> None:
    raised = "RAISE EXCEPTION" if database.is_postgres else "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT ="
    store = database.opened()
    create(store, step=10, order="trend")
    with trigger(database, body or f"{raised} 'the budget is used up'"):
        assert re.search(said, refused(database.url, connect))
    assert ranges(store) == []
    assert spans([reserve(store)]) == [(0, 10)]


def test_a_password_is_sent_as_it_is_encoded_in_the_url(mariadb: Database) -> None:
    create(mariadb.opened(), step=10)
    with user(mariadb, "CREATE USER {who} IDENTIFIED BY 'päß€京'", "p%C3%A4%C3%9F%E2%82%AC%E4%BA%AC") as url:
        store = open_store(url)
        assert spans([reserve(store)]) == [(0, 10)]
        store.close()


@pytest.mark.parametrize(
    ("postgresql", "mysql", "problem"),
    [
        ("postgresql://nobody@{host}/postgres", "mysql://nobody:x@{host}/issuer", "nobody"),
        ("postgresql://tester@{host}/nothing", "mysql://tester@{host}/nothing", "nothing"),
        ("postgresql://tester@{host}/postgres?prefix=a-b", "mysql://tester@{host}/issuer?prefix=1a", "prefix"),
        ("postgresql://tester@{host}/postgres?color=red", "mysql://tester@{host}/issuer?color=red", "parameter"),
        ("postgresql://tester@{host}/postgres?prefix=Ab_", "mysql://tester@{host}/issuer?prefix=Ab_", "lower-case"),
        ("postgresql://t:sec/ret@{host}/postgres", "mysql://tester@{host}/", "form|name of the database"),
        ("postgresql://t:secret@localhost:99999/d", "mysql://t:secret@localhost:99999/d", "port"),
        ("postgresql://t:secret@{host}/d?connect_timeout=abc", "mysql://t:secret[@{host}/issuer", "value|a name"),
        ("postgresql://t:secret@{host}/d?port=abc", "mysql://t:secret@{host},/issuer", "port|a name"),
        (
            "postgresql://tester@{host}/postgres?options=-c%20search_path%3Dnowhere",
            "mysql://t:secret@h,i:99999/issuer",
            "no schema|a port",
        ),
    ],
)
def test_a_wrong_url_says_what_to_correct_and_shows_no_secret(
    bench: SQLBench, postgresql: str, mysql: str, problem: str
) -> None:
    host = bench.url.partition("@")[2].partition("/")[0]
    with (
        pytest.raises(issuer.ConfigurationError, match=problem) as caught,
        issuer.connect(
            redis="none",
            store=(postgresql if bench.kind is PostgreSQLStore else mysql).format(host=host),
            scheduler=None,
        ) as ids,
    ):
        ids.create("a")
    assert "secret" not in str(caught.value)


def test_a_plus_in_a_parameter_is_a_plus_and_a_blank_stays_one(postgres_bench: SQLBench) -> None:
    assert parameters("mysql://h/d?ssl_ca=/a+b%20c&prefix=") == ("mysql://h/d", {"ssl_ca": "/a+b c", "prefix": ""})
    url = f"{postgres_bench.url}&application_name=a+b%20c&options=-c%20search_path%3Dpublic"
    with closing(PostgreSQLStore.open(url)) as store, store.transaction(TIMEOUT) as transaction:
        assert transaction.rows("SHOW application_name") == [("a+b c",)]
