"""Events: what an issuer has seen happen to its tags and servers, for observers: the log, metrics, a program's own.

A number in hand and a plain draw from Redis make none: how many were issued is read from the buffers' positions.
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
    """Something that happened to a tag. Times are in seconds."""

    tag: str


@dataclass(frozen=True, slots=True)
class ElectionWon(Event):
    """A draw has reached the mark, and Redis has elected this process to load the next segment."""


@dataclass(frozen=True, slots=True)
class Reserved(Event):
    """The store has reserved (low, high] for this process.

    `reason`: "load" into Redis, "direct" for itself, "reserve" for a caller. `seconds`: how long the store took.
    """

    reason: str
    low: int
    high: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReservationFailed(Event):
    """The store has reserved nothing for this process, or didn't say so. `reason` and `seconds` as in Reserved."""

    reason: str
    error: Exception
    seconds: float


@dataclass(frozen=True, slots=True)
class SegmentLoaded(Event):
    """This process has loaded the segment (low, high] into Redis.

    `cur`: the last number issued when the extension began. `scheme`: the tag's, which makes numbers of its counter.
    """

    low: int
    high: int
    cur: int
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExtensionLate(Event):
    """A caller found all segments used up, and waits for the next one. Once for each end that is run into.

    `after`: the highest number that this process has seen.
    """

    after: int


@dataclass(frozen=True, slots=True)
class LimitNear(Event):
    """Few numbers are left: `used` of `most`, in the present period if `in_period`. Once for each limit.

    `limit`: the last number, as users see it. `scheme` as in SegmentLoaded.
    """

    used: int
    most: int
    limit: int
    in_period: bool
    scheme: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Event):
    """Work in the background came to nothing, and will be tried again.

    `work`: "fetch" of a segment or lease, "check" of the leases against Redis, "rejoin" of Redis by a direct tag.
    """

    work: Literal["fetch", "check", "rejoin"]
    error: Exception


@dataclass(frozen=True, slots=True)
class LeaseDrawn(Event):
    """This process has drawn (low, high] from Redis ahead of need, for itself."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class LeaseDropped(Event):
    """The tag's hash was armed again since its leases were drawn: what was left of them is a gap."""


@dataclass(frozen=True, slots=True)
class WentDirect(Event):
    """Redis is away, and this process serves the tag from segments of its own from now on."""


@dataclass(frozen=True, slots=True)
class Rejoined(Event):
    """Redis is back, and this process draws the tag from it again: numbers above `above`."""

    above: int


@dataclass(frozen=True, slots=True)
class NotGivenBack(Event):
    """Numbers above `above` that this process held could not be given back, and stay a gap."""

    above: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RedisSilent(Event):
    """A draw of the tag got no answer from Redis. Once until one gets numbers again, or the tag rejoins Redis."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RedisBack(Event):
    """Redis answers draws of the tag again, after `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class FenceTripped(Event):
    """Redis refuses draws, as the tag's numbers there can't be trusted any more, or are lost. Once for each loss.

    `cause`: "fenced" if Redis failed over, was restarted or went back in time; "empty" if the tag's hash is gone.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class NumbersLost(Event):
    """Numbers come again after a FenceTripped, above `above`; those since `seen`, `most` of them at most, are a gap."""

    cause: str
    above: int
    seen: int
    most: int


@dataclass(frozen=True, slots=True)
class StoreSilent(Event):
    """A fetch found the store away: what is in hand is all there is. Once an outage.

    `scheduled`: whether the scheduler goes on asking; else only callers do, and get the error.
    """

    error: Exception
    scheduled: bool


@dataclass(frozen=True, slots=True)
class StoreBack(Event):
    """The store answers again; `error`: what it says, None if segments come again."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class CallersWait(Event):
    """Callers have waited for a second, or one of them up to its deadline, and got no number. Once until they do."""

    cause: str


@dataclass(frozen=True, slots=True)
class CallersServed(Event):
    """Callers get numbers again after a CallersWait; they had waited for `seconds`."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """A call was given no number, but this error."""

    error: Exception


#: Called with each event, in the thread or task that saw it: it must be quick, and draw no number.
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
