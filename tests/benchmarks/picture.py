"""Histograms as SVG, one above the other: logarithmic both ways, so that ten slow calls of a million are still seen."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

#: Size of a panel, and what lies around the panels.
WIDTH, PANEL = 760, 150
LEFT, RIGHT, TOP, GAP, BOTTOM = 84, 28, 50, 44, 62
#: Bars a decade.
BARS = 12

_INK, _FAINT, _GRID = "#212529", "#495057", "#dee2e6"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Series:
    """What the legend says, a colour, and the values: microseconds, above 0."""

    name: str
    color: str
    values: Sequence[float]


def histogram(title: str, series: Sequence[Series], *, across: str, up: str) -> str:
    """Return the SVG, a panel for each series, all on the same axes. Its background is its own, for dark pages."""
    counted = [Counter(math.floor(math.log10(value) * BARS) for value in each.values) for each in series]
    scale = _Scale.over(counted)
    height = TOP + len(series) * (GAP + PANEL) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="{_FONT}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff"/>',
        _text(LEFT, 34, title, size=17, weight=600),
    ]
    for place, (each, counts) in enumerate(zip(series, counted, strict=True)):
        parts += _panel(each, counts, scale, TOP + GAP + place * (GAP + PANEL), up)
    base = height - BOTTOM
    parts += [_text(scale.x(decade * BARS), base + 20, _time(decade), anchor="middle", faint=True)
              for decade in range(scale.first, scale.last + 1)]  # fmt: skip
    parts += [_text((LEFT + WIDTH - RIGHT) / 2, height - 16, across, size=13, anchor="middle"), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(series: Series, counts: Counter[int], scale: _Scale, top: int, up: str) -> Iterator[str]:
    base = top + PANEL
    yield f'<rect x="{LEFT}" y="{top - 24}" width="12" height="12" rx="2" fill="{series.color}"/>'
    yield _text(LEFT + 20, top - 13, series.name, size=13)
    for decade in range(scale.first, scale.last + 1):
        x = scale.x(decade * BARS)
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{base}" stroke="{_GRID}"/>'
    for decade in range(scale.decades + 1):
        y = base - scale.up(10**decade)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{_GRID}"/>'
        if decade % 2 == 0:
            yield _text(LEFT - 8, y + 4, f"{10**decade:,}".replace(",", " "), anchor="end", faint=True)
    for bin, count in sorted(counts.items()):
        tall = scale.up(count)
        yield (
            f'<rect x="{scale.x(bin) + 0.5:.1f}" y="{base - tall:.1f}" width="{scale.x(1) - scale.x(0) - 1:.1f}" '
            f'height="{tall:.1f}" fill="{series.color}"/>'
        )
    yield f'<line x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}" stroke="{_FAINT}"/>'
    middle = top + PANEL / 2
    yield _text(20, middle, up, size=13, anchor="middle", more=f'transform="rotate(-90 20 {middle:g})"')


@dataclass(frozen=True, slots=True)
class _Scale:
    """Whole decades of time across, whole decades of calls upwards; the same for every panel."""

    first: int
    last: int
    decades: int

    @classmethod
    def over(cls, counted: Sequence[Counter[int]]) -> _Scale:
        bins = [bin for counts in counted for bin in counts]
        most = max((count for counts in counted for count in counts.values()), default=1)
        return cls(
            first=math.floor(min(bins, default=0) / BARS),
            last=math.floor(max(bins, default=0) / BARS) + 1,
            decades=max(1, math.ceil(math.log10(most))),
        )

    def x(self, bin: int) -> float:
        return LEFT + (bin / BARS - self.first) / (self.last - self.first) * (WIDTH - RIGHT - LEFT)

    def up(self, count: int) -> float:
        # A single call is to be seen too, so that the base line stands for a third of one.
        lowest = -0.5
        return (math.log10(count) - lowest) / (self.decades - lowest) * PANEL


def _text(
    x: float, y: float, text: str, *, size: int = 12, weight: int = 400, anchor: str = "start", faint: bool = False,
    more: str = "",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{_FAINT if faint else _INK}" {more}>{escape(text)}</text>'
    )


def _time(decade: int) -> str:
    """Return 10^decade microseconds in the unit that suits it."""
    for power, unit in ((6, "s"), (3, "ms"), (0, "µs")):
        if decade >= power:
            return f"{10 ** (decade - power)} {unit}"
    return f"{10.0**decade:g} µs"
