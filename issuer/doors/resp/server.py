"""The server of the Redis protocol: listens, limits the number of clients, and answers all requests before it stops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Final

from issuer.api.aio import AsyncIssuer
from issuer.clock import Deadline
from issuer.doors.access import Access
from issuer.doors.budget import PROGRESS, Budget
from issuer.doors.lookups import LookUps
from issuer.doors.resp.connection import Connection
from issuer.doors.resp.shared import Shared
from issuer.errors import Unavailable

#: Seconds after which an idle client is disconnected.
IDLE: Final = 300.0
#: Largest number of clients that are connected at the same time.
CLIENTS_MOST: Final = 10_000
#: Seconds after which the event loop has reported each client that it has accepted.
_ACCEPTED: Final = 0.01


class RespServer:
    """A server of the Redis protocol that listens. `start` creates it. `shared`: state of all connections."""

    def __init__(self, shared: Shared, server: asyncio.Server, idle: float, *, tls: bool) -> None:
        self.shared = shared
        self._server, self._tls = server, tls
        self._every = min(idle, shared.progress) / 4  # a client is looked at so often within the time that it has
        self._idle, self._late = round(idle / self._every), round(shared.progress / self._every)
        self._look()

    def drain(self) -> None:
        """Begin a stop: close each connection with the reply to its next command that draws or reads a tag.

        The client gets the close together with the reply. So it connects again before it sends another command.
        """
        self.shared.draining = True
        for connection in self.shared.connections:
            connection.asked = False

    async def accept_no_more(self, seconds: float) -> None:
        """Accept no new clients. Serve those that are connected, for up to `seconds`, until all have left."""
        self._server.close()
        # The event loop may not have reported a client yet that it has accepted, and reports none during its handshake.
        await asyncio.sleep(seconds if self._tls else _ACCEPTED)
        await self._emptied(seconds)

    async def close(self, seconds: float) -> None:
        """Accept no more clients and requests. Return when all requests are answered, after at most `seconds` seconds.

        Requests that are not answered within this time get an error, and their connections are closed.
        """
        deadline = Deadline(seconds)
        self._server.close()
        self._look_again.cancel()
        shared = self.shared
        for connection in list(shared.connections):
            connection.end()
        await self._emptied(deadline.left())
        for task in list(shared.tasks):
            task.cancel()
        if shared.tasks:
            await asyncio.wait(shared.tasks)
        for connection in list(shared.connections):
            connection.fail(Unavailable("the server is stopping"))
            connection.abort()
        # The event loop closes aborted connections in its next iteration.
        await self._emptied(max(1.0, deadline.left()))

    async def _emptied(self, seconds: float) -> None:
        self.shared.emptied.clear()
        if self.shared.connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.shared.emptied.wait(), seconds)

    def _look(self) -> None:
        """Disconnect clients that send nothing, or make no progress."""
        shared = self.shared
        shared.ticks += 1
        for connection in list(shared.connections):
            connection.look(self._idle, self._late)
        self._look_again = shared.loop.call_later(self._every, self._look)


async def start(
    ids: AsyncIssuer,
    access: Access,
    listening: socket.socket,
    *,
    idle: float = IDLE,
    clients_most: int = CLIENTS_MOST,
    look_ups: LookUps | None = None,
    budget: Budget | None = None,
    progress: float = PROGRESS,
    tls: ssl.SSLContext | None = None,
) -> RespServer:
    """Serve the issuer's numbers until `close`. The issuer stays open after `close`.

    Args:
        ids: The issuer.
        access: Authentication of the callers.
        listening: A socket that listens. The server closes it.
        idle: Seconds after which an idle client is disconnected.
        clients_most: Largest number of clients. Further clients are rejected.
        look_ups: Object that looks up unknown tags, if another server with the same issuer shares it. None creates one.
        budget: What clients may make the server hold, if another server of this process shares it. None creates one.
        progress: Seconds within which a client must authenticate, complete a command, and read replies.
        tls: Context with the certificate. None means no TLS.
    """
    loop = asyncio.get_running_loop()
    looks = look_ups or LookUps(ids.engine, access.rates)
    port = 0 if listening.family == socket.AF_UNIX else listening.getsockname()[1]
    shared = Shared(access, ids.engine, looks, loop, port, clients_most, budget or Budget(), progress)
    within = None if tls is None else progress
    server = await loop.create_server(
        lambda: Connection(shared),
        sock=listening,
        backlog=1024,
        ssl=tls,
        ssl_handshake_timeout=within,
        ssl_shutdown_timeout=within,
    )
    return RespServer(shared, server, idle, tls=tls is not None)
