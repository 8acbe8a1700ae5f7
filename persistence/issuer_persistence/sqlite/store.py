"""A store in one SQLite file: durable, and safe for several processes on one machine.

Every change is one transaction, which first takes SQLite's write lock (BEGIN IMMEDIATE). With a write-ahead log (WAL)
and synchronous=FULL, commits survive a power cut. The file must be on a local disk, because locks of network file
systems are not reliable.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar

from issuer_persistence import forks
from issuer_persistence.clock import monotonic
from issuer_persistence.contract import CallDeadline, Store, in_turn
from issuer_persistence.errors import Corrupt, MaxBehind, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.holding import acquired
from issuer_persistence.ledger import LedgerEntry, LedgerPage, Position, Reservation
from issuer_persistence.newest import Newest
from issuer_persistence.pruning import Walked
from issuer_persistence.records import Tag, check_argument, tried
from issuer_persistence.sqlite.file import JOURNAL_MODE, SYNCHRONOUS, SQLiteFile
from issuer_persistence.sqlite.schema import ENTRY_COLUMNS, SCHEMA, TAG_COLUMNS
from issuer_persistence.transactional import Transaction, TransactionalStore, record_of, row_of
from issuer_persistence.urls import has_parameters, mask

T = TypeVar("T")

log = logging.getLogger("issuer")

#: Oldest supported version of SQLite. Older versions have several faults in the write-ahead log, and no RETURNING.
OLDEST = (3, 35)

#: How long a fork, or `close`, waits for a running call of another thread, in seconds: until FORK_GRACE after the
#: deadline of this call, but at most FORK_PATIENCE. On a disk that hangs, a call may never end. If the call is still
#: running after this time, the store of the forked child rejects all calls.
FORK_GRACE, FORK_PATIENCE = 1.0, 10.0

#: Maximum number of tags for which a process remembers the newest ledger entry that it wrote. Each entry takes 0.5 KB.
ENTRIES_MOST = 1000


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f'"{each}"' for each in columns)


def _marks(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))


def _integer(column: str) -> str:
    return f"typeof({column}) = 'integer'"


# The lint rule S608 warns of SQL with foreign text. These statements consist of the constants above only.
_PUT_TAG = f"INSERT OR REPLACE INTO tags ({_names(TAG_COLUMNS)}) VALUES ({_marks(TAG_COLUMNS)})"  # noqa: S608 - see above
_PUT_ENTRY = f"INSERT INTO segments ({_names(ENTRY_COLUMNS)}) VALUES ({_marks(ENTRY_COLUMNS)})"  # noqa: S608 - see above
_GET_TAGS = f"SELECT {_names(TAG_COLUMNS)} FROM tags"  # noqa: S608 - see above
_FIRST_TAGS = f"{_GET_TAGS} WHERE deleted IS NOT 1 ORDER BY tag LIMIT ?"
_NEXT_TAGS = f"{_GET_TAGS} WHERE tag > ? AND deleted IS NOT 1 ORDER BY tag LIMIT ?"
_NEWEST_FIRST = "ORDER BY high DESC, low DESC, id DESC LIMIT ?"
_OLDEST_FIRST = "ORDER BY high, low, id LIMIT ?"
_OF_TAG = f"SELECT {_names(ENTRY_COLUMNS)} FROM segments WHERE tag = ?"  # noqa: S608 - see above
_ENTRY = f"{_OF_TAG} AND id = ?"
_NEWEST, _OLDEST = f"{_OF_TAG} {_NEWEST_FIRST}", f"{_OF_TAG} {_OLDEST_FIRST}"
_BELOW = f"{_OF_TAG} AND high <= ? AND (high, low, id) < (?, ?, ?) {_NEWEST_FIRST}"  # `high <= ?` uses the index
_ABOVE = f"{_OF_TAG} AND high >= ? AND (high, low, id) > (?, ?, ?) {_OLDEST_FIRST}"
# `high <= ...` excludes damaged entries with a text, because SQLite sorts text after all numbers. `low < high` excludes
# entries of which all numbers were returned.
_TAKEN = "SELECT max(high) FROM segments WHERE tag = ? AND high > ? AND high <= 9223372036854775807 AND low < high"
_ENDING_WITHIN = "SELECT id FROM segments INDEXED BY segments_by_number WHERE tag = ? AND high BETWEEN ? AND ?"
_OVERLAPPING = "SELECT id FROM segments WHERE tag = ? AND high > ? AND low < ?"
# The index sorts a tag's highest number first, so it is read backward, the last tag first. Blobs sort after all texts.
_WALKED = f"SELECT tag, high, low, id, time FROM segments WHERE {' AND '.join(map(_integer, ('high', 'low', 'time')))}"  # noqa: S608
_WALK_ABOVE = f"{_WALKED} AND tag = ? AND high >= ? AND (high, low, id) > (?, ?, ?) {_OLDEST_FIRST}"
_WALK_ON = f"{_WALKED} AND tag < coalesce(nullif(?, ''), x'') ORDER BY tag DESC, high, low, id LIMIT ?"
# Programs that do not know this table ignore it.
_PROGRESS = "CREATE TABLE IF NOT EXISTS pruning (progress TEXT NOT NULL)"

_LATEST = "SELECT time FROM segments WHERE time < ? ORDER BY rowid DESC LIMIT 1"


_record = partial(record_of, TAG_COLUMNS)


def _entry(row: Sequence[object]) -> dict[str, object]:
    return dict(zip(ENTRY_COLUMNS, row, strict=True))


class SQLiteTransaction(Transaction):
    """One transaction on the open file. `entered` lists the ledger entries that the transaction has written."""

    def __init__(self, connection: sqlite3.Connection, file: SQLiteFile, newest: dict[str, LedgerEntry]) -> None:
        self.connection, self._file, self._newest = connection, file, newest
        self.entered: list[LedgerEntry] = []

    def read_store_id(self) -> str:
        found = self.connection.execute("SELECT id FROM meta").fetchone()
        return "" if found is None else str(found[0])

    def read(self, tag: str) -> Tag | None:
        row = self.connection.execute(f"{_GET_TAGS} WHERE tag = ?", (tag,)).fetchone()
        return None if row is None else _record(row)

    def write(self, record: Tag) -> Tag:
        self.connection.execute(_PUT_TAG, row_of(TAG_COLUMNS, record))
        return record

    def enter(self, entry: LedgerEntry) -> None:
        self._insert(entry)
        self.entered.append(entry)

    def shorten(self, entry: str, high: int) -> None:
        self.connection.execute("UPDATE segments SET high = min(high, ?) WHERE id = ?", (high, entry))

    def progress(self) -> str:
        self.connection.execute(_PROGRESS)
        return "".join(text for (text,) in self.connection.execute("SELECT progress FROM pruning").fetchall())

    def note_progress(self, progress: str) -> None:
        self.connection.execute("DELETE FROM pruning")
        self.connection.execute("INSERT INTO pruning VALUES (?)", (progress,))

    def oldest(self, tag: str, beyond: Position | None, count: int) -> list[Walked]:
        statement, place = (_WALK_ON, (tag,)) if beyond is None else (_WALK_ABOVE, (tag, beyond[0], *beyond))
        return [Walked(*each) for each in self.connection.execute(statement, (*place, count)).fetchall()]

    def drop(self, ids: Sequence[str]) -> None:
        self.connection.execute(f"DELETE FROM segments WHERE id IN ({_marks(ids)})", ids)  # noqa: S608 - marks only

    def inspect(self, record: Tag) -> None:
        """Raise MaxBehind if the ledger contains numbers above the record's `max`, which would be reserved again."""
        self._put_back(record.tag)
        (taken,) = self.connection.execute(_TAKEN, (record.tag, record.max)).fetchone()
        if taken is not None:
            raise MaxBehind(record.tag, record.max, taken, certain=True)

    def _insert(self, entry: LedgerEntry) -> None:
        fields = asdict(entry)
        self.connection.execute(_PUT_ENTRY, [fields[each] for each in ENTRY_COLUMNS])

    def _put_back(self, tag: str) -> None:
        """If this process's newest ledger entry of the tag was overwritten, write the entry again.

        A program that does not use the lock file can lose SQLite's own locks. Then it can overwrite what another
        process writes at the same time. Both have then reserved the same range, but the ledger, or its index, has the
        entry of only one. So `verify` could not find the range that was reserved twice.
        """
        own = self._newest.get(tag)
        if own is None:
            return
        of_range = (tag, own.low, own.high)
        if (own.id,) in self.connection.execute(_ENDING_WITHIN, of_range).fetchall():
            return
        self.connection.execute("REINDEX segments")
        found = self.connection.execute(_OVERLAPPING, of_range).fetchall()
        if not found:
            return  # `prune` has deleted the entry because of its age
        if (own.id,) not in found:
            self._insert(own)
        log.error(
            "%s: tag %r: %d..%d was reserved twice, as `issuer verify` shows. The file is used by a program that "
            "does not take the lock %s: upgrade that program",
            self._file.path, tag, own.low + 1, own.high, self._file.lock,
        )  # fmt: skip


