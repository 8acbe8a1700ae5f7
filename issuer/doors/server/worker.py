"""A worker process: an event loop with an issuer, which serves HTTP and the Redis protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from granian import net
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server import embed

from issuer.api.aio import AsyncIssuer
from issuer.care.inspection import HaltedTags
from issuer.doors.access import LOOK_EVERY, Access
from issuer.doors.budget import Budget
from issuer.doors.lookups import LookUps
from issuer.doors.server.logs import dropped, logged
from issuer.doors.server.options import ServerOptions
from issuer.doors.server.sockets import BACKLOG, connections, leave
from issuer.doors.server.supervisor import ALIVE_EVERY, Report, read_order
from issuer.errors import ConfigurationError, IssuerError
from issuer.wiring import aconnect, default_is_known

if TYPE_CHECKING:
    from issuer.doors.console.options import ConsoleOptions
    from issuer.doors.resp.server import RespServer
    from issuer.doors.web.app import Application

log = logging.getLogger("issuer.doors.server")

#: When the server stops: seconds in which connections that were just accepted can send their first request.
ARRIVING: Final = 0.5
#: When the server stops: seconds that running requests have to finish. After this time, callers that still wait for a
#: number get an error.
DRAINING: Final = 1.2
#: When the server stops: seconds to send an error to callers that still wait for a number after DRAINING seconds.
ANSWERING: Final = 0.3

#: Seconds in which an HTTP client must send the head (request line and headers) of its first or next request.
IDLE: Final = 30.0
#: Maximum number of bytes of the head of a request. A client with a larger head gets the status 431.
HEAD_MOST: Final = 8192


class _Http(embed.Server):
    """Runs the HTTP server granian in an existing event loop, on an existing listening socket.

    `task`: the asyncio task that runs granian. It ends only when granian ends.
    """

    def __init__(self, app: Application, listening: socket.socket, most: int, options: ServerOptions) -> None:
        cert, key = options.settings.tls_cert, options.settings.tls_key
        tls = cert and listening.family != socket.AF_UNIX
        super().__init__(
            logged(app) if options.verbose else app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=most,
            http1_settings=HTTP1Settings(header_read_timeout=round(IDLE * 1000), max_buffer_size=HEAD_MOST),
            ssl_cert=Path(cert) if tls else None,
            ssl_key=Path(key) if tls else None,
            ssl_protocol_min=SSLProtocols.tls12,
            # Log lines of levels below critical contain tracebacks, and paths with issued numbers.
            log_level=LogLevels.critical,
            log_dictconfig={"incremental": True, "handlers": {}, "loggers": {}},
        )
        self._listening, self.drain = listening, app.drain
        self._identity = os.fstat(listening.fileno())
        self._passed = any(each.name == "http" and each.passed for each in options.endpoints)
        self.task = asyncio.get_running_loop().create_task(self.serve())

    async def accept_no_more(self, seconds: float) -> None:
        """Accept no new connections. If the service manager keeps the socket, serve the others for up to `seconds`.

        Otherwise, connections that were just accepted have had that time before (see `sockets.close`).
        """
        if self._passed:
            leave(self._identity)
            await asyncio.sleep(seconds)
        self.stop()  # type: ignore[no-untyped-call]  # granian's

    async def close(self, seconds: float) -> None:
        """Wait up to `seconds` for running requests. A second call waits again."""
        await asyncio.wait({self.task}, timeout=seconds)

    def _init_shared_socket(self) -> None:
        """Pass a copy of the listening socket to granian, because granian's threads close the descriptor they get.

        granian has no public way for this: it takes an address or the path of a Unix socket. With an address, each
        worker would bind a socket of its own: see `listen`.
        """
        is_unix = self._listening.family == socket.AF_UNIX
        # The type stub lacks the arguments.
        self._shd = cast("Any", net).SocketHolder(os.dup(self._listening.fileno()), is_unix, BACKLOG)


def run(
    options: ServerOptions,
    sockets: Mapping[str, socket.socket],
    access: Access,
    orders: Connection,
    report: Callable[[Report], None],
    *,
    first: bool,
    console: ConsoleOptions | None = None,
) -> None:
    """Run a worker: serve until the supervisor orders the end.

    `sockets`: listening sockets, by name of the protocol. `first`: whether this worker logs warnings for all workers.
    `console`: options of the console. None means no console.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_Worker(options, sockets, report, access, first, console).serve(orders))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@dataclass(slots=True)
