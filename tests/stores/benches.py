"""A store of each kind on the bench: opened as often as a test likes, put back in time, and tampered with."""

from __future__ import annotations

import copy
import shutil
import sqlite3
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self

import pytest
from bson.int64 import Int64
from pymongo.collection import Collection

from issuer.testing.store import DoubledStore
from issuer_persistence.errors import StoreError
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import LedgerEntry, Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.records import HIGHEST, TagSettings
from issuer_persistence.remote import RemoteStore
from issuer_persistence.sql.transaction import SQLTransaction
from issuer_persistence.sqlite import SQLiteStore
from issuer_persistence.sqlite.store import SQLiteTransaction
from tests.servers.web import WebServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from pymongo.database import Database

    from issuer_persistence.contract import Store
    from issuer_persistence.ledger import Reservation
    from issuer_persistence.records import Tag
    from issuer_persistence.sql.store import SQLStore

#: Seconds that a call may take on a machine busy with other things.
TIMEOUT = 60.0

#: For a MongoDB URL: milliseconds that pymongo waits for a server. A call without a deadline of its own takes them.
PATIENT = "serverSelectionTimeoutMS=60000&connectTimeoutMS=60000"

#: A scheme with all that JSON has, and that a store could get wrong.
SCHEME: dict[str, Any] = {
    "strategy": "segment",
    "format": "BIZ{date:%y%m%d}-{seq:06d} 京 \N{GEAR} \"quoted\" 'so' \0\n} \N{EURO SIGN}",
    "stride": [{"from": 1, "first": 3, "stride": 2}, {"from": HIGHEST, "first": -(2**63), "stride": 4}],
    "options": {
        "größe": HIGHEST,
        "least": -(2**63),
        "none": None,
        "yes": True,
        "no": False,
        "nothing": {},
        "empty": [],
        "crc": "00000000",
    },
    "nested": [[1, [2, [2**31, 2**53 + 1]]], [], [{"a": [{"b": []}]}]],
    "id": "9f2c",
}


def create(store: Store, tag: str = "orders", **settings: Any) -> Tag:
    given = {"above": 0, "step": 1000, "limit": HIGHEST, "order": "strict", "description": "made by a test", **settings}
    return store.create(tag, TagSettings(**given), timeout=TIMEOUT)


def reserve(
    store: Store, n: int | None = None, *, tag: str = "orders", at_least: int = 0, exact: bool = False
) -> Reservation:
    return store.reserve(tag, n, at_least=at_least, exact=exact, purpose=Purpose("test"), timeout=TIMEOUT)


def get(store: Store, tag: str = "orders") -> Tag:
    found = store.get(tag, timeout=TIMEOUT)
    assert found is not None
    return found


def spans(held: Iterable[Reservation | LedgerEntry]) -> list[tuple[int, int]]:
    return [(each.low, each.high) for each in held]


def ranges(store: Store, tag: str = "orders") -> list[tuple[int, int]]:
    """The ledger, oldest numbers first."""
    return spans(reversed(store.ledger(tag, newest=10_000, timeout=TIMEOUT)))


def check_contiguous(segments: list[tuple[int, int]], above: int, top: int) -> None:
    """The segments, in any order, cover (above, top] without a gap and without an overlap."""
    end = above
    for low, high in sorted(segments):
        assert low == end, f"({low}, {high}] doesn't begin where the one before it ended, at {end}"
        assert high > low
        end = high
    assert end == top


def nested(levels: int) -> dict[str, Any]:
    """A scheme of so many objects within each other."""
    scheme: dict[str, Any] = {}
    for _ in range(levels - 1):
        scheme = {"a": scheme}
    return scheme


def of_size(size: int) -> dict[str, Any]:
    """A scheme whose JSON has so many bytes."""
    return {"format": "x" * (size - len('{"format":""}'))}


