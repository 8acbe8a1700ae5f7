"""Defines steps and flights.

A step is a request of an operation to its driver, for example a call to Redis. A flight is work, such as fetching a
segment, that one caller does while other callers wait for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from issuer.clock import Deadline, jittered, monotonic, pause
from issuer.core.error_mapping import store_error
from issuer.errors import IssuerError, RedisUnavailable, StoreUnavailable, Unavailable, UnknownTag
from issuer.gateway.commands import RedisCall
from issuer.reentry import CallLock
from issuer_persistence.contract import Store
from issuer_persistence.errors import StoreError

T = TypeVar("T")


class Latch(Protocol):
    """Wakes the callers that wait for a Flight. For threads it is a lock, for tasks an event."""

    def wake(self) -> None:
        """Wake all present and future waiters. Called once."""


class Flight:
    """Work that one caller does for all, such as fetching a segment. The others sleep until it is finished."""

    __slots__ = ("_me", "begun", "error", "finished", "latch", "progress", "started", "wanted")

    def __init__(self, latch: Latch, me: Callable[[], object]) -> None:
        """`latch` wakes the waiters. `me` returns the current thread or task: the flight keeps which one started it."""
        self._me = me
        self.latch = latch
        self.begun = monotonic()
        #: `started` is empty until the flight is started, `finished` until it is finished. Then the dict has the entry
        #: "by". Only one caller can set the entry, because dicts have an atomic `setdefault`.
        self.started: dict[str, object] = {}
        self.finished: dict[str, object] = {}
        #: The error with which the flight ended, or None. A retry makes sense only if it is an Unavailable.
        self.error: IssuerError | None = None
        self.progress = False
        #: The largest count of numbers that a waiter has requested. 0: no waiter has requested a count.
        self.wanted = 0

    def start(self) -> bool:
        """Start the flight. Returns True to exactly one caller, usually the scheduler: this caller must do the work.

        If that caller is interrupted right after `setdefault`, `ours` is True: so it finds out that it must end the
        flight.
        """
        me = self._me()
        return not self.finished and self.started.setdefault("by", me) == me

    @property
    def ours(self) -> bool:
        """Whether this thread or task has started the flight."""
        return self.started.get("by") == self._me()

    def finish(self, *, progress: bool, error: IssuerError | None = None) -> None:
        """End the flight and wake all waiters. Only the first call of this method has an effect.

        `progress`: numbers were fetched, so callers may retry at once. `error`: the reason of a failure, for waiters.
        """
        if self.finished:
            return
        self.progress = progress
        self.error = error
        mine = object()
        if self.finished.setdefault("by", mine) is mine:  # wake the waiters only once
            self.latch.wake()


def kept(error: IssuerError) -> IssuerError:
    """Return the error in the form in which it may outlive the call that raised it.

    It has no traceback, cause or context: they hold the frames of the call, and with them the request of a client.
    """
    return copy.copy(error)


def renewed(error: IssuerError) -> IssuerError:
    """Return a copy of the error. If several threads raised the same object, their tracebacks would mix."""
    fresh = kept(error)
    fresh.__cause__ = error
    return fresh


@dataclass(frozen=True, slots=True)
class Send:
    """Send this call to Redis once, without retries, and return the decoded reply.

    `probe` matters only if the server did not answer earlier calls. If True, this call may be the test of whether the
    server answers again. If False, the call is rejected while such a test is due or running.
    """

    call: RedisCall[Any]
    probe: bool = True


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Send these calls to Redis, all calls of one server at once, without waiting for each reply.

    Returns a list. For each call it contains the decoded reply, or the IssuerError with which the call failed. `probe`:
    see Send.
    """

    calls: Sequence[RedisCall[Any]]
    probe: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """Call the store: run `question` with the store and a time limit in seconds. The limit is at most `within`."""

    question: Callable[[Store, float], Any]
    within: float = inf


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait for `seconds` seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until the flight is finished, at most `seconds` seconds. Returns whether it is finished."""

    flight: Flight
    seconds: float


#: Host and port of a Redis server. An empty host means the server of the URL or client, which may be a unix socket.
Server = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Masters:
    """Find the servers that issue numbers: the configured one, the Sentinels' master, or each master of a Cluster."""


