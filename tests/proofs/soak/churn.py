"""python -m tests.proofs.soak.churn [--seconds 7200] [--share 0.6]: processes and tags that come and go, for two hours.

Processes draw from threads and tasks, by EVALSHA and by HTTP, at a share of the rate that they reach without a pause,
beside `issuer serve` with its keeper. Others are started all the time, and end in order or are killed. Tags are
created, drawn, left alone until they are forgotten, deleted, and created again.

The exit code is 1 if a number came twice, if a call failed, if a segment came late, if a long-lived process grew by
more than GROWTH after the warm-up, or if numbers issued, metrics, ledger, Redis and store do not agree: see
tests/proofs/soak/sums.py.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

import issuer
from issuer.metrics import definitions as of
from issuer_persistence.opening import open_store
from tests.audit import crashes
from tests.programs import children
from tests.proofs.soak.plan import NEW_EVERY, TAGS, Group, Numbers, RecordReader, Setup, indexes, tag_at
from tests.proofs.soak.sums import Counted, Sums, sums, totals
from tests.proofs.telling import Telling
from tests.servers.binaries import primary_server
from tests.servers.mongo import MongoServers, find_mongod
from tests.servers.redis import RedisServer
from tests.waiting import until

#: By how much the memory of a process may grow after the warm-up: 0.05 is 5 %.
GROWTH = 0.05

#: The groups that a process draws from, if it ends in order; and those of one that is killed.
ORDERLY: list[Group] = ["steady", "auto", "harsh", "churn", "new"]
KILLED: list[Group] = ["harsh"]

#: How many processes of a short life run at a time, how long one lives in seconds, and how many calls it makes a
#: second. Every second process is killed.
GUESTS, LIFE, GUEST_RATE = 2, (3.0, 40.0), 40.0

#: Settings of the process that creates and deletes, and looks in the end.
PATIENT: dict[str, Any] = {"timeout": 60, "store_timeout": 50, "redis_timeout": 50}


class Process(Telling):
    """A drawing process, what it has told, and what it has recorded."""

    def __init__(self, setup: Setup, env: dict[str, str]) -> None:
        self.setup = setup
        self.killed = False
        self.records = RecordReader(setup.file)
        with Path(setup.folder).with_name("log").open("ab") as log:
            super().__init__("tests.proofs.soak.drawer", setup.dumped(), stderr=log, env=env)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def kill(self) -> None:
        self.killed = True
        self._process.kill()

    @property
    def last(self) -> dict[str, Any]:
        """What it told of itself at its end; nothing if it was killed, or crashed."""
        return self.told[-1] if self.told and "calls" in self.told[-1] else {}


@dataclass
class Report:
    """What a run came to. `memory`: by process, its size in KiB at each look; `found`: the sums of each tag."""

    seconds: float
    warm: float
    processes: int = 0
    kills: int = 0
    created: int = 0
    deleted: int = 0
    calls: int = 0
    numbers: int = 0
    slowest: float = 0.0
    rates: dict[str, float] = field(default_factory=dict)
    late: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    memory: dict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    load: list[float] = field(default_factory=list)
    counted: int = 0
    found: list[Sums] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)

    def growth(self) -> dict[str, float]:
        """Return by how much each long-lived process grew after the warm-up, relative to its size then."""
        grown = {}
        for name, looks in self.memory.items():
            values = [size for at, size in looks if at >= self.warm]
            tenth = max(1, len(values) // 10)
            if values:
                before, after = statistics.median(values[:tenth]), statistics.median(values[-tenth:])
                grown[name] = (after - before) / before
        return grown

    @property
    def harms(self) -> list[str]:
        """What must not be."""
        return [
            *self.disagreements,
            *(f"{times} x {error}" for error, times in self.errors.items()),
            *(f"{tag}: {times} segments came late" for tag, times in self.late.items()),
            *(f"{name}: grew by {by:.1%}" for name, by in self.growth().items() if by > GROWTH),
        ]

    def lines(self) -> Iterator[str]:
        total = Counter[str]()
        for each in self.found:
            for name in ("moved", "ledger", "issued", "redis", "late", "wasted", "segments", "unexplained"):
                total[name] += getattr(each, name)
        yield f"{self.seconds:.0f} s, the first {self.warm:.0f} s of it to warm up"
        yield f"load of the machine   {statistics.mean(self.load):.1f} on average, {max(self.load):.1f} at most"
        yield f"processes             {self.processes}, {self.kills} of them killed"
        yield f"tags                  {len(self.found)}; created {self.created}, deleted {self.deleted}"
        rate = self.calls / self.seconds
        yield f"calls                 {self.calls:,}, {rate:,.0f} a second; slowest {self.slowest * 1000:.0f} ms"
        for name, rate in self.rates.items():
            yield f"  {name:20}{rate:,.0f} calls a second"
        yield f"numbers issued        {total['issued']:,}; by metrics {self.counted:,}, without those of EVALSHA"
        yield f"reserved in the store {total['moved']:,}; by ledger {total['ledger']:,}, {total['segments']:,} segments"
        yield (
            f"  left in Redis {total['redis']:,}, too late for Redis {total['late']:,}, wasted {total['wasted']:,}, "
            f"dropped with deleted tags or killed processes {total['unexplained']:,}"
        )
        for name, by in self.growth().items():
            looks = self.memory[name]
            yield f"memory                {name}: {by:+.1%} to {looks[-1][1] / 1024:.1f} MB"
        yield "nothing is wrong" if not self.harms else "WRONG:"
        yield from self.harms


def anonymous(pid: int) -> int:
    """Return the memory that a process has for itself alone, in KiB: 0 if it has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) if found else 0


