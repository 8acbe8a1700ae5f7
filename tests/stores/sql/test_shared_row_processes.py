"""Processes of this issuer and of Leaf, its Go port or tinyid on one row, and some of them are killed."""

from __future__ import annotations

import json
import os
import random
import time
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import issuer
from issuer_persistence.records import TagChanges
from tests.programs import PIPE, REPOSITORY, Program
from tests.stores.benches import TIMEOUT, reserve
from tests.stores.processes import segments
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers.redis import RedisServer
    from tests.stores.shared_rows import SharedRowBench

pytestmark = pytest.mark.live


HERE = Path(__file__).parents[1]


@pytest.fixture
def beside(beside: SharedRowBench) -> SharedRowBench:
    """The table of each program in turn, with the tag `orders`."""
    beside.add("orders", max_id=beside.theirs.ahead, step=10)
    return beside


@dataclass
class Running:
    """A process, the file into which it prints, and the one for its complaints."""

    program: Program
    printed: Path
    errors: Path


@dataclass
class Row:
    """All processes on the row of one tag."""

    bench: SharedRowBench
    folder: Path
    #: In front of the row, if any.
    redis: str = ""
    ours: list[Running] = field(default_factory=list)
    theirs: list[Running] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)
    killed: int = 0
    kept: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: {"ours": [], "theirs": []})
    conflicts: int = 0
    complaints: list[str] = field(default_factory=list)

    def start(self, side: str) -> None:
        number = next(self.numbers)
        if side == "theirs":
            arguments = [str(HERE / "theirs.py"), self.bench.layout, self.bench.server, "orders", "0"]
        else:
            arguments = [str(HERE / "sharer.py"), self.bench.url, "orders", str(number), self.redis]
        printed, errors = (self.folder / f"{number}.{name}" for name in ("out", "err"))
        with printed.open("w") as out, errors.open("w") as err:
            program = Program(*arguments, stdin=PIPE, stdout=out, stderr=err, env={**os.environ}, cwd=REPOSITORY)
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
        getattr(self, side).append(Running(program, printed, errors))

    def kill(self, side: str, place: int) -> None:
        """Kill a process, wherever it is, and collect what it has printed."""
        running: Running = getattr(self, side).pop(place)
        with running.program as program:
            if program.poll() is not None:
                self.complaints.append(running.errors.read_text())
            program.kill()
            program.wait()
        self.killed += 1
        printed = running.printed.read_text()
        whole = printed[: printed.rfind("\n") + 1].splitlines()
        self.conflicts += whole.count("conflict")
        self.kept[side] += segments("\n".join(each for each in whole if each != "conflict"))

    def lines(self) -> list[int]:
        return [each.printed.read_text().count("\n") for each in (*self.ours, *self.theirs)]

    def busy(self, more: int) -> None:
        """Wait until every process has printed so many lines more."""
        before = self.lines()
        until(lambda: all(now >= old + more for now, old in zip(self.lines(), before, strict=True)), TIMEOUT)

    def end(self) -> None:
        for side in ("ours", "theirs"):
            while getattr(self, side):
                self.kill(side, 0)

    def check(self) -> dict[str, int]:
        """Check that no number was given twice, and that the ledger knows who has each. Return the figures."""
        assert self.complaints == []
        reserve(self.bench.store, 1)  # it enters what the other program has taken at last
        entries = self.bench.store.ledger("orders", newest=10_000_000, timeout=TIMEOUT)
        known = sorted((each.low, each.high, each.reason) for each in entries if each.low < each.high)
        every = sorted(each for side in self.kept.values() for each in side)
        assert repeated(every) == 0
        assert repeated([each[:2] for each in known]) == 0
        for side, foreign in (("ours", False), ("theirs", True)):
            held = [each[:2] for each in known if (each[2] == "foreign") is foreign]
            assert [each for each in sorted(self.kept[side]) if not within(each, held)] == [], side
        return {
            "numbers": sum(high - low for low, high in every),
            "segments of ours": len(self.kept["ours"]),
            "segments of theirs": len(self.kept["theirs"]),
            "repeats": repeated(every),
            "foreign entries": sum(reason == "foreign" for *_, reason in known),
            "kills": self.killed,
            "conflicts of theirs": self.conflicts,
        }


def repeated(spans: list[tuple[int, int]]) -> int:
    """How many numbers are in two of the spans, which are sorted."""
    return sum(max(0, older[1] - newer[0]) for older, newer in pairwise(spans))


def within(span: tuple[int, int], held: list[tuple[int, int]]) -> bool:
    """Whether the span lies in one of those held, which are sorted and do not overlap."""
    place = bisect_right(held, span[0], key=lambda each: each[0]) - 1
    return place >= 0 and span[1] <= held[place][1]


@pytest.mark.live
@pytest.mark.covers("N.10")
def test_processes_that_share_a_row_and_are_killed_repeat_nothing(beside: SharedRowBench, tmp_path: Path) -> None:
    row = Row(beside, tmp_path)
    fewest = 5 if beside.theirs.pause else 25
    try:
        for _ in range(2):
            for side in ("ours", "theirs"):
                row.start(side)
                row.start(side)
            row.busy(fewest)
            row.end()
    finally:
        row.end()
    figures = row.check()
    assert figures["foreign entries"] > 1


@pytest.mark.soak
@pytest.mark.covers("N.10")
def test_a_minute_of_four_processes_of_each_and_kills_repeats_nothing(beside: SharedRowBench, tmp_path: Path) -> None:
    row, chance = Row(beside, tmp_path), random.Random(31)
    try:
        for side in ("ours", "theirs"):
            for _ in range(4):
                row.start(side)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(1)
            side = chance.choice(("ours", "theirs"))
            row.kill(side, chance.randrange(4))
            row.start(side)
    finally:
        row.end()
    figures = row.check()
    print(beside.layout, json.dumps(figures))  # pytest shows it with -s
    assert figures["foreign entries"] > 1


@pytest.mark.parametrize(("lease", "rounds"), [(5, 1), pytest.param(0, 5, marks=pytest.mark.soak)])
def test_processes_that_are_killed_while_redis_loses_its_data_repeat_nothing(
    lease: int, rounds: int, server: RedisServer, beside: SharedRowBench, tmp_path: Path
) -> None:
    beside.store.configure("orders", TagChanges(lease=lease), timeout=TIMEOUT)
    row, chance = Row(beside, tmp_path, server.url), random.Random(31)
    snapshot = server.snapshot()
    losses = [lambda: server.restore(snapshot), lambda: server.client().flushall(), server.wipe]
    try:
        for side in ("ours", "ours", "ours", "theirs", "theirs"):
            row.start(side)
        for loss in losses * rounds:
            row.busy(1 if beside.theirs.pause else 8)
            loss()
            for side in ("ours", "theirs"):
                row.kill(side, chance.randrange(2))
                row.start(side)
            snapshot = server.snapshot()
    finally:
        row.end()
    figures = row.check()
    assert figures["foreign entries"] > 1
    with issuer.connect(redis=server.url, store=beside.url, scheduler=None) as ids:
        assert ids.verify("orders") == []
