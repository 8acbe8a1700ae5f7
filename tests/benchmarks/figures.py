"""Figures: what was measured, round by round, what is asked of it, and whether it is there. No I/O."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["goal", "pass", "short"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The bar that a figure must reach and the goal that we aim at; `least`: the figure is to be that or more."""

    bar: float
    goal: float | None = None
    least: bool = False

    def verdict(self, value: float) -> Verdict:
        """Return whether the value reaches the goal, the bar alone, or neither."""
        if self.goal is not None and self._reaches(value, self.goal):
            return "goal"
        return "pass" if self._reaches(value, self.bar) else "short"

    def _reaches(self, value: float, wanted: float) -> bool:
        return value >= wanted if self.least else value <= wanted


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
        bound = self.bound
        return {
            "what": self.what,
            "unit": self.unit,
            "median": self.median if self.values else None,
            "low": min(self.values, default=None),
            "high": max(self.values, default=None),
            "rounds": list(self.values),
            "bar": bound and bound.bar,
            "goal": bound and bound.goal,
            "better": bound and ("higher" if bound.least else "lower"),
            "verdict": self.verdict,
            "note": self.note,
        }


def missing(what: str, why: str) -> Figure:
    """Return the line of a contender that this machine lacks."""
    return Figure(what, (), "", note=why)


def ratio(what: str, over: Sequence[float], under: Sequence[float], bound: Bound | None = None) -> Figure:
    """Divide round by round: what slowed the machine in one round slowed both of its sides."""
    return Figure(what, tuple(above / below for above, below in zip(over, under, strict=True)), "x", bound)


def percentile(ordered: Sequence[float], part: float) -> float:
    """Return the smallest value that at least this part (0..1) of them don't exceed. They are sorted, and some."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
