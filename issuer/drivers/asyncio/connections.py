"""Connections to Redis for tasks: ours alone, no retries, a timeout for every call, dropped after any error."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.steps import Server, Sighting
from issuer.drivers.looking import FAR, LOOK_OUT
from issuer.drivers.redis_errors import meaning
from issuer.drivers.target import Target, from_client, from_url
from issuer.drivers.topology import (
    Address,
    Exchange,
    Outdated,
    Talks,
    find_masters,
    look_elsewhere,
    route_call,
    unreached,
    visit,
)
from issuer.errors import RedisUnavailable

T = TypeVar("T")

#: The shortest time that a round trip gets, so that a call with no time left can still see what is in hand.
SHORTEST = 0.05

NO_RETRY = Retry(NoBackoff(), 0)

_CLOSED = (redis.ConnectionError, OSError)


class Link:
    """A redis-py connection that is ours alone. The caller bounds the time: redis-py makes a task for each send."""

    __slots__ = ("_health", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._health = bool(connection.health_check_interval)

    async def connect(self) -> None:
        """Connect and log in."""
        self.connection.socket_timeout = self.connection.socket_connect_timeout = None
        await self.connection.connect()

    async def ask(self, packed: bytes) -> Any:
        """Send it and return the reply. After anything raised, the connection must be dropped: the reply may come."""
        await self.connection.send_packed_command(packed, check_health=self._health)
        return await self.connection.read_response(disable_decoding=True)

    async def stale(self) -> bool:
        """Whether it was closed while it was idle, or holds a reply that was never read."""
        try:
            # A look at what has arrived; a redis-py that has to be asked otherwise would say so in the tests.
            return bool(await self.connection.can_read())
        except (redis.RedisError, OSError):
            return True

    async def drop(self) -> None:
        """Close it, without waiting for the other side."""
        # redis-py has no name for it. A close that isn't an abort waits until a server that stands still has read what
        # is left, or has ended TLS in turn: the socket stays open, and the loop may have ended by then.
        transport = getattr(getattr(self.connection, "_writer", None), "transport", None)  # fakeredis has none
        if transport is not None:
            transport.abort()
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


class Node:
    """The idle connections to one server."""

    __slots__ = ("address", "idle")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle: deque[Link] = deque()


class Connections:
    """Connections to the servers that hold the hashes, for one event loop.

    Each call goes out once: redis-py's own retries are off, since what was sent may have been done. A connection
    that saw an error or a cancellation is dropped, so that no reply is taken for another call's.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        """`timeout` bounds one round trip, in seconds."""
        self._target = target
        self._timeout = timeout
        self.name = target.name
        self._closed = False
        self.begin()

    def begin(self) -> object:
        """Forget every connection, and return what was forgotten: it belongs to another loop, or a fork's parent."""
        forgotten = getattr(self, "_nodes", None)
        self._route = self._target.route()
        self._nodes: dict[Address, Node] = {}
        self._look_out = LookOut()
        return forgotten

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str) -> Connections:
        """Make them from a URL; see `target.from_url`. `name` is for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, redis.asyncio.ConnectionPool), timeout)

    @classmethod
    def from_client(cls, client: redis.asyncio.Redis, timeout: float) -> Connections:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(from_client(client), timeout)

    # ------------------------------------------------------------------ the short way

    def node(self, key: str) -> Node | None:
        """Return the server that holds the key, if a call has been there before."""
        address = self._route.known(key)
        return None if address is None else self._nodes.get(address)

    async def draw(self, node: Node, packed: bytes, deadline: Deadline) -> Any:
        """Send a draw to that server and return its reply as it comes; None if it has to go the long way.

        For draws only: they may be sent again. Raises RedisUnavailable if the time is over.
        """
        try:
            link = node.idle.pop()
        except IndexError:
            return None
        look_out = self._look_out
        looking = look_out.begin()
        seconds = min(self._timeout, max(SHORTEST, deadline.left()))
        try:
            async with asyncio.timeout(seconds):
                reply = await link.ask(packed)
        except TimeoutError as error:
            await link.drop()
            if self._route.silent(node.address, f"no answer within {seconds:.3g} s", seconds):
                await _drop_idle(node)  # each of them would cost a caller as much again
            late = RedisUnavailable(f"redis {self.name}: no answer in time", retry_after=self._route.retry_after(""))
            raise late from error
        except Exception:  # noqa: BLE001 - closed while it was idle, or garbage: the long way finds out which
            await link.drop()
            return None
        except BaseException:
            await link.drop()
            raise
        finally:
            if looking:
                look_out.end()
        await self._release(node, link)
        return reply

    # ------------------------------------------------------------------ the long way

    async def call(self, call: gateway.Call[T], deadline: Deadline, tag: str | None = None, *, probe: bool = True) -> T:
        """Send it to the server that holds its key, and return the decoded reply. `probe`: see `Breaker.admit`.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        return await self._conducted(route_call(self._route, call, probe=probe), deadline, call.key, tag)

    async def masters(self, deadline: Deadline) -> list[Server]:
        """Return the servers that issue numbers now. Raises as `call`."""
        return await self._conducted(find_masters(self._route), deadline, "", None)

    async def visit(self, server: Server, call: gateway.Call[T], deadline: Deadline) -> T:
        """Send the call to that server, supported or not, and return the decoded reply. Raises as `call`."""
        return await self._conducted(visit(server, call), deadline, call.key, None)

    async def elsewhere(self, call: gateway.Call[T], deadline: Deadline) -> list[Sighting[T]]:
        """Send the call to every other node that may hold its key; half of the time left is kept. Raises as `call`."""
        half = Deadline(deadline.left() / 2)
        return await self._conducted(look_elsewhere(self._route, call), half, call.key, None)

    async def _conducted(self, talks: Talks[T], deadline: Deadline, key: str, tag: str | None) -> T:
        """Hold these talks, and return what they end with."""
        end = Deadline(min(self._timeout, max(SHORTEST, deadline.left())))
        talk: Exchange | None = None
        try:
            talk = next(talks)
            while True:
                try:
                    answer = await self._exchange(talk, end)
                except Exception as error:  # noqa: BLE001 - the route decides what an error means
                    talk = talks.throw(error)
                else:
                    talk = talks.send(answer)
        except StopIteration as done:
            value: T = done.value
            return value
        except Exception as error:
            meant = meaning(error, self.name, key, tag, None if talk is None else talk.call)
            if isinstance(meant, RedisUnavailable):
                meant.tag, meant.retry_after = tag, self._route.retry_after(key)
            if meant is error:
                raise
            raise meant from error

    async def _exchange(self, talk: Exchange, end: Deadline) -> Any:
        """One call, one reply, decoded. Raises what redis-py raises."""
        node = self._nodes.setdefault(talk.address, Node(talk.address))
        share = max(0.001, end.left() / talk.share)
        try:
            async with asyncio.timeout(share):
                return await self._tried(talk, node)
        except TimeoutError as error:
            raise redis.TimeoutError(f"no answer within {share:.3g} s") from error

    async def _tried(self, talk: Exchange, node: Node) -> Any:
        while True:
            link, reused = await self._link(node, talk)
            try:
                if not reused:
                    await link.connect()
                answer = talk.call.decode(await _asked(link, talk))
            except _CLOSED as error:
                await link.drop()
                if not reused:
                    raise unreached(error) from error.__cause__
                if not talk.call.repeatable:
                    raise
                # The server closed it while it was idle, and then it has closed the others too.
                await _drop_idle(node)
                continue
            except BaseException:
                await link.drop()
                raise
            if getattr(answer, "status", "") == "notmaster":
                # Perhaps its address is another server's by now, to which only a new connection leads.
                await link.drop()
                await _drop_idle(node)
            else:
                await self._release(node, link)
            return answer

    async def _link(self, node: Node, talk: Exchange) -> tuple[Link, bool]:
        """Return an idle connection and True, or a new one that isn't connected and False."""
        while True:
            try:
                link = node.idle.pop()
            except IndexError:
                if not talk.connects:
                    raise Outdated from None
                return Link(self._target.connection(node.address, NO_RETRY)), False
            # What goes out once must not go out on a connection that the server has closed meanwhile.
            if talk.call.repeatable or not await link.stale():
                return link, True
            await link.drop()

    # ------------------------------------------------------------------ the end

    async def _release(self, node: Node, link: Link) -> None:
        if self._closed:
            await link.drop()
        else:
            node.idle.append(link)

    async def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self._closed = True
        await self.drop_idle()

    async def drop_idle(self) -> None:
        """Close every idle connection."""
        for node in self._nodes.values():
            await _drop_idle(node)
        # A transport closes its socket in the loop's next round, and this may be its last.
        await asyncio.sleep(0)


async def _drop_idle(node: Node) -> None:
    while node.idle:
        await node.idle.pop().drop()


async def _asked(link: Link, talk: Exchange) -> Any:
    if talk.readonly:
        await link.ask(gateway.pack("READONLY"))
        reply = await link.ask(talk.call.packed)
        await link.ask(gateway.pack("READWRITE"))
        return reply
    if talk.asking:
        await link.ask(gateway.pack("ASKING"))
    try:
        return await link.ask(talk.call.packed)
    except redis.exceptions.NoScriptError:
        # The one error after which nothing can have happened, so sending again is no second sending.
        await link.ask(gateway.pack("SCRIPT", "LOAD", talk.call.text))
        if talk.asking:
            await link.ask(gateway.pack("ASKING"))
        return await link.ask(talk.call.packed)