def forged(fields: Mapping[str, object]) -> dict[str, Any]:
    """A ledger entry that somebody made up."""
    made = LedgerEntry(tag="orders", low=0, high=1000, reason="forged", host="elsewhere", pid=4711)
    return {**asdict(made), **fields}


@contextmanager
def before(kind: type, method: str, what: Callable[[], object], *, once: bool = False) -> Iterator[None]:
    """Let something happen before each call of a method, or before the first one."""
    really = getattr(kind, method)

    def late(*arguments: Any, **options: Any) -> Any:
        if once:
            patched.undo()
        what()
        return really(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kind, method, late)
        yield


class Bench(ABC):
    """One store, empty at first."""

    #: A scheme that tags of the store may have, and their longest name.
    scheme: Mapping[str, Any] = SCHEME
    name_most = 200
    #: The method that writes a record: its class and its name.
    writes: tuple[type, str]

    def __init__(self) -> None:
        self._opened: list[Store] = []
        self.store = self.open()

    @abstractmethod
    def make(self) -> Store:
        """Another store object on the same data, as another process would have it."""

    @abstractmethod
    def backup(self) -> object:
        """Take a backup of everything."""

    @abstractmethod
    def restore(self, backup: object) -> None:
        """Put the backup back."""

    @abstractmethod
    def tamper(self, tag: str, **fields: object) -> None:
        """Write into the record past the store."""

    @abstractmethod
    def raw(self, tag: str = "orders") -> dict[str, Any]:
        """Read the record past the store."""

    @abstractmethod
    def forge(self, **fields: object) -> str:
        """Write a ledger entry past the store: low 0, high 1000, tag `orders` and so on unless said. Returns its id."""

    def open(self) -> Store:
        store = self.make()
        self._opened.append(store)
        return store

    def close(self) -> None:
        for store in self._opened:
            store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class MemoryBench(Bench):
    writes = MemoryStore, "write"

    def __init__(self) -> None:
        self.memory = MemoryStore()
        super().__init__()

    def make(self) -> Store:
        return self.memory

    def backup(self) -> object:
        return self.memory.snapshot()

    def restore(self, backup: Any) -> None:
        self.memory.restore(backup)

    def tamper(self, tag: str, **fields: Any) -> None:
        self.memory._tags[tag] = replace(self.memory._tags[tag], **fields)

    def raw(self, tag: str = "orders") -> dict[str, Any]:
        return asdict(self.memory._tags[tag])

    def forge(self, **fields: object) -> str:
        entry = LedgerEntry(**forged(fields))
        self.memory._ledger[entry.id] = entry
        return entry.id


class SQLiteBench(Bench):
    writes = SQLiteTransaction, "write"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        super().__init__()

    def make(self) -> SQLiteStore:
        return SQLiteStore(self.path)

    def connect(self) -> sqlite3.Connection:
        """A connection past the store; the caller closes it."""
        return sqlite3.connect(self.path, isolation_level=None)

    def execute(self, statement: str, *values: object) -> list[Any]:
        """Run a statement past the store, whatever the table demands."""
        with closing(self.connect()) as connection:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA ignore_check_constraints = ON")
            return connection.execute(statement, values).fetchall()

    def backup(self) -> object:
        copied = self.path.with_suffix(".backup")
        with closing(self.connect()) as source, closing(sqlite3.connect(copied)) as target:
            source.backup(target)
        return copied

    def restore(self, backup: Any) -> None:
        # With the issuers stopped, as the documentation says.
        self.close()
        for each in self.path.parent.glob(f"{self.path.name}*"):
            each.unlink()
        shutil.copy(backup, self.path)
        self.store = self.open()

    def tamper(self, tag: str, **fields: object) -> None:
        for name, value in fields.items():
            self.execute(f'UPDATE tags SET "{name}" = ? WHERE tag = ?', value, tag)  # noqa: S608 - named by the test

    def raw(self, tag: str = "orders") -> dict[str, Any]:
        [found] = self.execute("SELECT * FROM tags WHERE tag = ?", tag)
        return dict(found)

    def loosen(self) -> None:
        """Make the tags' table as other programs would: the columns' affinity turns 5.0 back into 5."""
        self.close()
        columns = ", ".join(f'"{row[1]}"' for row in self.execute("PRAGMA table_info(tags)"))
        self.execute("ALTER TABLE tags RENAME TO old")
        self.execute(f"CREATE TABLE tags ({columns}, PRIMARY KEY (tag))")
        self.execute("INSERT INTO tags SELECT * FROM old")
        self.store = self.open()

    def forge(self, **fields: object) -> str:
        entry = forged(fields)
        columns, marks = ", ".join(f'"{name}"' for name in entry), ", ".join("?" * len(entry))
        self.execute(f"INSERT INTO segments ({columns}) VALUES ({marks})", *entry.values())  # noqa: S608 - ours
        return str(entry["id"])


