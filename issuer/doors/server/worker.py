"""A worker: one event loop with an issuer, and the servers of both protocols over it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, cast

from granian import net
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import embed

from issuer.api.aio import AsyncIssuer
from issuer.doors.access import LOOK_EVERY, Access
from issuer.doors.lookups import LookUps
from issuer.doors.server.files import CONNECTIONS_MOST, connections
from issuer.doors.server.logs import logged
from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import BACKLOG
from issuer.doors.server.supervisor import ALIVE_EVERY, Alive, Lifeline, Ready, Report
from issuer.errors import ConfigurationError, IssuerError
from issuer.wiring import aconnect, default_is_known

if TYPE_CHECKING:
    from issuer.doors.resp.server import RespServer

log = logging.getLogger("issuer.doors.server")

#: Seconds that requests under way have when the server is stopped. What waits for a number then gets an error.
DRAINING: Final = 1.2
#: Seconds that the answers of those have to leave.
ANSWERING: Final = 0.3

#: Seconds that a client of HTTP has for the head of a request, and between two of them.
IDLE: Final = 30.0


class _Granian(embed.Server):
    """Granian in a loop and on a socket of ours."""

    def __init__(self, app: Any, listening: socket.socket, most: int = CONNECTIONS_MOST) -> None:
        super().__init__(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=most,
            http1_settings=HTTP1Settings(header_read_timeout=round(IDLE * 1000)),
            # What its threads log has tracebacks in it, and its lines of requests have numbers.
            log_level=LogLevels.critical,
            log_dictconfig={"incremental": True, "handlers": {}, "loggers": {}},
        )
        self._listening = listening

    def _init_shared_socket(self) -> None:
        """Give its threads the socket, of which they close their copy."""
        # Its stub lacks the arguments: descriptor, whether it is a Unix socket, backlog.
        self._shd = cast("Any", net).SocketHolder(os.dup(self._listening.fileno()), False, BACKLOG)  # noqa: FBT003 - no Unix socket


def run(
    options: ServerOptions,
    sockets: Mapping[str, socket.socket],
    lifeline: Lifeline,
    report: Callable[[Report], None],
    access: Access,
    *,
    first: bool,
) -> None:
    """Serve until the lifeline is at its end. `first`: whether this worker speaks for all."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_Worker(options, sockets, report, access, first=first).serve(lifeline))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's, where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


