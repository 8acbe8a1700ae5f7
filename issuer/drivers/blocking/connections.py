"""Connections to Redis that are ours alone: no retries, a timeout for every call, dropped after any error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from operator import call
from typing import Any, TypeVar

import redis

from issuer.clock import Deadline
from issuer.drivers.blocking.link import NO_RETRY, Link
from issuer.drivers.exchange import (
    AnyNode,
    RedisStep,
    connection,
    connection_error,
    exchange,
    queued,
    round_trip,
    talks,
)
from issuer.drivers.redis_pool import Pool
from issuer.drivers.target import Target, from_client, from_url
from issuer.drivers.topology import Address, Exchange
from issuer.errors import RedisUnavailable
from issuer.interrupts import raise_interrupt
from issuer.settings import REDIS_CONNECTIONS

S = TypeVar("S")
T = TypeVar("T")


def drive(operation: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Run the operation to its end: what it yields is done, and the result, or the error, goes back into it."""
    try:
        wanted = next(operation)
        while True:
            try:
                result = do(wanted)
            except BaseException as error:  # noqa: BLE001 - the operation decides what it means, an interrupt too
                wanted = operation.throw(error)
            else:
                wanted = operation.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class ThreadWaker:
    """The sleep of a thread that waits for a connection: a lock in C, held but for the moment of its waking."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """End its sleep, or the next one if it does not sleep."""
        with suppress(RuntimeError):  # it was woken already
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """Sleep until `wake`, or for so long."""
        self._lock.acquire(timeout=seconds)


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
        if self.closed:
            self.drop_idle()
        elif self.waiting:
            self.pool.wake()
        return reply

    def drop_idle(self) -> None:
        """Close what is idle."""
        while True:
            try:
                self.idle.pop().drop()
            except IndexError:
                return


#: A server that no connection leads to.
NOWHERE = Node(Address(), Pool(0, ThreadWaker))


class Connections:
    """Connections to the servers that hold the hashes.

    Each call goes out once: redis-py's own retries are off, since what was sent may have been done. A connection
    that saw an error is dropped, so that no reply is taken for another call's.
    """

    def __init__(self, target: Target, timeout: float, most: int = REDIS_CONNECTIONS) -> None:
        """`timeout` bounds one round trip, in seconds; `most`: how many connections there are at most."""
        self._target = target
        self._most = most
        self.timeout = timeout
        self.name = target.name
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._route = self._target.route()
        self._nodes: dict[Address, Node] = {}
        self._pool = Pool(self._most, ThreadWaker)

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str, most: int = REDIS_CONNECTIONS) -> Connections:
        """Make them from a URL; see `target.from_url`. `name` is for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, redis.ConnectionPool), timeout, most)

    @classmethod
    def from_client(cls, client: redis.Redis, timeout: float, most: int = REDIS_CONNECTIONS) -> Connections:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(from_client(client), timeout, most)

    def node(self, key: str) -> Node:
        """Return the server that holds the key, as far as it is known; NOWHERE otherwise."""
        address = self._route.last_owner(key)
        return NOWHERE if address is None else self._nodes.get(address, NOWHERE)

    def unanswered(self, node: Node, error: redis.TimeoutError, seconds: float, tag: str) -> RedisUnavailable:
        """Take note that a draw got no answer for `seconds` seconds, and return the error for it."""
        if self._route.silent(node.address, error, seconds):
            node.drop_idle()  # each of them would cost a caller as much again
        return RedisUnavailable(f"redis {self.name}: {error}", tag=tag, retry_after=self._route.retry_after(""))

    def do(self, step: RedisStep, deadline: Deadline, tag: str | None = None) -> Any:
        """Have Redis do the step, and return what it brings.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        end = round_trip(step, deadline, self.timeout)
        return drive(talks(self._route, self.name, step, tag), partial(self._exchange, end=end, deadline=deadline))

    def _exchange(self, talk: Exchange, end: Deadline, deadline: Deadline) -> Any:
        node = self._nodes.get(talk.address)
        if node is None:
            node = self._nodes.setdefault(talk.address, Node(talk.address, self._pool))
            node.closed = self._closed
        make = partial(self._target.connection, talk.address, NO_RETRY)
        another = partial(connection, talk, node, self._nodes, make, kind=Link)
        found = drive(queued(another, end, deadline), call)
        share = Deadline(end.left() / talk.share) if talk.share > 1 else end
        return drive(exchange(talk, node, found, another, share), call)

    def after_fork(self) -> None:
        """In a child: forget the parent's connections."""
        self._begin()

    def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self._closed = True
        for node in list(self._nodes.values()):
            node.closed = True
            node.drop_idle()
