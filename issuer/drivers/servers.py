"""Connections of a process to the servers that hold its tags, and what it knows of these servers: for both colours."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, Protocol, Self, TypeVar

import redis
import redis.asyncio

from issuer.core.steps import Elsewhere, Masters, Send, Visit
from issuer.drivers.redis_pool import AnyWaker, Pool
from issuer.drivers.target import Target, from_client, from_url
from issuer.drivers.topology import Address
from issuer.errors import RedisUnavailable
from issuer.settings import REDIS_CONNECTIONS

#: The shortest time that a round trip gets, so that a call with no time left can still see what is in hand.
SHORTEST = 0.05

#: Seconds to look out for a reply, wide awake, before sleeping, as to be woken takes longer than a near Redis needs: a
#: reply comes within 20 us from this machine, 60 from the next one.
LOOK_OUT = 0.0001

#: After a look-out in vain this many calls do without: a server that is far away costs each of them 2 us.
FAR = 50

#: A step that Redis does.
RedisStep = Send | Masters | Visit | Elsewhere


class AnyLink(Protocol):
    """A connection of either colour."""

    def drop(self) -> None:
        """Close it at once, without waiting."""


L = TypeVar("L", bound=AnyLink)


class AnyNode(Generic[L]):
    """The idle connections to one server. `waiting`: the pool's queue, at hand for draws."""

    __slots__ = ("address", "closed", "idle", "pool", "waiting")

    def __init__(self, address: Address, pool: Pool[Any]) -> None:
        self.address = address
        self.pool = pool
        self.waiting = pool.waiting
        self.idle: deque[L] = deque()
        self.closed = False

    def settle(self) -> None:
        """Close the connection that came back, if all are to be; else give it to the first call that waits for one."""
        if self.closed:
            self.drop_idle()
        elif self.waiting:
            self.pool.wake()

    def drop_idle(self) -> None:
        """Close what is idle."""
        while True:
            try:
                self.idle.pop().drop()
            except IndexError:
                return


N_co = TypeVar("N_co", bound=AnyNode[Any], covariant=True)


class Servers(Generic[N_co]):
    """The servers that hold the hashes, and the connections to them.

    Each call goes out once: redis-py's own retries are off, since what was sent may have been done. A connection that
    saw an error or an interruption is dropped, so that no reply is taken for another call's.
    """

    #: The classes of a colour; that of redis-py reads URLs.
    node_class: type[N_co]
    waker_class: type[AnyWaker]
    pool_class: type[redis.ConnectionPool | redis.asyncio.ConnectionPool]

    def __init__(self, target: Target, timeout: float, most: int = REDIS_CONNECTIONS) -> None:
        """`timeout` bounds one round trip, in seconds; `most`: how many connections there are at most."""
        self.target = target
        self.timeout = timeout
        self.name = target.name
        self.closed = False
        self._most = most
        self.begin()

    def begin(self) -> object:
        """Forget every connection, and return what was forgotten: it belongs to another loop, or a fork's parent."""
        forgotten = getattr(self, "nodes", None)
        self.route = self.target.route()
        self.nodes: dict[Address, N_co] = {}
        self.pool = Pool(self._most, self.waker_class)
        return forgotten

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str, most: int = REDIS_CONNECTIONS) -> Self:
        """Make them from a URL; see `target.from_url`. `name` is for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, cls.pool_class), timeout, most)

    @classmethod
    def from_client(
        cls, client: redis.Redis | redis.asyncio.Redis, timeout: float, most: int = REDIS_CONNECTIONS
    ) -> Self:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(from_client(client), timeout, most)

    def make_node(self, address: Address) -> N_co:
        """Return what leads to a server that no call has been to."""
        node = self.nodes.setdefault(address, self.node_class(address, self.pool))
        node.closed = self.closed
        return node

    def idle_elsewhere(self) -> Any:
        """Return an idle connection to any server, taken from its idle ones; None if there is none."""
        for node in list(self.nodes.values()):
            try:
                return node.idle.pop()
            except IndexError:
                continue
        return None

    def drop_idle(self) -> None:
        """Close every idle connection."""
        for node in list(self.nodes.values()):
            node.closed = self.closed
            node.drop_idle()

    def unanswered(self, node: AnyNode[Any], why: object, seconds: float, tag: str | None = None) -> RedisUnavailable:
        """Take note that a draw got no answer for `seconds` seconds, and return the error for it."""
        if self.route.silent(node.address, why, seconds):
            node.drop_idle()  # each of them would cost a caller as much again
        return RedisUnavailable(f"redis {self.name}: {why}", tag=tag, retry_after=self.route.retry_after(""))
