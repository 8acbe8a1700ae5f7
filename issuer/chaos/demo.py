"""`issuer demo`: processes draw while Redis is killed and restarted from a snapshot; then all numbers are counted."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click

from issuer.api.blocking import Issuer
from issuer.chaos.call_files import ERRORS, CallEntry, Follower, all_calls
from issuer.chaos.checker import check
from issuer.chaos.crew import Workers
from issuer.chaos.proxy import FaultProxy
from issuer.chaos.scratch import binary
from issuer.chaos.screen import Screen
from issuer.chaos.server import RedisServer
from issuer.chaos.watched import Watched
from issuer.chaos.worker import LOADS, Job, Setup
from issuer.clock import monotonic, monotonic_ns
from issuer.errors import IssuerError
from issuer.gateway.keys import redis_key
from issuer.terminal import numbered
from issuer.wiring import connect, without_environment

TAG = "orders"
STEP = 1000
PROCESSES = 4

#: Each step of the demo starts when this many numbers were drawn. No segment is being loaded then, because loads start
#: when 20 % of a segment are used.
SNAPSHOT_AT, KILL_AT, RECOVER_AT, GOAL = 1_500, 2_700, 4_450, 5_700

#: Seconds between two draws of a process. This pace is slow enough to watch.
PACE = 0.005
#: Seconds between two reads of the files in which the processes record their calls.
LOOK = 0.01
#: Timeout of a draw, in seconds. Draws of a strict tag wait while Redis restarts, so the timeout is longer than a
#: restart.
PATIENCE = 15.0

now = monotonic_ns


class Gap(NamedTuple):
    """Numbers low..high that no caller received, and the cause."""

    low: int
    high: int
    cause: str


def gaps(calls: Iterable[CallEntry], back: float, floor: int) -> list[Gap]:
    """Return the ranges of missing numbers, and the cause of each.

    A number is missing if no caller received it, but a caller received a higher number.

    `calls`: the calls that returned numbers. `back`: when clients could connect to the restarted server, in ns; inf
    means never. `floor`: highest number that `recover` skipped; 0 means none.
    """

    def cause(below: CallEntry, above: CallEntry) -> str:
        if below.ended < back <= above.ended:
            return "Redis killed and rolled back"
        if below.last < floor < above.first:
            return "recover"
        if above.ended < back < math.inf:
            return "a reply lost when Redis was killed"
        return "unexplained"

    return [
        Gap(below.last + 1, above.first - 1, cause(below, above))
        for below, above in pairwise([CallEntry(0, 0, 0, 0), *sorted(calls)])
        if above.first > below.last + 1
    ]


def play() -> bool:
    """Run the demo. Return False if a number was issued twice, above the store's max or out of order."""
    with ExitStack() as ends:
        made = tempfile.TemporaryDirectory(prefix="issuer-demo-", ignore_cleanup_errors=True)
        folder = Path(ends.enter_context(made))
        server = ends.enter_context(RedisServer(binary()))
        front = ends.enter_context(FaultProxy(server.address))
        name = f"{server.product()}, process {server.pid}, on loopback behind a proxy"
        store = f"sqlite:///{folder / 'issuer.db'}"
        config = folder / "issuer.toml"
        config.touch()
        given = {"redis": front.url, "store": store, "timeout": 10.0, "scheduler": None, "config": config}
        issuer = ends.enter_context(without_environment(connect, **given))
        issuer.create(TAG, step=STEP)
        click.secho(f"{PROCESSES} processes draw numbers of one tag. No number may be issued twice.", bold=True)
        click.echo(f"\n  Redis  {name}\n  store  SQLite, in a temporary folder\n"
                   f"  tag    {TAG}, strict order, {STEP:,} numbers per segment\n")  # fmt: skip
        setups = [
            Setup(
                name=f"w{at}",
                folder=str(folder),
                redis=front.url,
                store=store,
                config=str(config),
                jobs=[Job(0, TAG, "next")],
                pace=PACE,
                timeout=PATIENCE,
                redis_timeout=1.0,
                store_timeout=3.0,
                loads=True,
            )
            for at in range(PROCESSES)
        ]
        crew = ends.enter_context(Workers(PATIENCE))
        crew.start(*setups)
        return _Story(issuer, crew, folder, server, front).run()


