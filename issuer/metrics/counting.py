"""Counts events: for each event of an issuer, raises the counters that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from issuer.core import events
from issuer.core.events import Event
from issuer.errors import IssuerError
from issuer.metrics import definitions as of
from issuer.metrics.definitions import Definition
from issuer.metrics.families import Families

Count = Callable[[Families, str, Any], None]


def _one(which: Definition) -> Count:
    return lambda families, tag, _: families.count(which, tag)


def _and_seconds(which: Definition) -> Count:
    return lambda families, tag, event: families.count(which, tag, by=max(0.0, event.seconds))


def _reserved(families: Families, tag: str, event: events.Reserved) -> None:
    families.count(of.RESERVATIONS, tag, event.reason, "done")
    families.time(of.RESERVATION, event.reason, "done", seconds=event.seconds)
    if event.reason in ("reserve", "tinyid"):
        families.count(of.ISSUED, tag, by=event.high - event.low)


def _not_reserved(families: Families, tag: str, event: events.ReservationFailed) -> None:
    families.count(of.RESERVATIONS, tag, event.reason, "failed")
    families.time(of.RESERVATION, event.reason, "failed", seconds=event.seconds)


def _refused(families: Families, tag: str, event: events.Rejected) -> None:
    families.count(of.REFUSALS, tag, event.error.code if isinstance(event.error, IssuerError) else "failed")


#: For each event, the function that counts it.
COUNTS: dict[type[Event], Count] = {
    events.ElectionWon: _one(of.ELECTIONS),
    events.Reserved: _reserved,
    events.ReservationFailed: _not_reserved,
    events.SegmentLoaded: _one(of.SEGMENTS),
    events.ExtensionLate: _one(of.LATE),
    events.LimitNear: _one(of.NEAR),
    events.Failed: lambda families, tag, event: families.count(of.FAILED, tag, event.work),
    events.LeaseDrawn: _one(of.LEASES),
    events.LeaseDropped: _one(of.LEASES_DROPPED),
    events.WentDirect: _one(of.WENT_DIRECT),
    events.Rejoined: _one(of.REJOINED),
    events.NotGivenBack: _one(of.NOT_GIVEN_BACK),
    events.NumbersWasted: lambda families, tag, event: families.count(of.WASTED, tag, by=event.numbers),
    events.RedisSilent: _one(of.REDIS_SILENCES),
    events.RedisBack: _and_seconds(of.REDIS_SECONDS),
    events.FenceTripped: lambda families, tag, event: families.count(of.FENCE, tag, event.cause),
    events.NumbersLost: lambda families, tag, event: families.count(of.LOST, tag, by=event.most),
    events.StoreSilent: _one(of.STORE_SILENCES),
    events.StoreBack: _one(of.STORE_BACK),
    events.CallersWait: _one(of.WAITS),
    events.CallersServed: _and_seconds(of.WAIT_SECONDS),
    events.Rejected: _refused,
    events.Alarm: _one(of.ALARMS),
}


#: Possible values of `FenceTripped.cause`.
_CAUSES = ("empty", "fenced")


def begin(families: Families, tag: str) -> None:
    """Create the counters that alerts use, with the value 0. `tag` is the label of the tag.

    If a counter appeared with the value 1, Prometheus would see no increase.
    """
    for which in (of.LATE, of.WAITS, of.LOST):
        families.count(which, tag, by=0)
    for cause in _CAUSES:
        families.count(of.FENCE, tag, cause, by=0)


def count(families: Families, tag: str, event: Event) -> None:
    """Count an event. Events that are not in COUNTS are ignored. `tag` is the label of the tag."""
    known = COUNTS.get(type(event))
    if known is not None:
        known(families, tag, event)