class _Worker:
    options: ServerOptions
    sockets: Mapping[str, socket.socket]
    report: Callable[[Report], None]
    access: Access
    first: bool
    console: ConsoleOptions | None = None
    budget: Budget = field(default_factory=Budget)
    doors: Sequence[_Http | RespServer] = ()
    stopping: bool = False
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, orders: Connection) -> None:
        loop = asyncio.get_running_loop()
        self._say_alive(loop)
        loop.add_reader(orders.fileno(), self._heed, orders)
        if not self.first:  # the first worker logs these warnings for all workers
            default_is_known()
            logging.getLogger("issuer.doors.access").setLevel(logging.CRITICAL)
        self.access.look()  # apply changes of the tokens file since the supervisor has read it
        ids = aconnect(**self.options.given)
        ids.engine.chronicle.role = "worker"
        async with AsyncExitStack() as ends:
            ends.push_async_callback(ids.close)
            look_ups = LookUps(ids.engine, self.access.rates)
            self.doors = [await self._door(name, each, ids, look_ups) for name, each in self.sockets.items()]
            if self.stopping:
                self._drain()
            self.report("ready")
            tasks = [
                loop.create_task(self.stop.wait()),
                loop.create_task(_looking(self.access)),
                *(door.task for door in self.doors if isinstance(door, _Http)),
            ]
            looking = loop.create_task(self._look(ids)) if self.first and not self.options.has_redis else None
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if looking is not None:
                looking.cancel()
            if not self.stop.is_set():
                raise IssuerError("the HTTP server ended unexpectedly")
            for each in self.sockets.values():
                each.close()
            await asyncio.gather(*(door.accept_no_more(ARRIVING) for door in self.doors))
            await asyncio.gather(*(door.close(DRAINING) for door in self.doors))
            # `close` gives an error to each request that still waits for a number.
            await ids.close()
            await asyncio.gather(*(door.close(ANSWERING) for door in self.doors))

    def _heed(self, orders: Connection) -> None:
        order = read_order(orders)
        if order == "reload":
            self.access.look(at_once=True)
            self.report("ready")
        elif not self.stopping:
            self.stopping = True
            self._drain()
        if order == "end":
            asyncio.get_running_loop().remove_reader(orders.fileno())
            self.stop.set()

    def _say_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        self.report("alive")
        loop.call_later(ALIVE_EVERY, self._say_alive, loop)

    def _drain(self) -> None:
        """Close each connection after its next reply. The clients then connect to other servers."""
        for door in self.doors:
            door.drain()

    async def _door(
        self, name: str, listening: socket.socket, ids: AsyncIssuer, look_ups: LookUps
    ) -> _Http | RespServer:
        settings = self.options.settings
        most = connections(len(self.sockets), settings.redis_connections)
        if name == "resp":
            from issuer.doors.resp.server import start

            # One fifth of the connections is kept free: clients above the limit can then connect and get an error.
            clients = most * 4 // 5
            return await start(
                ids,
                self.access,
                listening.dup(),
                clients_most=clients,
                look_ups=look_ups,
                budget=self.budget,
                tls=None if listening.family == socket.AF_UNIX else self.options.tls_context(),
            )
        from issuer.doors.web.app import application
        from issuer.metrics import install

        metrics = install(ids)
        self.access.tally.lines_dropped = dropped
        metrics.serve(self.access.tally)
        app = application(
            ids,
            self.access,
            metrics=metrics.exposition,
            allowed_hosts=settings.allowed_hosts,
            settings=settings,
            look_ups=look_ups,
            budget=self.budget,
        )
        if self.console is not None:
            from issuer.doors.console.console import Console

            app.console = Console(app.service, self.console)
        return _Http(app, listening, most, self.options)

    async def _look(self, ids: AsyncIssuer) -> None:
        """Query the store once: wrong settings end the server at its start. If the store is down, callers get a 503."""
        error = await ids.engine.care.store_ready(None, HaltedTags())
        if isinstance(error, ConfigurationError):
            self.report(error)
        elif error is not None:
            log.warning("the store does not answer yet: %s", error)


async def _looking(access: Access) -> None:
    """Check the tokens file regularly, so that this process applies changes such as a revoked token."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        access.look()
