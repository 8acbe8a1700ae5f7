"""The file of an SQLite store. Each transaction opens the file and closes it. Only one process at a time has it open.

SQLite uses POSIX locks. A process loses its POSIX locks when any part of it closes the file, for example a thread that
copies the data directory. As a result, two processes reserved the same range (seen: 19 of 231 numbers repeated), or one
process deleted the write-ahead log that the other process had open. So each transaction also locks a separate lock file
with `flock`, from before the database is opened until after it is closed. SQLite's own locks are needed only against
programs that do not use this lock file.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import NO_SPACE, SHORTAGE, Full, Misconfigured, StoreError, Unconfirmed
from issuer_persistence.records import fresh_version
from issuer_persistence.sqlite.schema import COLUMNS, SCHEMA, STEPS, columns_at, missing_at

log = logging.getLogger("issuer")

#: SQLite settings of each transaction that writes. `synchronous` 2 is FULL: commits survive a power cut.
JOURNAL_MODE, SYNCHRONOUS = "wal", 2

#: Number of pages in the write-ahead log after which SQLite copies them into the database. With 1, SQLite copies them
#: after each commit. So no data is lost if another program has the file open and somebody deletes the log.
CHECKPOINT_AFTER = 1

#: File mode (permissions) of a database that SQLite creates.
_MODE = 0o644

#: Error numbers of the system: no permission for the file, or a read-only file system.
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}

#: An escaped character in /proc/self/mountinfo. For example, \040 is a blank.
_ESCAPED = re.compile(r"\\([0-7]{3})")

_SET_UP_WRONGLY = {
    sqlite3.SQLITE_NOTADB: "it is not an SQLite database",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a backup, then run `recover`",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "access is denied",
    sqlite3.SQLITE_AUTH: "access is denied",
}


#: Errors of SQLite that can mean a full disk: SQLite cannot create its write-ahead log (-wal) and the index of the log
#: (-shm). Both files together need _SPACE bytes.
_FOR_WANT_OF_SPACE = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_SPACE = 64 * 1024


class SQLiteFile:
    """The SQLite file at `path`. Only one thread at a time may use this object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # If the path is a link, SQLite keeps its log beside the real file.
        self._real = os.path.realpath(path)
        #: The lock file. Each transaction holds the lock on this file.
        self.lock = Path(f"{self._real}-lock")
        #: Device and inode of the database. None until the file was recognized as a store.
        self._known: tuple[int, int] | None = None
        self._warned = False

    @contextmanager
    def transaction(self, deadline: CallDeadline, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction. If the block ends normally, commit. If it raises, roll back.

        If `writes` is False, nothing is changed, and no file is created. A missing file is read as an empty store. A
        file of an older schema is read as if it had the newer columns, with the value NULL.
        """
        try:
            # The order matters: another store creates the lock file before the database. In the other order, this could
            # read the database without the lock while the other store creates it.
            if writes and os.path.exists(self.path) and not os.path.exists(self.lock):  # noqa: PTH110 - a long name
                self._check_unlocked(deadline)
            exists = _may_exist(self.path)
            with self._alone(deadline, writes=writes):
                with self._written(deadline) if writes else self._read(deadline, exists=exists) as connection:
                    yield connection
                    connection.execute("COMMIT")  # after an error, to close the connection rolls back
                if writes:
                    # If the file was removed during the transaction, the commit is lost, so the caller gets an error.
                    self._check_identity()
                    self._check_log()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _check_unlocked(self, deadline: CallDeadline) -> None:
        """Raise an error if the file, which has no lock file, is no store. So no lock file is created beside it.

        If there is a lock file after the check, another store has begun to use the file, and may have disturbed the
        check. Then this raises no error, because the file is checked again under the lock.
        """
        try:
            with self._read(deadline):
                pass
        except (StoreError, sqlite3.Error):
            if not self.lock.exists():
                raise

    def look(self, deadline: CallDeadline) -> tuple[int, bool]:
        """Return the schema of the file, and True if a program that does not use the lock file has the file open.

        The schema of an empty store is 0. The second value is also True if a program was killed while it wrote to the
        file. In this case the next write repairs the file.
        """
        with self.transaction(deadline, writes=False) as connection:
            schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
        with self._alone(deadline, writes=False):
            return schema, self.has_log

    @property
    def has_log(self) -> bool:
        """True if SQLite's log exists (-wal or -journal): a program has the file open, or was killed in a write."""
        return any(os.path.exists(f"{self._real}{suffix}") for suffix in ("-wal", "-journal"))  # noqa: PTH110 - each call

    def _check_log(self) -> None:
        """Log a warning, once, if a program that does not use the lock file has the database open.

        This store has closed the file when this method is called. SQLite deletes its log when the last program closes
        the file. So if there still is a log, another program has the file open.
        """
        if not self._warned and self.has_log:
            self._warned = True
            log.warning(
                "%s is open in a program that does not take the lock %s. If that is an older version of issuer, "
                "upgrade it: when it copies or reads the store's files, two programs get the same numbers",
                self.path, self.lock,
            )  # fmt: skip

    # The lock.

    @contextmanager
    def _alone(self, deadline: CallDeadline, *, writes: bool) -> Iterator[None]:
        """Exclude all other processes, and other stores of this process, during the block.

        If `writes` is False and the lock file is missing, do not create it: there is nobody to exclude.
        """
        if not writes and not os.path.exists(self.lock):  # noqa: PTH110 - as above
            yield
            return
        try:
            with locks.locked(self.lock, partial(self._open_lock, writes=writes), deadline) as descriptor:
                yield
                if not locks.is_at(descriptor, self.lock):
                    # Another process may have created a new lock file, locked that one, and written at the same time.
                    raise Unconfirmed(
                        f"{self.lock} was removed or replaced while it was locked, so the call may or may not have "
                        "taken effect"
                    )
        except OSError as error:
            raise self._unusable(error) from error

    def _open_lock(self, *, writes: bool) -> int:
        if writes:
            for each in reversed([each for each in self.path.parents if not each.exists()]):
                each.mkdir(mode=0o700, exist_ok=True)
        database = _stat(self.path)
        mode = _MODE if database is None else stat.S_IMODE(database.st_mode)
        try:
            descriptor = locks.open_file(self.lock, os.O_RDWR | (os.O_CREAT if writes else 0), mode)
        except OSError as error:
            if error.errno not in _DENIED or not self.lock.exists():
                raise
            descriptor = locks.open_file(self.lock, os.O_RDONLY)  # read access is enough for a lock
        if writes and database is not None:
            _share(descriptor, database)
        return descriptor

    def _unusable(self, error: OSError) -> Exception:
        if error.errno in NO_SPACE:
            return Full(self.path)
        if error.errno in SHORTAGE:
            return Unconfirmed(f"{self.path}: {error}")
        return Misconfigured(
            f"{self.path}: cannot be opened or created: {error}. The store locks {self.lock.name} beside it: use a "
            "local disk with flock, and a directory that this user can write to"
        )

    # The database, under the lock.

    @contextmanager
    def _written(self, deadline: CallDeadline) -> Iterator[sqlite3.Connection]:
        """Open the file for writing, and begin a transaction. If needed, create the file or upgrade its schema."""
        self._check_names()
        with closing(self._opened("mode=rwc", deadline)) as connection:
            version = self._version(connection)
            mode = connection.execute(f"PRAGMA journal_mode = {JOURNAL_MODE}").fetchone()[0]
            if mode != JOURNAL_MODE:
                raise Misconfigured(f"{self.path}: its file system allows no write-ahead log (journal mode {mode!r})")
            connection.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_AFTER}")
            if version < SCHEMA:
                self._bring_up_to_date(connection)
            self._known = _identity(self.path)
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @contextmanager
    def _read(self, deadline: CallDeadline, *, exists: bool = True) -> Iterator[sqlite3.Connection]:
        """Open the file for reading only, and begin a transaction. See `transaction`.

        `exists`: whether the file existed before the lock file was opened. If it did not, it is read as an empty store:
        another store may be creating it, and there may have been no lock file yet to wait for.
        """
        self._check_names()
        if self._known is None and not exists:
            with _empty() as connection:
                yield connection
        elif self.has_log:
            # The log belongs to the data, and SQLite reads it, too. Write access is needed only if there is a rollback
            # journal: a process was killed in the middle of a transaction, and SQLite must undo this transaction.
            mode = "rw" if os.path.exists(f"{self._real}-journal") else "ro"  # noqa: PTH110 - as above
            with self._opened_to_read(f"mode={mode}", deadline) as connection:
                yield connection
        else:
            # If there is no log, the database is complete, and nobody writes to it. With `immutable`, SQLite creates no
            # log. The creation would fail on a full disk, or in a directory of another user.
            with self._undisturbed(), self._opened_to_read("mode=ro&immutable=1", deadline) as connection:
                yield connection

    @contextmanager
    def _opened_to_read(self, options: str, deadline: CallDeadline) -> Iterator[sqlite3.Connection]:
        with closing(self._opened(options, deadline)) as connection:
            connection.execute("BEGIN")
            version = self._version(connection)
            if version == 0:
                with _empty() as empty:
                    yield empty
                return
            self._known = _identity(self.path)
            for table, columns in missing_at(version).items():
                added = ", ".join(f'NULL AS "{each}"' for each in columns)
                connection.execute(f"CREATE TEMP VIEW {table} AS SELECT *, {added} FROM main.{table}")  # noqa: S608 - ours
            yield connection

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Raise Unconfirmed if a program that does not use the lock file may have written during the block."""
        try:
            yield
        except Exception as error:
            if self.has_log:
                raise self._disturbed() from error
            raise
        if self.has_log:
            raise self._disturbed()

    def _disturbed(self) -> Unconfirmed:
        return Unconfirmed(f"{self.path}: meanwhile it was opened by a program that does not take the lock {self.lock}")

    def _opened(self, options: str, deadline: CallDeadline) -> sqlite3.Connection:
        address = f"{Path(self._real).as_uri()}?{options}"
        # Cache no statements: a reference to a cached statement keeps the file open after `close`. In one case, the
        # traceback of an error held such a reference. So SQLite kept its log, as if another program had the file open.
        # A cache would not help anyway: a transaction repeats no statement.
        return sqlite3.connect(address, uri=True, isolation_level=None, timeout=deadline.left(), cached_statements=0)

    def _check_identity(self) -> None:
        """Raise Misconfigured if the database is not the file that this process has used so far."""
        if self._known is not None and _identity(self.path) != self._known:
            raise Misconfigured(f"{self.path} was replaced or removed while it was in use: restart, then run `recover`")

    def _check_names(self) -> None:
        """Raise Misconfigured if the file has, or may have, a second name.

        The names of SQLite's log and of the lock file depend on the name of the file. So two processes that use two
        names reserve the same ranges (seen: 4000 repeats in 8000 numbers). If the file itself is a mount point, it has
        a second name on the host.
        """
        self._check_identity()
        found = _stat(self.path)
        if self._known is not None or found is None:
            return
        if found.st_nlink > 1:
            raise Misconfigured(
                f"{self.path} has {found.st_nlink} names (hard links), and SQLite keeps a separate log for each "
                "name, so two programs would get the same numbers. Keep one name; to copy the file, use `VACUUM INTO`"
            )
        if self._real in _mount_points():
            raise Misconfigured(
                f"{self.path} is itself a mount point, so its log would not be in the directory of the original "
                "file, and two containers would get the same numbers. Mount the directory that contains it"
            )

    def _bring_up_to_date(self, connection: sqlite3.Connection) -> None:
        # With this setting, ALTER TABLE accepts rows with invalid values. Only the tag of such a row is then Corrupt.
        # Otherwise one such row would make the upgrade fail, and no tag could be used.
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("BEGIN IMMEDIATE")
        # Read the schema again in the transaction: an older program, which does not use the lock file, may have
        # upgraded the file in the meantime.
        version = self._version(connection)
        for statement in chain.from_iterable(STEPS[version:]):
            connection.execute(statement)
        if version == 0:
            connection.execute("INSERT INTO meta (id) VALUES (?)", (fresh_version(),))
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("COMMIT")
        connection.execute("PRAGMA ignore_check_constraints = OFF")

    def _version(self, connection: sqlite3.Connection) -> int:
        """Return the schema of the file, 0 for an empty database. If the file is not a store, raise Misconfigured."""
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if self._known is not None:
            # A newer program may have upgraded the file in the meantime. This program may continue: the triggers of the
            # new schema reject the rows that an older program must not write.
            return min(version, SCHEMA)
        if version > SCHEMA:
            raise Misconfigured(
                f"{self.path} was written by a newer version (schema {version}; this one supports {SCHEMA}): "
                "upgrade this program"
            )
        tables = {
            row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        }
        if version == 0 and not tables:
            return 0
        for table in COLUMNS:
            found: set[Any] = {row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall()}
            if version < 1 or found != columns_at(version, table):
                raise Misconfigured(f"{self.path} is a database of another program: use another file")
        return version

    def _translated(self, error: sqlite3.Error) -> Exception:
        # The low byte of an error code is the general code. Errors that Python's module raises itself have no code.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _SET_UP_WRONGLY:
            return Misconfigured(f"{self.path}: {_SET_UP_WRONGLY[code]} ({error})")
        if code == sqlite3.SQLITE_FULL or (code in _FOR_WANT_OF_SPACE and self._has_no_space()):
            return Full(self.path)
        if code == sqlite3.SQLITE_CANTOPEN and not self._may_be_a_file():
            return Misconfigured(f"{self.path}: cannot be opened or created ({error})")
        return Unconfirmed(f"{self.path}: {error}")

    def _has_no_space(self) -> bool:
        try:
            disk = os.statvfs(self.path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _SPACE or (disk.f_files > 0 and disk.f_favail == 0)

    def _may_be_a_file(self) -> bool:
        try:
            is_directory = self.path.is_dir()
        except OSError:  # for example, the name is too long
            return False
        return not is_directory and os.access(self.path.parent, os.W_OK | os.X_OK)


@contextmanager
def _empty() -> Iterator[sqlite3.Connection]:
    """Yield a connection to an empty store in memory, to read in place of a file that is missing or empty."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for statement in chain.from_iterable(STEPS):
            connection.execute(statement)
        yield connection


