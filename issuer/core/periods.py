"""Periods: the days, weeks, months or years of a time zone after which a tag's numbers restart.

Each period has an index that increases with time. The index is computed from the calendar, without a table: the day's
ordinal, the week's ordinal, year x 12 + month, or the year. A tag's counter is `index << 40 | seq`, with seq from 1.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Literal, cast, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from issuer.errors import InvalidArgument, SchemeError, brief

Cycle = Literal["daily", "weekly", "monthly", "yearly"]
Restart = Literal[Cycle, "never"]

#: How many bits of a counter are the number within the period. The higher bits are the period's index.
PERIOD_BITS = 40

#: Highest number within a period: 2^40-1. The lowest is 1.
SEQ_MOST = (1 << PERIOD_BITS) - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAYS_IN_WEEK = 7
_MONTHS_IN_YEAR = 12


class Periods:
    """The periods of one kind, such as days, in one time zone. Raises SchemeError.

    A period begins as soon as the clocks of the zone show midnight of its first day, or a later time. If the clocks are
    put back over midnight after that, the new period still stays the current one.

    Args:
        restart: "daily", "weekly" (ISO weeks, from Monday), "monthly" or "yearly".
        timezone: IANA name of a time zone.
    """

    __slots__ = ("_zone", "restart", "timezone")

    def __init__(self, restart: str, timezone: str = "UTC") -> None:
        if restart not in get_args(Cycle):
            raise SchemeError(
                f"must be one of {', '.join(get_args(Restart))}; not {brief(restart)}",
                setting="restart",
                value=restart,
            )
        self.restart = cast("Cycle", restart)
        self.timezone = timezone
        self._zone = _zone(timezone)

    def index(self, ms: int) -> int:
        """Return the index of the period at a time in ms since 1970. Indexes increase and are in 1..2^22-1."""
        try:
            found = self.of((_EPOCH + ms * _MILLISECOND).astimezone(self._zone).date())
        except (OverflowError, ValueError):
            raise InvalidArgument(f"{ms} ms since 1970 is after the year 9999", value=ms) from None
        # Clocks that were put back over midnight show the previous day again. But the new period has begun already.
        return found + 1 if self.end_ms(found) <= ms else found

    def of(self, day: date) -> int:
        """Return the index of the period that contains the day."""
        match self.restart:
            case "daily":
                return day.toordinal()
            case "weekly":
                return (day.toordinal() - 1) // _DAYS_IN_WEEK + 1  # weeks begin on Monday, as did the year 1
            case "monthly":
                return day.year * _MONTHS_IN_YEAR + day.month - 1
            case "yearly":
                return day.year

    def begin(self, index: int) -> date:
        """Return the first day of the period. Raises InvalidArgument if the day is outside of the calendar."""
        try:
            match self.restart:
                case "daily":
                    return date.fromordinal(index)
                case "weekly":
                    return date.fromordinal((index - 1) * _DAYS_IN_WEEK + 1)
                case "monthly":
                    return date(index // _MONTHS_IN_YEAR, index % _MONTHS_IN_YEAR + 1, 1)
                case "yearly":
                    return date(index, 1, 1)
        except (OverflowError, ValueError):
            raise InvalidArgument(f"there is no {self.restart} period of number {index}", value=index) from None

    def name(self, index: int) -> str:
        """Return the name of the period: "2026-11-21", "2026-W47", "2026-11" or "2026". Raises InvalidArgument."""
        begun = self.begin(index)
        match self.restart:
            case "weekly":
                year, week, _ = begun.isocalendar()
                return f"{year:04d}-W{week:02d}"
            case "monthly":
                return f"{begun.year:04d}-{begun.month:02d}"
            case "yearly":
                return f"{begun.year:04d}"
            case "daily":
                return begun.isoformat()

    def end_ms(self, index: int) -> int:
        """Return when the period ends and the next one begins, in milliseconds since 1970.

        If the clocks are changed, a day has 23 or 25 hours. A day that the zone skipped has 0 hours.
        """
        midnight = datetime.combine(self.begin(index + 1), datetime.min.time(), self._zone)
        # If clocks are put back over midnight, there are two midnights. The first one counts.
        moment = midnight.astimezone(UTC)
        if moment.astimezone(self._zone).replace(tzinfo=None) != midnight.replace(tzinfo=None):
            moment = self._after_gap(midnight)
        return (moment - _EPOCH) // _MILLISECOND

    def _after_gap(self, midnight: datetime) -> datetime:
        """Return the time at which the clocks are put forward, for a midnight that the clocks skip."""
        before, after = midnight.replace(fold=1).astimezone(UTC), midnight.astimezone(UTC)
        wall = midnight.replace(tzinfo=None)
        while after - before > _MILLISECOND:
            middle = before + (after - before) // 2
            if middle.astimezone(self._zone).replace(tzinfo=None) < wall:
                before = middle
            else:
                after = middle
        return after.replace(microsecond=0)  # clocks are only changed at whole seconds


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError):
        # A name that is an absolute path, or contains `..`, raises ValueError. The name of a directory raises OSError.
        raise SchemeError(
            f'unknown time zone {brief(name)}: use an IANA name such as "Europe/Vienna"',
            setting="timezone",
            value=name,
        ) from None