class RemoteBench(SQLiteBench):
    """A store over HTTP, whose server has its tags in an SQLite file."""

    def __init__(self, path: Path) -> None:
        self._served = WebServer(f"sqlite:///{path}")
        super().__init__(path)
        self.url = self.store.url

    def make(self) -> Any:
        return RemoteStore.open(self._served.url())

    def restore(self, backup: Any) -> None:
        self._served.close()
        super().restore(backup)
        self._served = WebServer(f"sqlite:///{self.path}")
        self.store = self.open()

    def close(self) -> None:
        super().close()
        self._served.close()


class DoubleBench(SQLiteBench):
    """The store of the test double, which keeps its file open."""

    def __init__(self, path: Path) -> None:
        DoubledStore.made(path).close()
        super().__init__(path)
        self.url = self.store.url

    def make(self) -> DoubledStore:
        return DoubledStore(self.path)


class JournalledBench(SQLiteBench):
    """An SQLite store with a journal beside it, which is rotated every few lines."""

    def __init__(self, path: Path) -> None:
        self.journal = path.with_name("journal")
        super().__init__(path)

    def make(self) -> Store:  # type: ignore[override]  # a store all the same
        return Journalled(SQLiteStore(self.path), self.journal, rotate_at=2000)


class MongoBench(Bench):
    writes = Collection, "find_one_and_update"

    def __init__(self, url: str, database: Database[dict[str, Any]]) -> None:
        self.url = url
        self.database = database
        super().__init__()

    def make(self) -> MongoStore:
        return MongoStore.open(self.url)

    def raw(self, tag: str = "orders") -> dict[str, Any]:
        found = self.database["issuer_tags"].find_one({"_id": tag})
        assert found is not None
        return found

    def backup(self) -> object:
        return {name: list(self.database[name].find()) for name in ("issuer_tags", "issuer_segments", "issuer_meta")}

    def restore(self, backup: Any) -> None:
        for name, documents in copy.deepcopy(backup).items():
            self.database[name].delete_many({})
            if documents:
                self.database[name].insert_many(documents)

    def tamper(self, tag: str, **fields: object) -> None:
        self.database["issuer_tags"].update_one({"_id": tag}, {"$set": fields})

    def close(self) -> None:
        super().close()
        self.database.client.drop_database(self.database)

    def forge(self, **fields: object) -> str:
        entry = forged(fields)
        entry["_id"] = entry.pop("id")
        whole = {name: Int64(entry[name]) for name in ("low", "high", "time") if isinstance(entry[name], int)}
        self.database["issuer_segments"].insert_one({**entry, **whole})
        return str(entry["_id"])


