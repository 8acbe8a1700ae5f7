"""The store of a double: an SQLite store that fails when the test orders it.

The orders are files beside the database. So all processes that use the store follow them: forked children, and programs
that the test starts.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.facts import StoreFacts, Upgrade
from issuer_persistence.sqlite import SQLiteStore
from issuer_persistence.sqlite.file import SQLiteFile
from issuer_persistence.sqlite.store import SQLiteTransaction
from issuer_persistence.urls import mask

#: Scheme of the store's URLs. pyproject.toml registers it as an entry point.
SCHEME = "sqlite-double"

#: Seconds after which the creation of a file fails.
_LONGEST = 60.0

#: Kinds of orders. AWAY: a call changes nothing. LOST: a call changes the store, but its caller does not learn it.
AWAY, LOST = "away", "lost"


#: Connections of parents, in forked children. SQLite does not allow a child to use them or to close them.
_inherited: list[sqlite3.Connection | None] = []


class OpenFile(SQLiteFile):
    """The SQLite file of a double. Each process has a connection that stays open: that saves 0.7 of 1 ms a transaction.

    A store in production opens the file for each transaction, because it must survive that another part of the program
    copies or closes the file, and a power cut. The file of a double needs neither.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()

    @contextmanager
    def transaction(self, deadline: CallDeadline, *, writes: bool) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction. The lock file excludes all other processes meanwhile."""
        try:
            with locks.locked(self.lock, partial(locks.open_file, self.lock, os.O_RDWR | os.O_CREAT), deadline):
                connection = self._opened_once()
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                with connection:  # commits, or rolls back after an error
                    yield connection
        except FileNotFoundError as error:
            raise Misconfigured(f"{self.path}: this test double has ended") from error
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def close(self) -> None:
        """Close the connection of this process."""
        if self._connection is not None and self._process == os.getpid():
            self._connection.close()
            self._connection = None

    def _opened_once(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            _inherited.append(self._connection)
            self._connection, self._process = None, os.getpid()
        if self._connection is None:
            address = f"{self.path.as_uri()}?mode=rw"
            self._connection = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA synchronous = OFF")
        return self._connection


class DoubledStore(SQLiteStore):
    """An SQLite store that follows the orders of a test."""

    file_type = OpenFile
    _file: OpenFile

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Use the file, which must exist."""
        super().__init__(path)
        #: Path of each kind of order. There is such a file while the order lasts.
        self._orders = {kind: f"{self._path}-{kind}" for kind in (AWAY, LOST)}

    @classmethod
    def made(cls, path: Path) -> DoubledStore:
        """Create the file. Return its store."""
        SQLiteStore(path).upgrade(timeout=_LONGEST)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")  # between transactions there is no second file
        return cls(path)

    @classmethod
    def open(cls, url: str) -> DoubledStore:
        """Return the store for a URL of the form sqlite-double:///path."""
        return cls(url.removeprefix(f"{SCHEME}:///"))

    @property
    def url(self) -> str:
        """`sqlite-double:///`, followed by the absolute path of the file."""
        return f"{SCHEME}:///{self._path}"

    @property
    def path(self) -> Path:
        """Path of the SQLite file."""
        return self._path

    def order(self, kind: str, calls: int | None) -> None:
        """Order that the next calls fail. `calls`: how many; None means all calls until `end_order`."""
        order = Path(self._orders[kind])
        written = order.with_name(f"{order.name}-new")
        written.write_text("-1" if calls is None else str(calls))
        written.replace(order)

    def end_orders(self) -> None:
        """End all orders."""
        for order in self._orders.values():
            Path(order).unlink(missing_ok=True)

    @contextmanager
    def transaction(self, timeout: float, *, writes: bool = True) -> Iterator[SQLiteTransaction]:
        """Run the block in a transaction, unless the store is away."""
        self._stay_away()
        with super().transaction(timeout, writes=writes) as transaction:
            yield transaction
        if writes and self._struck(LOST):
            raise Unconfirmed(f"{mask(self.url)}: the reply was lost, as the test has ordered")

    def examine(self, *, timeout: float) -> StoreFacts:
        """See `Store.examine`."""
        self._stay_away()
        return super().examine(timeout=timeout)

    def upgrade(self, *, timeout: float) -> Upgrade:
        """See `Store.upgrade`."""
        self._stay_away()
        return super().upgrade(timeout=timeout)

    def close(self) -> None:
        """Close the file. All later calls raise Misconfigured."""
        super().close()
        self._file.close()

    def _stay_away(self) -> None:
        if self._struck(AWAY):
            raise Unconfirmed(f"{mask(self.url)}: the store is away, as the test has ordered")

    def _struck(self, kind: str) -> bool:
        """Return True if an order affects this call, and count the call."""
        try:
            order = os.open(self._orders[kind], os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(order, fcntl.LOCK_EX)  # another process may count a call at the same time
            left = int(os.pread(order, 20, 0) or 0)
            if left > 0:
                os.pwrite(order, f"{left - 1:<20}".encode(), 0)
            return left != 0
        finally:
            os.close(order)