@contextmanager
def serving(redis: str, store: str, folder: Path, env: dict[str, str]) -> Iterator[tuple[int, dict[str, int]]]:
    """Start `issuer serve`. Yields its port, and its processes by name."""
    log = folder / "serve.log"
    words = ["--redis", redis, "--store", store, "serve", "--http", "127.0.0.1:0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "issuer", *words], stderr=stderr, env=env)
    try:
        until(lambda: process.poll() is not None or "serving" in log.read_text(), 60, "it serves")
        found = re.search(r"serving http://\S+?:(\d+)", log.read_text())
        assert found is not None, log.read_text()
        names = ("serve: worker", "serve: keeper")
        yield int(found[1]), dict(zip(names, until(lambda: children(process.pid)), strict=True))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)


#: How long a run goes on at most if nothing happens, in seconds.
LONGEST = 300.0


class Run:
    """One run: its processes, the tags that come and go, and the numbers so far."""

    def __init__(self, redis: str, store: str, folder: Path, report: Report, *, seed: int, share: float) -> None:
        self.began = time.monotonic()
        self.numbers: dict[int, Numbers] = defaultdict(Numbers)
        self._redis, self._store, self._folder = redis, store, folder
        self._report, self._seed, self._share = report, seed, share
        self._random = random.Random(seed)
        self.env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics")}
        self._present = set(indexes("churn"))
        self._new = 0
        self._deaths: dict[Process, float] = {}
        self.running: list[Process] = []

    def start(self, name: str, way: Any, groups: list[Group], **given: Any) -> Process:
        setup = Setup(
            name, way, self._redis, self._store, str(self._folder / "numbers"), self._seed, self.began, groups,
            share=self._share, **given,
        )  # fmt: skip
        process = Process(setup, self.env)
        self.running.append(process)
        self._report.processes += 1
        return process

    @property
    def at(self) -> float:
        return time.monotonic() - self.began

    def guests(self) -> None:
        """Start processes that live for a while, and end those whose time is over."""
        while len(self._deaths) < GUESTS:
            kill = self._report.processes % 2 == 0
            process = self.start(
                f"guest-{self._report.processes}",
                self._random.choice(["threads", "tasks"]),
                KILLED if kill else ORDERLY,
                rate=GUEST_RATE,
                idle_after=self._random.choice([10.0, 900.0]),
            )
            process.killed = kill
            self._deaths[process] = self.at + self._random.uniform(*LIFE)
        for process, end in list(self._deaths.items()):
            if self.at >= end:
                self.dismiss(process)

    def dismiss(self, process: Process) -> None:
        self._deaths.pop(process, None)
        process.kill() if process.killed else process.stop()

    def tags(self, ids: issuer.Issuer) -> None:
        """Delete a tag, or create it again; and create a new one if it is time."""
        index = self._random.choice(indexes("churn"))
        tag = tag_at(index)
        if index in self._present:
            ids.delete(tag.name)
            self._present.discard(index)
            self._report.deleted += 1
        else:
            self.create(ids, index)
            self._present.add(index)
        while self._new * NEW_EVERY <= self.at:
            self.create(ids, len(TAGS) + self._new)
            self._new += 1

    def create(self, ids: issuer.Issuer, index: int) -> None:
        tag = tag_at(index)
        ids.create(tag.name, **tag.settings)
        self._report.created += 1

    def read(self) -> None:
        """Read what was recorded, and what ended processes have told."""
        for process in list(self.running):
            ended = process.ended
            for index, n, low in process.records.fresh():
                self.numbers[index].add(low, n)
                self._report.numbers += n
            if ended:
                self._account(process)

    def _account(self, process: Process) -> None:
        process.join()
        self.running.remove(process)
        process.setup.file.unlink(missing_ok=True)
        report, last = self._report, process.last
        for told in process.told:
            if "late" in told and not told["late"].startswith(("churn", "fast")):
                report.late[told["late"]] += 1
        if process.killed:
            report.kills += 1
        elif not last:
            report.errors[f"{process.setup.name} has crashed"] += 1
        report.calls += last.get("calls", 0)
        report.slowest = max(report.slowest, last.get("slowest", 0.0))
        report.errors.update(last.get("errors", {}))
        if process.setup.rate is None and last:
            report.rates[process.setup.name] = last["rate"]

    def end(self) -> None:
        """Let all drawing processes end, and read what they have left."""
        for process in self.running:
            self.dismiss(process)
        for process in self.running:
            process.join()
        self.read()


