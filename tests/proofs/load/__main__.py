"""python -m tests.proofs.load [--seconds 600] [--json FILE]: 200 clients, one Redis, a MongoDB server 50 ms away.

The exit code is 1 if a number came twice or from above the store's `max`, if a call failed, if a process grew by 5 % or
more after the warm-up, or if it leaked. Leaked is what goes beyond what its pools may hold, which the code's own limits
say, and what keeps growing after the warm-up, be it within those limits: tests/proofs/load/leaks.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from array import array
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import issuer
from tests.proofs.load.leaks import FIXED, POOLED, leaks
from tests.proofs.telling import Telling
from tests.servers.binaries import primary_server
from tests.servers.mongo import MongoServers, find_mongod
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

TAG = "load"
#: Settings of the process that asks before and after: a machine that stands still for seconds is no fault.
PATIENT: dict[str, Any] = {"timeout": 60, "store_timeout": 50, "redis_timeout": 50}
#: What the store takes longer than on its own, in seconds.
STORE_DELAY = 0.05


@dataclass(frozen=True, slots=True)
class Report:
    """What a run came to. `memory`: by how much the process that grew most did after the warm-up; 0.05: 5 %."""

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


class Process(Telling):
    """A process of clients, and what it tells once a second."""

    def __init__(self, redis: str, store: str, threads: int, file: Path) -> None:
        self.file = file
        super().__init__("tests.proofs.load.client", redis, store, TAG, str(threads), str(file))

    def growth(self, warm: int) -> float:
        """Return by how much its memory grew, relative to what it was after so many seconds."""
        # The last line is told when the clients have ended.
        values: list[int] = [told["memory"] for told in self.told[warm:-1]]
        tenth = max(1, len(values) // 10)
        before, after = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
        return (after - before) / before


def load(
    redis_url: str,
    mongo: MongoServers,
    folder: Path,
    *,
    processes: int,
    threads: int,
    seconds: int,
    warm: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Let so many clients draw for so long from a MongoDB that is far from them. `warm`: in seconds."""
    store = f"{mongo.url}/load{threads}"
    with (
        issuer.connect(redis=redis_url, store=store, scheduler=None, **PATIENT) as ids,
        FaultProxy(("127.0.0.1", mongo.port)) as far,
    ):
        far.delay_replies(STORE_DELAY)
        slow_store = f"mongodb://127.0.0.1:{far.port}/load{threads}?directConnection=true"
        ids.create(TAG, step=100_000)
        running = [Process(redis_url, slow_store, threads, folder / f"{n}") for n in range(processes)]
        shown = 0

        def watched() -> bool:
            nonlocal shown
            rounds = min(len(process.told) for process in running)
            if rounds > shown:
                shown = rounds
                tell(f"{rounds:4} s  {sum(process.told[-1]['count'] for process in running):>12,} numbers")
            return rounds >= seconds

        try:
            until(watched, seconds * 5 + 120)
        finally:
            for process in running:
                process.stop()
                process.join()
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
            memory=max(process.growth(warm) for process in running),
            leaked=sorted({leak for process in running for leak in leaks(process.told[:-1], warm, threads)}),
            peaks={what: max(told[what] for process in running for told in process.told) for what in (*POOLED, *FIXED)},
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


PROCESSES, THREADS = 8, 25
#: Seconds until caches and pools have their size.
WARM = 30


def main() -> None:
    """Run it and say what came; exit 1 if anything repeated, failed, grew or leaked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    binary, mongod = primary_server(), find_mongod()
    if binary is None or mongod is None:
        parser.error("needs a redis-server and a mongod: on x86-64 `make ready` gets them")
    with RedisServer(binary) as redis, MongoServers(mongod) as mongo, tempfile.TemporaryDirectory() as folder:
        report = load(
            redis.url,
            mongo,
            Path(folder),
            processes=PROCESSES,
            threads=THREADS,
            seconds=given.seconds,
            warm=min(WARM, given.seconds // 4),
            tell=lambda line: print(line, flush=True),
        )
    print(told(report))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(asdict(report), indent=2), encoding="utf-8")
    raise SystemExit(0 if report.sound else 1)


def told(report: Report) -> str:
    """Return the report as text."""
    lines = {
        "clients": f"{report.clients}, {report.seconds:g} s",
        "numbers": f"{report.numbers:,}: {report.numbers / report.seconds:,.0f} a second",
        "repeats": report.repeats,
        "above max": report.above_max,
        "errors": "; ".join(report.errors) or "none",
        "slowest call": f"{report.slowest * 1000:.0f} ms",
        "memory": f"{report.memory:+.1%} in the process that grew most",
        "leaked": "; ".join(report.leaked) or "nothing",
        "most a process": ", ".join(f"{report.peaks[kind]} {name}" for kind, name in {**POOLED, **FIXED}.items()),
    }
    return "\n".join(f"{name:14} {value}" for name, value in lines.items())


if __name__ == "__main__":
    main()
