"""The observer that writes events to the log: one line for each event of a kind in LINES."""

from __future__ import annotations

import logging
from collections.abc import Callable
from logging import DEBUG, INFO, WARNING
from typing import Any

from issuer.core import events
from issuer.core.events import Event
from issuer.core.scheme_record import counted, spanned, without_raising
from issuer.times import lasting

log = logging.getLogger("issuer.extension")

#: Texts for the causes of a loss in Redis, and for the background work that failed.
_LOSSES = {"empty": "Redis has lost its data", "fenced": "Redis failed over, was restarted or went back in time"}
_FAILED = {"fetch": "no segment or lease fetched", "check": "leases not checked", "rejoin": "Redis is still down"}

#: The events that are logged: level, text after the tag, and values of the text (names of attributes, or functions).
LINES: dict[type[Event], tuple[int, str, *tuple[str | Callable[[Any], object], ...]]] = {
    events.SegmentLoaded: (
        INFO,
        "segment %s loaded at number %s",
        lambda event: spanned(event.low, event.high, event.scheme),
        lambda event: counted(event.cur, event.scheme),
    ),
    events.LimitNear: (
        WARNING,
        "at least %d %% of %s numbers are used, at most %d are left up to its limit %d: %s",
        lambda event: event.used * 100 // event.most,
        lambda event: "the period's" if event.in_period else "its",
        lambda event: event.most - event.used,
        "limit",
        lambda event: without_raising(event.scheme, event.limit) or "raise it in time",
    ),
    events.LeaseDropped: (
        WARNING,
        "Redis failed over or the tag was recovered; the rest of the leases becomes a gap",
    ),
    events.WentDirect: (WARNING, "Redis is down; serving in direct mode, from segments of this process"),
    events.Rejoined: (WARNING, "Redis is back; numbers continue above %d", "above"),
    events.NotGivenBack: (
        WARNING,
        "unused numbers above %d could not be returned and become a gap: %s",
        "above",
        "error",
    ),
    events.NumbersLost: (
        WARNING,
        "%s; new numbers are above %d, and the numbers after %d are a gap (at most %d)",
        lambda event: _LOSSES[event.cause],
        "above",
        "seen",
        "most",
    ),
    events.StoreSilent: (WARNING, "no segment can be reserved, and only buffered numbers are left: %s", "error"),
    events.StoreBack: (
        WARNING,
        "%s",
        lambda event: f"the store answers again: {event.error}" if event.error else "segments are reserved again",
    ),
    events.CallersWait: (WARNING, "callers are waiting for a number: %s", "cause"),
    events.CallersServed: (WARNING, "callers get numbers again, after %s", lambda event: lasting(event.seconds)),
    events.Failed: (DEBUG, "%s: %s", lambda event: _FAILED[event.work], "error"),
}


def line_of(event: Event) -> tuple[int, str, tuple[object, ...]] | None:
    """Return the level, the text and the text's values for the event. None if it is not logged."""
    line = LINES.get(type(event))
    if line is None or not getattr(event, "scheduled", True):  # without a scheduler callers get the store's error
        return None
    level, text, *values = line
    said = (getattr(event, each) if isinstance(each, str) else each(event) for each in values)
    return level, f"tag %r: {text}", (event.tag, *said)


def log_event(event: Event) -> None:
    """Log the event if LINES has its kind."""
    known = LINES.get(type(event))
    if known is not None and log.isEnabledFor(known[0]) and (line := line_of(event)) is not None:
        level, text, values = line
        log.log(level, text, *values)
