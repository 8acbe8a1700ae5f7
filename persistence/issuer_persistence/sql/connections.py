"""Connections of a store to an SQL database: kept open between calls, and shut down at a call's deadline."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from issuer_persistence import forks
from issuer_persistence.clock import monotonic
from issuer_persistence.contract import CallDeadline
from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Misconfigured, Unconfirmed

#: How many connections a process keeps open between calls.
IDLE_MOST = 4

#: How long a connection is kept without a call, in seconds. Firewalls drop older ones without a word to either side.
IDLE_TIME = 60.0

#: How often the deadlines of running calls are looked at, in seconds, and for how long after the last call.
TICK, LINGER = 0.05, 10.0


#: How many sessions a process may have given up for which the server has not accepted a request to cancel, and for how
#: long they count, in seconds. Until then no connection is opened, so that a server that ends none is not used up.
GIVEN_UP_MOST, GIVEN_UP_TIME = 4, 60.0

#: With credentials, how many logins a connection tries: the first password may have just expired.
LOGINS = 2

#: Connections of the parent in a forked child. They stay referenced, so that no finalizer ends them.
_OF_PARENTS: list[SQLLink] = []


class SQLLink:
    """An open connection, and a second file descriptor of its socket."""

    def __init__(self, connection: Any, fileno: int, cancel: Callable[[], object] | None = None) -> None:
        """Make a link. `connection`: connection of a driver by PEP 249. `fileno`: file descriptor of its socket.

        `cancel`: asks the server, by another connection, to end what the session does. None if the server ends it soon
        after the connection.
        """
        self._connection = connection
        self.cancel = cancel
        #: Whether a call has reached its deadline. Then the connection is not used again.
        self.given_up = False
        # The only one: psycopg takes 60 us to make one.
        self._cursor = connection.cursor()
        #: Warnings of the server since the COMMIT began.
        self.notices: list[str] = []
        #: What a semi-synchronous server of MySQL reports of its replicas' replies. {} if it is not semi-synchronous.
        self.acknowledged: dict[str, str] = {}
        self.used_at = monotonic()
        self._socket = socket.socket(fileno=os.dup(fileno))
        self._process = os.getpid()

    def _check(self) -> None:
        if self._process != os.getpid():
            raise Misconfigured("the process was forked in the middle of a call: the connection is its parent's")

    @property
    def connection(self) -> Any:
        """The driver's connection. In a forked child, raise Misconfigured: the session is the parent's."""
        self._check()
        return self._connection

    @property
    def cursor(self) -> Any:
        """The driver's cursor. In a forked child, raise Misconfigured: the session is the parent's."""
        self._check()
        return self._cursor

    def cut(self) -> None:
        """Shut the connection down. A call that waits for the server fails at once with the driver's error."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection. In a forked child, do nothing: a message to the server would end the parent's session."""
        if self._process != os.getpid():
            _OF_PARENTS.append(self)
            return
        with suppress(Exception):  # each driver has errors of its own, and the connection may be broken
            self._connection.close()
        self._socket.close()


class Deadlines:
    """Shuts connections down at the deadlines of their calls, by a thread that sleeps while there are no calls.

    The deadline of a call is ours: a COMMIT of PostgreSQL that waits for a standby ignores `statement_timeout`, and
    PyMySQL has no deadline for a whole call. A `threading.Timer` for each call would cost 0.14 ms. The thread does not
    end before `close`: since Python 3.12, an exit handler cannot start threads, and returns unused numbers.
    """

    def __init__(self) -> None:
        self._ends: dict[SQLLink, float] = {}
        #: The calls for which a request to cancel is under way, each with the time at which it was sent.
        self._cancelled: dict[SQLLink, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._asleep = self._closed = False

    @contextmanager
    def until(self, link: SQLLink, left: float) -> Iterator[None]:
        """Cancel the call if the block takes longer than `left` seconds, and shut the connection down TICK later.

        A session of PostgreSQL that waits for a standby does not notice that its connection has ended. It would keep
        the row locked, and use up the connections of the server. In the other order, a pgbouncer would not know any
        more which session is meant.
        """
        with self._changed:
            if self._thread is None:
                self._thread = self._begun()
            elif self._asleep:
                self._changed.notify()
            self._ends[link] = monotonic() + left
        try:
            yield
        finally:
            # Without the lock: in a child that was forked within the block, a thread of the parent may hold it.
            link.given_up |= self._ends.pop(link, None) is None

    def close(self) -> None:
        """End the thread after the calls that are under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _begun(self) -> threading.Thread:
        made = threading.Thread(target=self._watch, name="issuer-sql-deadlines", daemon=True)
        try:
            made.start()
        except RuntimeError as error:
            raise Unconfirmed("no thread can start that watches the deadline of the call") from error
        return made

    def _watch(self) -> None:
        forks.leave_signals()
        last = monotonic()
        with self._changed:
            while self._ends or not self._closed:
                self._asleep = not self._ends and monotonic() - last > LINGER
                self._changed.wait(None if self._asleep else TICK)
                now = monotonic()
                # `copy` is atomic. `list(items())` may collect garbage: then other threads may change the dict.
                for link, end in self._ends.copy().items():
                    if end <= now:
                        self._give_up(link, now)
                if self._ends:
                    last = now
            self._thread = None

    def _give_up(self, link: SQLLink, now: float) -> None:
        if self._ends.pop(link, None) is None:
            return  # the call has ended meanwhile
        if link.given_up or link.cancel is None:
            link.cut()
            return
        link.given_up = True
        self._ends[link] = now + TICK
        self._cancelled[link] = now
        with suppress(RuntimeError):  # no thread can start
            threading.Thread(target=self._cancel, args=(link, link.cancel), daemon=True).start()

    def _cancel(self, link: SQLLink, cancel: Callable[[], object]) -> None:
        forks.leave_signals()
        with suppress(Exception):  # of the driver: the server cannot be reached
            cancel()
            self._cancelled.pop(link, None)

    def alive(self) -> int:
        """Return how many sessions of calls that were given up may still live on the server."""
        since = monotonic() - GIVEN_UP_TIME
        return sum(begun > since for begun in self._cancelled.copy().values())


