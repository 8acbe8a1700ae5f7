"""An old copy of the store, of whatever kind it is, and how it is put back."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymongo
from pymongo.database import Database

from issuer.chaos.world import World


@contextmanager
def copied(world: World) -> Iterator[Callable[[], None]]:
    """Copy the store as it is now; what is yielded puts the copy in its place, and is called when no issuer runs."""
    with _of_mongodb(world) if world.store.startswith("mongodb:") else _of_sqlite(world) as put_back:
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
