"""Events of an issuer's tags, Redis and store. Observers receive them: the log, the metrics, functions of the program.

Ordinary draws make no event. Ranges are half-open: (low, high] has the numbers from low + 1 to high. They are values of
the tag's counter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from issuer.core.sparing import Sparing
from issuer.interrupts import raise_interrupt

log = logging.getLogger("issuer")


@dataclass(frozen=True, slots=True)
class Event:
    """Base class of all events.

    Attributes:
        tag: Name of the tag.
    """

    tag: str


@dataclass(frozen=True, slots=True)
class ElectionWon(Event):
    """Redis has elected this process to load the next segment, because a draw reached the 20 % threshold."""


@dataclass(frozen=True, slots=True)
class Reserved(Event):
    """The store has reserved a range of numbers for this process.

    Attributes:
        reason: Purpose: "load" into Redis, "direct" for direct mode, "reserve" for a caller.
        low: The number before the first one of the range.
        high: Last number of the range.
        seconds: Duration of the request to the store.
    """

    reason: str
    low: int
    high: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReservationFailed(Event):
    """A reservation failed, or the store did not confirm it.

    Attributes:
        reason: Purpose, as in Reserved.
        error: The error of the store.
        seconds: Duration of the request to the store.
    """

    reason: str
    error: Exception
    seconds: float


@dataclass(frozen=True, slots=True)
class SegmentLoaded(Event):
    """This process has loaded a segment into Redis.

    Attributes:
        low: The number before the first one of the segment.
        high: Last number of the segment.
        cur: Last number that was issued when the loading began.
        scheme: The tag's number format, which turns its counter into the numbers that users see.
    """

    low: int
    high: int
    cur: int
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExtensionLate(Event):
    """All segments were used up before the next one was loaded, so callers wait. Once per occurrence.

    Attributes:
        after: Highest number that this process has seen.
    """

    after: int


@dataclass(frozen=True, slots=True)
class LimitNear(Event):
    """At least 80 % of the tag's numbers are used. Once for each limit.

    Attributes:
        used: Count of numbers that are used.
        most: Count of all numbers up to the limit.
        limit: Last number that may be issued, as users see it.
        in_period: True if the counts are those of the current period.
        scheme: The tag's number format, as in SegmentLoaded.
    """

    used: int
    most: int
    limit: int
    in_period: bool
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """Background work failed. It is retried.

    Attributes:
        work: "fetch" of a segment or lease, "check" of the leases, or "rejoin" of Redis after direct mode.
        error: The error.
    """

    work: Literal["fetch", "check", "rejoin"]
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaseDrawn(Event):
    """This process has drawn a lease from Redis: numbers that it serves from memory.

    Attributes:
        low: The number before the first one of the lease.
        high: Last number of the lease.
    """

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LeaseDropped(Event):
    """This process has dropped its leases, because Redis failed over or the tag was recovered. Their rest is a gap."""


@dataclass(frozen=True, slots=True)
class WentDirect(Event):
    """Redis is down. This process serves the tag in direct mode from now on: from segments of its own."""


@dataclass(frozen=True, slots=True)
class Rejoined(Event):
    """Redis is back. This process has ended direct mode and draws from Redis again.

    Attributes:
        above: The numbers from Redis are above this one.
    """

    above: int


@dataclass(frozen=True, slots=True)
class NotGivenBack(Event):
    """This process could not return unused numbers. They are a gap.

    Attributes:
        above: The unused numbers are above this one.
        error: The reason.
    """

    above: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RedisSilent(Event):
    """A draw got no answer from Redis. Once for each outage.

    Attributes:
        error: The error of the draw.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class RedisBack(Event):
    """Redis answers draws of the tag again.

    Attributes:
        seconds: Duration of the outage.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class FenceTripped(Event):
    """Redis has lost the tag's numbers, or may have gone back in time. Once for each loss.

    Draws are rejected until a new segment is loaded.

    Attributes:
        cause: "fenced" if Redis failed over, restarted or went back in time; "empty" if Redis has no data of the tag.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class NumbersLost(Event):
    """New numbers are available after a FenceTripped. The numbers that Redis lost are a gap.

    Attributes:
        cause: As in FenceTripped.
        above: The new numbers are above this one.
        seen: Highest number that this process has seen. The gap is between it and `above`.
        most: Upper bound of the gap's size.
    """

    cause: str
    above: int
    seen: int
    most: int


@dataclass(frozen=True, slots=True)
class StoreSilent(Event):
    """The store is down. Only the buffered numbers can still be issued. Once for each outage.

    Attributes:
        error: The error of the store.
        scheduled: True if the scheduler retries; otherwise only callers retry, and they get the error.
    """

    error: Exception
    scheduled: bool


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again after a StoreSilent.

    Attributes:
        error: None if segments are reserved again; otherwise the error that the store returned.
    """

    error: Exception | None


@dataclass(frozen=True, slots=True)
class CallersWait(Event):
    """Callers have waited for a second, or one of them until its timeout, and got no number.

    Once until they are served.

    Attributes:
        cause: The reason, as text.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class CallersServed(Event):
    """Callers get numbers again after a CallersWait.

    Attributes:
        seconds: How long they had waited.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """A call failed: it raised this error instead of returning a number.

    Attributes:
        error: The error.
    """

    error: Exception


#: Called with each event, in the thread or task where it happened. It must be fast, and must not draw numbers.
Observer = Callable[[Event], object]

Emit = Callable[[Event], None]


def unobserved(event: Event) -> None:
    """Deliver it to no observer."""


class Observers:
    """Delivers events to observers. One that raises is logged, and neither the draw nor another observer notices."""

    __slots__ = ("_observers", "_rounds", "_sparing")

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._rounds: tuple[Callable[[bool], object], ...] = ()
        self._sparing = Sparing()

    def come_round(self, *, at_once: bool = False) -> None:
        """Call what reads from time to time: before each sweep over the tags in use, and when the issuer closes.

        `at_once`: the issuer closes, or has closed.
        """
        for call in self._rounds:
            try:
                call(at_once)
            except Exception as error:  # noqa: BLE001 - the sweep and the other observers go on
                raise_interrupt(error)
                self._sparing.say(log.error, "", (id(call), type(error)), "observer %r failed", call, error=error)

    def add_round(self, call: Callable[[bool], object]) -> None:
        """Have it called about every second while tags are in use, in the thread or task that sweeps.

        It gets `at_once`, see come_round.
        """
        self._rounds = (*self._rounds, call)

    def add(self, observer: Observer) -> None:
        """Deliver to this one, too, from now on."""
        self._observers = (*self._observers, observer)

    def emit(self, event: Event) -> None:
        """Call each observer."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001 - whatever it is, a caller waits for its number
                raise_interrupt(error)
                kind = id(observer), type(event), type(error)
                self._sparing.say(log.error, "", kind, "observer %r failed at %r", observer, event, error=error)
