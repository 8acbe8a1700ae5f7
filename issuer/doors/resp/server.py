"""The server of the Redis protocol: listens, limits the number of clients, and stops in order."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from issuer.api.aio import AsyncIssuer
from issuer.clock import Deadline, monotonic
from issuer.doors.access import Access
from issuer.doors.lookups import LookUps
from issuer.doors.resp.commands import About
from issuer.doors.resp.connection import Connection, Shared, ending
from issuer.errors import ConfigurationError

#: Seconds after which an idle client is disconnected.
IDLE: Final = 300.0
#: Largest number of clients that are connected at the same time.
CLIENTS_MOST: Final = 10_000

#: How often the server searches for idle clients within the idle time.
_LOOKS: Final = 4

_BACKLOG: Final = 1024


class RespServer:
    """A server that listens. `start` creates it."""

    def __init__(self, shared: Shared, server: asyncio.Server, idle: float) -> None:
        self._shared = shared
        self._server = server
        self._every = idle / _LOOKS
        self._look_again: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._look()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return self._shared.about.port

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return len(self._shared.connections)

    @property
    def waiting(self) -> int:
        """Number of INCRs that wait for their number."""
        return sum(connection.unanswered for connection in self._shared.connections)

    def drain(self) -> None:
        """Begin a stop: close each connection with the reply to its next command that draws or reads a tag.

        The client sees that the connection is closed before it sends another command, and connects again.
        """
        self._shared.draining = True
        for connection in self._shared.connections:
            connection.asked = False

    async def close(self, seconds: float) -> None:
        """Accept no more clients and requests. Return when all requests are answered, after at most `seconds` seconds.

        Requests that are not answered by then get an error.
        """
        deadline = Deadline(seconds)
        self._server.close()
        if self._look_again is not None:
            self._look_again.cancel()
        shared = self._shared
        shared.emptied = self._empty.set
        for connection in list(shared.connections):
            connection.end()
        if shared.connections:
            await _within(self._empty.wait(), deadline.left())
        for task in list(shared.tasks):
            task.cancel()
        if shared.tasks:
            await asyncio.wait(shared.tasks)
        for connection in list(shared.connections):
            connection.fail(ending())
            connection.abort()
        if shared.connections:
            # The event loop closes aborted connections in its next iteration.
            await _within(self._empty.wait(), max(1.0, deadline.left()))

    def _look(self) -> None:
        """Disconnect clients that have sent nothing during the idle time. Clients that wait for a result stay."""
        shared = self._shared
        shared.ticks += 1
        for connection in list(shared.connections):
            if shared.ticks - connection.heard > _LOOKS and connection.idle:
                connection.abort()
        self._look_again = shared.loop.call_later(self._every, self._look)


async def start(
    ids: AsyncIssuer,
    access: Access,
    *,
    host: str | None = None,
    port: int = 0,
    reuse_port: bool = False,
    sock: socket.socket | None = None,
    idle: float = IDLE,
    clients_most: int = CLIENTS_MOST,
    look_ups: LookUps | None = None,
) -> RespServer:
    """Serve the issuer's numbers until `close`. The issuer stays open after that.

    Args:
        ids: The issuer.
        access: Authentication of the callers.
        host: Address to listen on.
        port: Port to listen on. 0 means any free port.
        reuse_port: Allow other processes to listen on the same port.
        sock: A socket that listens already, instead of `host`, `port` and `reuse_port`. The server closes it.
        idle: Seconds after which an idle client is disconnected.
        clients_most: Largest number of clients. Further clients are rejected.
        look_ups: Look-ups of unknown tags, shared with another server over the same issuer. None if not shared.

    Raises:
        ConfigurationError: The server cannot listen on this address.
    """
    loop = asyncio.get_running_loop()
    began = monotonic()
    look_ups = look_ups or LookUps(ids.engine, access.rates)
    about = About(port, clients_most, lambda: monotonic() - began, lambda: len(shared.connections))
    shared = Shared(access, ids.engine, look_ups, about, clients_most, loop)
    try:
        if sock is not None:
            server = await loop.create_server(lambda: Connection(shared), sock=sock, backlog=_BACKLOG)
        else:
            server = await loop.create_server(
                lambda: Connection(shared),
                host,
                port,
                # On Windows, this option would let two servers listen on one port, and take each other's clients.
                reuse_address=sys.platform != "win32",
                reuse_port=reuse_port or None,
                backlog=_BACKLOG,
            )
    except (OSError, OverflowError, ValueError) as error:
        raise ConfigurationError(f"can't listen at {host}:{port}: {error}") from error
    about.port = server.sockets[0].getsockname()[1]
    return RespServer(shared, server, idle)


async def _within(waiting: Awaitable[object], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await waiting
