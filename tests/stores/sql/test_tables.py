"""The tables of a store in an SQL database: which are accepted, and in which schema they are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

import issuer
from issuer_persistence.errors import Corrupt, Misconfigured, StoreError, TagMissing
from issuer_persistence.opening import open_store
from issuer_persistence.sql.postgresql import PostgreSQLStore
from tests.stores.benches import TIMEOUT, SQLBench, create, get, ranges, reserve, spans
from tests.stores.test_races import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from issuer_persistence.sql.store import SQLStore
    from tests.servers.pgbouncer import PgBouncer
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


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


#: How a table is altered, by PostgreSQL and by MariaDB, and what the store reports of it.
UNSAFE = [
    ("tags", 'DROP COLUMN "ahead"', 'DROP COLUMN "ahead"', "ahead is mis"),
    (
        "tags",
        'ALTER COLUMN "tag" TYPE TEXT COLLATE "en_US"',
        'MODIFY "tag" VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci',
        "tags.tag is",
    ),
    ("tags", 'ALTER COLUMN "max" TYPE NUMERIC', 'MODIFY "max" INT', "tags.max is"),
    ("segments", 'DROP CONSTRAINT "issuer_segments_pkey"', "DROP PRIMARY KEY", "no primary key"),
    ("meta", "SET UNLOGGED", "ENGINE=MyISAM", "unlogged|MyISAM"),
    ("segments", "SET UNLOGGED", 'DROP COLUMN "reason"', "unlogged|reason is mis"),
    ("segments", 'RENAME TO "issuer_aside"', 'RENAME TO "issuer_aside"', "is missing"),
]


@pytest.mark.parametrize(("table", "postgresql", "mysql", "problem"), UNSAFE)
def test_tables_that_could_repeat_or_lose_numbers_are_refused(
    bench: SQLBench, table: str, postgresql: str, mysql: str, problem: str
) -> None:
    create(bench.store)
    is_postgres = bench.kind is PostgreSQLStore
    with bench.cursor() as cursor:
        if is_postgres:
            cursor.execute("CREATE COLLATION IF NOT EXISTS \"en_US\" (provider = icu, locale = 'en-US')")
        change = f'ALTER TABLE "issuer_{table}" {postgresql if is_postgres else mysql}'
        cursor.execute(change.replace("issuer_", bench.prefix))
    with closing(bench.make()) as other:
        for call in (lambda: reserve(other), lambda: get(other), lambda: other.upgrade(timeout=TIMEOUT)):
            with pytest.raises(Misconfigured, match=problem):
                call()
    if "RENAME" in mysql:
        with bench.cursor() as cursor:
            cursor.execute(f'ALTER TABLE "{bench.prefix}aside" RENAME TO "{bench.prefix}{table}"')


@pytest.mark.covers("3.27")
def test_an_administrator_creates_the_tables_and_the_login_needs_no_right_to(bench: SQLBench) -> None:
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
    with SQLBench(bench.kind, bench.url.partition("?")[0], f"{bench.prefix}b_") as other:
        for each in (bench, other):
            create(each.store, step=10)
            assert spans([reserve(each.store)]) == [(0, 10)]
        assert bench.store.store_id(timeout=TIMEOUT) != other.store.store_id(timeout=TIMEOUT)


def test_tables_that_vanish_are_made_again_as_another_store(bench: SQLBench) -> None:
    create(bench.store, step=10)
    reserve(bench.store)
    before = bench.store.store_id(timeout=TIMEOUT)
    with bench.cursor() as cursor:
        for table in ("tags", "segments", "meta"):
            cursor.execute(f'DROP TABLE "{bench.prefix}{table}"')
    assert bench.store.get("orders", timeout=TIMEOUT) is None
    with pytest.raises(TagMissing):
        reserve(bench.store)
    assert bench.store.store_id(timeout=TIMEOUT) not in {"", before}


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


def test_a_number_that_no_store_reserves_changes_nothing(postgres_bench: SQLBench) -> None:
    """A step of 0 passes all conditions of the statement."""
    create(postgres_bench.store, step=10)
    postgres_bench.tamper("orders", step=0)
    with pytest.raises(Corrupt, match="step"):
        reserve(postgres_bench.store)
    assert ranges(postgres_bench.store) == []


@pytest.fixture
def role(postgres: Database) -> Iterator[str]:
    """A role with two schemas of its own: all names are the name of the role. The second one has a 2 at its end."""
    name = postgres.prefix.rstrip("_")
    run = postgres.server.execute
    run(f"CREATE ROLE {name} LOGIN")
    for schema in (name, f"{name}2"):
        run(f"CREATE SCHEMA {schema} AUTHORIZATION {name}")
    yield name
    run(f"DROP SCHEMA {name}, {name}2 CASCADE")
    run(f"DROP OWNED BY {name}")
    run(f"DROP ROLE {name}")


def url_of(postgres: Database, role: str) -> str:
    return postgres.server.url.replace("tester@", f"{role}@")


@contextmanager
def path_left(bouncer: PgBouncer, path: str) -> Iterator[None]:
    """Another program leaves this search_path in the only session of the pool."""
    with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as other:
        other.execute(f"SET search_path = {path}")
        yield
        other.execute("RESET search_path")


def test_another_search_path_of_the_role_makes_no_second_store(postgres: Database, role: str) -> None:
    url = url_of(postgres, role)
    store = postgres.opened(url)
    create(store)
    assert spans([reserve(store, 10)]) == [(0, 10)]
    postgres.server.execute(f"ALTER ROLE {role} SET search_path = {role}2")
    postgres.server.end_sessions()
    assert spans([reserve(store, 10)]) == [(10, 20)]  # this process knows the schema
    other = postgres.opened(url)
    calls: list[Callable[[], object]] = [
        lambda: create(other),
        lambda: get(other),
        lambda: reserve(other, 10),
        lambda: other.upgrade(timeout=TIMEOUT),
    ]
    for call in calls:
        with pytest.raises(Misconfigured, match=rf"are in {role}, .*{role}2.*prefix"):
            call()
    postgres.server.execute(f"ALTER ROLE {role} SET search_path = {role}")
    assert spans([reserve(other, 10)]) == [(20, 30)]


def test_processes_with_different_paths_that_make_the_tables_at_once_make_one_store(
    postgres: Database, role: str
) -> None:
    url = f"{url_of(postgres, role)}?prefix={postgres.prefix}&options=-csearch_path%3D"
    stores = [PostgreSQLStore.open(f"{url}{role}{'2' * (number % 2)}") for number in range(8)]
    answers = at_once([lambda store=store: create(store) for store in stores])  # type: ignore[misc]
    wrong = [each for each in answers if isinstance(each, Misconfigured)]
    assert len([each for each in answers if not isinstance(each, StoreError)]) == 1
    assert len(wrong) == 4
    counted = f"SELECT count(*) FROM pg_class WHERE relname = '{postgres.prefix}tags'"  # noqa: S608 - ours
    assert postgres.server.execute(counted) == [(1,)]
    for store in stores:
        store.close()


@pytest.mark.parametrize("bouncer", [1], indirect=True)
@pytest.mark.parametrize("stores", [1, 2])
def test_a_path_that_another_program_left_in_a_pooled_session_changes_nothing(
    postgres: Database, role: str, bouncer: PgBouncer, stores: int
) -> None:
    direct = postgres.opened()
    create(direct)
    if stores == 2:
        made(f"{postgres.server.url}?options=-csearch_path%3D{role}2", direct)
    running = postgres.opened(bouncer.url)
    assert spans([reserve(running, 10)]) == [(0, 10)]
    with path_left(bouncer, f"{role}2"):
        assert path_in(bouncer) == f"{role}2"
        assert spans([reserve(running, 10)]) == [(10, 20)]
        fresh = postgres.opened(bouncer.url)
        assert spans([reserve(fresh, 10)]) == [(20, 30)]
        assert path_in(bouncer) == f"{role}2"  # it is that program's
    assert ranges(direct) == [(0, 10), (10, 20), (20, 30)]


def path_in(bouncer: PgBouncer) -> str:
    with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as session:
        [(path,)] = session.execute("SHOW search_path").fetchall()
        return str(path)


def made(url: str, store: SQLStore) -> None:
    """Create the tables of the store by hand, as an administrator."""
    with psycopg.connect(url, autocommit=True) as administrator:
        for statement in store.definitions():
            administrator.execute(statement)


def test_tables_in_two_schemas_are_used_by_the_path_and_the_doctor_says_so(postgres: Database, role: str) -> None:
    """An administrator has made the second ones."""
    url = f"{url_of(postgres, role)}?prefix={postgres.prefix}"
    first = postgres.opened(url_of(postgres, role))
    create(first)
    reserve(first, 10)
    made(f"{url_of(postgres, role)}?options=-csearch_path%3D{role}2", first)
    with closing(PostgreSQLStore.open(f"{url}&options=-csearch_path%3D{role}2")) as second:
        create(second)
        assert spans([reserve(second, 10)]) == [(0, 10)]
        assert spans([reserve(first, 10)]) == [(10, 20)]
        [setting] = [each for each in second.examine(timeout=TIMEOUT).settings if each.name == "schemas"]
        assert (setting.value, setting.good) == (f"{role}, {role}2", False)
    # A path in which one schema has some of the tables, and another one the others.
    postgres.server.execute(f"DROP TABLE {role}2.{postgres.prefix}meta")
    with (
        closing(PostgreSQLStore.open(f"{url}&options=-csearch_path%3D{role}2,{role}")) as mixed,
        pytest.raises(Misconfigured, match=f"leads to {role} and {role}2"),
    ):
        reserve(mixed, 10)


@pytest.mark.parametrize("bouncer", [1], indirect=True)
def test_a_table_that_a_session_has_made_for_itself_hides_none(postgres: Database, bouncer: PgBouncer) -> None:
    running = postgres.opened(bouncer.url)
    create(running)
    assert spans([reserve(running, 10)]) == [(0, 10)]
    with psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) as other:
        other.execute(f"CREATE TEMPORARY TABLE {postgres.prefix}tags AS SELECT * FROM {postgres.prefix}tags")  # noqa: S608
        assert spans([reserve(running, 10)]) == [(10, 20)]
        other.execute(f"DROP TABLE pg_temp.{postgres.prefix}tags")
    assert spans([reserve(running, 10)]) == [(20, 30)]


def test_the_error_of_another_path_is_a_wrong_configuration(postgres: Database, role: str) -> None:
    create(postgres.opened(url_of(postgres, role)))
    postgres.server.execute(f"ALTER ROLE {role} SET search_path = {role}2")
    url = f"{url_of(postgres, role)}?prefix={postgres.prefix}"
    with (
        issuer.connect(redis="none", store=url, scheduler=None) as ids,
        pytest.raises(issuer.ConfigurationError, match="search_path"),
    ):
        ids.next("orders")
