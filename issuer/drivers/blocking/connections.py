"""Connections to Redis for threads, and the fast path of a draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import redis

from issuer.drivers.blocking.link import NO_RETRY, Link, Shown, Waker
from issuer.drivers.redis_errors import connection_error
from issuer.drivers.running import Unanswered
from issuer.drivers.servers import AnyNode, Pool
from issuer.drivers.topology import Address
from issuer.drivers.wire import Wire
from issuer.interrupts import raise_interrupt

T = TypeVar("T")


class Node(AnyNode[Link]):
    """The idle connections to one server, shared by the threads of a process."""

    __slots__ = ()

    def draw(self, packed: bytes, seconds: float) -> list[bytes] | None:
        """Send a draw on an idle connection, and return the raw reply. None if the caller must use the slow path.

        Use this only for draws: after None, the caller sends the command again. `packed`: the packed command. Raises
        Unanswered after `seconds` seconds.
        """
        try:
            link = self.idle.pop()
        except IndexError:
            return None
        try:
            reply = link.ask(packed, seconds)
        except (BlockingIOError, redis.TimeoutError) as error:
            link.drop()
            raise_interrupt(error)
            raise Unanswered(f"no answer within {seconds:g} s") from error
        except Exception as error:  # noqa: BLE001 - closed while idle, or garbage: the slow path handles it
            link.drop()
            connection_error(error)
            return None
        except BaseException:
            link.drop()
            raise
        if type(reply) is not list:
            link.drop()
            return None
        self.idle.append(link)
        if self.closed or self.waiting:
            self.settle()
        return reply


_UNKNOWN = Node(Address(), Pool(0, Waker))


class PubSub:
    """A subscription of redis-py, with the methods of its asyncio class that a channel uses."""

    def __init__(self, pool: redis.ConnectionPool) -> None:
        self._pubsub = redis.client.PubSub(pool)

    async def subscribe(self, name: str) -> None:
        """Subscribe to a channel."""
        self._pubsub.subscribe(name)

    async def get_message(self, timeout: float) -> dict[str, Any] | None:
        """Wait at most `timeout` seconds for a message, and return it."""
        message: dict[str, Any] | None = self._pubsub.get_message(timeout=timeout)
        return message

    async def aclose(self) -> None:
        """Close the connection."""
        self._pubsub.close()


class Connections(Wire[Node]):
    """Redis servers of a process, and the connections to them."""

    node_class = Node
    waker_class = Waker
    pool_class = redis.ConnectionPool
    pubsub_class = PubSub
    link_class = Link
    shown_class = Shown
    no_retry = NO_RETRY

    @staticmethod
    async def aside(function: Callable[..., T], *arguments: Any) -> T:
        """Call the function. See `Servers`."""
        return function(*arguments)

    def node(self, key: str) -> Node:
        """Return the server that has the key. If it is unknown, one without connections: draws take the slow path."""
        address = self.route.last_owner(key)
        return _UNKNOWN if address is None else self.nodes.get(address, _UNKNOWN)

    def close(self) -> None:
        """Close every idle connection. Connections in use are closed when their call ends."""
        self.closed = True
        self.drop_idle()