@dataclass(frozen=True, slots=True)
class Silence:
    """Ask the Sentinels for how many ms the master must be silent before a replica takes over."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Send this call to one server, even if the server does not have the key, or is no master that issues numbers."""

    server: Server
    call: RedisCall[Any]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Send each read-only call to all nodes that may have its key, except the master: replicas and former masters.

    Returns one list for each call, with a Sighting for each node. The step takes at most half of the time that is left
    until the deadline.
    """

    calls: Sequence[RedisCall[Any]]


@dataclass(frozen=True, slots=True)
class Sighting(Generic[T]):
    """The reply of one node, or the node's error. `Elsewhere` sends a call to several nodes. `node`: host:port."""

    node: str
    reply: T | None = None
    error: str = ""


Step = Send | Pipeline | Ask | Sleep | Wait | Masters | Silence | Visit | Elsewhere
#: An operation: a generator that yields steps and returns a T. The driver runs each step, and sends the step's result
#: into the generator, or throws the step's error into it.
Steps = Generator[Step, Any, T]


def send(call: RedisCall[T], *, probe: bool = True) -> Steps[T]:
    """Yield a call to Redis and return its decoded reply.

    `probe`: whether the call may test a server that did not answer earlier calls (see Send).
    """
    reply: T = yield Send(call, probe)
    return reply


def pipeline(calls: Sequence[RedisCall[T]], *, probe: bool = True) -> Steps[list[T | IssuerError]]:
    """Yield the calls to Redis and return their decoded replies. A call that failed has its error in the list.

    `probe`: see Send. Raises RedisUnavailable if a server does not answer.
    """
    if len(calls) == 1:
        try:
            return [(yield Send(calls[0], probe))]
        except RedisUnavailable:
            raise
        except IssuerError as error:
            return [error]
    replies: list[T | IssuerError] = yield Pipeline(calls, probe)
    return replies


def ask(question: Callable[[Store, float], T], within: float = inf) -> Steps[T]:
    """Yield a call to the store and return its result. `within`: longest duration of the call in seconds."""
    answer: T = yield Ask(question, within)
    return answer


def masters() -> Steps[list[Server]]:
    """Return the servers that issue numbers: the configured one, the Sentinels' master, or a Cluster's masters."""
    found: list[Server] = yield Masters()
    return found


def silence() -> Steps[int | None]:
    """Return after how many ms of silence a Sentinel replaces the master. 0 if unknown, None without Sentinels."""
    longest: int | None = yield Silence()
    return longest


def visit(server: Server, call: RedisCall[T]) -> Steps[T]:
    """Yield a call to one server and return its decoded reply."""
    reply: T = yield Visit(server, call)
    return reply


def elsewhere(calls: Sequence[RedisCall[T]]) -> Steps[list[list[Sighting[T]]]]:
    """Send these read-only calls to replicas and former masters, but not to the master.

    Return one list for each call, with one reply or error (`Sighting`) for each node.
    """
    seen: list[list[Sighting[T]]] = yield Elsewhere(calls)
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
    """Run the steps, but replace each step that calls the store (an Ask) by the result of `instead(step)`."""
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


def public(steps: Steps[T], tag: str | None, store: Store | None = None) -> Steps[T]:
    """Run the steps, and convert errors of the store to errors that users see.

    `tag` and `store`, the store that is called, are for these errors.
    """
    try:
        return (yield from steps)
    except UnknownTag as error:
        if store is not None:
            error.store = store.url
        raise
    except StoreError as error:
        raise store_error(error, tag, store) from error


#: If a caller has not finished its flight after this many seconds, its thread may be dead. Then another flight may
#: begin.
LONGEST = 30.0

#: Highest `retry_after` in seconds, however long an outage lasts.
LATEST_RETRY = 30.0

#: During an outage, `retry_after` is this share of the time since the outage began.
RETRY_AFTER = 0.1


