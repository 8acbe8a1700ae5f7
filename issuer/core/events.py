"""Events of an issuer's tags, Redis and store. Observers receive them: the log, the metrics, functions of the program.

Ordinary draws make no event. Ranges are half-open: (low, high] contains the numbers from low + 1 to high. Numbers in
events are values of the tag's counter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import DEBUG, INFO, WARNING
from typing import Any, Literal

from issuer.core.scheme_record import counted, spanned, without_raising
from issuer.core.sparing import Sparing
from issuer.interrupts import raise_interrupt
from issuer.times import lasting

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
    """Redis has elected this process to load the next segment, because a draw reached the threshold."""


@dataclass(frozen=True, slots=True)
class Reserved(Event):
    """The store has reserved a range of numbers for this process.

    Attributes:
        reason: Purpose of the range. "load": to load it into Redis. "direct": to serve it in direct mode. "reserve": a
            caller has called `reserve`. "tinyid": a client of tinyid has requested it from `issuer serve`.
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
        reason: Purpose of the range: "load", "direct" or "reserve", as in Reserved.
        error: Error that the store raised.
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
        cur: Last number that had been issued when the loading began.
        scheme: The tag's scheme: the settings that turn its counter into the numbers that users see.
    """

    low: int
    high: int
    cur: int
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExtensionLate(Event):
    """All segments were used up before the next one was loaded, so callers wait.

    The event is sent once each time that this happens.

    Attributes:
        after: Highest number that this process has seen issued.
    """

    after: int


@dataclass(frozen=True, slots=True)
class LimitNear(Event):
    """At least 80 % of the tag's numbers are used. The event is sent once for each limit.

    For a tag with periods, the event is sent once for each period.

    Attributes:
        used: How many numbers are used.
        most: How many numbers there are up to the limit.
        limit: Last number that may be issued, as users see it.
        in_period: True if `used` and `most` are counts of the current period.
        scheme: The tag's scheme: the settings that turn its counter into the numbers that users see.
    """

    used: int
    most: int
    limit: int
    in_period: bool
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """Background work failed. This process tries it again.

    Attributes:
        work: Work that failed. "fetch": to fetch a segment or a lease. "check": to check with Redis that the leases
            are still valid. "rejoin": to return to Redis after direct mode.
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
    """This process has dropped its leases, because Redis failed over or the tag was recovered.

    The unused numbers of the leases are a gap.
    """


@dataclass(frozen=True, slots=True)
class WentDirect(Event):
    """Redis is down. From now on this process serves the tag in direct mode: from segments of its own."""


@dataclass(frozen=True, slots=True)
class Rejoined(Event):
    """Redis is back. This process has ended direct mode and draws from Redis again.

    Attributes:
        above: Numbers from Redis are higher than this number.
    """

    above: int


@dataclass(frozen=True, slots=True)
class NotGivenBack(Event):
    """This process could not return unused numbers. These numbers are a gap.

    Attributes:
        above: The unused numbers are higher than this number.
        error: Error that prevented the return.
    """

    above: int
    error: Exception


@dataclass(frozen=True, slots=True)
class NumbersWasted(Event):
    """This process held numbers that it neither issued nor returned. They are a gap.

    Often they could not be returned, because other processes drew in between.

    Attributes:
        numbers: How many numbers became a gap.
    """

    numbers: int


@dataclass(frozen=True, slots=True)
class RedisSilent(Event):
    """Redis did not answer a draw. The event is sent once for each outage.

    Attributes:
        error: Error that the draw raised.
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
    """Redis has lost the tag's numbers, or may have gone back in time. The event is sent once for each loss.

    Redis rejects draws until a new segment is loaded.

    Attributes:
        cause: Cause of the loss. "fenced": Redis failed over, restarted or went back in time. "empty": Redis has no
            data of the tag.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class NumbersLost(Event):
    """Redis has lost numbers, and they are a gap. The event follows a FenceTripped, when new numbers are available.

    Attributes:
        cause: Cause of the loss: "fenced" or "empty", as in FenceTripped.
        above: All new numbers are higher than this number.
        seen: Highest number that this process saw before the loss. The gap is between `seen` and `above`.
        most: Maximum size of the gap, in numbers.
    """

    cause: str
    above: int
    seen: int
    most: int


