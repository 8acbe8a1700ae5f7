"""Values as text, for the templates of the console."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup, escape

from issuer.board.rows import rank_of
from issuer.doors.console import charts
from issuer.terminal import ago
from issuer.times import lasting, rounded, utc
from issuer_persistence.records import HIGHEST, now_ms

_LEVELS: Final = ("bad", "warn", "ok")


#: What stands in place of an unknown value.
UNKNOWN: Final = "-"


def number(value: int | None) -> str:
    """Return a whole number with separators."""
    return UNKNOWN if value is None else "2^63-1" if value == HIGHEST else f"{value:,}"


def rate(value: float | None) -> str:
    """Return a rate per second."""
    return UNKNOWN if value is None else rounded(value)


def duration(value: float | None) -> str:
    """Return a duration in seconds as text."""
    return UNKNOWN if value is None else lasting(value, 1)


def since(value: int | None) -> str:
    """Return how long ago a time was, in ms since 1970."""
    return UNKNOWN if not value else ago(value, now_ms())


def moment(value: int | None) -> str:
    """Return a time in ms since 1970 as ISO time. "" if it is unknown."""
    return utc(value) if value else ""


def level(state: str) -> str:
    """Return the class of a state in the style sheet."""
    return _LEVELS[rank_of(state)]


def finding(level: str) -> str:
    """Return the class of the level of a finding of `doctor`."""
    return {"weak": "bad", "unknown": "warn", "advice": "warn"}.get(level, "ok")


def inline(text: str) -> Markup:
    """Return a text of the documentation as HTML. Words between backquotes become code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "rate": rate,
    "duration": duration,
    "since": since,
    "moment": moment,
    "level": level,
    "finding": finding,
    "bar": charts.bar,
    "inline": inline,
    "encoded": partial(quote, safe=""),
}