class SQLiteStore(TransactionalStore):
    """A store with its tags and ledger in the SQLite file at `path`. One thread at a time uses the file.

    Each call opens the file and closes it again, see `SQLiteFile`. The first write creates the file, and missing parent
    directories (mode 0700). If the file is no store, or a newer version wrote it, calls raise Misconfigured, and the
    file is not changed. SQLite 3.35 or newer is needed.
    """

    in_file = True
    #: Class of the file.
    file_type: type[SQLiteFile] = SQLiteFile

    @classmethod
    def open(cls, url: str) -> SQLiteStore:
        """Return the store for a URL of the form sqlite:///path.

        The path is used as it is: `%` is not decoded. The path can contain blanks, `?`, `#` and any letter. A path that
        ends with something like URL parameters, such as `?mode=ro`, is rejected: SQLite would create a new file with
        this name.
        """
        path = url.removeprefix("sqlite:///")
        if path in {"", url}:
            raise Misconfigured(f"{mask(url)}: write sqlite:///relative/path or sqlite:////absolute/path")
        if has_parameters(path):
            raise Misconfigured(
                f"{mask(url)}: the URL of an SQLite file has no parameters: remove the '?' and all that follows"
            )
        return cls(path)

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise Misconfigured(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
        if os.fspath(path) in {"", ":memory:"}:
            raise Misconfigured("an SQLite store needs a file; for a store in memory write memory://")
        # Make the path absolute, so that a later chdir does not lead to another file.
        self._path = Path(path).absolute()
        self._file = self.file_type(self._path)
        self._lock = threading.Lock()
        #: The newest ledger entry of each tag that this process has written. Only the last ENTRIES_MOST tags are kept.
        self._newest: Newest[LedgerEntry] = Newest(ENTRIES_MOST)
        #: Deadline of the newest call, on the monotonic clock.
        self._due = 0.0
        self._refusal = ""
        #: The lock, while this process forks.
        self._held: list[threading.Lock] = []
        _stores.add(self)

    @property
    def url(self) -> str:
        """`sqlite:///`, followed by the absolute path of the file."""
        return f"sqlite:///{self._path}"

    def tags(self, *, after: str | None = None, count: int, timeout: float) -> list[Tag | Corrupt]:
        check_argument("count", count, 1)
        statement, values = (_FIRST_TAGS, (count,)) if after is None else (_NEXT_TAGS, (after, count))
        with self.transaction(timeout, writes=False) as reading:
            rows = reading.connection.execute(statement, values).fetchall()
        return [tried(_record, row) for row in rows]

    def hand_back_checked(
        self, held: Sequence[Reservation], highs: Mapping[str, int], rest: int, *, timeout: float
    ) -> bool:
        self._newest.pop(held[-1].tag.tag, None)
        return super().hand_back_checked(held, highs, rest, timeout=timeout)

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        check_argument("newest", newest)
        with self.transaction(timeout, writes=False) as reading:
            rows = reading.connection.execute(_NEWEST, (tag, newest)).fetchall()
        return [LedgerEntry.checked(_entry(row)) for row in rows]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        check_argument("count", count, 1)
        statement = (_OLDEST if upward else _NEWEST) if beyond is None else _ABOVE if upward else _BELOW
        with self.transaction(timeout, writes=False) as reading:
            rows = reading.connection.execute(statement, (tag, *(beyond or ())[:1], *(beyond or ()), count)).fetchall()
        return LedgerPage.of([_entry(row) for row in rows], count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        with self.transaction(timeout, writes=False) as reading:
            found = [reading.connection.execute(_ENTRY, (tag, each)).fetchone() for each in ids]
        return [LedgerEntry.checked(_entry(row)) for row in found if row is not None]

    def latest(self, *, before: int, timeout: float) -> int:
        with self.transaction(timeout, writes=False) as reading:
            # Rows are in the order in which they were written: their times may be wrong.
            found = reading.connection.execute(_LATEST, (before,)).fetchone()
        return before if found is None else int(found[0])

    def batch(self, calls: Sequence[Callable[[Store, float], T]], *, timeout: float) -> list[T | StoreError]:
        """See `Store.batch`. All calls share one transaction, which is opened for writing only if a call writes."""
        deadline, within = CallDeadline(timeout), partial(_InTransaction, self._path, self._file, self._newest)
        with suppress(_Writes), self.transaction(deadline.left(), writes=False) as reading:
            return in_turn(within(reading, writes=False), calls, deadline.left())
        with self.transaction(deadline.left()) as writing:
            return in_turn(within(writing, writes=True), calls, deadline.left())

    def examine(self, *, timeout: float) -> StoreFacts:
        with self._turn(timeout) as deadline:
            schema, foreign = self._file.look(deadline)
        return StoreFacts(
            kind="sqlite",
            version=sqlite3.sqlite_version,
            own_clock=False,
            lasting=True,
            journal=JOURNAL_MODE,
            synchronous=SYNCHRONOUS,
            schema=schema,
            newest_schema=SCHEMA,
            open_elsewhere=foreign,
        )

    def upgrade(self, *, timeout: float) -> Upgrade:
        with self._turn(timeout) as deadline:
            before, _ = self._file.look(deadline)
            with self._file.transaction(deadline, writes=True):
                return Upgrade(before, max(before, SCHEMA))

    def after_fork(self) -> None:
        """Do nothing. The hooks below do the work: before a fork, they wait until no transaction is open.

        SQLite keeps a list of its locks in each process. A fork copies the list, but not the locks. So if a connection
        were open during a fork, the child would work without any lock (shown in tests/stores/test_sqlite.py).
        """

    def close(self) -> None:
        """Wait until a running call of another thread has ended. All later calls raise Misconfigured."""
        self._refusal = self._refusal or "the store was closed"
        if self._lock.acquire(timeout=self._patience()):
            self._lock.release()
        else:
            log.warning("%s: the store was closed while a call is still running in another thread", self._path)

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[SQLiteTransaction]:
        with self._turn(timeout) as deadline:
            with self._file.transaction(deadline, writes=writes) as connection:
                lock = self._lock
                transaction = SQLiteTransaction(connection, self._file, self._newest)
                yield transaction
                if self._lock is not lock:  # this child was forked in the block, by a signal handler: do not commit
                    raise Misconfigured(f"{self._path}: {self._refusal}")
            for entry in transaction.entered:
                self._newest[entry.tag] = entry

    @contextmanager
    def _turn(self, timeout: float) -> Iterator[CallDeadline]:
        """Wait until no other thread uses the file, and lock it for this thread during the block."""
        forks.notice()
        deadline, lock = CallDeadline(timeout), self._lock
        if not lock.acquire(timeout=deadline.left()):
            raise Unconfirmed(f"{self._path}: another thread held the connection for {timeout:g} s")
        self._due = monotonic() + timeout
        try:
            if self._refusal:
                raise Misconfigured(f"{self._path}: {self._refusal}")
            yield deadline
        finally:
            lock.release()

    # Hooks before and after a fork, see `after_fork`.

    def before_fork(self) -> None:
        """Before a fork: wait until a running call of another thread has ended, and lock the store."""
        acquired(self._lock, self._patience(), self._held)

    def after_fork_in_parent(self) -> None:
        """After a fork, in the parent: allow calls again."""
        while self._held:
            self._held.pop().release()

    def after_fork_in_child(self) -> None:
        """After a fork, in the child: make a new lock. If a call was running during the fork, reject all calls."""
        called, self._lock = self._lock.locked(), threading.Lock()
        if called and not self._held:
            self._refusal = "the process was forked in the middle of a call: create the store after the fork"
        self._held.clear()

    def _patience(self) -> float:
        """Return how long to wait for a running call of another thread, in seconds. See FORK_GRACE."""
        return min(FORK_GRACE + max(0.0, self._due - monotonic()), FORK_PATIENCE)


class _Writes(Exception):
    """A call of a batch wants to write in a transaction that only reads. Then the batch begins again."""


class _InTransaction(SQLiteStore):
    """The store within a batch: each of its transactions is a part of the batch's transaction."""

    def __init__(
        self, path: Path, file: SQLiteFile, newest: Newest[LedgerEntry], transaction: SQLiteTransaction, *, writes: bool
    ) -> None:
        self._path, self._file, self._newest = path, file, newest
        self._transaction, self._writes = transaction, writes

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[SQLiteTransaction]:  # noqa: ARG002 - the batch has its own
        if not writes:
            yield self._transaction
            return
        if not self._writes:
            raise _Writes
        connection, entered = self._transaction.connection, len(self._transaction.entered)
        connection.execute("SAVEPOINT call")
        try:
            yield self._transaction
        except StoreError:
            connection.execute("ROLLBACK TO call")
            del self._transaction.entered[entered:]
            raise
        finally:
            if connection.in_transaction:
                connection.execute("RELEASE call")


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()


def _for_each_store(step: Callable[[SQLiteStore], None]) -> Callable[[], None]:
    def run() -> None:
        for store in list(_stores):
            step(store)

    return run


forks.register(
    before=_for_each_store(SQLiteStore.before_fork),
    in_parent=_for_each_store(SQLiteStore.after_fork_in_parent),
    in_child=_for_each_store(SQLiteStore.after_fork_in_child),
)
