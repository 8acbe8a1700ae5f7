"""The work of both drivers with Redis: the exchanges that a step takes, and what each does to a connection.

Generators, as in topology.py: a step yields the exchanges that it needs, an exchange the calls of its connection. Each
driver runs them, and has the connection's short way for draws beside them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import redis

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.steps import Calls, Elsewhere, Masters, Send, Visit
from issuer.drivers.breaker import EVIDENCE
from issuer.drivers.redis_errors import meaning, settling
from issuer.drivers.redis_pool import LOOK_AGAIN, Permit, Pool, idle_elsewhere
from issuer.drivers.topology import (
    Address,
    Exchange,
    Outdated,
    Talks,
    Topology,
    find_masters,
    look_elsewhere,
    route_call,
    unreached,
    visit,
)
from issuer.errors import IssuerError, RedisUnavailable
from issuer.interrupts import raise_interrupt

#: The shortest time that a round trip gets, so that a call with no time left can still see what is in hand.
SHORTEST = 0.05

#: Seconds to look out for a reply, wide awake, before sleeping, as to be woken takes longer than a near Redis needs: a
#: reply comes within 20 us from this machine, 60 from the next one.
LOOK_OUT = 0.0001

#: After a look-out in vain this many calls do without: a server that is far away costs each of them 2 us.
FAR = 50

#: What redis-py's handshake and our decoders raise on replies that make no sense; UnicodeError: on a host's name.
_NONSENSE = (ValueError, TypeError, LookupError, AttributeError)

#: A step that Redis does.
RedisStep = Send | Masters | Visit | Elsewhere


def connection_error(error: Exception) -> redis.RedisError:
    """Return what a connection has raised as an error of redis-py, as which everything above handles it.

    What isn't the connection's, or the parser's, comes out as it is: what a signal's handler raised, above all.
    """
    raise_interrupt(error)
    if isinstance(error, redis.RedisError):
        return error
    if isinstance(error, OSError):
        meant: redis.RedisError = redis.ConnectionError(str(error))
    elif isinstance(error, _NONSENSE):
        meant = redis.exceptions.InvalidResponse(repr(error))
    else:
        raise error
    meant.__cause__ = error
    return meant


class AnyLink(Protocol):
    """A connection of either colour: what it returns is the answer, or has to be awaited for it."""

    def connect(self, end: Deadline) -> Any:
        """Connect and log in."""

    def reply(self, packed: bytes, end: Deadline) -> Any:
        """Send a call and return its reply, or raise the error that the server answered with."""

    def stale(self) -> Any:
        """Whether it was closed while it was idle, or holds a reply that was never read."""

    def abort(self) -> None:
        """Close it at once, as far as that goes without waiting."""

    def drop(self) -> Any:
        """Close it."""


L = TypeVar("L", bound=AnyLink)


class AnyNode(Generic[L]):
    """The idle connections to one server, of either colour. `waiting`: the pool's queue, at hand for draws."""

    __slots__ = ("address", "closed", "idle", "pool", "waiting")

    def __init__(self, address: Address, pool: Pool[Any]) -> None:
        self.address = address
        self.pool = pool
        self.waiting = pool.waiting
        self.idle: deque[L] = deque()
        self.closed = False

    def drop_idle(self) -> Any:
        """Close what is idle."""
        raise NotImplementedError


def talks(route: Topology, name: str, step: RedisStep, tag: str | None) -> Talks[Any]:  # noqa: C901 - one case a step
    """Do the step: yield its exchanges. What redis-py raises comes out as a public error; `name`: the server's."""
    steps: Talks[Any]
    match step:
        case Send():
            steps = route_call(route, step.call, probe=step.probe)
        case Masters():
            steps = find_masters(route)
        case Visit():
            steps = visit(step.server, step.call)
        case _:
            steps = look_elsewhere(route, step.call)
    talk = None
    try:
        talk = next(steps)
        while True:
            try:
                answer = yield talk
            except redis.RedisError as error:  # the route decides what it means
                talk = steps.throw(error)
            else:
                talk = steps.send(answer)
    except StopIteration as done:
        return done.value
    except (redis.RedisError, IssuerError) as error:
        key = "" if isinstance(step, Masters) else step.call.key
        meant = meaning(error, name, key, tag, None if talk is None else talk.call)
        if isinstance(meant, RedisUnavailable):
            meant.tag, meant.retry_after = tag, max(route.retry_after(key), settling(error))
        if meant is error:
            raise
        raise meant from error


