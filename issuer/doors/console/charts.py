"""Pictures of the console, as SVG, and of `issuer top`, as text.

The sizes of SVG are attributes, because the pages forbid styles in elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from issuer.board import outlook
from issuer.board.rows import TagRow

#: Width and height of a sparkline, and of the chart of a tag.
SPARK: Final = (80, 20)
CHART: Final = (720, 160)
#: Most periods of each.
SPARK_PARTS: Final = 16
CHART_PARTS: Final = 120
#: Cells of the bar and of the sparkline in a terminal, and the characters of both.
BAR_CELLS, SPARK_CELLS = 6, 8
EIGHTHS, HEIGHTS = " ▏▎▍▌▋▊▉", "▁▂▃▄▅▆▇█"


class Bar(NamedTuple):
    """The bar of a tag, in percent of its segments: what is used, where the next segment is due, where buffer 2 begins.

    `share`: share of the numbers that are left, 0..100.
    """

    used: float
    mark: float | None
    second: float
    share: float


def bar(row: TagRow) -> Bar | None:
    """Return the bar of a row. None if Redis holds no segment of the tag."""
    if row.cur is None or row.end is None:
        return None
    own = next((each for each in row.tail if each.low < row.end <= each.high), None)
    low = own.low if own is not None else row.cur
    second = 0 if row.next_end is None or row.next_cur is None else row.next_end - row.next_cur
    whole = max(1, row.end - low + second)
    used = max(0, row.cur - low)
    mark = None if row.mark is None or second else 100 * max(0, row.mark - low) / whole
    return Bar(100 * used / whole, mark, 100 * (row.end - low) / whole, 100 * (whole - used) / whole)


def spark(rates: Sequence[tuple[int, int, float]]) -> str:
    """Return the points of a sparkline: one step for each rate, scaled to the highest one. "" if there are too few."""
    if len(rates) < 2:  # noqa: PLR2004 - a line has two ends
        return ""
    return _points(rates, *SPARK)


def line(rates: Sequence[tuple[int, int, float]]) -> str:
    """Return the points of the chart of a tag."""
    return _points(rates, *CHART) if rates else ""


def bar_text(row: TagRow) -> str:
    """Return the bar of a row as text: the share of the numbers that are left. "" if Redis holds no segment."""
    found = bar(row)
    full, part = divmod(0 if found is None else round(found.share * BAR_CELLS * len(EIGHTHS) / 100), len(EIGHTHS))
    return ("█" * full + EIGHTHS[part]).rstrip()


def spark_text(row: TagRow) -> str:
    """Return the sparkline of a row as text: a bar for each period, the highest one full. "" if there are too few."""
    found = [rate for _, _, rate in outlook.rates(row.tail, SPARK_CELLS)]
    top = max(found, default=0) or 1
    return "".join(HEIGHTS[round(rate / top * (len(HEIGHTS) - 1))] for rate in found) if len(found) > 1 else ""


def _points(rates: Sequence[tuple[int, int, float]], width: int, height: int) -> str:
    begin, end = rates[0][0], rates[-1][1]
    top = max(rate for _, _, rate in rates) or 1.0

    def x(time: int) -> float:
        return round((time - begin) * width / max(1, end - begin), 1)

    def y(rate: float) -> float:
        return round(1 + (1 - rate / top) * (height - 2), 1)

    return " ".join(f"{x(since)},{y(rate)} {x(until)},{y(rate)}" for since, until, rate in rates)
