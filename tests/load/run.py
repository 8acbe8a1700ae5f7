"""Starts the clients, watches them, and counts what came."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import issuer
from tests.load.leaks import FIXED, POOLED, leaks
from tests.waiting import until

TAG = "load"
#: What the store takes longer than on its own, in seconds.
STORE_DELAY = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to.

    `memory`: by how much the process that grew most did, from its first tenth after the warm-up to its last; 0.05: 5 %.
    `leaked`: in any process, in words; see tests/load/leaks.py. `peaks`: the most that a process had of each.
    """

    seconds: float
    clients: int
    numbers: int
    repeats: int
    above_max: int
    errors: list[str]
    slowest: float
    memory: float
    leaked: list[str]
    peaks: dict[str, int]

    @property
    def sound(self) -> bool:
        """Whether nothing repeated, failed, grew or leaked."""
        return not (self.repeats or self.above_max or self.errors or self.leaked) and self.memory < 0.05


class Process:
    """A process of clients, and what it tells once a second."""

    def __init__(self, redis: str, store: str, threads: int, file: Path) -> None:
        self.file = file
        self._threads = threads
        self.told: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.load.client", redis, store, TAG, str(threads), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told.append(json.loads(line))

    def stop(self) -> None:
        """Let it end in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.wait()
            self._listener.join(5)
            if self._process.stdout is not None:
                self._process.stdout.close()

    def growth(self, what: str, warm: int) -> float:
        """Return by how much it grew, relative to the beginning, leaving out what it said while it warmed up."""
        # The last line is told when the clients have ended.
        values: list[int] = [told[what] for told in self.told[warm:-1]]
        tenth = max(1, len(values) // 10)
        before, after = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        return (after - before) / before

    def leaked(self, warm: int) -> list[str]:
        """Return what leaked, in words."""
        return leaks(self.told[:-1], warm, self._threads)

    def peak(self, what: str) -> int:
        """Return the most that there ever were."""
        values: list[int] = [told[what] for told in self.told]
        return max(values)


def load(
    redis_url: str,
    store: str,
    slow_store: str,
    folder: Path,
    *,
    processes: int,
    threads: int,
    seconds: float,
    warm: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Let so many clients draw for so long. `slow_store`: the store as the clients see it; `warm`: in seconds."""
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create(TAG, step=100_000)
        running = [Process(redis_url, slow_store, threads, folder / f"{n}") for n in range(processes)]
        shown = 0

        def watched() -> bool:
            nonlocal shown
            rounds = min(len(process.told) for process in running)
            if rounds > shown:
                shown = rounds
                numbers, connections = (
                    sum(process.told[-1][what] for process in running) for what in ("count", "redis")
                )
                tell(f"{rounds:4} s  {numbers:>12,} numbers  {connections} connections to Redis")
            return rounds >= seconds

        try:
            until(watched, seconds * 5 + 60)
        finally:
            for process in running:
                process.stop()
        most = ids.inspect(TAG).store.max
        numbers, repeats, above = counted([process.file for process in running], most)
        last = [process.told[-1] for process in running]
        return Report(
            seconds=seconds,
            clients=processes * threads,
            numbers=numbers,
            repeats=repeats,
            above_max=above,
            errors=[told["last_error"] for told in last if told["errors"]],
            slowest=max(told["slowest"] for told in last),
            memory=max(process.growth("memory", warm) for process in running),
            leaked=sorted({leak for process in running for leak in process.leaked(warm)}),
            peaks={what: max(process.peak(what) for process in running) for what in (*POOLED, *FIXED)},
        )


def counted(files: list[Path], most: int) -> tuple[int, int, int]:
    """Return how many numbers there are, how many of them came before, and how many lie above `most`.

    A bit for each number up to `most`: 50 million take 6 MB.
    """
    seen = bytearray(most // 8 + 1)
    numbers = repeats = above = 0
    for file in files:
        with file.open("rb") as source:
            while part := source.read(1 << 20):
                for number in array("q", part):
                    numbers += 1
                    if number > most:
                        above += 1
                        continue
                    place, bit = number >> 3, 1 << (number & 7)
                    if seen[place] & bit:
                        repeats += 1
                    seen[place] |= bit
    return numbers, repeats, above
