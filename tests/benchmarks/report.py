"""What a run leaves: lines for a terminal of 80 columns, and a file for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from issuer.cli.text import shortened, width
from tests.benchmarks.figures import Figure

#: Cells of the columns: the figure's name, its median, its spread, bar, goal.
NAME, MEDIAN, SPREAD, BAR, GOAL = 36, 13, 7, 9, 6

_THOUSAND, _HUNDRED, _TEN = 1000, 100, 10


def heading() -> str:
    """Return the line above the columns."""
    return _columns("", "MEDIAN", "SPREAD", "BAR", "GOAL", "")


def line(figure: Figure) -> str:
    """Return a figure as a line of 80 cells at most; the whole note where there is nothing to show."""
    if not figure.values:
        return f"  {figure.what}: {figure.note}"
    bound = figure.bound
    sign = "" if bound is None else ">=" if bound.least else "<="
    return _columns(
        figure.what,
        f"{number(figure.median)} {figure.unit}".rstrip(),
        f"{figure.spread:.0%}" if len(figure.values) > 1 else "",
        "" if bound is None else f"{sign} {bound.bar:g}",
        "" if bound is None or bound.goal is None else f"{bound.goal:g}",
        "SHORT" if figure.verdict == "short" else figure.verdict or "",
    )


def _columns(*cells: str) -> str:
    name, median, spread, bar, goal, verdict = cells
    short = shortened(name, NAME)
    filled = short + " " * (NAME - width(short))
    return f"  {filled}{median:>{MEDIAN}}{spread:>{SPREAD}}{bar:>{BAR}}{goal:>{GOAL}} {verdict}".rstrip()


def number(value: float) -> str:
    """Return it with three digits that mean something, and thousands set apart."""
    if math.isnan(value):
        return "-"
    if value >= _THOUSAND:
        return f"{value:,.0f}".replace(",", " ")
    if value >= _HUNDRED:
        return f"{value:.0f}"
    if value >= _TEN:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def summary(rows: Mapping[str, Sequence[Figure]], broken: Mapping[str, str]) -> str:
    """Return how many figures are where they should be, and what is short or broke."""
    asked = [figure for figures in rows.values() for figure in figures if figure.verdict is not None]
    reached = [figure for figure in asked if figure.verdict != "short"]
    goals = [figure for figure in asked if figure.verdict == "goal"]
    lines = [f"{len(reached)} of {len(asked)} figures reach their bar, {len(goals)} their goal"]
    lines += [
        f"short: {name}: {figure.what} is {number(figure.median)}"
        for name, figures in rows.items()
        for figure in figures
        if figure.verdict == "short"
    ]
    lines += [f"broke: {name}: {error}" for name, error in broken.items()]
    return "\n".join(lines)


def write(
    path: Path, machine: Mapping[str, Any], rows: Mapping[str, Sequence[Figure]], broken: Mapping[str, str]
) -> None:
    """Write everything that was measured as JSON."""
    content = {
        "machine": machine,
        "rows": {name: [figure.content() for figure in figures] for name, figures in rows.items()},
        "broken": broken,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
