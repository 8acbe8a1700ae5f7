"""Redis servers of a process and the connections to them, for both drivers."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, Self, TypeVar

import redis
import redis.asyncio

from issuer import clock
from issuer.clock import Deadline
from issuer.core.steps import Elsewhere, Masters, Send, Visit
from issuer.drivers.target import Target, from_client, from_url
from issuer.drivers.topology import Address
from issuer.errors import RedisUnavailable
from issuer.settings import REDIS_CONNECTIONS

#: A waiting call checks again after this many seconds, as the thread that should wake it may have been interrupted.
LOOK_AGAIN = 0.25


class Permit:
    """Permission for one connection. It returns to its pool when its last reference is gone.

    So a connection that is lost, for example in an interrupt, does not keep its permit.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: weakref.ref[Pool[Any]]) -> None:
        self._pool = pool

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            # A new object, as Python finalizes an object only once.
            pool.free.append(Permit(self._pool))
            pool.wake()


class AnyWaker(Protocol):
    """Lets a call sleep. `wait` returns None or an awaitable."""

    def wake(self) -> None:
        """Wake the call, or skip its next sleep. May be called from any thread."""

    def wait(self, seconds: float) -> Any:
        """Sleep until `wake`, at most `seconds` seconds."""


W = TypeVar("W", bound=AnyWaker)


class Turn(Generic[W]):
    """A place in the queue. `until`: deadline of its call, on the monotonic clock."""

    __slots__ = ("until", "waker")

    def __init__(self, waker: W, until: float) -> None:
        self.waker = waker
        self.until = until


class Pool(Generic[W]):
    """Permits for a number of connections to any servers, and the queue of waiting calls, first come first served.

    There is no lock: each step is one atomic operation of a deque, and a call checks again after it was queued.
    """

    def __init__(self, most: int, waker: Callable[[], W]) -> None:
        self.most = most
        self._waker = waker
        itself = weakref.ref(self)
        self.free = deque(Permit(itself) for _ in range(most))
        #: The fast path of a draw reads this.
        self.waiting: deque[Turn[W]] = deque()

    def is_next(self, turn: Turn[W] | None) -> bool:
        """Whether the turn is the first in the queue. None: whether the queue is empty."""
        waiting = self.waiting
        while True:
            try:
                first = waiting[0]
                if first is turn:
                    return True
                if first.until > clock.monotonic():
                    return False
                waiting.remove(first)  # its call was interrupted
            except (IndexError, ValueError):  # another thread was faster
                if not waiting:
                    return True

    def permit(self) -> Permit | None:
        """Return a permit for one more connection, None if there is none."""
        try:
            return self.free.pop()
        except IndexError:
            return None

    def queue(self, end: Deadline) -> Turn[W]:
        """Take a place in the queue."""
        turn = Turn(self._waker(), end.at)
        self.waiting.append(turn)
        return turn

    def leave(self, turn: Turn[W]) -> None:
        """Leave the queue, and wake the next call, as there may be a connection for it."""
        with suppress(ValueError):
            self.waiting.remove(turn)
        self.wake()

    def wake(self) -> None:
        """Wake the first call in the queue: a connection is idle, or a permit is free."""
        try:
            self.waiting[0].waker.wake()
        except IndexError:
            return


#: Shortest timeout of a round trip, so that a call without time left can still get buffered numbers.
SHORTEST = 0.05

#: How long to poll for a reply before sleeping, in seconds, as waking takes longer than a nearby Redis. A reply takes
#: 20 us from this machine, 60 us from the next one.
LOOK_OUT = 0.0001

#: After a poll without success, this many calls do not poll: with a distant server each would waste 2 us.
FAR = 50

#: A step that Redis executes.
RedisStep = Send | Masters | Visit | Elsewhere


class AnyLink(Protocol):
    """A connection of either driver."""

    def drop(self) -> None:
        """Close it at once, without waiting."""


L = TypeVar("L", bound=AnyLink)


class AnyNode(Generic[L]):
    """The idle connections to one server. `waiting`: the pool's queue, for quick access by draws."""

    __slots__ = ("address", "closed", "idle", "pool", "waiting")

    def __init__(self, address: Address, pool: Pool[Any]) -> None:
        self.address = address
        self.pool = pool
        self.waiting = pool.waiting
        self.idle: deque[L] = deque()
        self.closed = False

    def settle(self) -> None:
        """Close a returned connection if all must be closed. Otherwise give it to the first waiting call."""
        if self.closed:
            self.drop_idle()
        elif self.waiting:
            self.pool.wake()

    def drop_idle(self) -> None:
        """Close the idle connections."""
        while True:
            try:
                self.idle.pop().drop()
            except IndexError:
                return


N_co = TypeVar("N_co", bound=AnyNode[Any], covariant=True)


class Servers(Generic[N_co]):
    """Redis servers, and the connections to them.

    Each call is sent once: redis-py's retries are off, as a lost reply does not mean that nothing was done. After an
    error or an interrupt the connection is dropped, so that no late reply is taken for another call's.
    """

    #: Classes of a driver. redis-py's pool class parses URLs.
    node_class: type[N_co]
    waker_class: type[AnyWaker]
    pool_class: type[redis.ConnectionPool | redis.asyncio.ConnectionPool]

    def __init__(self, target: Target, timeout: float, most: int = REDIS_CONNECTIONS) -> None:
        """`timeout`: limit of one round trip, in seconds. `most`: maximum number of connections."""
        self.target = target
        self.timeout = timeout
        self.name = target.name
        self.closed = False
        self._most = most
        self.begin()

    def begin(self) -> object:
        """Drop every connection and return them all: they belong to another loop, or to the parent of a fork."""
        forgotten = getattr(self, "nodes", None)
        self.route = self.target.route()
        self.nodes: dict[Address, N_co] = {}
        self.pool = Pool(self._most, self.waker_class)
        return forgotten

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str, most: int = REDIS_CONNECTIONS) -> Self:
        """Create it from a URL, see `target.from_url`. `name`: for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, cls.pool_class), timeout, most)

    @classmethod
    def from_client(
        cls, client: redis.Redis | redis.asyncio.Redis, timeout: float, most: int = REDIS_CONNECTIONS
    ) -> Self:
        """Connect like the client, which is not changed. The client's retries could send a `load` twice."""
        return cls(from_client(client), timeout, most)

    def make_node(self, address: Address) -> N_co:
        """Return the node for a new server."""
        node = self.nodes.setdefault(address, self.node_class(address, self.pool))
        node.closed = self.closed
        return node

    def idle_elsewhere(self) -> Any:
        """Take an idle connection from any server, None if there is none."""
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
        """Record that a draw got no reply for `seconds` seconds, and return the error for it."""
        if self.route.silent(node.address, why, seconds):
            node.drop_idle()  # each would cost another caller a timeout
        return RedisUnavailable(f"redis {self.name}: {why}", tag=tag, retry_after=self.route.retry_after(""))