def _share(descriptor: int, database: os.stat_result) -> None:
    """Give the lock file (`descriptor`) the owner and mode of the database, as SQLite does with its log."""
    # EPERM: the lock file belongs to another user, who has already shared it. EINVAL: the owner of the database has no
    # number in this container.
    with suppress(OSError):
        found = os.fstat(descriptor)
        if stat.S_IMODE(found.st_mode) != stat.S_IMODE(database.st_mode):
            os.fchmod(descriptor, stat.S_IMODE(database.st_mode))
        if os.geteuid() == 0 and (found.st_uid, found.st_gid) != (database.st_uid, database.st_gid):
            os.fchown(descriptor, database.st_uid, database.st_gid)


def _may_exist(path: Path) -> bool:
    """Return False only if there is no such file. If that cannot be found out, opening the file raises the error.

    For example, the name is too long, or this user may not look into the directory. That is no empty store.
    """
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _identity(path: Path) -> tuple[int, int] | None:
    found = _stat(path)
    return None if found is None else (found.st_dev, found.st_ino)


def _mount_points() -> set[str]:
    """Return the paths of all mount points of this process. Empty if the system does not list them."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        return set()
    return {_ESCAPED.sub(lambda found: chr(int(found[1], 8)), line.split(" ")[4]) for line in lines}
