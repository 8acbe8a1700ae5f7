"""Pictures as SVG: panels of measured points, with the lines of a model."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tests.bench.picture import FONT, TOP, WIDTH, box, line, text


@dataclass(frozen=True, slots=True)
class Curve:
    """What the legend says, a colour, measured points (x, y), and the model's line, if there is one."""

    name: str
    color: str
    points: Sequence[tuple[float, float]]
    line: Callable[[float], float] | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on the same axes. `ticks`: where the axis across has values; a logarithmic one if they are decades."""

    title: str
    across: str
    curves: Sequence[Curve]
    ticks: Sequence[float]
    logarithmic: bool = False


def charts(title: str, panels: Sequence[Panel]) -> str:
    """Return the SVG: two panels a row. Circles are measured, lines are the model."""
    rows = -(-len(panels) // 2)
    height = TOP + rows * _ROW + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-family="{FONT}">',
        f"<title>{escape(title)}</title>",
        box(0, 0, WIDTH, height, "#ffffff", rx=6),
        text(28, 34, title, size=17, weight=600),
    ]
    for place, panel in enumerate(panels):
        left = 28 + place % 2 * (WIDTH // 2)
        parts += _panel(panel, left + 44, TOP + place // 2 * _ROW + 58)
    return "\n".join([*parts, "</svg>"]) + "\n"


#: Height of a row of panels; width and height of a panel's axes.
_ROW, _WIDE, _TALL = 258, 272, 140


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    drawn = [y for curve in panel.curves for x, y in curve.points]
    drawn += [curve.line(x) for curve in panel.curves if curve.line for x in (panel.ticks[0], panel.ticks[-1])]
    marks = _decades(min(drawn), max(drawn)) if panel.logarithmic else _steps(max(drawn))
    across, up = _scale(panel.ticks, _WIDE), _scale(marks, _TALL)
    base = top + _TALL
    yield text(left - 44, top - 36, panel.title, size=13, weight=600)
    for mark in marks:
        yield line(left, base - up(mark), left + _WIDE, base - up(mark))
        yield text(left - 6, base - up(mark) + 4, _short(mark), size=11, anchor="end", faint=True)
    for tick in panel.ticks:
        yield line(left + across(tick), top, left + across(tick), base)
        yield text(left + across(tick), base + 16, _short(tick), size=11, anchor="middle", faint=True)
    yield text(left + _WIDE / 2, base + 34, panel.across, size=12, anchor="middle", faint=True)
    said = left - 44.0
    for curve in panel.curves:
        yield box(said, top - 24, 10, 10, curve.color, rx=2)
        yield text(said + 15, top - 15, curve.name, size=11)
        said += 30 + 6.2 * len(curve.name)
        if curve.line:
            fine = [panel.ticks[0] * (panel.ticks[-1] / panel.ticks[0]) ** (step / 40) for step in range(41)]
            path = " ".join(f"{left + across(x):.1f},{base - up(curve.line(x)):.1f}" for x in fine)
            yield f'<polyline points="{path}" fill="none" stroke="{curve.color}" stroke-width="1.5"/>'
        for x, y in curve.points:
            yield (
                f'<circle cx="{left + across(x):.1f}" cy="{base - up(y):.1f}" r="3.5" fill="#ffffff" '
                f'stroke="{curve.color}" stroke-width="2"/>'
            )


def _scale(ticks: Sequence[float], size: float) -> Callable[[float], float]:
    """Return the place of a value between the first tick, 0, and the last one, `size`: logarithmic for decades."""
    first, last = ticks[0], ticks[-1]
    if first > 0 and last / first >= 100:
        return lambda value: math.log(value / first) / math.log(last / first) * size
    return lambda value: (value - first) / (last - first) * size


def _decades(least: float, most: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)]


def _steps(most: float) -> list[float]:
    """Return 0 and round values above it, at most six, up to at least `most`."""
    size = 10.0 ** math.floor(math.log10(most))
    step = next(each * size for each in (0.2, 0.5, 1, 2) if each * size * 5 >= most)
    return [step * count for count in range(math.ceil(most / step) + 1)]


def _short(value: float) -> str:
    """Return a value of an axis: 0.01, 20, 20k, 10M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