def churn(
    redis_url: str, store: str, folder: Path, *, seconds: float, share: float, seed: int,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:  # fmt: skip
    """Draw for so many seconds, and compare all sums in the end. `folder`: empty."""
    # For some 20 minutes, more tags get labels of their own in the metrics, up to 200, and more counters of each.
    report = Report(seconds, seconds / 3)
    run = Run(redis_url, store, folder, report, seed=seed, share=share)
    for name in ("numbers", "metrics"):
        (folder / name).mkdir()
    with issuer.connect(redis=redis_url, store=store, scheduler=None, **PATIENT) as ids:
        for index in range(len(TAGS)):
            run.create(ids, index)
        with serving(redis_url, store, folder, run.env) as (port, served):
            lasting = {
                "threads": run.start("threads", "threads", ORDERLY, callers=4).pid,
                "tasks": run.start("tasks", "tasks", ORDERLY, callers=8).pid,
                **served,
            }
            run.start("raw", "raw", ["raw"], callers=2, rate=20.0)
            run.start("http", "http", ["web"], callers=2, rate=20.0, http=port)
            said = 0.0
            # On a busy machine, a short run ends before the first number: go on until everything has happened.
            happened = False
            while run.at < seconds or not (happened or run.at > LONGEST):
                run.guests()
                run.tags(ids)
                run.read()
                happened = min(report.kills, report.created, report.deleted, report.numbers) > 0
                for name, pid in lasting.items():
                    report.memory[name].append((run.at, anonymous(pid)))
                report.load.append(os.getloadavg()[0])
                if run.at >= said:
                    said += 60.0
                    sizes = ", ".join(f"{name} {looks[-1][1] / 1024:.1f}" for name, looks in report.memory.items())
                    tell(f"{run.at:5.0f} s  {report.numbers:>12,} numbers; MB: {sizes}; load {report.load[-1]:.1f}")
                time.sleep(1.0)
            run.end()
        for line in [each for each in report.memory if not report.memory[each][-1][1]]:
            report.errors[f"{line} has ended"] += 1
        counted, opened = Counted(folder / "metrics"), open_store(store)
        report.counted = sum(counted.tags(of.ISSUED).values())
        with redis.Redis.from_url(redis_url, decode_responses=True) as client:
            report.found = sums(opened, client, counted, run.numbers, report.kills)
        opened.close()
        report.disagreements = [harm for each in report.found for harm in each.harms()]
        report.disagreements += totals(counted, report.found)
        report.disagreements += [str(each) for each in ids.verify()]
        for log in ("log", "serve.log"):
            report.errors.update(crashes((folder / log).read_text(errors="replace")))
    return report


def main() -> None:
    """Run it and say what came; exit 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=7200.0)
    parser.add_argument("--share", type=float, default=0.6, help="of the rate without a pause; 0.6")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mongodb", action="store_true", help="a MongoDB server as the store, instead of SQLite")
    given = parser.parse_args()
    binary = primary_server()
    if binary is None:
        parser.error("needs a redis-server: `make ready` gets one")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="issuer-soak-")))
        store = f"sqlite:///{folder}/ids.db"
        if given.mongodb:
            program = find_mongod()
            if program is None:
                parser.error("needs a mongod: on x86-64 `make ready` gets one")
            store = f"{ends.enter_context(MongoServers(program)).url}/soak"
        server = ends.enter_context(RedisServer(binary))
        report = churn(
            server.url, store, folder, seconds=given.seconds, share=given.share, seed=given.seed,
            tell=lambda line: print(line, flush=True),
        )  # fmt: skip
    print(*report.lines(), sep="\n")
    raise SystemExit(bool(report.harms))


if __name__ == "__main__":
    main()
