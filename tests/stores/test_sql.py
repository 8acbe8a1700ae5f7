"""What only the stores in SQL databases have: tables, columns that compare names, prefixes and connections."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import issuer
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, TagMissing, Unconfirmed
from issuer_persistence.opening import open_store
from issuer_persistence.sql import connections
from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.postgresql import PostgreSQLStore
from issuer_persistence.urls import parameters
from tests.forks import in_child
from tests.stores.benches import TIMEOUT, SQLBench, create, get, ranges, reserve, spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(params=["postgres", "mariadb"])
def bench(request: pytest.FixtureRequest) -> SQLBench:
    found = request.getfixturevalue(f"{request.param}_bench")
    assert isinstance(found, SQLBench)
    return found


def altered(bench: SQLBench, postgresql: str, mysql: str) -> None:
    """Change a table by hand."""
    statement = postgresql if bench.kind is PostgreSQLStore else mysql
    with bench.cursor() as cursor:
        cursor.execute(statement.replace("issuer_", bench.prefix))


@pytest.mark.covers("3.27", "U.16")
def test_names_that_differ_in_case_accents_or_blanks_are_tags_of_their_own(bench: SQLBench) -> None:
    names = ["orders", "Orders", "orders ", "ordérs", "ORDERS", "aß", "ass", "ﬁ", "fi", "i̇", "i"]
    for number, name in enumerate(names):
        create(bench.store, name, above=number * 1000, step=10)
    for number, name in enumerate(names):
        assert spans([reserve(bench.store, tag=name)]) == [(number * 1000, number * 1000 + 10)]
        assert ranges(bench.store, name) == [(number * 1000, number * 1000 + 10)]
    page = bench.store.tags(count=100, timeout=TIMEOUT)
    assert [each.tag for each in page] == sorted(names, key=str.encode)
    for name in ("oRders", " orders", "orders  "):
        with pytest.raises(TagMissing):
            reserve(bench.store, tag=name)


@pytest.mark.parametrize(
    ("postgresql", "mysql", "problem"),
    [
        (
            'ALTER TABLE "issuer_tags" DROP COLUMN "ahead"',
            'ALTER TABLE "issuer_tags" DROP COLUMN "ahead"',
            "ahead is mis",
        ),
        (
            'ALTER TABLE "issuer_tags" ALTER COLUMN "tag" TYPE TEXT COLLATE "en_US"',
            'ALTER TABLE "issuer_tags" MODIFY "tag" VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci',
            "tags.tag is",
        ),
        (
            'ALTER TABLE "issuer_tags" ALTER COLUMN "max" TYPE NUMERIC',
            'ALTER TABLE "issuer_tags" MODIFY "max" INT',
            "tags.max is",
        ),
        (
            'ALTER TABLE "issuer_segments" DROP CONSTRAINT "issuer_segments_pkey"',
            'ALTER TABLE "issuer_segments" DROP PRIMARY KEY',
            "no primary key",
        ),
        ('ALTER TABLE "issuer_meta" SET UNLOGGED', 'ALTER TABLE "issuer_meta" ENGINE=MyISAM', "unlogged|MyISAM"),
        ('DROP TABLE "issuer_segments"', 'DROP TABLE "issuer_segments"', "is missing"),
    ],
)
def test_tables_that_could_repeat_or_lose_numbers_are_refused(
    bench: SQLBench, postgresql: str, mysql: str, problem: str
) -> None:
    create(bench.store)
    if bench.kind is PostgreSQLStore and "en_US" in postgresql:
        with bench.cursor() as cursor:
            cursor.execute("CREATE COLLATION IF NOT EXISTS \"en_US\" (provider = icu, locale = 'en-US')")
    altered(bench, postgresql, mysql)
    with closing(bench.make()) as other:
        for call in (lambda: reserve(other), lambda: get(other), lambda: other.upgrade(timeout=TIMEOUT)):
            with pytest.raises(Misconfigured, match=problem):
                call()
    if "DROP TABLE" in postgresql:
        altered(bench, postgresql.replace("DROP", "CREATE") + " (a INT)", mysql.replace("DROP", "CREATE") + " (a INT)")


@pytest.mark.covers("3.27")
def test_an_administrator_creates_the_tables_and_the_login_needs_no_right_to(
    bench: SQLBench,
) -> None:
    prefix = f"{bench.prefix}dba_"
    url = f"{bench.url.partition('?')[0]}?prefix={prefix}".replace("tester@", f"{bench.prefix}u:secret@")
    printed = subprocess.run(
        [sys.executable, "-m", "issuer", "--store", url, "upgrade", "--sql"], check=True, capture_output=True, text=True
    ).stdout
    with bench.cursor() as cursor:
        for statement in printed.split(";\n"):
            if statement.strip():
                cursor.execute(statement)
        if bench.kind is PostgreSQLStore:
            cursor.execute(f"CREATE ROLE {bench.prefix}u LOGIN PASSWORD 'secret'")
        else:
            cursor.execute(f"CREATE USER {bench.prefix}u@'%' IDENTIFIED BY 'secret'")
        for table in ("tags", "segments", "meta"):
            cursor.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON "{prefix}{table}" TO {bench.prefix}u')
    try:
        with closing(open_store(url)) as store:
            create(store, step=10)
            assert spans([reserve(store)]) == [(0, 10)]
            assert store.examine(timeout=TIMEOUT).schema == 1
    finally:
        with bench.cursor() as cursor:
            for table in ("tags", "segments", "meta"):
                cursor.execute(f'DROP TABLE "{prefix}{table}"')
            cursor.execute(f"DROP {'ROLE' if bench.kind is PostgreSQLStore else 'USER'} {bench.prefix}u")


def test_each_prefix_is_a_store_of_its_own(bench: SQLBench) -> None:
    other = SQLBench(bench.kind, bench.url.partition("?")[0], f"{bench.prefix}b_")
    try:
        for each in (bench, other):
            create(each.store, step=10)
            assert spans([reserve(each.store)]) == [(0, 10)]
        assert bench.store.store_id(timeout=TIMEOUT) != other.store.store_id(timeout=TIMEOUT)
    finally:
        other.drop()


def test_tables_that_vanish_are_made_again_as_another_store(bench: SQLBench) -> None:
    create(bench.store, step=10)
    reserve(bench.store)
    before = bench.store.store_id(timeout=TIMEOUT)
    with bench.cursor() as cursor:
        for table in ("tags", "segments", "meta"):
            cursor.execute(f'DROP TABLE "{bench.prefix}{table}"')
    assert get_or_none(bench) is None
    with pytest.raises(TagMissing):
        reserve(bench.store)
    assert bench.store.store_id(timeout=TIMEOUT) not in {"", before}


def get_or_none(bench: SQLBench) -> object:
    return bench.store.get("orders", timeout=TIMEOUT)


def test_connections_that_the_server_has_ended_are_replaced(bench: SQLBench) -> None:
    create(bench.store, step=10)
    for count in range(1, 4):
        end_connections(bench)
        assert spans([reserve(bench.store)]) == [((count - 1) * 10, count * 10)]


def end_connections(bench: SQLBench) -> None:
    with bench.cursor() as cursor:
        if bench.kind is PostgreSQLStore:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return
        cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'tester'")
        for (process,) in cursor.fetchall():
            with suppress(Exception):  # it has ended meanwhile
                cursor.execute(f"KILL {process}")


def test_a_connection_that_rested_for_a_minute_is_not_used_again(
    bench: SQLBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(bench.store, step=10)
    before = connection_id(bench)
    assert connection_id(bench) == before
    monkeypatch.setattr(connections, "IDLE_TIME", 0.0)
    assert connection_id(bench) != before


def connection_id(bench: SQLBench) -> Any:
    store = bench.store
    assert isinstance(store, bench.kind)
    with store.transaction(TIMEOUT, writes=False) as transaction:
        function = "pg_backend_pid()" if bench.kind is PostgreSQLStore else "connection_id()"
        return transaction.rows(f"SELECT {function}")[0][0]


def test_a_forked_child_uses_connections_of_its_own(bench: SQLBench) -> None:
    create(bench.store, step=10)
    parents = connection_id(bench)
    assert in_child(lambda: (connection_id(bench) != parents, reserve(bench.store).high))() == (True, 10)
    assert connection_id(bench) == parents
    assert reserve(bench.store).high == 20


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
        ("postgresql://t:secret@{host}/d?connect_timeout=abc", "mysql://t:secret[@{host}/issuer", "value|one host"),
        ("postgresql://t:secret@{host}/d?port=abc", "mysql://t:secret@{host},{host}/issuer", "port|one host"),
        (
            "postgresql://tester@{host}/postgres?options=-c%20search_path%3Dnowhere",
            "mysql://t:secret@h,i/issuer",
            "no schema|one host",
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


@pytest.mark.parametrize("first", ["good", "bad"])
def test_of_two_schemas_the_tables_that_are_used_are_checked(postgres_bench: SQLBench, first: str) -> None:
    name = postgres_bench.prefix
    other = {"good": "bad", "bad": "good"}[first]
    create(postgres_bench.store)
    try:
        for schema in ("good", "bad"):
            with postgres_bench.cursor() as cursor:
                cursor.execute(f"CREATE SCHEMA {name}{schema}")
                cursor.execute(f"SET LOCAL search_path = {name}{schema}")
                for statement in postgres_bench.past.definitions():  # as an administrator does
                    cursor.execute(statement)
            with closing(PostgreSQLStore.open(f"{postgres_bench.url}&options=-csearch_path%3D{name}{schema}")) as store:
                create(store)
        with postgres_bench.cursor() as cursor:
            cursor.execute(f'ALTER TABLE {name}bad."{name}tags" ALTER COLUMN "max" TYPE NUMERIC')
        url = f"{postgres_bench.url}&options=-csearch_path%3D{name}{first},{name}{other},public"
        with closing(PostgreSQLStore.open(url)) as store:
            if first == "good":
                assert spans([reserve(store, 10)]) == [(0, 10)]
            else:
                with pytest.raises(Misconfigured, match="numeric"):
                    reserve(store, 10)
    finally:
        with postgres_bench.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {name}good, {name}bad CASCADE")


def test_without_a_file_descriptor_left_a_call_is_unconfirmed(bench: SQLBench, monkeypatch: pytest.MonkeyPatch) -> None:
    create(bench.store)
    with closing(bench.make()) as fresh:
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", raising(OSError(errno.EMFILE, "Too many open files")))
            with pytest.raises(Unconfirmed, match="Too many open files"):
                reserve(fresh, 10)
        assert spans([reserve(fresh, 10)]) == [(0, 10)]


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: object) -> NoReturn:
        raise error

    return call


def test_without_the_driver_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for driver, module, url, extra in (
        ("psycopg", "postgresql", "postgresql://h/d", 'pip install ".[postgresql]"'),
        ("pymysql", "mysql", "mysql://h/d", 'pip install ".[mysql]"'),
    ):
        for name in [each for each in sys.modules if each.partition(".")[0] == driver]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, driver, None)
        monkeypatch.delitem(sys.modules, f"issuer_persistence.sql.{module}", raising=False)
        with pytest.raises(Misconfigured, match="install") as caught:
            open_store(url)
        assert extra in str(caught.value)


def test_a_number_that_no_store_reserves_changes_nothing(postgres_bench: SQLBench) -> None:
    """A step of 0 passes all conditions of the statement."""
    create(postgres_bench.store, step=10)
    postgres_bench.tamper("orders", step=0)
    with pytest.raises(Corrupt, match="step"):
        reserve(postgres_bench.store)
    assert ranges(postgres_bench.store) == []


def test_a_server_that_is_away_is_unconfirmed_and_found_again(bench: SQLBench) -> None:
    address = {PostgreSQLStore: "postgresql://x@127.0.0.1:1/d", MySQLStore: "mysql://x@127.0.0.1:1/d"}[bench.kind]
    with closing(open_store(address)) as store:
        with pytest.raises(Unconfirmed, match=r"127\.0\.0\.1"):
            store.get("a", timeout=5)
        with pytest.raises(StoreError):
            store.examine(timeout=5)


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
