"""Figures: what was measured, round by round, what is asked of it, and whether it is there.

And what a run leaves of them: lines for a terminal of 80 columns, and a file for programs.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from issuer.terminal import shortened

Verdict = Literal["goal", "pass", "short"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The bar that a figure must reach and the goal that we aim at; `least`: the figure is to be that or more."""

    bar: float
    goal: float | None = None
    least: bool = False

    def verdict(self, value: float) -> Verdict:
        """Return whether the value reaches the goal, the bar alone, or neither."""

        def reached(wanted: float) -> bool:
            return value >= wanted if self.least else value <= wanted

        return "goal" if self.goal is not None and reached(self.goal) else "pass" if reached(self.bar) else "short"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a row: a contender's own figure, or a ratio, with one value a round.

    No values: it could not be measured here, and `note` says why. A ratio has the unit "x".
    """

    what: str
    values: tuple[float, ...]
    unit: str
    bound: Bound | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """The figure. NaN without values."""
        return statistics.median(self.values) if self.values else math.nan

    @property
    def spread(self) -> float:
        """The distance from the lowest round to the highest, as a part of the median; 0 for a single round."""
        return (max(self.values) - min(self.values)) / self.median if self.values and self.median else 0.0

    @property
    def verdict(self) -> Verdict | None:
        """None if nothing is asked of it, or it could not be measured."""
        return self.bound.verdict(self.median) if self.bound is not None and self.values else None

    def content(self) -> dict[str, Any]:
        """Return it as JSON takes it; every round is in it."""
        return {**asdict(self), "median": self.median if self.values else None, "verdict": self.verdict}


def missing(what: str, why: str) -> Figure:
    """Return the line of a contender that this machine lacks."""
    return Figure(what, (), "", note=why)


def ratio(what: str, over: Sequence[float], under: Sequence[float], bound: Bound | None = None) -> Figure:
    """Divide round by round: what slowed the machine in one round slowed both of its sides."""
    return Figure(what, tuple(above / below for above, below in zip(over, under, strict=True)), "x", bound)


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part (0..1) of them don't exceed. They are sorted, and some."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


#: The figure's name, its median, its spread, bar, goal and verdict.
_COLUMNS = "  {:36}{:>13}{:>7}{:>9}{:>6} {}"


def heading() -> str:
    return _COLUMNS.format("", "MEDIAN", "SPREAD", "BAR", "GOAL", "").rstrip()


def line(figure: Figure) -> str:
    """Return a figure as a line of 80 cells at most; the whole note where there is nothing to show."""
    if not figure.values:
        return f"  {figure.what}: {figure.note}"
    bound = figure.bound
    return _COLUMNS.format(
        shortened(figure.what, 36),
        f"{number(figure.median)} {figure.unit}".rstrip(),
        f"{figure.spread:.0%}" if len(figure.values) > 1 else "",
        "" if bound is None else f"{'>=' if bound.least else '<='} {bound.bar:g}",
        "" if bound is None or bound.goal is None else f"{bound.goal:g}",
        "SHORT" if figure.verdict == "short" else figure.verdict or "",
    ).rstrip()


def number(value: float) -> str:
    """Return it with three digits that mean something, and thousands set apart."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}".replace(",", " ")


def summary(rows: Mapping[str, Sequence[Figure]], broken: Mapping[str, str]) -> str:
    """Return how many figures are where they should be, and what is short or broke."""
    asked = [figure for figures in rows.values() for figure in figures if figure.verdict is not None]
    reached = Counter(figure.verdict for figure in asked)
    lines = [f"{len(asked) - reached['short']} of {len(asked)} figures reach their bar, {reached['goal']} their goal"]
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
    content = {
        "machine": machine,
        "rows": {name: [figure.content() for figure in figures] for name, figures in rows.items()},
        "broken": broken,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
