"""A store in one SQLite file: durable, and safe for several processes on one machine.

Every change is one transaction that takes the write lock first (BEGIN IMMEDIATE), with the arithmetic done in Python:
SQLite turns an integer that overflows into a REAL without a word. WAL and synchronous=FULL: what was committed outlives
a power cut. Not for network file systems, whose locks can't be relied on.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import sqlite3
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from issuer.persistence import forks, scheme_json
from issuer.persistence.contract import Deadline, Store
from issuer.persistence.errors import Misconfigured, TagMissing, Unavailable
from issuer.persistence.records import (
    LedgerEntry,
    LedgerPage,
    Position,
    Reservation,
    StoreFacts,
    Tag,
    TagChanges,
    TagSettings,
    check_argument,
    check_reserving,
    fresh_version,
    label,
    shortened,
)
from issuer.persistence.sqlite_schema import ADDED, COLUMNS, ENTRY_COLUMNS, SCHEMA, STEPS, TAG_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

log = logging.getLogger("issuer")

#: The oldest SQLite library with which this is tested: RETURNING, and the end of several WAL races.
OLDEST = (3, 35)

#: Pages of the log after which it is written into the database: after each commit, so that a log that is deleted
#: by hand holds nothing that the database doesn't. It takes 10 % of a reservation.
CHECKPOINT_AFTER = 1

#: Seconds that a fork, or `close`, waits for a call of another thread to end: until a second after the call's deadline,
#: as one on a disk that stands still may never end, and no longer than the second figure. The child of such a fork
#: refuses: see `after_fork`.
FORK_GRACE, FORK_PATIENCE = 1.0, 10.0


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f'"{each}"' for each in columns)


def _marks(columns: Sequence[str]) -> str:
    return ", ".join("?" * len(columns))


# S608 is about text from outside; these are put together from the constants above.
_PUT_TAG = f"INSERT OR REPLACE INTO tags ({_names(TAG_COLUMNS)}) VALUES ({_marks(TAG_COLUMNS)})"  # noqa: S608 - see above
_PUT_ENTRY = f"INSERT INTO segments ({_names(ENTRY_COLUMNS)}) VALUES ({_marks(ENTRY_COLUMNS)})"  # noqa: S608 - see above
_GET_TAGS = f"SELECT {_names(TAG_COLUMNS)} FROM tags"  # noqa: S608 - see above
_NEWEST_FIRST = "ORDER BY high DESC, low DESC, id DESC LIMIT ?"
_OLDEST_FIRST = "ORDER BY high, low, id LIMIT ?"
_OF_TAG = f"SELECT {_names(ENTRY_COLUMNS)} FROM segments WHERE tag = ?"  # noqa: S608 - see above
_NEWEST, _OLDEST = f"{_OF_TAG} {_NEWEST_FIRST}", f"{_OF_TAG} {_OLDEST_FIRST}"
_BELOW = f"{_OF_TAG} AND high <= ? AND (high, low, id) < (?, ?, ?) {_NEWEST_FIRST}"  # high alone is for the index
_ABOVE = f"{_OF_TAG} AND high >= ? AND (high, low, id) > (?, ?, ?) {_OLDEST_FIRST}"
_PRUNE = """DELETE FROM segments WHERE time < ? AND id <> (
    SELECT newest.id FROM segments AS newest WHERE newest.tag = segments.tag
    ORDER BY newest.high DESC, newest.low DESC, newest.id DESC LIMIT 1)"""

#: Device and inode of the database, its log and the log's index; None for one that isn't there.
_Files = tuple[tuple[int, int] | None, ...]

#: How /proc/self/mountinfo writes a blank, say.
_ESCAPED = re.compile(r"\\([0-7]{3})")

_random = random.SystemRandom()
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
_SET_UP_WRONGLY = {
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup, then run `recover`",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_AUTH: "access is denied",
}


def _code(error: sqlite3.Error) -> int:
    # The low byte is the primary code; errors that Python itself raises have none.
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _record(row: Sequence[object]) -> Tag:
    fields = dict(zip(TAG_COLUMNS, row, strict=True))
    for flag in ("halted", "deleted"):
        if fields[flag] in (0, 1) and isinstance(fields[flag], int):
            fields[flag] = bool(fields[flag])
    if isinstance(fields["scheme"], str):
        with suppress(ValueError, RecursionError):  # then it stays a text, which is no scheme
            fields["scheme"] = json.loads(fields["scheme"])
    return Tag.checked(str(fields["tag"]), fields)


def _entry(row: Sequence[object]) -> dict[str, object]:
    return dict(zip(ENTRY_COLUMNS, row, strict=True))


class SQLiteStore(Store):
    """Tags and ledger in the SQLite file at `path`; a reservation and its ledger entry are one transaction.

    The file is opened at the first call; missing parent directories are made (mode 0700). A file that is something
    else, or was written by a newer version, is Misconfigured and left as it is. One connection, used by one thread at a
    time. Needs SQLite 3.35.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise Misconfigured(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or newer is needed")
        if os.fspath(path) in {"", ":memory:"}:
            raise Misconfigured("an SQLite store needs a file; for a store in memory write memory://")
        # Absolute from the start: a later chdir must not lead to another file.
        self._path = Path(path).absolute()
        self._lock = threading.Lock()
        #: When the caller of the newest call gives up, on the monotonic clock.
        self._due = 0.0
        self._connection: sqlite3.Connection | None = None
        #: Which files the connection has open; see `_files`.
        self._open_files: _Files | None = None
        self._refusal = ""
        self._ready_to_fork = False
        _stores.add(self)

    @property
    def url(self) -> str:
        """`sqlite:///` and the absolute path."""
        return f"sqlite:///{self._path}"

    def store_id(self, *, timeout: float) -> str:
        """See `Store.store_id`."""
        with self._transaction(timeout, "BEGIN") as connection:
            return str(connection.execute("SELECT id FROM meta").fetchone()[0])

    def create(self, tag: str, settings: TagSettings, *, timeout: float) -> Tag:
        """See `Store.create`."""
        with self._transaction(timeout) as connection:
            return self._write(connection, Tag.made(tag, self._read(connection, tag), settings))

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        """See `Store.get`."""
        with self._transaction(timeout, "BEGIN") as connection:
            return self._read(connection, tag)

    def tags(self, *, timeout: float) -> list[Tag]:
        """See `Store.tags`."""
        with self._transaction(timeout, "BEGIN") as connection:
            found = [_record(row) for row in connection.execute(_GET_TAGS)]
        return sorted((each for each in found if not each.deleted), key=lambda each: each.tag)

    def reserve(
        self,
        tag: str,
        n: int | None,
        *,
        at_least: int = 0,
        exact: bool = False,
        reason: str,
        application: str = "",
        born: str = "",
        timeout: float,
    ) -> Reservation:
        """See `Store.reserve`."""
        check_reserving(n, at_least)
        with self._transaction(timeout) as connection:
            before = self._live(connection, tag)
            after = self._write(connection, before.reserved(n, at_least=at_least, exact=exact))
            entry = LedgerEntry(
                tag=tag, low=before.max, high=after.max, reason=reason, application=label(application), born=born
            )
            fields = asdict(entry)
            connection.execute(_PUT_ENTRY, [fields[each] for each in ENTRY_COLUMNS])
        return Reservation(after, before.max, after.max, entry.id)

    def hand_back(self, held: Sequence[Reservation], used: int, *, timeout: float) -> bool:
        """See `Store.hand_back`."""
        rest, highs = shortened(held, used)
        last = held[-1]
        with self._transaction(timeout) as connection:
            for entry, high in highs.items():
                connection.execute("UPDATE segments SET high = min(high, ?) WHERE id = ?", (high, entry))
            now = self._read(connection, last.tag.tag)
            if now is None or now.version != last.version or now.max != last.high:
                return False
            self._write(connection, now.changed(max=rest))
        return True

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        """See `Store.configure`."""
        return self._change(tag, timeout, lambda found: found.configured(changes))

    def delete(self, tag: str, *, timeout: float) -> Tag:
        """See `Store.delete`."""
        with self._transaction(timeout) as connection:
            found = self._read(connection, tag)
            if found is None:
                raise TagMissing(tag)
            return self._write(connection, found.buried())

    def halt(self, tag: str, *, below: int | None = None, timeout: float) -> bool:
        """See `Store.halt`."""
        if below is not None:
            check_argument("below", below)
        return self._change(tag, timeout, lambda found: found.stopped(below)).halted

    def recover(self, tag: str, *, at_least: int, timeout: float) -> Tag:
        """See `Store.recover`."""
        check_argument("at_least", at_least)
        return self._change(tag, timeout, lambda found: found.recovered(at_least))

    def ledger(self, tag: str, *, newest: int, timeout: float) -> list[LedgerEntry]:
        """See `Store.ledger`."""
        check_argument("newest", newest)
        with self._transaction(timeout, "BEGIN") as connection:
            return [LedgerEntry.checked(_entry(row)) for row in connection.execute(_NEWEST, (tag, newest))]

    def segments(
        self, tag: str, *, beyond: Position | None = None, upward: bool = False, count: int, timeout: float
    ) -> LedgerPage:
        """See `Store.segments`."""
        check_argument("count", count, 1)
        statement = (_OLDEST if upward else _NEWEST) if beyond is None else _ABOVE if upward else _BELOW
        with self._transaction(timeout, "BEGIN") as connection:
            rows = connection.execute(statement, (tag, *(beyond or ())[:1], *(beyond or ()), count))
            return LedgerPage.of([_entry(row) for row in rows], count)

    def entries(self, tag: str, ids: Collection[str], *, timeout: float) -> list[LedgerEntry]:
        """See `Store.entries`."""
        with self._transaction(timeout, "BEGIN") as connection:
            found = [row for each in ids for row in connection.execute(f"{_OF_TAG} AND id = ?", (tag, each))]
        return [LedgerEntry.checked(_entry(row)) for row in found]

    def prune(self, *, before: int, timeout: float) -> int:
        """See `Store.prune`."""
        check_argument("before", before)
        with self._transaction(timeout) as connection:
            return connection.execute(_PRUNE, (before,)).rowcount

    def examine(self, *, timeout: float) -> StoreFacts:
        """See `Store.examine`."""
        with self._transaction(timeout, "BEGIN") as connection:
            return StoreFacts(
                kind="sqlite",
                version=sqlite3.sqlite_version,
                lasting=True,
                journal=connection.execute("PRAGMA journal_mode").fetchone()[0],
                synchronous=connection.execute("PRAGMA synchronous").fetchone()[0],
            )

    def after_fork(self) -> None:
        """Nothing is left to do: the parent closes its connection before it forks, and opens it again after.

        SQLite notes per process which locks it holds, and a fork copies the note but not the locks. A child that opened
        the file again beside its parent's open connection would work without any lock: when the parent then closes,
        the write-ahead log is deleted under the child, its commits are lost, and ranges are handed out twice (shown in
        tests/contract/test_sqlite.py).
        """

    def close(self) -> None:
        """Close the connection; later calls raise Misconfigured. Waits for a call under way as a fork does."""
        mine = self._lock.acquire(timeout=self._patience())
        self._refusal = self._refusal or "the store was closed"
        if not mine:
            log.warning("%s: a call has not ended, so its connection stays open until the process ends", self._path)
            self._abandon()
            return
        try:
            self._hang_up()
        finally:
            self._lock.release()

    # Inside a transaction.

    def _read(self, connection: sqlite3.Connection, tag: str) -> Tag | None:
        row = connection.execute(f"{_GET_TAGS} WHERE tag = ?", (tag,)).fetchone()
        return None if row is None else _record(row)

    def _live(self, connection: sqlite3.Connection, tag: str) -> Tag:
        found = self._read(connection, tag)
        if found is None:
            raise TagMissing(tag)
        return found.live()

    def _write(self, connection: sqlite3.Connection, record: Tag) -> Tag:
        fields = {**asdict(record), "scheme": scheme_json.text(record.scheme)}
        connection.execute(_PUT_TAG, [fields[each] for each in TAG_COLUMNS])
        return record

    def _change(self, tag: str, timeout: float, change: Callable[[Tag], Tag]) -> Tag:
        with self._transaction(timeout) as connection:
            return self._write(connection, change(self._live(connection, tag)))

    # The connection.

    @contextmanager
    def _transaction(self, timeout: float, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Commit if the block ends normally, a `return` included; roll back if it raises."""
        forks.notice()
        deadline = Deadline(timeout)
        if not self._lock.acquire(timeout=deadline.left()):
            raise Unavailable(f"{self._path}: another thread held the connection for {timeout:g} s")
        self._due = time.monotonic() + timeout
        try:
            connection = self._connected(deadline)
            self._wait_at_most(connection, deadline)
            try:
                connection.execute(begin)
                self._check_files()
                yield connection
                connection.execute("COMMIT")
                # Once more: what was committed to a log that is gone by now is lost. The caller gets no segment, and
                # it is a gap.
                self._check_files()
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            if _code(error) not in _BUSY:
                self._hang_up()
            raise self._translated(error) from error
        finally:
            self._lock.release()

    @staticmethod
    def _wait_at_most(connection: sqlite3.Connection, deadline: Deadline) -> None:
        connection.execute(f"PRAGMA busy_timeout = {max(1, int(deadline.left() * 1000))}")

    def _connected(self, deadline: Deadline) -> sqlite3.Connection:
        if self._refusal:
            raise Misconfigured(f"{self._path}: {self._refusal}")
        if self._connection is None:
            self._connection = self._opened(deadline)
            self._open_files = self._files()
        else:
            self._check_files()
        return self._connection

    def _check_files(self) -> None:
        """Misconfigured if one of the files is another one than the connection has open."""
        if self._files() == self._open_files:
            return
        # Commits would go to a file that is never found again. The log is deleted by `rm`; or by the process that
        # closes the database last, once this one has lost its locks: POSIX drops them all when any part of a program
        # closes the file, as one does that copies its own store (seen: 95 repeats in 225 numbers).
        raise Misconfigured(
            f"{self._path}, or the log beside it (-wal, -shm), was replaced or removed while it was open: restart, "
            "then run `recover`. Copy it with `VACUUM INTO` or the sqlite3 command's .backup, from another process"
        )

    def _files(self) -> _Files:
        """Tell the database, its log and the log's index apart from others at their paths; 10 us."""
        real = os.path.realpath(self._path)  # beside it SQLite keeps them, even if links lead there
        return _identity(self._path), *(_identity(Path(f"{real}{suffix}")) for suffix in ("-wal", "-shm"))

    def _opened(self, deadline: Deadline) -> sqlite3.Connection:
        try:
            missing = [each for each in self._path.parents if not each.exists()]
            for each in reversed(missing):
                each.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Misconfigured(f"{self._path}: its directory can't be made: {error}") from error
        self._check_names()
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            while not self._prepared(connection, deadline):
                # Two processes on one fresh file: the switch to WAL answers "locked" without heeding busy_timeout.
                time.sleep(min(deadline.left(), _random.uniform(0.001, 0.02)))
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_names(self) -> None:
        """Misconfigured if the file has, or may have, another name: each would have a log of its own.

        Two processes under two names reserve the same ranges (seen: 4000 repeats in 8000 numbers). A file that is
        itself mounted has one name here and another one where it comes from.
        """
        found = _stat(self._path)
        if found is not None and found.st_nlink > 1:
            raise Misconfigured(
                f"{self._path} has {found.st_nlink} names (hard links), and under each one SQLite keeps another log: "
                "two programs would get the same numbers. Keep one name, copy it with `VACUUM INTO` instead"
            )
        if found is not None and os.path.realpath(self._path) in _mount_points():
            raise Misconfigured(
                f"{self._path} is itself a mount point, so its log would lie beside it and not where the file comes "
                "from: two containers would get the same numbers. Mount the directory that holds it"
            )

    def _prepared(self, connection: sqlite3.Connection, deadline: Deadline) -> bool:
        """Check the file, then make it ours. False if another process was in the way: ask again."""
        try:
            self._wait_at_most(connection, deadline)
            connection.execute("BEGIN")
            version = self._version(connection)
            connection.execute("COMMIT")
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise Misconfigured(f"{self._path}: its file system has no write-ahead log (journal mode {mode!r})")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_AFTER}")
            if version < SCHEMA:
                self._bring_up_to_date(connection)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if _code(error) in _BUSY:
                return False
            raise
        return True

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        # Else one row that was tampered with would keep ALTER TABLE from adding a column, and all tags from being
        # served. Such a row stays as it is, and Corrupt.
        connection.execute("PRAGMA ignore_check_constraints = ON")
        try:
            connection.execute("BEGIN IMMEDIATE")
            # Read again, now that no other process can write: one may have been first.
            version = self._version(connection)
            for statement in chain.from_iterable(STEPS[version:]):
                connection.execute(statement)
            if version == 0:
                connection.execute("INSERT INTO meta (id) VALUES (?)", (fresh_version(),))
            connection.execute(f"PRAGMA user_version = {SCHEMA}")
            connection.execute("COMMIT")
        finally:
            connection.execute("PRAGMA ignore_check_constraints = OFF")

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the schema, 0 if the database is empty. Misconfigured if it isn't ours. Changes nothing."""
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA:
            raise Misconfigured(
                f"{self._path} was written by a newer version (schema {version}; this one knows {SCHEMA}): upgrade"
            )
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version == 0 and not tables:
            return 0
        for table, columns in COLUMNS.items():
            known = columns - {column for schema, column in ADDED if schema > version}
            found: set[Any] = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if version < 1 or found != known:
                raise Misconfigured(f"{self._path} is a database of another program: name another file")
        return int(version)

    def _translated(self, error: sqlite3.Error) -> Exception:
        code = _code(error)
        if code in _SET_UP_WRONGLY:
            return Misconfigured(f"{self._path}: {_SET_UP_WRONGLY[code]} ({error})")
        if code == sqlite3.SQLITE_CANTOPEN and not self._may_be_a_file():
            return Misconfigured(f"{self._path}: it can't be opened or made there ({error})")
        return Unavailable(f"{self._path}: {error}")

    def _may_be_a_file(self) -> bool:
        try:
            is_directory = self._path.is_dir()
        except OSError:  # a name that is too long, for one
            return False
        return not is_directory and os.access(self._path.parent, os.W_OK | os.X_OK)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._files() != self._open_files:
            # Closing deletes the log by its name, which by now is that of the file put in its place.
            _abandoned.append(connection)
        else:
            with suppress(sqlite3.Error):
                connection.close()

    # Around a fork; see `after_fork`.

    def before_fork(self) -> None:
        """Wait for the call that is under way, and close the connection. Called before each fork."""
        self._ready_to_fork = self._lock.acquire(timeout=self._patience())
        if self._ready_to_fork:
            self._hang_up()

    def after_fork_in_parent(self) -> None:
        """Let the calls go on. Called after each fork."""
        if self._ready_to_fork:
            self._ready_to_fork = False
            self._lock.release()

    def after_fork_in_child(self) -> None:
        """Start afresh, or refuse if there was no waiting. Called in each forked child."""
        called, self._lock = self._lock.locked(), threading.Lock()
        if not self._ready_to_fork and (called or self._connection is not None):
            self._abandon()
            self._refusal = "the process was forked in the middle of a call: make the store after the fork"
        self._ready_to_fork = False

    def _patience(self) -> float:
        """Return how many seconds to wait for a call under way."""
        return min(FORK_GRACE + max(0.0, self._due - time.monotonic()), FORK_PATIENCE)

    def _abandon(self) -> None:
        """Give the connection up to the call that another thread is in, here or in the parent process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _abandoned.append(connection)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    found = _stat(path)
    return None if found is None else (found.st_dev, found.st_ino)


def _mount_points() -> set[str]:
    """Return where something is mounted in this process's view; nothing where the system doesn't tell."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return set()
    return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in lines}


_stores: weakref.WeakSet[SQLiteStore] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []


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
