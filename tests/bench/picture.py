"""Histograms as SVG, one above the other: logarithmic both ways, so that ten slow calls of a million are still seen."""

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

INK, FAINT, GRID = "#212529", "#495057", "#dee2e6"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Series:
    """What the legend says, a colour, and the values: microseconds, above 0."""

    name: str
    color: str
    values: Sequence[float]


def histogram(title: str, series: Sequence[Series], *, across: str, up: str) -> str:
    """Return the SVG, a panel for each series, all on the same axes. Its background is its own, for dark pages."""
    counted = [Counter(math.floor(math.log10(value) * BARS) for value in each.values) for each in series]
    # Whole decades of time across, whole decades of calls upwards.
    bins = [bin for counts in counted for bin in counts] or [0]
    times = range(math.floor(min(bins) / BARS), math.floor(max(bins) / BARS) + 2)
    most = max((count for counts in counted for count in counts.values()), default=1)
    calls = range(max(1, math.ceil(math.log10(most))) + 1)

    def x(bin: int) -> float:
        return LEFT + (bin / BARS - times[0]) / (times[-1] - times[0]) * (WIDTH - RIGHT - LEFT)

    def tall(count: int) -> float:
        # A single call is to be seen too, so that the base line stands for a third of one.
        return (math.log10(count) + 0.5) / (calls[-1] + 0.5) * PANEL

    def panel(each: Series, counts: Counter[int], top: int) -> Iterator[str]:
        base = top + PANEL
        yield box(LEFT, top - 24, 12, 12, each.color, rx=2)
        yield text(LEFT + 20, top - 13, each.name, size=13)
        yield from (line(x(decade * BARS), top, x(decade * BARS), base) for decade in times)
        for decade in calls:
            y = base - tall(10**decade)
            yield line(LEFT, y, WIDTH - RIGHT, y)
            if decade % 2 == 0:
                yield text(LEFT - 8, y + 4, f"{10**decade:,}".replace(",", " "), anchor="end", faint=True)
        for bin, count in sorted(counts.items()):
            yield box(x(bin) + 0.5, base - tall(count), x(1) - x(0) - 1, tall(count), each.color)
        yield line(LEFT, base, WIDTH - RIGHT, base, FAINT)
        middle = top + PANEL / 2
        yield text(20, middle, up, size=13, anchor="middle", more=f'transform="rotate(-90 20 {middle:g})"')

    height = TOP + len(series) * (GAP + PANEL) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="{FONT}">',
        f"<title>{escape(title)}</title>",
        box(0, 0, WIDTH, height, "#ffffff", rx=6),
        text(LEFT, 34, title, size=17, weight=600),
    ]
    for place, (each, counts) in enumerate(zip(series, counted, strict=True)):
        parts += panel(each, counts, TOP + GAP + place * (GAP + PANEL))
    for decade in times:
        parts.append(text(x(decade * BARS), height - BOTTOM + 20, _time(decade), anchor="middle", faint=True))
    parts += [text((LEFT + WIDTH - RIGHT) / 2, height - 16, across, size=13, anchor="middle"), "</svg>"]
    return "\n".join(parts) + "\n"


def box(x: float, y: float, width: float, height: float, fill: str, *, rx: int = 0) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" rx="{rx}"/>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = GRID) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}"/>'


def text(
    x: float, y: float, text: str, *, size: int = 12, weight: int = 400, anchor: str = "start", faint: bool = False,
    more: str = "",
) -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{FAINT if faint else INK}" {more}>{escape(text)}</text>'
    )


def _time(decade: int) -> str:
    """Return 10^decade microseconds in the unit that suits it."""
    for power, unit in ((6, "s"), (3, "ms"), (0, "µs")):
        if decade >= power:
            return f"{10 ** (decade - power)} {unit}"
    return f"{10.0**decade:g} µs"
