"""Durations, rates and times as text, for messages."""

from __future__ import annotations

import math
from datetime import UTC, datetime

_UNITS = ((365 * 86_400, "year"), (86_400, "day"), (3600, "h"), (60, "min"), (1, "s"))

#: Durations of at least this many seconds are shown without decimals.
ROUGH = 10


def lasting(seconds: float, parts: int = 2) -> str:
    """Return a duration in its largest units: "0.2 s", "12 s", "2 min 5 s", "1 h", "3 days 4 h".

    parts: maximum number of units.
    """
    if not math.isfinite(seconds):
        return "for ever"
    if seconds < ROUGH:
        return f"{max(seconds, 0.001):.2g} s"
    left, said = round(seconds), []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count:
            said.append(f"{count} {unit}{'s' if count > 1 and size >= _UNITS[1][0] else ''}")
    return " ".join(said[:parts])


def rounded(per_second: float) -> str:
    """Return a rate per second with two digits, or as a whole number from 10 on."""
    return f"{per_second:.2g}" if per_second < ROUGH else f"{per_second:,.0f}"


def utc(milliseconds: int) -> str:
    """Return a time (ms since 1970) as ISO time in UTC."""
    moment = in_utc(milliseconds)
    return str(milliseconds) if moment is None else f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def in_utc(milliseconds: int) -> datetime | None:
    """Return a time (ms since 1970) as a datetime. None if the time is outside of the calendar."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
