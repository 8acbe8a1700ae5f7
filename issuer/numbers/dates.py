"""The date codes of `strftime` that a format can contain, such as %Y. Each code has a fixed number of digits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """A date code, such as %m. `of` returns the code's number for a date, in low..high. `width`: number of digits."""

    width: int
    low: int
    high: int
    of: Callable[[date], int]

    def show(self, day: date) -> str:
        """Return the digits for a date. Raises ValueError if the code cannot represent the date."""
        number = self.of(day)
        if not self.low <= number <= self.high:
            raise ValueError(f"the date {day} cannot be represented")
        return f"{number:0{self.width}d}"


#: The supported codes. %y is for the years 2000 to 2099. %G is the ISO year, %V the ISO week, %u the day of the week.
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


def day(shown: Mapping[str, int]) -> date | None:
    """Return the first day that matches. None if no code is a year. Raises ValueError if no day matches.

    `shown`: the number of each date code, such as {"%Y": 2026, "%m": 11}.
    """
    for code, number in shown.items():
        if not CODES[code].low <= number <= CODES[code].high:
            raise ValueError(f"{code} cannot be {number}")
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