class _Story:
    def __init__(self, issuer: Issuer, crew: Workers, folder: Path, server: RedisServer, front: FaultProxy) -> None:
        self._issuer = issuer
        self._crew = crew
        self._folder = folder
        self._server, self._front = server, front
        names = [worker.name for worker in crew.workers]
        self._drawing = [Follower(folder, name) for name in names]
        self._loading = [Follower(folder / LOADS, name) for name in names]
        self._screen = Screen(GOAL)
        self._count = self._highest = 0
        #: Loaded segments. Their `began` is not a time: it is the last number issued before the load.
        self._segments: list[CallEntry] = []
        self._shares: list[float] = []
        #: `_back`: when the restarted server was available, in ns. `_before`: last number issued before the kill.
        self._back, self._before = math.inf, 0
        #: The highest number that was in Redis before the kill. If a caller received a number up to this one,
        #: the number was issued before the kill, even if the caller recorded it later.
        self._top = math.inf
        self._resumed = False
        #: Highest number that `recover` skipped.
        self._floor = 0
        self._acts: list[tuple[int, Callable[[], None]]] = [
            (SNAPSHOT_AT, self._save),
            (KILL_AT, self._roll_back),
            (RECOVER_AT, self._recover),
            (GOAL, crew.dismiss),
        ]

    def run(self) -> bool:
        begun = monotonic()
        while self._acts:
            time.sleep(LOOK)
            self._look()
            if self._count >= self._acts[0][0]:
                self._acts.pop(0)[1]()
            self._screen.progress(self._count, f"number {self._highest}")
        self._look()
        self._screen.clear()
        return self._summary(monotonic() - begun)

    def _look(self) -> None:
        for worker in self._crew.workers:
            worker.check_alive()
        calls = [call for follower in self._drawing for call in follower.fresh(0)]
        # Read the loads after the calls, so that the segment of each number is known.
        loaded = [call for follower in self._loading for call in follower.fresh(0)]
        for call in calls:
            if call.first < 0:
                raise IssuerError(f"a process of the demo was given no number: {ERRORS[-call.last]}")
            self._highest = max(self._highest, call.last)
            if call.last <= self._top:
                self._before = max(self._before, call.last)
        self._count += len(calls)
        after = [call.first for call in calls if call.first > self._top]
        if after and not self._resumed:
            self._resumed = True
            # `first` is the lowest recorded number after the restart. Show the start of its segment instead: another
            # process may have drawn a lower number of this segment in a call that is not recorded yet.
            first = min(after)
            above = next((one.first for one in [*self._segments, *loaded] if one.first <= first <= one.last), first) - 1
            found = f"after {self._before}, numbers go on above {above}"
            self._screen.say(f"the fence rejects this state: {found}", mark="✓", hue="green")
        for segment in sorted(loaded, key=lambda segment: segment.ended):
            self._extended(segment)

    def _extended(self, loaded: CallEntry) -> None:
        name, cur = f"segment {loaded.first}..{loaded.last}", loaded.began
        current = next((one for one in self._segments if one.first <= cur < one.last), None)
        self._segments.append(loaded)
        if current is None:
            self._screen.say(f"{name} loaded: Redis had no numbers left", mark="+", hue="cyan")
            return
        share = (cur - current.first + 1) / (current.last - current.first + 1)
        self._shares.append(share)
        used = f"{share:.0%} of {current.first}..{current.last} used"
        self._screen.say(f"{name} loaded at number {cur}: {used}", mark="+", hue="green")

    def _save(self) -> None:
        self._snapshot = self._server.snapshot()
        self._screen.say("Redis writes a snapshot", mark="•")

    def _roll_back(self) -> None:
        self._screen.say("Redis is killed (kill -9) and restarted from the snapshot", mark="✗", hue="red")
        self._server.kill()
        self._top = max(segment.last for segment in self._segments)
        # Below, `cur` is read: the last number that the restored Redis counts as issued. Let no process draw before,
        # because a draw could change it.
        self._front.refuse()
        self._server.restore(self._snapshot)
        with self._server.client() as client:
            believed = int(client.hget(redis_key("issuer", TAG), "cur") or 0)
        self._back = now()
        self._front.pass_through()
        self._screen.say(f"Redis is back, with {believed} as the last number issued", mark="!", hue="yellow")

    def _recover(self) -> None:
        (recovery,) = self._issuer.recover(TAG)
        self._floor = recovery.new
        found = f"store max {recovery.old} -> {recovery.new}, gap {recovery.gap:,}"
        self._screen.say(f"issuer recover {TAG}: {found}", mark="✓", hue="green")

    def _summary(self, took: float) -> bool:
        store_max = self._issuer.inspect(TAG).store.max
        callers = all_calls(self._folder)
        tag = Watched(TAG, "strict", 0, STEP, 0, int(PATIENCE * 1e9), samples=[(now(), store_max)])
        found = check([tag], callers, [], lasting=(), stopped={})
        granted = sorted(call for calls in callers for call in calls.granted())
        missing = gaps(granted, self._back, self._floor)
        rows = [
            ("numbers issued", f"{found.acknowledged:,}, by {PROCESSES} processes in {took:.1f} s"),
            ("duplicates", f"{found.repeats:,}"),
            ("lowest, highest", f"{granted[0].first}, {granted[-1].last}"),
            ("store max", f"{store_max}{', BELOW the highest' if found.above else ''}"),
            ("segments", f"{len(self._segments)} loaded; {len(self._shares)} before they were needed, {self._used()}"),
            ("gaps", f"{numbered(found.gap, 'number')} that are never issued"),
            *(("", f"{low}..{high}: {high - low + 1:,}, {cause}") for low, high, cause in missing),
            *(("example", example) for example in found.examples),
        ]
        self._screen.write()
        for name, value in rows:
            self._screen.write(f"  {click.style(f'{name:17}', bold=True)}{value}")
        kept = "No number was issued twice, and none above the store's max."
        verdict = kept if found.sound else "A PROMISE WAS BROKEN."
        self._screen.write()
        self._screen.write(click.style(verdict, fg="green" if found.sound else "red", bold=True))
        return found.sound

    def _used(self) -> str:
        if not self._shares:
            return "none"
        low, high = f"{min(self._shares):.0%}", f"{max(self._shares):.0%}"
        return f"at {low if low == high else f'{low} to {high}'} of the one before"