class Links:
    """The connections of one store. A forked child drops those of its parent without a message to the server."""

    def __init__(self, connect: Callable[..., SQLLink], refuses_login: Callable[[Exception], bool]) -> None:
        """Make no connection yet.

        Args:
            connect: Function that opens a connection. Its arguments are the longest time for this, in seconds, and
                perhaps a user and a password.
            refuses_login: Whether an error of `connect` means that the server does not accept the password.
        """
        self._connect, self._refuses_login = connect, refuses_login
        #: Where the user and the password of a new connection come from. None: the URL has them.
        self.credentials: Credentials | None = None
        self._process = os.getpid()
        self._idle: list[SQLLink] = []
        self._closed = False
        self._deadlines = Deadlines()

    def forget(self) -> None:
        """In a forked child: forget the parent's connections, and its thread."""
        if self._process != os.getpid():
            self._process = os.getpid()
            for link in self._idle:
                link.close()
            self._idle, self._deadlines = [], Deadlines()

    def until(self, link: SQLLink, left: float) -> AbstractContextManager[None]:
        """Return a `with` block that may take `left` seconds. See `Deadlines.until`."""
        self.forget()
        return self._deadlines.until(link, left)

    def take(self, left: float) -> tuple[SQLLink, bool]:
        """Return a connection, and whether it was used before. The server may have closed it since."""
        self.forget()
        while True:
            link = None
            with suppress(IndexError):
                link = self._idle.pop()
            if link is None:
                if (alive := self._deadlines.alive()) >= GIVEN_UP_MOST:
                    raise Unconfirmed(f"the server has not yet ended {alive} sessions of calls that took too long")
                return self._opened(left), False
            if monotonic() - link.used_at < IDLE_TIME:
                return link, True
            link.close()

    def _opened(self, left: float) -> SQLLink:
        """Open a connection. If the server refuses the password, try once more with a new one, or raise Unconfirmed."""
        if self.credentials is None:
            return self._connect(left)
        deadline = CallDeadline(left)
        refusals: list[Exception] = []
        while len(refusals) < LOGINS:
            user, password = self.credentials.get(deadline.left())
            try:
                return self._connect(deadline.left(), user, password)
            except Exception as error:
                if not self._refuses_login(error):
                    raise
                refusals.append(error)
            self.credentials.refused(password)
        text = " ".join(str(refusals[-1]).split())
        raise Unconfirmed(f"the server refuses the password of {self.credentials.name}: {text}") from refusals[-1]

    def put_back(self, link: SQLLink) -> None:
        """Keep the connection for the next call, or end it."""
        keeps = not (self._closed or link.given_up) and self._process == os.getpid()
        if keeps and len(self._idle) < IDLE_MOST:
            link.used_at = monotonic()
            self._idle.append(link)
        else:
            link.close()

    def close(self) -> None:
        """End the connections: those of calls that are under way when the calls end."""
        self.forget()
        self._closed = True
        self._deadlines.close()
        while self._idle:
            self._idle.pop().close()
