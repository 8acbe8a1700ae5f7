"""The picture of docs/operate/operations.md: python -m tests.proofs.simulation.picture

How an automatic step follows the traffic of one tag for two days. All panels have the same time from left to right, and
each scale is logarithmic.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from math import cos, log10, pi
from pathlib import Path

from issuer_persistence.records import DEFAULT_TARGET
from tests.bench.picture import FAINT, FONT, box, line, text
from tests.proofs.simulation.fleet import Fleet, Series, started
from tests.proofs.simulation.traffic import DAY, HOUR, Traffic

PATH = Path(__file__).parents[3] / "docs/operate/steps.svg"

#: Seconds from the left to the right, and when the runway is looked at. Before a tag is used, it has none.
LASTS = 2 * DAY
TIMES = range(600, LASTS, 120)

#: Size of a panel, and of what is around the panels.
WIDTH, PANEL = 760, 130
LEFT, RIGHT, TOP, GAP, BOTTOM = 84, 28, 50, 40, 50

_TITLE = "An automatic step over two days, with a burst on the second one"


@dataclass(frozen=True, slots=True)
class Panel:
    """What a panel shows: the values from `lowest` to `highest`, both powers of ten times a number."""

    name: str
    color: str
    lowest: float
    highest: float
    #: The values that have a line, and their names.
    marks: dict[float, str]

    def y(self, top: float, value: float) -> float:
        part = log10(max(self.lowest, value) / self.lowest) / log10(self.highest / self.lowest)
        return top + PANEL * (1 - part)


RATE = Panel("numbers drawn, per second", "#1864ab", 0.5, 500, {1: "1", 10: "10", 100: "100"})
SEGMENTS = Panel(
    "segments: when each is reserved, and its size",
    "#2b8a3e",
    500,
    200_000,
    {1000: "1 000", 10_000: "10 000", 100_000: "100 000"},
)
RUNWAY = Panel(
    "runway: how long the numbers in hand last at this rate", "#d9480f", 60, 72_000,
    {60: "1 min", DEFAULT_TARGET: "10 min", HOUR: "1 h", 10 * HOUR: "10 h"},
)  # fmt: skip


def rate(at: int) -> float:
    """Numbers a second: most at one o'clock, few at night, and a burst on the second day."""
    day = (1 + cos((at / HOUR - 13) / 24 * 2 * pi)) / 2
    burst = 8 if DAY + 10 * HOUR <= at < DAY + 10.5 * HOUR else 1
    return (1 + 39 * day**2) * burst


def drawn() -> str:
    """Simulate the two days, and return the picture."""
    series = Series("tag", Traffic("days", rate, LASTS), {"step": "auto"})
    runways: list[float] = []

    def look(fleet: Fleet, at: int) -> None:
        runways.append(fleet.in_hand(series) / rate(at))

    with started([series], 1) as fleet:
        fleet.run(LASTS, [(at, partial(look, at=at)) for at in TIMES])
        history = fleet.store.history("tag")
    first = history[0].time
    segments = [((entry.time - first) / 1000, entry.high - entry.low) for entry in history]
    return "\n".join(_picture(runways, segments)) + "\n"


def _x(at: float) -> float:
    return LEFT + at / LASTS * (WIDTH - RIGHT - LEFT)


def _picture(runways: Sequence[float], segments: Sequence[tuple[float, int]]) -> Iterator[str]:
    panels = [(panel, TOP + GAP + place * (GAP + PANEL)) for place, panel in enumerate((RATE, SEGMENTS, RUNWAY))]
    height = TOP + 3 * (GAP + PANEL) + BOTTOM
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="{FONT}">'
    yield f"<title>{escape(_TITLE)}</title>"
    yield box(0, 0, WIDTH, height, "#ffffff", rx=6)
    yield text(LEFT, 34, _TITLE, size=17, weight=600)
    for panel, top in panels:
        yield from _frame(panel, top)
    (rates, top), (sizes, below), (lasting, lowest) = panels
    yield _path(rates.color, ((_x(at), rates.y(top, rate(at))) for at in range(0, LASTS, 120)))
    ends = [*(at for at, _ in segments[1:]), LASTS]
    for (at, size), end in zip(segments, ends, strict=True):
        y = sizes.y(below, size)
        yield box(_x(at), y, max(0.4, _x(end) - _x(at) - 0.4), below + PANEL - y, sizes.color)
    yield _path(lasting.color, ((_x(at), lasting.y(lowest, each)) for at, each in zip(TIMES, runways, strict=True)))
    for hours in range(0, LASTS // HOUR + 1, 6):
        name = f"{hours % 24:02}:00"
        yield text(_x(hours * HOUR), height - BOTTOM + 20, name, anchor="middle", faint=True)
    yield "</svg>"


def _frame(panel: Panel, top: float) -> Iterator[str]:
    yield text(LEFT, top - 8, panel.name, size=13)
    for hours in range(0, LASTS // HOUR + 1, 6):
        yield line(_x(hours * HOUR), top, _x(hours * HOUR), top + PANEL)
    for value, name in panel.marks.items():
        y = panel.y(top, value)
        yield line(LEFT, y, WIDTH - RIGHT, y)
        yield text(LEFT - 8, y + 4, name, anchor="end", faint=True)
    yield line(LEFT, top + PANEL, WIDTH - RIGHT, top + PANEL, FAINT)


def _path(color: str, points: Iterator[tuple[float, float]]) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.4" stroke-linejoin="round"/>'


if __name__ == "__main__":
    PATH.write_text(drawn(), encoding="utf-8")
    sys.stdout.write(f"{PATH}\n")
