"""One connection to a Redis server: redis-py's own, for tasks; and how a task waits for one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from issuer.clock import Deadline
from issuer.drivers.redis_pool import Permit
from issuer.threads import in_thread

T = TypeVar("T")

NO_RETRY = Retry(NoBackoff(), 0)


class AsyncShown:
    """A base for the classes of redis-py's connections, before their own: what these have no public name for."""

    __slots__ = ()

    #: The address to connect to, in place of one that asyncio looks up.
    address: str | None = None
    _reader: Any
    _writer: Any

    def abort(self) -> None:
        """Close it at once, without waiting for the other side.

        A close that isn't an abort waits until a server that stands still has read what is left, or has ended TLS in
        turn: the socket stays open, and the loop may have ended by then.
        """
        writer, self._writer, self._reader = self._writer, None, None
        transport = getattr(writer, "transport", None)  # fakeredis has none
        if transport is not None:
            transport.abort()

    def _connection_arguments(self) -> Any:
        arguments = super()._connection_arguments()  # type: ignore[misc]  # redis-py's
        if self.address is None:
            return arguments
        name = {"server_hostname": arguments["host"]} if "ssl" in arguments else {}
        return {**arguments, "host": self.address, **name}


class AsyncLink:
    """A redis-py connection that is ours alone."""

    __slots__ = ("_health", "connection", "permit")

    def __init__(self, connection: Any, permit: Permit) -> None:
        self.connection = connection
        self.permit: Permit | None = permit
        self._health = bool(connection.health_check_interval)
        # For each send redis-py would make a task.
        connection.socket_timeout = connection.socket_connect_timeout = None

    async def connect(self, end: Deadline) -> None:
        """Connect and log in."""
        await _in_time(self._connect(), end)

    async def _connect(self) -> None:
        connection = self.connection
        if threading.main_thread().is_alive() or not hasattr(connection, "host"):  # a Unix socket has none
            await connection.connect()
            return
        # asyncio looks names up in its executor, which does that no more once the main thread has returned.
        found = await in_thread(partial(socket.getaddrinfo, connection.host, connection.port, type=socket.SOCK_STREAM))
        for left, (*_, address) in zip(reversed(range(len(found))), found, strict=True):
            connection.address = str(address[0])
            try:
                await connection.connect()
            except redis.ConnectionError:
                if not left:
                    raise
            else:
                return

    async def reply(self, packed: bytes, end: Deadline) -> Any:
        """Send a call and return its reply, or raise the error that the server answered with."""
        return await _in_time(self.ask(packed), end)

    async def ask(self, packed: bytes) -> Any:
        """Send it and return the reply; the caller bounds the time.

        After anything raised, the connection must be dropped: the reply may still come.
        """
        try:
            await self.connection.send_packed_command(packed, check_health=self._health)
        except RuntimeError as error:
            if isinstance(error, RecursionError):
                raise
            raise redis.ConnectionError(str(error)) from error  # uvloop's, of a transport that is closed
        return await self.connection.read_response(disable_decoding=True)

    async def stale(self) -> bool:
        """Whether it was closed while it was idle, or holds a reply that was never read."""
        try:
            # A look at what has arrived; a redis-py that has to be asked otherwise would say so in the tests.
            return bool(await self.connection.can_read())
        except (redis.RedisError, OSError):
            return True

    def drop(self) -> None:
        """Close it at once."""
        self.permit = None
        self.connection.abort()


async def _in_time(work: Awaitable[T], end: Deadline) -> T:
    """Return its result. Raises redis.TimeoutError if it has not ended by then."""
    seconds = max(0.001, end.left())
    alarm = asyncio.timeout(seconds)
    try:
        async with alarm:
            return await work
    except TimeoutError as error:
        if not alarm.expired():  # the kernel gives a connection up by the same type
            raise
        raise redis.TimeoutError(f"no answer within {seconds:.3g} s") from error


class AsyncWaker:
    """The sleep of a task that waits for a connection."""

    __slots__ = ("_event", "_loop", "_thread")

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def wake(self) -> None:
        """End its sleep, or the next one if it does not sleep. Also from the thread that finds a lost connection."""
        with suppress(RuntimeError):  # the loop has ended
            if threading.get_ident() == self._thread:
                self._event.set()
            else:
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> None:
        """Sleep until `wake`, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
