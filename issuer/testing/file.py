"""The SQLite file of a double: a connection stays open between transactions, which saves 0.7 of 1 ms for each.

A store in production opens the file for each transaction, because it must survive that another part of the program
copies or closes the file, and a power cut. The file of a double needs neither.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Misconfigured
from issuer_persistence.sqlite.file import SQLiteFile

#: Connections of parents, in forked children. SQLite does not allow a child to use them or to close them.
_inherited: list[sqlite3.Connection | None] = []


class OpenFile(SQLiteFile):
    """An SQLite file that exists already. Each process keeps one connection to it open."""

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