class SQLBench(Bench):
    """A store in an SQL database, in tables with a prefix of their own."""

    writes = SQLTransaction, "write_many"

    def __init__(self, kind: type[SQLStore], url: str, prefix: str) -> None:
        self.kind, self.url, self.prefix = kind, f"{url}?prefix={prefix}", prefix
        self.past = self.make()
        super().__init__()

    def make(self) -> SQLStore:
        made = self.kind.open(self.url)
        assert isinstance(made, self.kind)
        return made

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        """A transaction past the store."""
        with self.past.transaction(TIMEOUT) as transaction:
            yield transaction.cursor

    def backup(self) -> object:
        found = {}
        for table in ("tags", "segments", "meta"):
            with self.cursor() as cursor:
                cursor.execute(f'SELECT * FROM "{self.prefix}{table}"')  # noqa: S608 - ours
                found[table] = cursor.fetchall()
        return found

    def restore(self, backup: Any) -> None:
        with self.cursor() as cursor:
            for table, rows in backup.items():
                cursor.execute(f'DELETE FROM "{self.prefix}{table}"')  # noqa: S608 - ours
                for row in rows:
                    marks = ", ".join(["%s"] * len(row))
                    cursor.execute(f'INSERT INTO "{self.prefix}{table}" VALUES ({marks})', row)  # noqa: S608 - ours

    def tamper(self, tag: str, **fields: object) -> None:
        with self.cursor() as cursor:
            for name, value in fields.items():
                cursor.execute(f'UPDATE "{self.prefix}tags" SET "{name}" = %s WHERE "tag" = %s', (value, tag))  # noqa: S608
                cursor.execute(f'SELECT "{name}" FROM "{self.prefix}tags" WHERE "tag" = %s', (tag,))  # noqa: S608 - ours
                self.check(value, cursor.fetchone()[0])

    def raw(self, tag: str = "orders") -> dict[str, Any]:
        with self.cursor() as cursor:
            cursor.execute(f'SELECT * FROM "{self.prefix}tags" WHERE "tag" = %s', (tag,))  # noqa: S608 - ours
            return dict(zip((each[0] for each in cursor.description), cursor.fetchone(), strict=True))

    def forge(self, **fields: object) -> str:
        entry = forged(fields)
        columns, marks = ", ".join(f'"{name}"' for name in entry), ", ".join(["%s"] * len(entry))
        with self.cursor() as cursor:
            cursor.execute(f'INSERT INTO "{self.prefix}segments" ({columns}) VALUES ({marks})', [*entry.values()])  # noqa: S608
            cursor.execute(f'SELECT {columns} FROM "{self.prefix}segments" WHERE "id" = %s', (entry["id"],))  # noqa: S608
            for value, found in zip(entry.values(), cursor.fetchone(), strict=True):
                self.check(value, found)
        return str(entry["id"])

    @staticmethod
    def check(value: object, found: object) -> None:
        """Raise an error, so that the transaction is rolled back, if the column has converted the value."""
        found = found.decode() if isinstance(found, bytes) and isinstance(value, str) else found
        if found != value or (type(found) is not type(value) and not isinstance(value, bool)):
            raise StoreError(f"the column makes {found!r} of {value!r}")

    def close(self) -> None:
        """Close the stores, and remove the tables."""
        with self.cursor() as cursor:
            for table in ("tags", "segments", "meta"):
                cursor.execute(f'DROP TABLE "{self.prefix}{table}"')
        super().close()
        self.past.close()


#: How a test gets an empty store of each kind, given a folder of its own. A bench that needs a server is a fixture.
#: The tests of the contract that a store over HTTP leaves to the store of its server, and why.
OF_THE_SERVER = {
    "test_pruning.py": "the server prunes its own store",
    "test_a_call_that_is_interrupted_once_it_has_written_keeps_nothing_locked": "the interrupt would be the server's",
}

BENCHES: dict[str, Callable[[Path], Bench]] = {
    "memory": lambda _: MemoryBench(),
    "sqlite": lambda folder: SQLiteBench(folder / "store.db"),
    "double": lambda folder: DoubleBench(folder / "store.db"),
    "journalled": lambda folder: JournalledBench(folder / "store.db"),
    "remote": lambda folder: RemoteBench(folder / "store.db"),
}

#: The kinds that processes can share.
SHARED = ("sqlite", "double", "mongo", "postgres", "mariadb", "leaf")
