"""Steps: the requests that a protocol generator may make of its driver; and the flights that it may wait for."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from issuer.clock import monotonic
from issuer.core.error_mapping import store_error
from issuer.errors import IssuerError, UnknownTag
from issuer.gateway import RedisCall
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError

T = TypeVar("T")


class Latch(Protocol):
    """Wakes the waiters of one driver: a lock among threads, an event among tasks."""

    def wake(self) -> None:
        """Wake every waiter, later ones too. Called once."""


class Flight:
    """Something under way that one caller fetches for all. Waiters sleep until it is finished."""

    __slots__ = ("_me", "begun", "error", "finished", "latch", "progress", "started", "wanted")

    def __init__(self, latch: Latch, me: Callable[[], object]) -> None:
        """`me` names the thread or task that asks: the flight knows by it which one has started it."""
        self._me = me
        self.latch = latch
        self.begun = monotonic()
        #: Empty until a thread or task has started it, and until it has ended. Dicts, as `setdefault` is one step.
        self.started: dict[str, object] = {}
        self.finished: dict[str, object] = {}
        #: Unless it is Unavailable, asking again won't better it.
        self.error: IssuerError | None = None
        self.progress = False
        #: How many numbers one of its waiters wants, or 0.
        self.wanted = 0

    def start(self) -> bool:
        """Start it: True for one caller, which fetches. If the scheduler loses the job, a waiter starts it.

        A caller that is interrupted right after `setdefault` still finds out that the flight is its.
        """
        me = self._me()
        return not self.finished and self.started.setdefault("by", me) == me

    @property
    def ours(self) -> bool:
        """Whether this thread or task has started it."""
        return self.started.get("by") == self._me()

    def finish(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End it and wake all waiters. `progress`: it brought something, so that asking again makes sense at once."""
        if self.finished:
            return
        self.progress = progress
        self.error = error
        mine = object()
        if self.finished.setdefault("by", mine) is mine:  # so that the waiters are woken once
            self.latch.wake()


def renewed(error: IssuerError) -> IssuerError:
    """Return the same error as a fresh exception: raised in several threads, one would mix up their tracebacks."""
    fresh = copy.copy(error)
    fresh.__cause__ = error
    return fresh


@dataclass(frozen=True, slots=True)
class Send:
    """Send this call to Redis once, never again, and give back the decoded reply.

    `probe`: whether it may be the one that tries a server that was silent; else it is refused while that one may be.
    """

    call: RedisCall[Any]
    probe: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Call the store. The function gets the store and the seconds it may take."""

    question: Callable[[Store, float], Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds` seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the flight is finished, `seconds` seconds at most; give back whether it is."""

    flight: Flight
    seconds: float


#: A server of Redis, by host and port. Host "": the one that the URL or client names, be it a unix socket.
Server = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Masters:
    """Find the servers that issue numbers now: the one named, the Sentinels' master, each master of a Cluster."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Send this call to that server, whichever keys it holds and whether or not it can be trusted with numbers."""

    server: Server
    call: RedisCall[Any]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Send this call, which only reads, to every node but the master that may hold its key: replicas, old masters.

    A list of Sightings comes back, after the time of one call to Redis at most, and half of the time that is left.
    """

    call: RedisCall[Any]


@dataclass(frozen=True, slots=True)
class Sighting(Generic[T]):
    """A node's answer, or the error that came instead. `node`: host:port."""

    node: str
    reply: T | None = None
    error: str = ""


Step = Send | Ask | Sleep | Wait | Masters | Visit | Elsewhere
#: A protocol operation that ends with a T. The driver sends each step's result in, or throws its error in.
Steps = Generator[Step, Any, T]


def send(call: RedisCall[T], *, probe: bool = True) -> Steps[T]:
    """Yield a Redis call; its decoded reply is the value. `probe`: see Send."""
    reply: T = yield Send(call, probe)
    return reply


def ask(question: Callable[[Store, float], T]) -> Steps[T]:
    """Yield a store call; its result is the value."""
    answer: T = yield Ask(question)
    return answer


def masters() -> Steps[list[Server]]:
    """Yield the question which servers issue numbers now; they are the value."""
    found: list[Server] = yield Masters()
    return found


def visit(server: Server, call: RedisCall[T]) -> Steps[T]:
    """Yield a call to one server; its decoded reply is the value."""
    reply: T = yield Visit(server, call)
    return reply


def elsewhere(call: RedisCall[T]) -> Steps[list[Sighting[T]]]:
    """Yield a call to every other node that may hold its key; what each said is the value."""
    seen: list[Sighting[T]] = yield Elsewhere(call)
    return seen


def sleep(seconds: float) -> Steps[None]:
    """Yield a pause; none at all for 0 seconds."""
    if seconds > 0:
        yield Sleep(seconds)


def wait(flight: Flight, seconds: float) -> Steps[bool]:
    """Yield a wait for the flight's end; the value says whether it came."""
    if flight.finished:
        return True
    finished: bool = yield Wait(flight, max(0.0, seconds))
    return finished


def asking(steps: Steps[T], instead: Callable[[Ask], Ask]) -> Steps[T]:
    """Run the steps, asking something else instead of each of their questions."""
    try:
        step = next(steps)
        while True:
            if isinstance(step, Ask):
                step = instead(step)
            try:
                result = yield step
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


def hurried(steps: Steps[T], seconds: float) -> Steps[T]:
    """Run the steps with `seconds` seconds at most for each call of the store."""
    return asking(steps, lambda step: Ask(partial(_sooner, step.question, seconds)))


def _sooner(question: Callable[[Store, float], T], seconds: float, store: Store, timeout: float) -> T:
    return question(store, min(timeout, seconds))


def public(steps: Steps[T], tag: str | None, store: Store | None = None) -> Steps[T]:
    """Run the steps with the store's errors turned into those that users see. `store`: the one that is asked."""
    try:
        return (yield from steps)
    except UnknownTag as error:
        if store is not None:
            error.store = store.url
        raise
    except StoreError as error:
        raise store_error(error, tag, store) from error
