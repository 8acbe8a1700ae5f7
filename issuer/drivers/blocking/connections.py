"""Connections to Redis that are ours alone: no retries, a timeout for every call, dropped after any error."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

import redis

from issuer import gateway
from issuer.clock import Deadline
from issuer.core.steps import Server, Sighting
from issuer.drivers.blocking.link import NO_RETRY, Link
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


class Node:
    """The idle connections to one server, shared by the threads of a process."""

    __slots__ = ("address", "closed", "idle")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.idle: deque[Link] = deque()
        self.closed = False

    def draw(self, packed: bytes, seconds: float) -> list[bytes] | None:
        """Send a draw over an idle connection and return its reply as it comes; None if it has to go the long way.

        For draws only: they may be sent again. TimeoutError if no reply comes within `seconds` seconds.
        """
        try:
            link = self.idle.pop()
        except IndexError:
            return None
        try:
            reply = link.ask(packed, seconds)
        except (BlockingIOError, redis.TimeoutError) as error:
            link.drop()
            raise TimeoutError(f"no answer within {seconds:g} s") from error
        except Exception:  # noqa: BLE001 - closed while it was idle, or garbage: the long way finds out which
            link.drop()
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
        return reply

    def release(self, link: Link) -> None:
        """Keep it for the next call."""
        self.idle.append(link)
        if self.closed:
            self.drop_idle()

    def drop_idle(self) -> None:
        """Close what is idle."""
        while True:
            try:
                self.idle.pop().drop()
            except IndexError:
                return


#: A server that no connection leads to.
NOWHERE = Node(Address())


class Connections:
    """Connections to the servers that hold the hashes.

    Each call goes out once: redis-py's own retries are off, since what was sent may have been done. A connection
    that saw an error is dropped, so that no reply is taken for another call's.
    """

    def __init__(self, target: Target, timeout: float) -> None:
        """`timeout` bounds one round trip, in seconds."""
        self._target = target
        self.timeout = timeout
        self.name = target.name
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._route = self._target.route()
        self._nodes: dict[Address, Node] = {}

    @classmethod
    def from_url(cls, url: str, timeout: float, name: str) -> Connections:
        """Make them from a URL; see `target.from_url`. `name` is for messages. Raises ConfigurationError."""
        return cls(from_url(url, name, redis.ConnectionPool), timeout)

    @classmethod
    def from_client(cls, client: redis.Redis, timeout: float) -> Connections:
        """Make them like the client's own, which stay untouched: its retries would send a `load` twice."""
        return cls(from_client(client), timeout)

    def node(self, key: str) -> Node:
        """Return the server that holds the key, as far as it is known; NOWHERE otherwise."""
        address = self._route.known(key)
        return NOWHERE if address is None else self._nodes.get(address, NOWHERE)

    def unanswered(self, node: Node, error: TimeoutError, seconds: float, tag: str) -> RedisUnavailable:
        """Take note that a draw got no answer for `seconds` seconds, and return the error for it."""
        if self._route.silent(node.address, error, seconds):
            node.drop_idle()  # each of them would cost a caller as much again
        return RedisUnavailable(f"redis {self.name}: {error}", tag=tag, retry_after=self._route.retry_after(""))

    def call(self, call: gateway.Call[T], deadline: Deadline, tag: str | None = None, *, probe: bool = True) -> T:
        """Send it to the server that holds its key, and return the decoded reply. `probe`: see `Breaker.admit`.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        return self._conducted(route_call(self._route, call, probe=probe), deadline, call.key, tag)

    def masters(self, deadline: Deadline) -> list[Server]:
        """Return the servers that issue numbers now. Raises as `call`."""
        return self._conducted(find_masters(self._route), deadline, "", None)

    def visit(self, server: Server, call: gateway.Call[T], deadline: Deadline) -> T:
        """Send the call to that server, supported or not, and return the decoded reply. Raises as `call`."""
        return self._conducted(visit(server, call), deadline, call.key, None)

    def elsewhere(self, call: gateway.Call[T], deadline: Deadline) -> list[Sighting[T]]:
        """Send the call to every other node that may hold its key; half of the time left is kept. Raises as `call`."""
        half = Deadline(deadline.left() / 2)
        return self._conducted(look_elsewhere(self._route, call), half, call.key, None)

    def _conducted(self, talks: Talks[T], deadline: Deadline, key: str, tag: str | None) -> T:
        """Hold these talks, and return what they end with."""
        end = Deadline(min(self.timeout, max(SHORTEST, deadline.left())))
        talk: Exchange | None = None
        try:
            talk = next(talks)
            while True:
                try:
                    answer = self._exchange(talk, end)
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

    def _exchange(self, talk: Exchange, end: Deadline) -> Any:
        """One call, one reply, decoded. Raises what redis-py raises."""
        node = self._nodes.get(talk.address)
        if node is None:
            node = self._nodes.setdefault(talk.address, Node(talk.address))
            node.closed = self._closed
        share = Deadline(end.left() / talk.share) if talk.share > 1 else end
        while True:
            link, reused = self._link(node, talk)
            try:
                if not reused:
                    link.connect(share)
                reply = _asked(link, talk, share)
                answer = talk.call.decode(reply)
            except BlockingIOError as error:
                link.drop()
                raise redis.TimeoutError(f"no answer within {share.left():.3g} s") from error
            except (redis.ConnectionError, OSError) as error:
                link.drop()
                if not reused:
                    raise unreached(error) from error.__cause__
                if not talk.call.repeatable:
                    raise
                # The server closed it while it was idle, and then it has closed the others too.
                node.drop_idle()
                continue
            except BaseException:
                link.drop()
                raise
            if getattr(answer, "status", "") == "notmaster":
                # Perhaps its address is another server's by now, to which only a new connection leads.
                link.drop()
                node.drop_idle()
            else:
                node.release(link)
            return answer

    def _link(self, node: Node, talk: Exchange) -> tuple[Link, bool]:
        """Return an idle connection and True, or a new one that isn't connected and False."""
        while True:
            try:
                link = node.idle.pop()
            except IndexError:
                if not talk.connects:
                    raise Outdated from None
                return Link(self._target.connection(node.address, NO_RETRY)), False
            # What goes out once must not go out on a connection that the server has closed meanwhile.
            if talk.call.repeatable or not link.stale:
                return link, True
            link.drop()

    def after_fork(self) -> None:
        """In a child: forget the parent's connections."""
        self._begin()

    def close(self) -> None:
        """Close every idle connection; one in use is closed when its call ends."""
        self._closed = True
        for node in list(self._nodes.values()):
            node.closed = True
            node.drop_idle()


def _asked(link: Link, talk: Exchange, end: Deadline) -> Any:
    if talk.readonly:
        _reply(link, gateway.pack("READONLY"), end)
        reply = _reply(link, talk.call.packed, end)
        _reply(link, gateway.pack("READWRITE"), end)
        return reply
    if talk.asking:
        _reply(link, gateway.pack("ASKING"), end)
    try:
        return _reply(link, talk.call.packed, end)
    except redis.exceptions.NoScriptError:
        # The one error after which nothing can have happened, so sending again is no second sending.
        _reply(link, gateway.pack("SCRIPT", "LOAD", talk.call.text), end)
        if talk.asking:
            _reply(link, gateway.pack("ASKING"), end)
        return _reply(link, talk.call.packed, end)


def _reply(link: Link, packed: bytes, end: Deadline) -> Any:
    reply = link.ask(packed, max(0.001, end.left()))
    if isinstance(reply, Exception):
        raise reply
    return reply
