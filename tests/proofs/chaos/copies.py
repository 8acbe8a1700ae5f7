"""An old copy of the store, of whatever kind it is, and how it is put back."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymongo
from pymongo.database import Database

from issuer.chaos.world import World
from issuer_persistence.opening import open_store
from issuer_persistence.sql.store import SQLStore

#: Seconds that a copy may take.
COPYING = 60.0


@contextmanager
def copied(world: World) -> Iterator[Callable[[], None]]:
    """Copy the store as it is now; what is yielded puts the copy in its place, and is called when no issuer runs."""
    kinds = {"mongodb": _of_mongodb, "postgresql": _of_sql, "mariadb": _of_sql}
    with kinds.get(world.store.partition(":")[0], _of_sqlite)(world) as put_back:
        yield put_back


@contextmanager
def _of_sql(world: World) -> Iterator[Callable[[], None]]:
    """Copy all rows of all tables."""
    with closing(open_store(world.store)) as store:
        assert isinstance(store, SQLStore)
        names = store.statements.names
        with store.transaction(COPYING, writes=False) as transaction:
            copy = {name: transaction.rows(f'SELECT * FROM "{name}"') for name in names}  # noqa: S608 - ours

        def put_back() -> None:
            with store.transaction(COPYING) as transaction:
                for name, rows in copy.items():
                    transaction.cursor.execute(f'DELETE FROM "{name}"')  # noqa: S608 - ours
                    marks = ", ".join(["%s"] * len(rows[0]))
                    transaction.cursor.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)  # noqa: S608 - ours

        yield put_back


@contextmanager
def _of_sqlite(world: World) -> Iterator[Callable[[], None]]:
    path = world.folder / "store" / "issuer.db"

    def put_back() -> None:
        with closing(sqlite3.connect(path)) as store:
            copy.backup(store)

    with closing(sqlite3.connect(":memory:")) as copy:
        with closing(sqlite3.connect(path)) as store:
            store.backup(copy)
        yield put_back


@contextmanager
def _of_mongodb(world: World) -> Iterator[Callable[[], None]]:
    """Do what mongodump does, later what mongorestore --drop does: all documents and indexes of all collections."""
    client: pymongo.MongoClient[dict[str, Any]]
    with pymongo.MongoClient(world.store) as client:
        database: Database[dict[str, Any]] = client.get_default_database()
        names = database.list_collection_names()
        documents = {name: [*database[name].find()] for name in names}
        indexes = {name: [*database[name].list_indexes()] for name in names}

        def put_back() -> None:
            for name in names:
                collection = database[name]
                collection.drop()
                if documents[name]:
                    collection.insert_many(documents[name])
                for index in indexes[name]:
                    options = {option: index[option] for option in index if option not in ("v", "ns", "key")}
                    if options["name"] != "_id_":
                        collection.create_index([*index["key"].items()], **options)

        yield put_back
