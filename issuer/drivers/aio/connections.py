"""Connections to Redis for tasks: ours alone, no retries, a timeout for every call, dropped after any error."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import suppress
from functools import partial
from operator import call
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from issuer.clock import Deadline, monotonic
from issuer.drivers.exchange import (
    FAR,
    LOOK_OUT,
    SHORTEST,
    AnyNode,
    RedisStep,
    connection,
    connection_error,
    exchange,
    queued,
    round_trip,
    talks,
)
from issuer.drivers.redis_pool import Permit, Pool
from issuer.drivers.target import Target, from_client, from_url
from issuer.drivers.topology import Address, Exchange
from issuer.errors import RedisUnavailable
from issuer.settings import REDIS_CONNECTIONS
from issuer.threads import in_thread

S = TypeVar("S")
T = TypeVar("T")

NO_RETRY = Retry(NoBackoff(), 0)


async def drive(operation: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """Run the operation to its end: what it yields is done, and the result, or the error, goes back into it.

    So does a cancellation, as any other exception: the operation ends what it has begun.
    """
    try:
        wanted = next(operation)
        while True:
            try:
                result = await do(wanted)
            except BaseException as error:  # noqa: BLE001 - the operation decides what it means
                wanted = operation.throw(error)
            else:
                wanted = operation.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class Link:
    """A redis-py connection that is ours alone. The caller bounds the time: redis-py makes a task for each send."""

    __slots__ = ("_health", "connection", "permit")

    def __init__(self, connection: Any, permit: Permit) -> None:
        self.connection = connection
        self.permit: Permit | None = permit
        self._health = bool(connection.health_check_interval)

    async def connect(self, _end: Deadline) -> None:
        """Connect and log in."""
        connection = self.connection
        connection.socket_timeout = connection.socket_connect_timeout = None
        if threading.main_thread().is_alive() or not hasattr(connection, "host"):  # a Unix socket has none
            await connection.connect()
            return
        # asyncio looks names up in its executor, which does that no more once the main thread has returned.
        found = await in_thread(partial(socket.getaddrinfo, connection.host, connection.port, type=socket.SOCK_STREAM))
        arguments = connection._connection_arguments  # noqa: SLF001 - redis-py takes an address nowhere else
        for left, (*_, address) in zip(reversed(range(len(found))), found, strict=True):
            connection._connection_arguments = partial(_at, str(address[0]), arguments())  # noqa: SLF001 - the same
            try:
                await connection.connect()
            except redis.ConnectionError:
                if not left:
                    raise
            else:
                return

    async def reply(self, packed: bytes, _end: Deadline | None = None) -> Any:
        """Send it and return the reply. After anything raised, the connection must be dropped: the reply may come."""
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

    def abort(self) -> None:
        """Close it at once, without waiting for the other side."""
        self.permit = None
        # redis-py has no name for it. A close that isn't an abort waits until a server that stands still has read what
        # is left, or has ended TLS in turn: the socket stays open, and the loop may have ended by then.
        transport = getattr(getattr(self.connection, "_writer", None), "transport", None)  # fakeredis has none
        if transport is not None:
            transport.abort()

    async def drop(self) -> None:
        """Close it, and have redis-py take note."""
        self.abort()
        await self.connection.disconnect(nowait=True)


class LookOut:
    """Keeps a loop from sleeping while draws are under way whose replies come soon; its other tasks run meanwhile.

    A batch of 200 takes 470 us instead of 500, a lone number 76 instead of 110.
    """

    __slots__ = ("_far", "_looking", "_until", "_waiting")

    def __init__(self) -> None:
        self._waiting = 0
        self._until = 0.0
        self._looking = False
        #: How many more draws go without, as their replies come too late to look out for.
        self._far = 0

    def begin(self) -> bool:
        """Look out for a reply; return whether `end` has to be called when it is there."""
        if self._far:
            self._far -= 1
            return False
        self._waiting += 1
        self._until = monotonic() + LOOK_OUT
        if not self._looking:
            self._looking = True
            self._look(asyncio.get_running_loop())
        return True

    def end(self) -> None:
        """Take note that the reply is there, or won't come."""
        self._waiting -= 1

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waiting and monotonic() < self._until:
            loop.call_soon(self._look, loop)
            return
        self._looking = False
        if self._waiting:
            self._far = FAR


class TaskWaker:
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


class Node(AnyNode[Link]):
    """The idle connections to one server."""

    __slots__ = ()

    async def drop_idle(self) -> None:
        """Close what is idle."""
        while self.idle:
            await self.idle.pop().drop()


