"""Connections of a store to an SQL database: kept open between calls, and shut down at a call's deadline."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: How many connections a process keeps open between calls.
IDLE_MOST = 4

#: How long a connection is kept without a call, in seconds. Firewalls drop older ones without a word to either side.
IDLE_TIME = 60.0

#: How often the deadlines of running calls are looked at, in seconds, and how long after the last call.
TICK, LINGER = 0.05, 10.0


class SQLLink:
    """An open connection, and a second file descriptor of its socket."""

    __slots__ = ("_socket", "connection", "notices", "used_at")

    def __init__(self, connection: Any, fileno: int) -> None:
        """Make a link. `connection`: connection of a driver by PEP 249. `fileno`: file descriptor of its socket."""
        self.connection = connection
        #: Warnings of the server since the COMMIT began.
        self.notices: list[str] = []
        self.used_at = time.monotonic()
        self._socket = socket.socket(fileno=os.dup(fileno))

    def cut(self) -> None:
        """Shut the connection down. A call that waits for the server fails at once with the driver's error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        with suppress(Exception):  # each driver has errors of its own, and the connection may be broken
            self.connection.close()
        self._socket.close()


class Deadlines:
    """Shuts connections down at the deadlines of their calls, by a thread that runs while there are calls.

    The deadline of a call is ours: a COMMIT of PostgreSQL that waits for a standby ignores `statement_timeout`, and
    PyMySQL has no deadline for a whole call. A `threading.Timer` for each call would cost 0.14 ms.
    """

    def __init__(self) -> None:
        self._ends: dict[SQLLink, float] = {}
        self._lock = threading.Lock()
        self._running = False

    @contextmanager
    def until(self, link: SQLLink, left: float) -> Iterator[None]:
        """Shut the connection down if the block takes longer than so many seconds, up to TICK later."""
        with self._lock:
            self._ends[link] = time.monotonic() + left
            if not self._running:
                self._running = True
                threading.Thread(target=self._watch, name="issuer-sql-deadlines", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                del self._ends[link]

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(TICK)
            now = time.monotonic()
            with self._lock:
                for link, end in self._ends.items():
                    if end <= now:
                        link.cut()
                if self._ends:
                    last = now
                elif now - last > LINGER:
                    self._running = False
                    return


class Links:
    """The connections of one store. A forked child drops those of its parent without a message to the server."""

    def __init__(self, connect: Callable[[float], SQLLink]) -> None:
        """`connect`: opens a connection within so many seconds."""
        self._connect = connect
        self._process = os.getpid()
        self._idle: list[SQLLink] = []
        self._deadlines = Deadlines()
        #: Connections of the parent. They stay referenced, so that no finalizer ends them.
        self._parents: list[SQLLink] = []

    def forget(self) -> None:
        """In a forked child: forget the parent's connections, and its thread."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._parents += self._idle
            self._idle, self._deadlines = [], Deadlines()

    def until(self, link: SQLLink, left: float) -> AbstractContextManager[None]:
        """Return a `with` block that may take so many seconds. See `Deadlines.until`."""
        return self._deadlines.until(link, left)

    def take(self, left: float) -> tuple[SQLLink, bool]:
        """Return a connection, and whether it was used before. The server may have closed it since."""
        self.forget()
        while True:
            try:
                link = self._idle.pop()
            except IndexError:
                return self._connect(left), False
            if time.monotonic() - link.used_at < IDLE_TIME:
                return link, True
            link.close()

    def put_back(self, link: SQLLink) -> None:
        """Keep the connection for the next call, or end it."""
        if len(self._idle) < IDLE_MOST and self._process == os.getpid():
            link.used_at = time.monotonic()
            self._idle.append(link)
        else:
            link.close()

    def close(self) -> None:
        """End the connections that no call uses."""
        self.forget()
        while self._idle:
            self._idle.pop().close()