def exchange(  # noqa: C901 - one case for each way in which it may end
    talk: Exchange,
    node: AnyNode[L],
    found: tuple[L, bool],
    another: Callable[[Deadline], Calls[tuple[L, bool]]],
    end: Deadline,
) -> Calls[Any]:
    """Send one call and return its reply, decoded. Raises what redis-py raises, and RedisUnavailable.

    `found`: what `connection` has found; `another`: finds another one, until a deadline.
    """
    link, reused = found
    call = talk.call
    while True:
        # What goes out once must not go out on a connection that the server has closed meanwhile.
        if reused and not call.repeatable and (yield link.stale):
            yield link.drop
            link, reused = yield from another(end)
            continue
        try:
            if not reused:
                yield partial(link.connect, end)
            answer = call.decode((yield from _asked(talk, link, end)))
        except GeneratorExit:  # the driver was interrupted, or its loop has ended: nothing can be waited for
            link.abort()
            raise
        except Exception as raised:  # noqa: BLE001 - `connection_error` raises what isn't the connection's
            yield link.drop
            error = connection_error(raised)
            closed = isinstance(error, redis.ConnectionError)
            if closed and not reused:
                raise unreached(error) from error.__cause__
            if not closed or not call.repeatable:
                raise error  # noqa: B904 - it has a cause of its own
            # The server closed it while it was idle, and then it has closed the others too.
            yield node.drop_idle
            link, reused = yield from another(end)
            continue
        except BaseException:
            yield link.drop
            raise
        if getattr(answer, "status", "") == "notmaster":
            # Perhaps its address is another server's by now, to which only a new connection leads.
            yield link.drop
            yield node.drop_idle
        else:
            node.idle.append(link)
            if node.closed:
                yield node.drop_idle
            elif node.waiting:
                node.pool.wake()
        return answer


def connection(
    talk: Exchange,
    node: AnyNode[L],
    nodes: Mapping[Any, AnyNode[L]],
    make: Callable[[], Any],
    deadline: Deadline,
    *,
    kind: Callable[[Any, Permit], L],
) -> Calls[tuple[L, bool]]:
    """Return a connection, and whether it was in use before; wait for one where there are as many as there may be.

    `nodes`: all that there are; `make`: makes a connection of redis-py, of which `kind` makes one of ours. Nothing is
    held while waiting, and so much time is left at the end that a server which is silent then has been silent for long
    enough to be called so. Raises Outdated, RedisUnavailable.
    """
    pool, turn = node.pool, None
    left = deadline.left()
    until = Deadline(max(left / 2, left - EVIDENCE))
    try:
        while True:
            if pool.is_next(turn):
                try:
                    return node.idle.pop(), True
                except IndexError:
                    pass
                if pool.free and not talk.connects:
                    raise Outdated
                permit = pool.permit()
                if permit is not None:
                    return kind(make(), permit), False
                other = idle_elsewhere(nodes)
                if other is not None:
                    yield other.drop
                    continue
            if turn is None:
                turn = pool.queue(until)
            elif left := until.left():
                yield partial(turn.waker.wait, min(left, LOOK_AGAIN))
            else:
                problem = f"all {pool.most} connections to Redis of this process are in use"
                raise RedisUnavailable(f"{problem}: raise the setting redis_connections")
    finally:
        if turn is not None:
            pool.leave(turn)


def round_trip(step: RedisStep, deadline: Deadline, most: float) -> Deadline:
    """Return when a step's round trips end that begin now and take `most` seconds at most."""
    left = deadline.left() / (2 if isinstance(step, Elsewhere) else 1)
    return Deadline(min(most, max(SHORTEST, left)))


def queued(
    another: Callable[[Deadline], Calls[tuple[L, bool]]], end: Deadline, deadline: Deadline
) -> Calls[tuple[L, bool]]:
    """Find a connection until the deadline. What that takes is added to `end`, that of the step's round trips."""
    began = monotonic()
    found = yield from another(deadline)
    now = monotonic()
    end.at = min(end.at + now - began, max(deadline.at, now + SHORTEST))
    return found


def _asked(talk: Exchange, link: AnyLink, end: Deadline) -> Calls[Any]:
    call = talk.call
    if talk.readonly:
        yield partial(link.reply, gateway.pack("READONLY"), end)
        reply = yield partial(link.reply, call.packed, end)
        yield partial(link.reply, gateway.pack("READWRITE"), end)
        return reply
    if talk.asking:
        yield partial(link.reply, gateway.pack("ASKING"), end)
    try:
        return (yield partial(link.reply, call.packed, end))
    except redis.exceptions.NoScriptError:
        # The one error after which nothing can have happened, so sending again is no second sending.
        yield partial(link.reply, gateway.pack("SCRIPT", "LOAD", call.text), end)
        if talk.asking:
            yield partial(link.reply, gateway.pack("ASKING"), end)
        return (yield partial(link.reply, call.packed, end))