def _at(address: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what redis-py connects with, for one of the addresses of its host."""
    name = {"server_hostname": arguments["host"]} if "ssl" in arguments else {}
    return {**arguments, "host": address, **name}


class Connections:
    """Connections to the servers that hold the hashes, for one event loop.

    Each call goes out once: redis-py's own retries are off, since what was sent may have been done. A connection
    that saw an error or a cancellation is dropped, so that no reply is taken for another call's.
    """

    def __init__(self, target: Target, timeout: float, most: int = REDIS_CONNECTIONS) -> None:
        """`timeout` bounds one round trip, in seconds; `most`: how many connections there are at most."""
        self._target = target
        self._most = most
        self._timeout = timeout
        self.name = target.name
        self._closed = False
        self.begin()

    def begin(self) -> object:
        """Forget every connection, and return what was forgotten: it belongs to another loop, or a fork's parent."""
        forgotten = getattr(self, "_nodes", None)
        self._route = self._target.route()
        self._nodes: dict[Address, Node] = {}
        self._pool = Pool(self._most, TaskWaker)
        self._look_out = LookOut()
        return forgotten

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str, most: int = REDIS_CONNECTIONS) -> Connections:
        """Make them from a URL; see `target.from_url`. `name` is for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, redis.asyncio.ConnectionPool), timeout, most)

    @classmethod
    def from_client(cls, client: redis.asyncio.Redis, timeout: float, most: int = REDIS_CONNECTIONS) -> Connections:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(from_client(client), timeout, most)

    # ------------------------------------------------------------------ the short way

    def node(self, key: str) -> Node | None:
        """Return the server that holds the key, if a call has been there before."""
        address = self._route.last_owner(key)
        return None if address is None else self._nodes.get(address)

    async def draw(self, node: Node, packed: bytes, deadline: Deadline) -> Any:
        """Send a draw to that server and return its reply as it comes; None if it has to go the long way.

        For draws only: they may be sent again. Raises RedisUnavailable if the time is over.
        """
        if node.waiting:
            return None  # no draw comes before those that wait for a connection
        try:
            link = node.idle.pop()
        except IndexError:
            return None
        look_out = self._look_out
        looking = look_out.begin()
        seconds = min(self._timeout, max(SHORTEST, deadline.left()))
        try:
            async with asyncio.timeout(seconds):
                reply = await link.reply(packed)
        except TimeoutError as error:
            await link.drop()
            if self._route.silent(node.address, f"no answer within {seconds:.3g} s", seconds):
                await node.drop_idle()  # each of them would cost a caller as much again
            late = RedisUnavailable(f"redis {self.name}: no answer in time", retry_after=self._route.retry_after(""))
            raise late from error
        except Exception as error:  # noqa: BLE001 - closed while it was idle, or garbage: the long way finds out which
            await link.drop()
            connection_error(error)
            return None
        except BaseException:
            await link.drop()
            raise
        finally:
            if looking:
                look_out.end()
        node.idle.append(link)
        if node.closed:
            await node.drop_idle()
        elif node.waiting:
            node.pool.wake()
        return reply

    # ------------------------------------------------------------------ the long way

    async def do(self, step: RedisStep, deadline: Deadline, tag: str | None = None) -> Any:
        """Have Redis do the step, and return what it brings.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        end = round_trip(step, deadline, self._timeout)
        return await drive(
            talks(self._route, self.name, step, tag), partial(self._exchange, end=end, deadline=deadline)
        )

    async def _exchange(self, talk: Exchange, end: Deadline, deadline: Deadline) -> Any:
        node = self._nodes.setdefault(talk.address, Node(talk.address, self._pool))
        node.closed = self._closed
        make = partial(self._target.connection, talk.address, NO_RETRY)
        another = partial(connection, talk, node, self._nodes, make, kind=Link)
        found = await drive(queued(another, end, deadline), call)
        share = max(0.001, end.left() / talk.share)
        try:
            async with asyncio.timeout(share):
                return await drive(exchange(talk, node, found, another, end), call)
        except TimeoutError as error:
            raise redis.TimeoutError(f"no answer within {share:.3g} s") from error

    # ------------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self._closed = True
        await self.drop_idle()

    async def drop_idle(self) -> None:
        """Close every idle connection."""
        for node in self._nodes.values():
            node.closed = self._closed
            await node.drop_idle()
        # A transport closes its socket in the loop's next round, and this may be its last.
        await asyncio.sleep(0)
