"""Steps: the requests that a protocol generator makes to its driver. Flights: work that callers wait for."""

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
    """Wakes the waiters of a flight: a lock for threads, an event for tasks."""

    def wake(self) -> None:
        """Wake all present and future waiters. Called once."""


class Flight:
    """Work in progress that one caller does for all. Waiters sleep until it is finished."""

    __slots__ = ("_me", "begun", "error", "finished", "latch", "progress", "started", "wanted")

    def __init__(self, latch: Latch, me: Callable[[], object]) -> None:
        """`me` returns the current thread or task, so the flight knows who started it."""
        self._me = me
        self.latch = latch
        self.begun = monotonic()
        #: Empty until a thread or task starts and finishes the flight. `dict.setdefault` is atomic.
        self.started: dict[str, object] = {}
        self.finished: dict[str, object] = {}
        #: The error that the flight ended with. Only an Unavailable is worth a retry.
        self.error: IssuerError | None = None
        self.progress = False
        #: The largest number of numbers that a waiter wants, or 0.
        self.wanted = 0

    def start(self) -> bool:
        """Start the flight. True for one caller, which must do the work: usually the scheduler, else a waiter.

        A caller that is interrupted right after `setdefault` still finds out later that it started the flight.
        """
        me = self._me()
        return not self.finished and self.started.setdefault("by", me) == me

    @property
    def ours(self) -> bool:
        """Whether this thread or task has started it."""
        return self.started.get("by") == self._me()

    def finish(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End the flight and wake all waiters. `progress`: it fetched something, so callers may retry at once."""
        if self.finished:
            return
        self.progress = progress
        self.error = error
        mine = object()
        if self.finished.setdefault("by", mine) is mine:  # wake the waiters only once
            self.latch.wake()


def renewed(error: IssuerError) -> IssuerError:
    """Return a copy of the error. If several threads raised the same object, their tracebacks would mix."""
    fresh = copy.copy(error)
    fresh.__cause__ = error
    return fresh


@dataclass(frozen=True, slots=True)
class Send:
    """Send this call to Redis once, without retries, and return the decoded reply.

    `probe`: the call may test a server that did not answer before. Otherwise it is rejected while such a test may run.
    """

    call: RedisCall[Any]
    probe: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Call the store: the function receives the store and its time limit in seconds."""

    question: Callable[[Store, float], Any]


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds` seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the flight is finished, at most `seconds` seconds. Returns whether it is finished."""

    flight: Flight
    seconds: float


#: Host and port of a Redis server. Host "": the server that the URL or the client names, which may be a unix socket.
Server = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Masters:
    """Find the servers that issue numbers: the configured one, the Sentinels' master, or each master of a Cluster."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Send this call to one server, even if it has other keys or is not trusted with numbers."""

    server: Server
    call: RedisCall[Any]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Send this read-only call to each other node that may have its key: replicas and old masters.

    Returns a list of Sightings. It takes at most as long as one call to Redis, and at most half of the remaining time.
    """

    call: RedisCall[Any]


@dataclass(frozen=True, slots=True)
class Sighting(Generic[T]):
    """Reply of a node, or the error in its place. `node`: host:port."""

    node: str
    reply: T | None = None
    error: str = ""


Step = Send | Ask | Sleep | Wait | Masters | Visit | Elsewhere
#: A protocol operation that returns a T. The driver sends the result of each step in, or throws its error in.
Steps = Generator[Step, Any, T]


def send(call: RedisCall[T], *, probe: bool = True) -> Steps[T]:
    """Yield a call to Redis and return its decoded reply. `probe`: see Send."""
    reply: T = yield Send(call, probe)
    return reply


def ask(question: Callable[[Store, float], T]) -> Steps[T]:
    """Yield a call to the store and return its result."""
    answer: T = yield Ask(question)
    return answer


def masters() -> Steps[list[Server]]:
    """Return the servers that issue numbers, see Masters."""
    found: list[Server] = yield Masters()
    return found


def visit(server: Server, call: RedisCall[T]) -> Steps[T]:
    """Yield a call to one server and return its decoded reply."""
    reply: T = yield Visit(server, call)
    return reply


def elsewhere(call: RedisCall[T]) -> Steps[list[Sighting[T]]]:
    """Yield a call to each other node that may have the key, and return their replies."""
    seen: list[Sighting[T]] = yield Elsewhere(call)
    return seen


def sleep(seconds: float) -> Steps[None]:
    """Yield a pause, or nothing for 0 seconds."""
    if seconds > 0:
        yield Sleep(seconds)


def wait(flight: Flight, seconds: float) -> Steps[bool]:
    """Wait for the end of the flight. Returns whether it is finished."""
    if flight.finished:
        return True
    finished: bool = yield Wait(flight, max(0.0, seconds))
    return finished


def asking(steps: Steps[T], instead: Callable[[Ask], Ask]) -> Steps[T]:
    """Run the steps, with each call of the store replaced by `instead(call)`."""
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
    """Run the steps with at most `seconds` seconds for each call of the store."""
    return asking(steps, lambda step: Ask(partial(_sooner, step.question, seconds)))


def _sooner(question: Callable[[Store, float], T], seconds: float, store: Store, timeout: float) -> T:
    return question(store, min(timeout, seconds))


def public(steps: Steps[T], tag: str | None, store: Store | None = None) -> Steps[T]:
    """Run the steps, and convert errors of the store to public ones. `store` is the store that is called."""
    try:
        return (yield from steps)
    except UnknownTag as error:
        if store is not None:
            error.store = store.url
        raise
    except StoreError as error:
        raise store_error(error, tag, store) from error
