"""A connection of redis-py for tasks, and how a task waits for a free connection."""

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
from issuer.drivers.inherited import AnyLink, refuse_parents
from issuer.drivers.servers import Permit
from issuer.threads import in_thread

T = TypeVar("T")

NO_RETRY = Retry(NoBackoff(), 0)


class Draw(asyncio.Task[T]):
    """A draw that runs in a task of its own, because its request may outlive its caller.

    `left`: whether the caller was cancelled. `sends`: whether the draw uses a connection, so that bytes may have left.
    """

    left = False
    sends = False

    def leave(self) -> None:
        """End the draw, because its caller was cancelled. A draw that uses a connection ends itself later."""
        self.left = True
        if not self.sends:
            self.cancel()


def current_draw() -> Draw[Any] | None:
    """Return the current task if it is a draw that may outlive its caller."""
    task = asyncio.current_task()
    return task if isinstance(task, Draw) else None


def abandoned() -> bool:
    """Whether the current task is a draw with a cancelled caller. Then it must send nothing more."""
    draw = current_draw()
    return draw is not None and draw.left


class AsyncShown:
    """Base class for redis-py's connection classes. It gives access to values that have no public name there."""

    __slots__ = ()

    #: The IP address to connect to, if a thread has looked it up (see AsyncLink.connect). None: use the host name.
    address: str | None = None
    _reader: Any
    _writer: Any

    @property
    def socket(self) -> Any:
        """The socket while it is connected."""
        transport = getattr(self._writer, "transport", None)
        return None if transport is None or transport.is_closing() else transport.get_extra_info("socket")

    async def send_command(self, *words: Any, **options: Any) -> None:
        """Send a command of the login. In a forked child, refuse to send it over the parent's connection."""
        refuse_parents(self)
        await super().send_command(*words, **options)  # type: ignore[misc]  # redis-py's

    def abort(self) -> None:
        """Close the connection at once, without waiting for the server.

        A normal close waits until the server has read everything, or has ended TLS. If the server is frozen, the socket
        would stay open until the server continues, and the loop may end before that.
        """
        writer, self._writer, self._reader = self._writer, None, None
        # fakeredis has no transport, or, from 2.41 on, one without `abort`.
        abort = getattr(getattr(writer, "transport", None), "abort", None)
        if abort is not None:
            abort()

    def _connection_arguments(self) -> Any:
        arguments = super()._connection_arguments()  # type: ignore[misc]  # redis-py's
        if self.address is None:
            return arguments
        name = {"server_hostname": arguments["host"]} if "ssl" in arguments else {}
        return {**arguments, "host": self.address, **name}


class AsyncLink(AnyLink):
    """A connection of redis-py that belongs to the issuer alone."""

    __slots__ = ("_health",)

    def __init__(self, connection: Any, permit: Permit) -> None:
        super().__init__(connection, permit)
        self._health = bool(connection.health_check_interval)
        # If these timeouts were set, redis-py would create a task for each send.
        connection.socket_timeout = connection.socket_connect_timeout = None

    async def connect(self, end: Deadline) -> None:
        """Connect and log in."""
        await _in_time(self._connect(), end)

    async def _connect(self) -> None:
        connection = self.connection
        if threading.main_thread().is_alive() or not hasattr(connection, "host"):  # a Unix socket has none
            await connection.connect()
            return
        # asyncio would look up the host name in its executor, which fails after the main thread has returned.
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
        """Send a call and return its reply. Raises the server's error."""
        return await _in_time(self.ask(packed), end)

    async def replies(self, packed: bytes, count: int, end: Deadline) -> list[Any]:
        """Send `count` packed calls at once, and return their replies. An error reply is an exception in the list."""
        return await _in_time(self._all(packed, count), end)

    async def _all(self, packed: bytes, count: int) -> list[Any]:
        found: list[Any] = []
        for number in range(count):
            try:
                found.append(await (self.ask(packed) if number == 0 else self._read()))
            except redis.ResponseError as error:
                found.append(error)
        return found

    async def ask(self, packed: bytes) -> Any:
        """Send a call and return the reply. There is no timeout here: the caller must set one.

        After any exception the caller must drop the connection, because the reply to this call may still arrive.
        """
        try:
            await self.connection.send_packed_command(packed, check_health=self._health)
        except RuntimeError as error:
            if isinstance(error, RecursionError):
                raise
            raise redis.ConnectionError(str(error)) from error  # uvloop raises this for a closed transport
        return await self._read()

    async def _read(self) -> Any:
        return await self.connection.read_response(disable_decoding=True)

    async def stale(self) -> bool:
        """Return whether the server has closed the idle connection, or has sent a reply that nobody has read."""
        try:
            # `can_read` looks only at bytes that have arrived. If redis-py changes this, a test fails.
            return bool(await self.connection.can_read())
        except (redis.RedisError, OSError):
            return True

    def drop(self) -> None:
        """Close the connection at once, and return its permit to the pool, so that another one can be made."""
        self.permit = None
        self.connection.abort()


async def _in_time(work: Awaitable[T], end: Deadline) -> T:
    """Wait for `work` and return its result. Raises redis.TimeoutError after the deadline `end`."""
    seconds = max(0.001, end.left())
    alarm, draw = asyncio.timeout(seconds), current_draw()
    if draw is not None:
        draw.sends = True
    try:
        async with alarm:
            return await work
    except TimeoutError as error:
        if not alarm.expired():  # not the deadline: a lost connection also raises TimeoutError
            raise
        raise redis.TimeoutError(f"no answer within {seconds:.3g} s") from error
    finally:
        if draw is not None:
            draw.sends = False


class AsyncWaker:
    """Lets a task sleep until a connection is free."""

    __slots__ = ("_loop", "_thread", "_woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._woken = self._loop.create_future()

    def wake(self) -> None:
        """Wake the task, or skip its next sleep. May be called from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            if threading.get_ident() == self._thread:
                self._wake()
            else:
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Sleep until `wake`, at most `seconds` seconds."""
        alarm = self._loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            alarm.cancel()
        self._woken = self._loop.create_future()
