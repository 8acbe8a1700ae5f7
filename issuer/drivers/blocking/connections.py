"""Connections to Redis for threads, and the short way of a draw."""

from __future__ import annotations

import redis

from issuer.drivers.blocking.link import Link, Waker
from issuer.drivers.blocking.wire import Wire
from issuer.drivers.redis_errors import connection_error
from issuer.drivers.redis_pool import Pool
from issuer.drivers.servers import AnyNode
from issuer.drivers.topology import Address
from issuer.interrupts import raise_interrupt


class Node(AnyNode[Link]):
    """The idle connections to one server, shared by the threads of a process."""

    __slots__ = ()

    def draw(self, packed: bytes, seconds: float) -> list[bytes] | None:
        """Send a draw over an idle connection and return its reply as it comes; None if it has to go the long way.

        For draws only: they may be sent again. redis.TimeoutError if no reply comes within `seconds` seconds.
        """
        if self.waiting:
            return None  # no draw comes before those that wait for a connection
        try:
            link = self.idle.pop()
        except IndexError:
            return None
        try:
            reply = link.ask(packed, seconds)
        except (BlockingIOError, redis.TimeoutError) as error:
            link.drop()
            raise_interrupt(error)
            raise redis.TimeoutError(f"no answer within {seconds:g} s") from error
        except Exception as error:  # noqa: BLE001 - closed while it was idle, or garbage: the long way finds out which
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


#: A server that no connection leads to.
NOWHERE = Node(Address(), Pool(0, Waker))


class Connections(Wire[Node]):
    """The servers that hold the hashes, and the connections of a process to them."""

    node_class = Node
    waker_class = Waker
    pool_class = redis.ConnectionPool

    def node(self, key: str) -> Node:
        """Return the server that holds the key, as far as it is known; NOWHERE otherwise."""
        address = self.route.last_owner(key)
        return NOWHERE if address is None else self.nodes.get(address, NOWHERE)

    def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self.closed = True
        self.drop_idle()
