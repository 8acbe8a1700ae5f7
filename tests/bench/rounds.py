"""Rounds in which contenders take turns, and the loads that they run."""

import asyncio
import threading
import timeit
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from tests.bench.figures import Bound, Figure, ratio

#: A measured load: runs once and returns its figure, in the unit of its row.
Contender = Callable[[], float]

BEST_OF = 5
#: Slices of a round in which single calls go to a server and back.
SLICES = 20


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure. `calls` of one caller a round, `fast` ones of a loop without I/O, `seconds` of many callers.

    `borders`: how many segments the border's row goes through, of `step` numbers each, so that at full speed the part
    behind the mark lasts longer than its slow store.
    """

    rounds: int
    calls: int
    fast: int
    seconds: float
    borders: int
    step: int
    picture: Path = Path("border.svg")


FULL = Effort(rounds=9, calls=10_000, fast=500_000, seconds=1.5, borders=8, step=20_000)
QUICK = Effort(rounds=5, calls=2_000, fast=100_000, seconds=0.25, borders=2, step=10_000)


@dataclass(frozen=True, slots=True)
class Rounds:
    """What each contender did in each round."""

    unit: str
    values: Mapping[str, list[float]]

    def figure(self, name: str, bound: Bound | None = None) -> Figure:
        return Figure(name, tuple(self.values[name]), self.unit, bound)

    def figures(self) -> list[Figure]:
        return [self.figure(name) for name in self.values]

    def ratio(self, over: str, under: str, bound: Bound | None = None, what: str = "") -> Figure:
        return ratio(what or f"{over} / {under}", self.values[over], self.values[under], bound)


def alternate(contenders: Mapping[str, Contender], rounds: int, unit: str, slices: int = 1) -> Rounds:
    """Let them take turns, A B C A B C ..., after a turn each that doesn't count.

    A round is the mean of so many slices, for which they take turns as well: a round trip on loopback takes 35 us for
    some tenths of a second and 90 us for some others, as the kernel moves client and server between cores, and in
    short slices every contender sees both.
    """
    for contender in contenders.values():
        contender()
    values: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        sums = dict.fromkeys(contenders, 0.0)
        for _ in range(slices):
            for name, contender in contenders.items():
                sums[name] += contender()
        for name, total in sums.items():
            values[name].append(total / slices)
    return Rounds(unit, values)


def each(call: Callable[[], object], calls: int) -> Contender:
    """Time one caller: microseconds a call, the loop and a functools.partial or a function of no arguments included."""

    def load() -> float:
        started = perf_counter()
        for _ in repeat(None, calls):
            call()
        return (perf_counter() - started) / calls * 1e6

    return load


def bare(calls: int, f: Callable[..., object], *argument: object) -> Contender:
    """Time `f(a)`, or `f()`, as timeit does: nanoseconds a call.

    `f` and `a` are local names of the loop, so that every contender is called alike, and none through a wrapper.
    What the empty loop costs (5 ns or so) is in every figure. Garbage collection is off meanwhile.
    """
    statement = "f(a)" if argument else "f()"
    return written(calls, statement, f=f, a=argument[0] if argument else None)


def written(calls: int, statement: str, **names: object) -> Contender:
    """Time a statement as timeit does, with these local names: nanoseconds for each time."""
    setup = "".join(f"{name} = given[{name!r}]\n" for name in names)
    timer = timeit.Timer(statement, setup, globals={"given": names})
    return best(lambda: timer.timeit(calls // BEST_OF) / (calls // BEST_OF) * 1e9)


def best(load: Contender) -> Contender:
    """Let the best of a few count, as timeit advises where there is no I/O: what slows the others is not theirs."""
    return lambda: min(load() for _ in range(BEST_OF))


def threads(call: Callable[[], object], callers: int, seconds: float) -> Contender:
    """Let so many threads call one after the other, as fast as they can: calls a second, all together."""

    def caller(_place: int, end: float) -> int:
        done = 0
        while monotonic() < end:
            call()
            done += 1
        return done

    return _together(caller, callers, seconds)


def _together(caller: Callable[[int, float], int], callers: int, seconds: float) -> Contender:
    """Let so many threads begin at once, each told its number and the end; they return how often they called."""

    def load() -> float:
        ends: list[float] = []
        ready = threading.Barrier(callers + 1, lambda: ends.append(monotonic() + seconds))

        def begun(place: int) -> int:
            ready.wait()
            return caller(place, ends[0])

        with ThreadPoolExecutor(callers) as crew:
            counts = crew.map(begun, range(callers))
            ready.wait()
            started = perf_counter()
            return sum(counts) / (perf_counter() - started)

    return load


async def crowd(
    call: Callable[[], Awaitable[Any]], callers: int, seconds: float, latencies: list[float] | None = None
) -> float:
    """Let so many tasks call one after the other: calls a second. Each call's seconds go to `latencies`."""
    done = 0
    started = monotonic()
    end = started + seconds

    async def caller() -> None:
        nonlocal done
        before = monotonic()
        while before < end:
            await call()
            done += 1
            now = monotonic()
            if latencies is not None:
                latencies.append(now - before)
            before = now

    await asyncio.gather(*[caller() for _ in range(callers)])
    return done / (monotonic() - started)


def baton(callers: int, seconds: float) -> Contender:
    """Let so many threads pass a lock round in a ring, each asleep until its turn: passes a second.

    The most that threads can get which have to wait for each number: one sleep and one waking apiece, no number at all.
    """

    turns = [threading.Lock() for _ in range(callers)]
    for turn in turns[1:]:
        turn.acquire()  # and so they are left behind by each round

    def runner(place: int, end: float) -> int:
        mine, following = turns[place], turns[(place + 1) % callers]
        running, done = True, 0
        while running:
            mine.acquire()
            running = monotonic() < end
            done += 1
            following.release()
        return done

    return _together(runner, callers, seconds)


def tasks(runner: asyncio.Runner, call: Callable[[], Awaitable[Any]], callers: int, seconds: float) -> Contender:
    """Return `crowd` as a contender, on the loop of `runner`, which all of them share."""
    return lambda: runner.run(crowd(call, callers, seconds))
