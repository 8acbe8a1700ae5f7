"""The schema of PostgreSQL in which the tables are: another search_path must not make a second store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

import issuer
from issuer_persistence.errors import Misconfigured, StoreError
from issuer_persistence.sql.postgresql import PostgreSQLStore
from issuer_persistence.sql.store import SQLStore
from tests.stores.benches import TIMEOUT, create, get, ranges, reserve, spans
from tests.stores.sql.conftest import Database
from tests.stores.test_races import at_once

if TYPE_CHECKING:
    from tests.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.live


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


@pytest.mark.parametrize("stores", [1, 2])
def test_a_path_that_another_program_left_in_a_pooled_session_changes_nothing(
    postgres: Database, role: str, small_bouncer: PgBouncer, stores: int
) -> None:
    direct = postgres.opened()
    create(direct)
    if stores == 2:
        made(f"{postgres.server.url}?options=-csearch_path%3D{role}2", direct)
    running = postgres.opened(small_bouncer.url)
    assert spans([reserve(running, 10)]) == [(0, 10)]
    with path_left(small_bouncer, f"{role}2"):
        assert path_in(small_bouncer) == f"{role}2"
        assert spans([reserve(running, 10)]) == [(10, 20)]
        fresh = postgres.opened(small_bouncer.url)
        assert spans([reserve(fresh, 10)]) == [(20, 30)]
        assert path_in(small_bouncer) == f"{role}2"  # it is that program's
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


def test_a_table_that_a_session_has_made_for_itself_hides_none(postgres: Database, small_bouncer: PgBouncer) -> None:
    running = postgres.opened(small_bouncer.url)
    create(running)
    assert spans([reserve(running, 10)]) == [(0, 10)]
    with psycopg.connect(small_bouncer.url, autocommit=True, prepare_threshold=None) as other:
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
