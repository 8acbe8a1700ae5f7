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

import redis

import issuer
from tests.waiting import until

TAG = "load"
#: What the store takes longer than on its own, in seconds.
STORE_DELAY = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to.

    `memory`: by how much the process that grew most did, from its first tenth after the warm-up to its last; 0.05: 5 %.
    `threads`, `files`: by how many more there were at the end in the process that gained most; `connections`: the same
    for Redis, in all.
    """

    seconds: float
    clients: int
    numbers: int
    repeats: int
    above_max: int
    errors: list[str]
    slowest: float
    memory: float
    threads: int
    files: int
    connections: int

    @property
    def sound(self) -> bool:
        """Whether nothing repeated, failed, grew or leaked."""
        leaked = self.threads > 0 or self.files > 0 or self.connections > 0
        return not (self.repeats or self.above_max or self.errors or leaked) and self.memory < 0.05


class Process:
    """A process of clients, and what it tells once a second."""

    def __init__(self, redis: str, store: str, threads: int, file: Path) -> None:
        self.file = file
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

    def gained(self, what: str, warm: int) -> int:
        """Return how many more there were at the end than at the beginning."""
        values = [told[what] for told in self.told[warm:-1]]
        gained: int = values[-1] - max(values[: max(1, len(values) // 10)])
        return gained


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
    """Let so many clients draw for so long. `slow_store`: the same store as the clients see it; `warm`: seconds."""
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids, redis.Redis.from_url(redis_url) as client:
        ids.create(TAG, step=100_000)
        running = [Process(redis_url, slow_store, threads, folder / f"{n}") for n in range(processes)]
        connections: list[int] = []

        def watched() -> bool:
            rounds = min(len(process.told) for process in running)
            if rounds > len(connections):
                connections.append(client.info("clients")["connected_clients"])
                numbers = sum(process.told[-1]["count"] for process in running)
                tell(f"{rounds:4} s  {numbers:>12,} numbers  {connections[-1]} connections")
            return rounds >= seconds

        try:
            until(watched, seconds * 2 + 30)
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
            threads=max(process.gained("threads", warm) for process in running),
            files=max(process.gained("files", warm) for process in running),
            connections=connections[-1] - max(connections[warm : warm + max(1, len(connections) // 10)]),
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
