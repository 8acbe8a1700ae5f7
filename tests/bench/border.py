"""The border of two segments, with a store that takes 300 ms: does a caller notice it?"""

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.bench.figures import Bound, Figure, percentile, ratio
from tests.bench.picture import Series, histogram
from tests.bench.rounds import Effort
from tests.bench.servers import TAG, drawing, redis_server

#: What a reservation takes, in seconds.
DELAY = 0.3
#: A call counts as near a border if it drew one of so many numbers before it or behind it, or near the mark, where the
#: fetch begins.
NEAR = 10
#: Where the mark is, as a part of the segment.
USED = 0.20
#: Numbers a second, and a segment, of the caller who doesn't hurry.
PACE = 1000


class SlowStore(MemoryStore):
    """A store far away: every reservation takes DELAY longer. Nothing but `reserve` is called while it is measured."""

    def reserve(self, *args: Any, **options: Any) -> Reservation:
        time.sleep(DELAY)
        return super().reserve(*args, **options)


@dataclass(slots=True)
class Run:
    """The calls of one caller over several borders, in nanoseconds: those near a border, and the others."""

    near: "array[int]" = field(default_factory=lambda: array("q"))
    away: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def slow(self) -> float:
        """p99.9 away from the borders, in microseconds."""
        return percentile(sorted(self.away), 0.999) / 1e3


def border(effort: Effort) -> Iterator[Figure]:
    """Over the borders of segments, with a store that takes 300 ms."""
    fetched: dict[str, list[Run]] = {"prefetched": [], "paced": [], "inline": []}
    for _ in range(max(1, effort.rounds // 3)):
        fetched["prefetched"].append(_run("background", effort.step, effort.borders))
        fetched["paced"].append(_run("background", PACE, effort.borders, pace=PACE))
        fetched["inline"].append(_run(None, effort.step, effort.borders))
    draw(effort.picture, fetched["prefetched"], fetched["inline"])
    for name in ("prefetched", "paced"):
        yield from _figures(name, fetched[name], Bound(5, 2))
        runs = fetched[name]
        worst = [max(chain(run.near, run.away)) / 1e3 for run in runs]
        yield ratio(f"{name}: slowest call / p99.9", worst, [run.slow for run in runs], Bound(5, 2))
    inline = fetched["inline"]
    yield from _figures("inline", inline, None)
    # Nothing is fetched meanwhile: so slow are this machine's own hiccups.
    away = [max(run.away) / 1e3 for run in inline]
    yield ratio("inline: slowest away / p99.9", away, [run.slow for run in inline])


def _figures(name: str, runs: list[Run], bound: Bound | None) -> Iterator[Figure]:
    slow, near = [run.slow for run in runs], [max(run.near) / 1e3 for run in runs]
    yield Figure(f"{name}: p99.9 away from borders", tuple(slow), "us")
    yield Figure(f"{name}: slowest near a border", tuple(near), "us")
    yield ratio(f"{name}: near a border / p99.9", near, slow, bound)


def draw(path: Path, prefetched: list[Run], inline: list[Run]) -> None:
    """Write the picture of all the calls of both kinds."""
    pictured = histogram(
        "next(tag) over the borders of segments, each reserved in 300 ms",
        [
            Series(_told("fetched when nothing is left", inline), "#d9480f", _microseconds(inline)),
            Series(_told("prefetched at 20 % used", prefetched), "#1864ab", _microseconds(prefetched)),
        ],
        across="what one call took",
        up="calls",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(pictured, encoding="utf-8")


def _told(how: str, runs: list[Run]) -> str:
    calls = sum(len(run.near) + len(run.away) for run in runs)
    waits = sum(call >= DELAY * 1e9 for run in runs for call in (*run.near, *run.away))
    return f"{how}: {waits or 'none'} of {calls:,} calls waited for the store".replace(",", " ")


def _microseconds(runs: list[Run]) -> list[float]:
    return [call / 1e3 for run in runs for calls in (run.near, run.away) for call in calls]


def _run(scheduler: Literal["background"] | None, step: int, borders: int, pace: float = 0) -> Run:
    """Draw through so many borders, one call after the other, `pace` a second; 0: as fast as it goes."""
    run = Run()
    last = step * (borders + 2) - NEAR * 2
    with redis_server() as server, drawing(server, store=SlowStore(), step=step, scheduler=scheduler) as ids:
        # At its first mark a process makes a second connection, once: redis-py takes 0.7 ms of the interpreter for it.
        for _ in range(step + NEAR * 2):
            ids.next(TAG)
        _draw_until(last, ids.next, run, step, pace)
    return run


def _draw_until(last: int, next: Callable[[str], int], run: Run, step: int, pace: float) -> None:
    gap = 1e9 / pace if pace else 0
    mark = round(step * USED)
    due = perf_counter_ns()
    number = 0
    while number < last:
        if gap:
            due += int(gap)
            time.sleep(max(0, due - perf_counter_ns()) / 1e9)
        started = perf_counter_ns()
        number = next(TAG)
        took = perf_counter_ns() - started
        near = min(number % step, -number % step, abs(number % step - mark)) <= NEAR
        (run.near if near else run.away).append(took)