@dataclass(frozen=True, slots=True)
class StoreSilent(Event):
    """The store is down. Only numbers that were reserved before the outage can still be issued.

    The event is sent once for each outage.

    Attributes:
        error: Error that the store raised.
        scheduled: True if the scheduler tries again in the background. False if only the next call of a user tries
            again. If that call fails, it raises the error.
    """

    error: Exception
    scheduled: bool


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again after a StoreSilent.

    Attributes:
        error: None if the store reserves segments again. Otherwise the error with which the store answered.
    """

    error: Exception | None


@dataclass(frozen=True, slots=True)
class CallersWait(Event):
    """Callers have waited for a number for at least a second, or one caller has waited until its timeout.

    The event is sent once. It can be sent again after a CallersServed.

    Attributes:
        cause: Reason for the wait, as text.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class CallersServed(Event):
    """Callers get numbers again after a CallersWait.

    Attributes:
        seconds: How long callers had waited.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """A call for numbers failed.

    Attributes:
        error: Error that the call raised.
    """

    error: Exception


@dataclass(frozen=True, slots=True)
class Alarm(Event):
    """A strategy found an error that an operator must handle, such as a clock that went back.

    Attributes:
        error: The error. Calls may raise it, too.
    """

    error: Exception


#: A function that is called with each event, in the thread or task where the event happened. The function must be
#: fast, and must not draw numbers.
Observer = Callable[[Event], object]

Emit = Callable[[Event], None]


def unobserved(event: Event) -> None:
    """Ignore the event: used where there are no observers."""


class Observers:
    """Delivers events to observers. If an observer raises an error, the error is logged, and the draw continues."""

    __slots__ = ("_observers", "_rounds", "_sparing")

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._rounds: tuple[Callable[[bool], object], ...] = ()
        self._sparing = Sparing()

    def call_periodic(self, *, at_once: bool = False) -> None:
        """Call the functions that were added with `add_periodic`.

        This is called before each check of the tags in use, and when the issuer closes.

        `at_once`: True if the issuer closes, or has closed: then the functions do their work now.
        """
        for call in self._rounds:
            try:
                call(at_once)
            except Exception as error:  # noqa: BLE001 - the sweep and the other observers continue
                raise_interrupt(error)
                self._sparing.say(log.error, "", (id(call), type(error)), "observer %r failed", call, error=error)

    def add_periodic(self, call: Callable[[bool], object]) -> None:
        """Call a function about once a second while tags are in use, in the thread or task that checks the tags.

        The function receives one argument, `at_once`. It is True if the issuer closes, or has closed: then do the work
        now, because there may be no later call.
        """
        self._rounds = (*self._rounds, call)

    def add(self, observer: Observer) -> None:
        """Also deliver events to this observer from now on."""
        self._observers = (*self._observers, observer)

    def emit(self, event: Event) -> None:
        """Call each observer with the event."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:  # noqa: BLE001 - a caller waits for its number, so no error may stop the draw
                raise_interrupt(error)
                kind = id(observer), type(event), type(error)
                self._sparing.say(
                    log.error, "", kind, "observer %r failed with the event %r", observer, event, error=error
                )


extension_log = logging.getLogger("issuer.extension")
rejected_log = logging.getLogger("issuer.rejected")

#: Texts for the causes of a loss in Redis, and for the background work that failed.
_LOSSES = {"empty": "Redis has lost its data", "fenced": "Redis failed over, was restarted or went back in time"}
_FAILED = {"fetch": "no segment or lease fetched", "check": "leases not checked", "rejoin": "Redis is still down"}

