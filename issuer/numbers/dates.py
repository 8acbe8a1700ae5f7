"""The date codes of `strftime` that a format can contain, such as %Y. Each code has a fixed number of characters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Code:
    """A date code, such as %m. `of` returns the code's number, in low..high, for a date; for TIMES: for a datetime.

    `width`: number of characters. `sign`: "+" if the first one is a sign.
    """

    width: int
    low: int
    high: int
    of: Callable[[Any], int]
    sign: str = ""

    def show(self, day: date) -> str:
        """Return the text for a date. Raises ValueError if the code cannot represent the date."""
        number = self.of(day)
        if not self.low <= number <= self.high:
            raise ValueError(f"the date {day} cannot be represented")
        return f"{number:{self.sign}0{self.width}d}"


#: The codes for a date. %y is for the years 2000 to 2099. %G is the ISO year, %V the ISO week, %u the day of the week.
CODES: Final = {
    "%Y": Code(4, 1, 9999, lambda day: day.year),
    "%y": Code(2, 0, 99, lambda day: day.year - 2000),
    "%m": Code(2, 1, 12, lambda day: day.month),
    "%d": Code(2, 1, 31, lambda day: day.day),
    "%j": Code(3, 1, 366, lambda day: day.timetuple().tm_yday),
    "%G": Code(4, 1, 9999, lambda day: day.isocalendar().year),
    "%V": Code(2, 1, 53, lambda day: day.isocalendar().week),
    "%u": Code(1, 1, 7, lambda day: day.isocalendar().weekday),
}

#: The codes for a time, which only snowflake numbers contain. %L is the millisecond, %z the offset from UTC, +hhmm.
TIMES: Final = {
    "%H": Code(2, 0, 23, lambda at: at.hour),
    "%M": Code(2, 0, 59, lambda at: at.minute),
    "%S": Code(2, 0, 59, lambda at: at.second),
    "%L": Code(3, 0, 999, lambda at: at.microsecond // 1000),
    "%z": Code(5, -2359, 2359, lambda at: int(f"{at:%z}"), "+"),
}

EVERY: Final = {**CODES, **TIMES}

_WHOLE_DAYS = ({"%Y", "%m", "%d"}, {"%y", "%m", "%d"}, {"%Y", "%j"}, {"%y", "%j"}, {"%G", "%V", "%u"})

#: For each kind of period: sets of codes that are enough to give each period its own text. {%Y, %V} is not enough for
#: weeks: the last days of 2024 are in week 1 of the ISO year 2025, so "2024-01" would be the text of two weeks.
_TELLING: Final[Mapping[str, tuple[set[str], ...]]] = {
    "daily": _WHOLE_DAYS,
    "weekly": (*_WHOLE_DAYS, {"%G", "%V"}),
    "monthly": (*_WHOLE_DAYS, {"%Y", "%m"}, {"%y", "%m"}),
    "yearly": ({"%Y"}, {"%y"}, *_WHOLE_DAYS),
}


def tells(codes: Collection[str], restart: str) -> bool:
    """Return True if these codes give each period its own text. `restart`: kind of period, such as "daily"."""
    return any(telling <= set(codes) for telling in _TELLING[restart])


def missing(codes: Collection[str]) -> list[str]:
    """Return the codes, or a description of them, that these codes lack to define one millisecond."""
    needed = [code for code in ("%H", "%M", "%S", "%L") if code not in codes]
    return needed if tells(codes, "daily") else ["a day such as %Y%m%d", *needed]


def moment(shown: Mapping[str, int]) -> datetime:
    """Return the millisecond that codes define, see `missing`. Without %z it is in UTC. Raises ValueError."""
    found = day(shown)
    if found is None:
        raise ValueError("there is no day")
    clock = time(shown["%H"], shown["%M"], shown["%S"], shown["%L"] * 1000)
    return datetime.combine(found, clock, datetime.strptime(f"{shown.get('%z', 0):+05d}", "%z").tzinfo)


def day(shown: Mapping[str, int]) -> date | None:
    """Return the first day that matches. None if no code is a year. Raises ValueError if no day matches.

    `shown`: the number of each date code, such as {"%Y": 2026, "%m": 11}.
    """
    for code, number in shown.items():
        if not EVERY[code].low <= number <= EVERY[code].high:
            raise ValueError(f"{code} cannot be {number}")
    shown = {code: number for code, number in shown.items() if code in CODES}
    found = _first(shown)
    # If the codes define exactly one day, each code must match it.
    if found is not None and any(telling <= set(shown) for telling in _WHOLE_DAYS):
        wrong = [code for code, number in shown.items() if CODES[code].of(found) != number]
        if wrong:
            raise ValueError(f"{', '.join(wrong)} contradict {found}")
    return found


def _first(shown: Mapping[str, int]) -> date | None:
    year = shown.get("%Y", shown["%y"] + 2000 if "%y" in shown else None)
    if year is not None and "%j" in shown:
        return date.fromordinal(date(year, 1, 1).toordinal() + shown["%j"] - 1)
    if year is not None and ("%d" not in shown or "%m" in shown) and not {"%G", "%V", "%u"} <= set(shown):
        return date(year, shown.get("%m", 1), shown.get("%d", 1))
    if "%G" in shown and "%V" in shown:
        return date.fromisocalendar(shown["%G"], shown["%V"], shown.get("%u", 1))
    return None