class _Worker:
    def __init__(
        self,
        options: ServerOptions,
        sockets: Mapping[str, socket.socket],
        report: Callable[[Report], None],
        access: Access,
        *,
        first: bool,
    ) -> None:
        self._options = options
        self._sockets = sockets
        self._report = report
        self._access = access
        self._first = first
        self._stopping = asyncio.Event()
        self._stop = asyncio.Event()

    async def serve(self, lifeline: Lifeline) -> None:
        """Serve, and end in order."""
        loop = asyncio.get_running_loop()
        self._say_alive(loop)
        for pipe, event in ((lifeline.stopping, self._stopping), (lifeline.end, self._stop)):
            loop.add_reader(pipe, self._cut, loop, pipe, event)
        options = self._options
        if not self._first:  # one of several warnings is enough
            default_is_known()
            logging.getLogger("issuer.doors.access").setLevel(logging.CRITICAL)
        access = self._access
        access.look()  # the file may have changed since this process was forked from the supervisor, which read it
        ids = aconnect(**options.given)
        async with AsyncExitStack() as ends:
            ends.push_async_callback(ids.close)
            look_ups = LookUps(ids.engine, access.rates)
            doors = [await self._door(name, each, ids, look_ups) for name, each in self._sockets.items()]
            self._report(Ready())
            draining = loop.create_task(self._drain(doors))
            tasks = [
                loop.create_task(self._stop.wait()),
                loop.create_task(_looking(access)),
                *(door.task for door in doors if door.task is not None),
            ]
            looking = loop.create_task(self._look(ids)) if self._first and not options.has_redis else None
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            if looking is not None:
                looking.cancel()
            if not self._stop.is_set():
                raise IssuerError("the HTTP server ended unexpectedly")
            for each in self._sockets.values():
                each.close()
            await asyncio.gather(*(door.close(DRAINING) for door in doors))
            # Requests that wait for a number past that are told that there will be none.
            await ids.close()
            await asyncio.gather(*(door.close(ANSWERING) for door in doors))

    def _cut(self, loop: asyncio.AbstractEventLoop, pipe: int, event: asyncio.Event) -> None:
        loop.remove_reader(pipe)
        event.set()

    def _say_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell the supervisor now and then that this loop turns."""
        self._report(Alive())
        loop.call_later(ALIVE_EVERY, self._say_alive, loop)

    async def _drain(self, doors: Sequence[_Http | _Resp]) -> None:
        """Have clients take other connections, once a stop has begun: they are still served here meanwhile."""
        await self._stopping.wait()
        for door in doors:
            door.drain()

    async def _door(self, name: str, listening: socket.socket, ids: AsyncIssuer, look_ups: LookUps) -> _Http | _Resp:
        most = connections(len(self._sockets), self._options.settings.redis_connections)
        if name == "http":
            return _Http(self._options, ids, self._access, look_ups, listening, most=most)
        return await _Resp.open(ids, self._access, look_ups, listening, most=most)

    async def _look(self, ids: AsyncIssuer) -> None:
        """Ask the store once, so that what is wrong with the settings is told at the start, and not to each caller.

        A store that is away is waited for: callers get 503 until it is back.
        """
        try:
            await ids.tags()
        except ConfigurationError as error:
            self._report(error)
        except IssuerError as error:
            log.warning("the store does not answer yet: %s", error)


async def _looking(access: Access) -> None:
    """Look at the file of tokens by time: a token that was revoked ends whether or not a request comes."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        access.look()


class _Http:
    """HTTP on granian. `task`: ends only if granian does."""

    def __init__(
        self,
        options: ServerOptions,
        ids: AsyncIssuer,
        access: Access,
        look_ups: LookUps,
        listening: socket.socket,
        *,
        most: int,
    ) -> None:
        from issuer.doors.web.app import application
        from issuer.metrics import install

        metrics = install(ids)
        metrics.serve(access.tally)
        self._app = application(
            ids,
            access,
            metrics=metrics.exposition,
            allowed_hosts=options.settings.allowed_hosts,
            settings=options.settings,
            look_ups=look_ups,
        )
        self._server: Any = _Granian(logged(self._app) if options.verbose else self._app, listening, most)
        self.task: asyncio.Task[None] | None = asyncio.get_running_loop().create_task(self._server.serve())

    def drain(self) -> None:
        """End each connection with its next reply; /readyz answers 503 from now on."""
        self._app.drain()

    async def close(self, seconds: float) -> None:
        """Take no new connections, and wait for the answers under way. Twice: go on waiting."""
        self._server.stop()
        if self.task is not None:
            await asyncio.wait({self.task}, timeout=seconds)


class _Resp:
    """Redis's protocol, as a server of the loop's own."""

    task = None

    def __init__(self, server: RespServer) -> None:
        self._server: RespServer | None = server

    @classmethod
    async def open(
        cls, ids: AsyncIssuer, access: Access, look_ups: LookUps, listening: socket.socket, *, most: int
    ) -> _Resp:
        """Begin to serve."""
        from issuer.doors.resp.server import start

        # A fifth is for those that are told that there are too many.
        served = await start(ids, access, sock=listening.dup(), clients_most=most * 4 // 5, look_ups=look_ups)
        return cls(served)

    def drain(self) -> None:
        """End each connection with its next reply."""
        if self._server is not None:
            self._server.drain()

    async def close(self, seconds: float) -> None:
        """Take no new connections, and wait for the answers under way. Twice is harmless."""
        server, self._server = self._server, None
        if server is not None:
            await server.close(seconds)