#: The events that are logged: level, text after the tag, and values in the text, as attribute names or functions.
LINES: dict[type[Event], tuple[int, str, *tuple[str | Callable[[Any], object], ...]]] = {
    SegmentLoaded: (
        INFO,
        "segment %s loaded at number %s",
        lambda event: spanned(event.low, event.high, event.scheme),
        lambda event: counted(event.cur, event.scheme),
    ),
    LimitNear: (
        WARNING,
        "at least %d %% of %s numbers are used, at most %d are left up to its limit %d: %s",
        lambda event: event.used * 100 // event.most,
        lambda event: "the period's" if event.in_period else "its",
        lambda event: event.most - event.used,
        "limit",
        lambda event: without_raising(event.scheme, event.limit) or "raise it in time",
    ),
    LeaseDropped: (
        WARNING,
        "Redis failed over or the tag was recovered; the rest of the leases becomes a gap",
    ),
    WentDirect: (WARNING, "Redis is down; serving in direct mode, from segments of this process"),
    Rejoined: (WARNING, "Redis is back; numbers continue above %d", "above"),
    NotGivenBack: (
        WARNING,
        "unused numbers above %d could not be returned and become a gap: %s",
        "above",
        "error",
    ),
    NumbersLost: (
        WARNING,
        "%s; new numbers are above %d, and at most %d numbers after %d, the last one that this process saw, are a gap",
        lambda event: _LOSSES[event.cause],
        "above",
        "most",
        "seen",
    ),
    StoreSilent: (WARNING, "no segment can be reserved, and only buffered numbers are left: %s", "error"),
    StoreBack: (
        WARNING,
        "%s",
        lambda event: f"the store answers again: {event.error}" if event.error else "segments are reserved again",
    ),
    CallersWait: (WARNING, "callers are waiting for a number: %s", "cause"),
    CallersServed: (WARNING, "callers get numbers again, after %s", lambda event: lasting(event.seconds)),
    Failed: (DEBUG, "%s: %s", lambda event: _FAILED[event.work], "error"),
}


#: The texts of rare events that are not logged.
_UNLOGGED: dict[type[Event], Callable[[Any], str]] = {
    ExtensionLate: lambda _: "all segments were used up before the next one was loaded, so callers waited",
    NumbersWasted: lambda event: f"{event.numbers} numbers that this process held become a gap",
    RedisSilent: lambda event: f"Redis does not answer: {event.error}",
    RedisBack: lambda event: f"Redis answers again, after {lasting(event.seconds)}",
    FenceTripped: lambda event: _LOSSES[event.cause],
    Alarm: lambda event: str(event.error),
}


def line_of(event: Event) -> tuple[int, str, tuple[object, ...]] | None:
    """Return the level, the text and the text's values for the event. None if the event is not logged."""
    line = LINES.get(type(event))
    if line is None or not getattr(event, "scheduled", True):  # a StoreSilent for which a caller gets the error
        return None
    level, text, *values = line
    said = (getattr(event, each) if isinstance(each, str) else each(event) for each in values)
    return level, f"tag %r: {text}", (event.tag, *said)


def told(event: Event) -> str:
    """Return what happened, without the name of the tag. "" if there is no text for the event."""
    known = LINES.get(type(event))
    if known is None:
        return _UNLOGGED[type(event)](event) if type(event) in _UNLOGGED else ""
    _, text, *values = known
    return text % tuple(getattr(event, each) if isinstance(each, str) else each(event) for each in values)


def log_event(event: Event) -> None:
    """Log the event, if LINES has a text for it."""
    known = LINES.get(type(event))
    if known is not None and extension_log.isEnabledFor(known[0]) and (line := line_of(event)) is not None:
        level, text, values = line
        extension_log.log(level, text, *values)


class RejectedLog:
    """Observer that logs calls that failed, at most once a minute for each tag and each class of error."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: time in seconds that never goes back. None means the monotonic clock."""
        self._sparing = Sparing(clock)

    def __call__(self, event: Event) -> None:
        """Log a Rejected, and how often it occurred since it was last logged. Ignore all other events."""
        if isinstance(event, Rejected):
            tag, kind, said = event.tag, type(event.error), "tag %r: no number was given: %s: %s"
            self._sparing.say(rejected_log.warning, repr(tag)[:300], kind, said, tag, kind.__name__, event.error)
