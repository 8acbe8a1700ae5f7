"""A TCP proxy in front of Redis that causes faults on request.

    with FaultProxy(("127.0.0.1", 6379)) as proxy:
        proxy.drop_replies(match=b"EVALSHA", times=1)   # the script runs, the caller gets no reply
        ...
        proxy.pass_through()

`match`: a fault affects only requests that contain these bytes; None means all requests. `times`: how many requests the
fault affects; None means all until the next fault is set. The bytes that arrive together count as one request. So a
client must wait for a reply before it sends the next request, as redis-py does. One thread serves all connections. Each
method can be called from any thread. It returns when its change has taken effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from issuer.chaos.ports import LOOPBACK, free_port

T = TypeVar("T")

_CHUNK = 1 << 16
_BACKLOG = 100
_ORDER_TIMEOUT = 5.0


class FaultKind(Enum):
    """The effect of a fault on a request."""

    REFUSE = "refuse"
    BLACKHOLE = "blackhole"
    DROP_REQUEST = "drop request"
    DROP_REPLY = "drop reply"
    DELAY = "delay"
    HOLD = "hold"


@dataclass
class ProxyFault:
    """A fault.

    `kind`: the effect; with None, requests are only counted. `match`: bytes that the affected requests contain; None
    means all requests. `left`: how many more requests the fault affects; None means all. `seconds`: delay of the reply.
    `then`: the fault that begins when `left` is 0.
    """

    kind: FaultKind | None = None
    match: bytes | None = None
    left: int | None = None
    seconds: float = 0.0
    then: ProxyFault | None = None

    def strikes(self, request: bytes) -> bool:
        """Return whether the fault affects this request, and count it."""
        if self.left == 0 or (self.match is not None and self.match not in request):
            return False
        if self.left is not None:
            self.left -= 1
        return True


#: Affects no request.
_NONE = ProxyFault(left=0)


@dataclass(eq=False)
class ProxiedConnection:
    """A client's connection, and the connection that the proxy has opened for it to the upstream server.

    `drop_reply`: the next reply is dropped. `delay`: delay of the next reply, in seconds. `silent`: nothing is sent any
    more.
    """

    client: socket.socket
    writer: asyncio.StreamWriter | None = None
    up: asyncio.StreamWriter | None = None
    drop_reply: bool = False
    delay: float = 0.0
    silent: bool = False

    def abort(self) -> None:
        if self.writer is None:  # the connection has just been accepted
            with contextlib.suppress(OSError):
                self.client.shutdown(socket.SHUT_RDWR)
        for writer in (self.writer, self.up):
            if writer is not None:
                writer.transport.abort()


@dataclass(eq=False)
class _Held:
    request: bytes
    released: asyncio.Event = field(default_factory=asyncio.Event)


class FaultProxy:
    """The proxy. `upstream`: host and port of the server. `port`: where the proxy listens; None means any free port."""

    def __init__(self, upstream: tuple[str, int], port: int | None = None) -> None:
        self.upstream = upstream
        self.port = port or free_port()
        #: Host and port of the proxy, and its Redis URL.
        self.address = (LOOPBACK, self.port)
        self.url = f"redis://{LOOPBACK}:{self.port}/0"
        self._fault = _NONE
        #: Number of requests that faults have affected.
        self.hits = 0
        self._links: set[ProxiedConnection] = set()
        self._held: list[_Held] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            self._order(self._listen())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def held(self) -> list[bytes]:
        """The requests that are kept back because of `hold` and not delivered yet, oldest first."""
        return [held.request for held in list(self._held)]

    def pass_through(self) -> None:
        """End the fault. Requests that `hold` kept back still wait for `release`.

        Connections that `blackhole` silenced are closed.
        """
        self._order(self._set(_NONE))

    def refuse(self) -> None:
        """Close all connections and refuse new connections, like a dead server."""
        self._order(self._set(ProxyFault(FaultKind.REFUSE)))

    def blackhole(self) -> None:
        """Accept connections and send no replies, like a firewall. Open connections stay silent for ever."""
        self._order(self._set(ProxyFault(FaultKind.BLACKHOLE)))

    def drop_requests(self, match: bytes | None = None, times: int | None = None) -> None:
        """Close the connection instead of delivering the request."""
        self._order(self._set(ProxyFault(FaultKind.DROP_REQUEST, match, times)))

    def drop_replies(self, match: bytes | None = None, times: int | None = None) -> None:
        """Deliver the request, drop its reply and close the connection."""
        self._order(self._set(ProxyFault(FaultKind.DROP_REPLY, match, times)))

    def drop_reply_then_hold(self, match: bytes) -> None:
        """Drop the reply to the first request that contains `match`, and hold later requests, which are its retries."""
        self._order(self._set(ProxyFault(FaultKind.DROP_REPLY, match, 1, then=ProxyFault(FaultKind.HOLD, match))))

    def delay_replies(self, seconds: float, match: bytes | None = None, times: int | None = None) -> None:
        """Deliver the request at once, and its reply after a delay in seconds."""
        self._order(self._set(ProxyFault(FaultKind.DELAY, match, times, seconds)))

    def hold(self, match: bytes | None = None, times: int | None = None) -> None:
        """Keep requests back until `release` is called. It delivers them even if their clients have given up."""
        self._order(self._set(ProxyFault(FaultKind.HOLD, match, times)))

    def release(self) -> int:
        return self._order(self._release())

    def redirect(self, upstream: tuple[str, int]) -> None:
        """Close all connections. From now on, connect clients to the server `upstream`."""
        self.upstream = upstream
        self._order(self._cut())

    def close(self) -> None:
        """Close all connections and stop the thread. A second call does nothing."""
        if self._loop.is_closed():
            return
        self._order(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_ORDER_TIMEOUT)
        self._loop.close()

    def _order(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_ORDER_TIMEOUT)

    async def _set(self, fault: ProxyFault) -> None:
        self._fault = fault
        for link in list(self._links):
            # When `blackhole` ends, close the connections that it silenced. They have lost data, so their clients must
            # open new connections.
            if fault.kind is FaultKind.REFUSE or (link.silent and fault.kind is not FaultKind.BLACKHOLE):
                link.abort()
        if fault.kind is FaultKind.REFUSE:
            self._deafen()
        else:
            await self._listen()

    async def _cut(self) -> None:
        for link in list(self._links):
            link.abort()

    async def _release(self) -> int:
        held, self._held = self._held, []
        for one in held:
            one.released.set()
        return len(held)

    # asyncio.start_server is not used. If such a server is closed after it has accepted a connection, but before it has
    # started the connection's task, the server never closes this connection (Python 3.11: the transport cannot attach
    # to the server).
    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._listening()
            self._listener.settimeout(0)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    # The proxy of a test double overrides this method, `_connected` and `_affects`.
    def _listening(self) -> socket.socket:
        return socket.create_server((LOOPBACK, self.port), backlog=_BACKLOG)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.upstream)

    def _deafen(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    async def _shut(self) -> None:
        self._deafen()
        await self._cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # the client has gone
        client.settimeout(0)
        link = ProxiedConnection(client)
        self._links.add(link)
        task = asyncio.ensure_future(self._serve(link))
        self._tasks.add(task)
        task.add_done_callback(partial(self._served, link))

    def _served(self, link: ProxiedConnection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._links.discard(link)
        if link.writer is None:  # the task was cancelled before it began
            link.client.close()

    async def _serve(self, link: ProxiedConnection) -> None:
        pumps: list[asyncio.Task[None]] = []
        try:
            reader, link.writer = await asyncio.open_connection(sock=link.client)
            up_reader, link.up = await self._connected()
            requests = asyncio.ensure_future(self._pump_requests(link, reader, link.up))
            replies = asyncio.ensure_future(self._pump_replies(link, link.writer, up_reader))
            pumps = [requests, replies]
            await replies  # ends when the upstream server closes its connection, after the client has closed its own
            if link.silent:
                await requests
        except OSError:
            pass  # the upstream server is down: close the client's connection
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for writer in (link.writer, link.up):
                if writer is not None:
                    writer.close()

    async def _pump_requests(
        self, link: ProxiedConnection, reader: asyncio.StreamReader, up: asyncio.StreamWriter
    ) -> None:
        while request := await _read(reader):
            fault = self._fault
            struck = self._affects(link, request) and fault.strikes(request)
            self.hits += struck
            if struck and fault.left == 0 and fault.then is not None:
                self._fault = fault.then
            link.delay = fault.seconds if struck else 0.0
            kind = fault.kind if struck else None
            if kind is FaultKind.BLACKHOLE:
                link.silent = True
            if link.silent:
                continue
            if kind is FaultKind.DROP_REQUEST:
                link.abort()
                return
            if kind is FaultKind.DROP_REPLY:
                link.drop_reply = True
            if kind is FaultKind.HOLD:
                held = _Held(request)
                self._held.append(held)
                try:
                    await held.released.wait()
                finally:
                    if held in self._held:  # the connection was closed before `release`
                        self._held.remove(held)
            await self._deliver(link, up, request, fault if struck else _NONE)
        # The client has gone, but its requests must still arrive. If the connection were closed now, requests could be
        # lost.
        with contextlib.suppress(OSError):
            up.write_eof()

    async def _pump_replies(
        self, link: ProxiedConnection, writer: asyncio.StreamWriter, up_reader: asyncio.StreamReader
    ) -> None:
        while reply := await _read(up_reader):
            if self._fault.kind is FaultKind.BLACKHOLE:
                link.silent = True
            if link.silent:
                continue
            if link.drop_reply:
                link.abort()
                return
            if link.delay:
                await asyncio.sleep(link.delay)
            await self._answer(link, writer, reply)

    def _affects(self, link: ProxiedConnection, request: bytes) -> bool:  # noqa: ARG002 - the same as below
        return True

    async def _deliver(
        self,
        link: ProxiedConnection,  # noqa: ARG002 - for a subclass with other faults
        up: asyncio.StreamWriter,
        request: bytes,
        strike: ProxyFault,  # noqa: ARG002 - the same
    ) -> None:
        await _send(up, request)

    async def _answer(self, link: ProxiedConnection, writer: asyncio.StreamWriter, reply: bytes) -> None:  # noqa: ARG002 - the same
        await _send(writer, reply)


async def _read(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that arrived, b"" if the connection is closed or broken."""
    try:
        return await reader.read(_CHUNK)
    except OSError:
        return b""


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send the bytes. If the other side has gone, the bytes are lost."""
    with contextlib.suppress(OSError):
        if not writer.is_closing():
            writer.write(data)
            await writer.drain()