class SingleFlight:
    """Lets one caller at a time do work, such as fetching a segment, for all callers. Each attempt is a Flight."""

    __slots__ = ("_failed_at", "_flight", "_lock", "_longest", "_make", "_silent_since", "failures", "trouble")

    def __init__(self, make: Callable[[], Flight], longest: float = LONGEST) -> None:
        """`make` creates a Flight. After `longest` seconds a Flight counts as lost, and a new one may begin."""
        self._lock = CallLock()
        self._make = make
        self._flight: Flight | None = None
        self._longest = longest
        #: How many flights in a row have failed.
        self.failures = 0
        self._failed_at = 0.0
        #: When a flight first found that the store is down, on the monotonic clock. None: the store is not known to be
        #: down.
        self._silent_since: float | None = None
        #: The error of the last failed flight, if a retry makes sense. None after a success.
        self.trouble: IssuerError | None = None

    def join(self, wanted: int = 0) -> tuple[Flight, bool]:
        """Return the current flight and False. If there is none, return a new one and True: the caller must start it.

        `wanted`: how many numbers the caller needs. If the flight has not prepared its request yet, it requests that
        many numbers if it can. Otherwise it may bring too few: then the caller must join again when it has ended.
        """
        with self._lock.thread, self._lock.call():
            flight, leads = self.flight, False
            if flight is None:
                flight, leads = self._make(), True
                self._flight = flight
        flight.wanted = max(flight.wanted, wanted)
        return flight, leads

    @property
    def flight(self) -> Flight | None:
        """The current flight, or None."""
        flight = self._flight
        return flight if flight is not None and not flight.finished and self.left(flight) > 0 else None

    def left(self, flight: Flight) -> float:
        """Return the seconds until the flight counts as lost."""
        return flight.begun + self._longest - monotonic()

    def is_current(self, flight: Flight) -> bool:
        """Whether this is the newest flight. A flight that counted as lost may end after a newer one has begun."""
        return self._flight is flight

    def finish(
        self, flight: Flight, *, progress: bool, error: IssuerError | None = None, in_a_hurry: bool = False
    ) -> None:
        """End the flight, and count failures in a row.

        A permanent error is raised only for the waiters of this flight. Later callers try again, because the cause of
        the error may be gone.

        Args:
            flight: The flight to end.
            progress: Whether the work was done, so that callers may retry at once.
            error: The reason of a failure.
            in_a_hurry: True if the flight had too little time to find out whether the store is down. Then a
                StoreUnavailable does not begin an outage.
        """
        now = monotonic()
        if progress:
            self.failures, self.trouble, self._silent_since = 0, None, None
        else:
            since = self._silent_since if self._recent(now) else None
            self.failures, self._failed_at = self.failures + 1, now
            if isinstance(error, StoreUnavailable):
                since = now if since is None and not in_a_hurry else since
            elif error is not None:
                since = None
            self._silent_since = since
            if error is not None:
                self.trouble = kept(error) if isinstance(error, Unavailable) else None
        if self._flight is flight:
            self._flight = None  # it has the error, with the frames of this call
        flight.finish(progress=progress, error=error)

    def do(
        self, steps: Callable[[], Steps[None]], done: Callable[[], bool], deadline: Deadline, *, tag: str, what: str
    ) -> Steps[None]:
        """If `done` returns False, run the steps, or wait for another caller that runs them. Raises their errors.

        If the steps fail with a permanent error, all waiters raise it. After any other error, the next waiter runs the
        steps until its own deadline, because the first caller may have had little time. `tag`, and `what`, the name of
        the work, are for messages.
        """
        while not done():
            flight, leads = self.join()
            if leads:
                try:
                    yield from steps()
                except BaseException as error:
                    self.finish(flight, progress=False, error=error if isinstance(error, IssuerError) else None)
                    raise
                self.finish(flight, progress=True)
                return
            yield from wait(flight, min(deadline.left(), self.left(flight)))
            if flight.error is not None and not isinstance(flight.error, Unavailable):
                raise renewed(flight.error)
            if deadline.left() <= 0 and not done():
                late = Unavailable(f"tag {tag!r}: {what} took too long", tag=tag)
                raise renewed(flight.error or late)

    def _recent(self, now: float) -> bool:
        return self.failures > 0 and now - self._failed_at <= self._longest

    @property
    def silence(self) -> float | None:
        """Seconds since the store went down. None if the store answered the last call, or was not called lately."""
        now, since = monotonic(), self._silent_since
        return now - since if since is not None and self._recent(now) else None

    def pause(self) -> float:
        """Return the seconds to wait before the next flight: 0 after a success, and longer after each failure."""
        if not self.failures:
            return 0.0
        return max(0.0, self._failed_at + pause(self.failures) - monotonic())

    def retry_after(self) -> float:
        """Return the seconds until a retry makes sense, above 0: the current pause, or more in a long outage."""
        least = max(0.005, self.pause() or pause(self.failures + 1))
        return max(least, jittered(min(LATEST_RETRY, (self.silence or 0.0) * RETRY_AFTER)))
