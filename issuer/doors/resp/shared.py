"""The state that all connections of a server share, and the number of bytes that wait in their sockets."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from issuer.core.sparing import Sparing
from issuer.doors.access import Access
from issuer.doors.budget import Budget
from issuer.doors.lookups import LookUps
from issuer.doors.resp.commands import About
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError, Unavailable

#: Largest number of bytes in one read. All connections share one buffer of this size.
READ_MOST: Final = 65_536


def ending(tag: str | None = None) -> IssuerError:
    """Return the error for clients that still wait when the server stops."""
    return Unavailable("the server is stopping", tag=tag)


@dataclass(slots=True)
class Shared:
    """State that all connections share. `most`: limit of clients. `ticks`: number of searches for idle clients.

    `budget`: what clients make the server hold.
    """

    access: Access
    engine: AsyncEngine
    look_ups: LookUps
    about: About
    most: int
    loop: asyncio.AbstractEventLoop
    budget: Budget
    #: Seconds within which a client must make progress.
    progress: float
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_MOST)))
    #: The objects of the class Connection, which cannot be imported here.
    connections: set[Any] = field(default_factory=set)
    #: The connections whose next commands wait for their turn.
    turns: deque[Any] = field(default_factory=deque)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    ticks: int = 0
    opened: int = 0
    #: Number of connected clients that are within the limit.
    served: int = 0
    #: Whether a stop has begun.
    draining: bool = False
    sparing: Sparing = field(default_factory=Sparing)
    #: Whether callers need no token.
    is_open: bool = field(init=False)
    #: How often each command was sent.
    commands: dict[str, int] = field(init=False)
    #: Called when the last connection is closed.
    emptied: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.is_open = self.access.is_open
        self.commands = self.access.tally.commands
        self.access.tally.connections["resp"] = lambda: len(self.connections)

    def wait_for_turn(self, connection: Any) -> None:
        """Call `go_on` of the connection when those that wait already have had their turn."""
        if not self.turns:
            self.loop.call_soon(self._turn)
        self.turns.append(connection)

    def _turn(self) -> None:
        """Give one connection its turn. The loop then looks at all sockets, so that small requests need no turn."""
        connection = self.turns.popleft()
        if self.turns:
            self.loop.call_soon(self._turn)
        connection.go_on()


def unread(connected: socket.socket) -> int:
    """Return how many bytes from the client wait in the system's buffer, not yet read by this server."""
    found = fcntl.ioctl(connected.fileno(), termios.FIONREAD, b"\0" * 4)
    return int.from_bytes(found, sys.byteorder)


def hold_back(connected: socket.socket, *, held: bool) -> None:
    """If `held` is True, make the system hold back written data, until the next call with `held=False`.

    In this way the client gets the last reply and the end of the connection at the same time.
    """
    if sys.platform == "linux":
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)
