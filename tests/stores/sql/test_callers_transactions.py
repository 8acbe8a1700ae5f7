"""The store never joins a transaction of the caller, whatever becomes of it: its connections are its own."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import sqlalchemy

import issuer
from tests.audit import assert_increasing
from tests.stores.benches import TIMEOUT, check_contiguous, create, get, ranges, reserve

if TYPE_CHECKING:
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


def alchemy(database: Database) -> str:
    """Return the URL for SQLAlchemy."""
    driver = "postgresql+psycopg" if database.is_postgres else "mysql+pymysql"
    return f"{driver}:{database.server.url.partition(':')[2]}"


@pytest.mark.covers("2.7", "2.14")
@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_of_sqlalchemy_changes_nothing_of_what_is_reserved(
    database: Database, end: str, isolation: str
) -> None:
    rows = sqlalchemy.Table(
        f"{database.prefix}rows",
        sqlalchemy.MetaData(),
        sqlalchemy.Column("id", sqlalchemy.BigInteger, primary_key=True),
    )
    engine = sqlalchemy.create_engine(alchemy(database), isolation_level=isolation)
    # MariaDB locks all that is read. Whoever reads the store's own tables so has to be waited for.
    locks = not database.is_postgres and isolation == "SERIALIZABLE"
    read = rows.name if locks else f"{database.prefix}tags"
    numbers = []
    with issuer.connect(redis="none", store=database.url, scheduler=None) as ids:
        ids.create("orders", step=5)
        rows.create(engine)
        for _ in range(3):
            with engine.connect() as connection:
                # From now on, the transaction sees all tables as they are now.
                connection.execute(sqlalchemy.text(f"SELECT * FROM {read}"))  # noqa: S608 - ours
                numbers += ids.take("orders", 7)
                connection.execute(rows.insert(), [{"id": number} for number in numbers[-7:]])
                numbers += ids.take("orders", 7)
                getattr(connection, end)()
        with engine.connect() as connection:
            kept = connection.execute(sqlalchemy.select(rows.c.id)).scalars().all()
        store = database.opened()
        check_contiguous(ranges(store), 0, get(store).max)
    assert numbers == list(range(1, 43))
    assert len(kept) == (21 if end == "commit" else 0)
    rows.drop(engine)
    engine.dispose()


@pytest.mark.covers("2.7", "2.14")
def test_a_callers_transaction_that_locks_its_own_rows_does_not_block_a_reservation(database: Database) -> None:
    """What the caller locks of its own tables is none of the store's business, and the other way round."""
    engine = sqlalchemy.create_engine(alchemy(database))
    store = database.opened()
    create(store)
    with ExitStack() as open_ones:
        for number in range(3):
            connection = open_ones.enter_context(engine.connect())
            connection.execute(sqlalchemy.text(f"CREATE TABLE {database.prefix}own{number} (id INT PRIMARY KEY)"))
            connection.execute(sqlalchemy.text(f"INSERT INTO {database.prefix}own{number} VALUES (1)"))  # noqa: S608 - ours
            assert reserve(store, 10).low == 10 * number
    check_contiguous(ranges(store), 0, 30)
    engine.dispose()


#: Draws within `atomic` blocks, one in another: argv is Django's engine, host, port, user, database, the store's URL.
DJANGO = """
import sys
import django
from django.conf import settings
engine, host, port, user, name, url = sys.argv[1:]
settings.configure(
    DATABASES={"default": {"ENGINE": engine, "HOST": host, "PORT": port, "USER": user, "NAME": name,
                           "CONN_MAX_AGE": None, "ATOMIC_REQUESTS": True}},
)
if "mysql" in engine:
    import pymysql
    pymysql.version_info = (2, 2, 4, "final", 0)  # Django asks for mysqlclient, which this stands in for
    pymysql.install_as_MySQLdb()
django.setup()
from django.db import connection, transaction
import issuer
with issuer.connect(redis="none", store=url, scheduler=None, timeout=40) as ids:
    ids.create("orders", step=5)
    numbers = []
    for end in ("commit", "rollback", "error"):
        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
                numbers += ids.take("orders", 7)
                with transaction.atomic():
                    numbers += ids.take("orders", 7)
                    if end == "rollback":
                        transaction.set_rollback(True)
                if end == "error":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    print(*numbers)
"""


@pytest.mark.covers("2.7", "2.14")
def test_a_transaction_of_django_changes_nothing_of_what_is_reserved(database: Database) -> None:
    kind, name = ("postgresql", "postgres") if database.is_postgres else ("mysql", "issuer")
    line = [f"django.db.backends.{kind}", "127.0.0.1", str(database.server.port), "tester", name, database.url]
    ended = subprocess.run(
        [sys.executable, "-c", DJANGO, *line], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr
    numbers = [int(word) for word in ended.stdout.split()]
    assert_increasing(numbers)
    assert numbers == list(range(1, 43))
    store = database.opened()
    assert get(store).max >= 42
    assert max(high for _, high in ranges(store)) <= get(store).max
    assert store.get("orders", timeout=TIMEOUT) is not None
