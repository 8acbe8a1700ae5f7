"""The demo's course: draw, extend, take a snapshot, kill, roll back, draw on, recover, draw on, count."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import click

from issuer.api.blocking import Issuer
from issuer.chaos.demo.crew import Crew, Drawn, Loaded
from issuer.chaos.demo.server import PrivateServer
from issuer.chaos.demo.tally import Tally
from issuer.chaos.scratch import binary, without_settings
from issuer.chaos.screen import Screen
from issuer.errors import IssuerError
from issuer.gateway.keys import redis_key
from issuer.wiring import connect

TAG = "orders"
PREFIX = "issuer"
STEP = 1000
PROCESSES = 4

#: At so many numbers drawn: each lies well away from the marks, at 20 % of a segment, so that no load is on its way.
SNAPSHOT_AT, KILL_AT, RECOVER_AT, GOAL = 1_500, 2_700, 4_450, 5_700

#: A unix socket's path may have about so many bytes; macOS allows the fewest.
LONGEST_SOCKET = 100


def play() -> bool:
    """Run the demo; whether no number came twice and none lay above the store's max. Raises IssuerError."""
    with ExitStack() as ends:
        folder = _folder(ends)
        program = binary()
        if program is None:
            url, server, name = _fake(ends), None, "fakeredis: no redis-server is on PATH, so no rollback today"
        else:
            server = PrivateServer(program, folder)
            ends.callback(server.close)
            server.start()
            name = f"{server.version}, process {server.pid}, on a unix socket of its own"
            server.admit()
            url = server.url
        store = f"sqlite:///{folder / 'issuer.db'}"
        config = folder / "issuer.toml"
        config.touch()
        with without_settings():
            issuer = ends.enter_context(
                connect(redis=url, store=store, prefix=PREFIX, timeout=10.0, scheduler=None, config=config)
            )
        issuer.create(TAG, step=STEP)
        click.secho(f"{PROCESSES} processes draw numbers of one tag. None may come twice.", bold=True)
        click.echo(f"\n  Redis  {name}\n  store  SQLite, in a temporary folder\n"
                   f"  tag    {TAG}, strict order, {STEP} numbers a segment\n")  # fmt: skip
        crew = ends.enter_context(Crew(PROCESSES, folder, url, store, str(config), TAG))
        return _Story(issuer, crew, server).run()


class _Story:
    def __init__(self, issuer: Issuer, crew: Crew, server: PrivateServer | None) -> None:
        self._issuer = issuer
        self._crew = crew
        self._server = server
        self._screen = Screen(GOAL)
        self._tally = Tally()
        self._segments: list[Loaded] = []
        self._shares: list[float] = []
        self._resumed_already = False
        self._acts = [(RECOVER_AT, self._recover), (GOAL, self._end)]
        if server is not None:
            self._acts = [(SNAPSHOT_AT, self._snapshot), (KILL_AT, self._roll_back), *self._acts]

    def run(self) -> bool:
        begun = time.monotonic()
        for report in self._crew.reports(every=0.05):
            if isinstance(report, Drawn):
                self._tally.add(report.number, report.at)
                self._resumed()
            elif isinstance(report, Loaded):
                self._extended(report)
            if self._acts and self._tally.count >= self._acts[0][0]:
                self._acts.pop(0)[1]()
            self._screen.progress(self._tally.count, f"number {self._tally.highest}")
        self._screen.end()
        return self._summary(time.monotonic() - begun)

    # ------------------------------------------------------------------ what happens by itself

    def _extended(self, loaded: Loaded) -> None:
        name = f"segment {loaded.low + 1}..{loaded.high}"
        current = next((one for one in self._segments if one.low < loaded.cur < one.high), None)
        self._segments.append(loaded)
        if current is None:
            self._screen.say(f"{name} loaded: nothing was left in hand", mark="+", hue="cyan")
            return
        share = (loaded.cur - current.low) / (current.high - current.low)
        self._shares.append(share)
        self._screen.say(
            f"{name} loaded at number {loaded.cur}: {share:.0%} of {current.low + 1}..{current.high} used",
            mark="+",
            hue="green",
        )

    def _resumed(self) -> None:
        before, after = self._tally.last_before, self._tally.first_after
        if after is not None and not self._resumed_already:
            self._resumed_already = True
            # Not the number itself: another process may have got a lower one, and not have told yet.
            above = next((one.low for one in self._segments if one.low < after <= one.high), after - 1)
            self._screen.say(
                f"the fence refuses that state: after {before} come numbers above {above}", mark="✓", hue="green"
            )

    # ------------------------------------------------------------------ what we do to it

    def _snapshot(self) -> None:
        assert self._server is not None  # noqa: S101 - for mypy: this act is played with a server only
        self._server.save()
        self._screen.say("Redis writes a snapshot", mark="•")

    def _cur(self) -> int:
        """Return the last number issued, as Redis has it."""
        assert self._server is not None  # noqa: S101 - for mypy, as above
        cur = self._server.client.hget(redis_key(PREFIX, TAG), "cur")
        return int(cur) if isinstance(cur, bytes) else 0

    def _roll_back(self) -> None:
        assert self._server is not None  # noqa: S101 - for mypy, as above
        self._screen.say("kill -9 Redis, and start it again from that snapshot", mark="✗", hue="red")
        self._server.roll_back()
        believed = self._cur()
        self._tally.back_at = time.monotonic()
        self._server.admit()
        self._screen.say(f"it is back, and believes that {believed} was the last number", mark="!", hue="yellow")

    def _recover(self) -> None:
        (recovery,) = self._issuer.recover(TAG)
        self._tally.floor = recovery.new
        self._screen.say(
            f"issuer recover {TAG}, meanwhile: store max {recovery.old} -> {recovery.new}, gap {recovery.gap}",
            mark="✓",
            hue="green",
        )

    def _end(self) -> None:
        self._crew.dismiss()

    # ------------------------------------------------------------------ the end

    def _summary(self, took: float) -> bool:
        tally, store_max = self._tally, self._issuer.inspect(TAG).store.max
        gaps = tally.gaps()
        right = tally.repeats == 0 and tally.highest <= store_max
        rows = [
            ("numbers issued", f"{tally.count}, by {PROCESSES} processes in {took:.1f} s"),
            ("repeats", str(tally.repeats)),
            ("lowest, highest", f"{tally.lowest}, {tally.highest}"),
            ("store max", f"{store_max}{'' if tally.highest <= store_max else ', BELOW the highest'}"),
            ("segments", f"{len(self._segments)} loaded; {len(self._shares)} ahead of need, {self._used()}"),
            ("gaps", f"{sum(gap.size for gap in gaps)} numbers that nobody will ever get"),
            *(("", f"{gap.low}..{gap.high}: {gap.size}, {gap.cause}") for gap in gaps),
        ]
        self._screen.write()
        for name, value in rows:
            self._screen.write(f"  {click.style(f'{name:17}', bold=True)}{value}")
        verdict = "No number came twice, and none lay above the store's max." if right else "THE PROMISE IS BROKEN."
        self._screen.write()
        self._screen.write(click.style(verdict, fg="green" if right else "red", bold=True))
        return right

    def _used(self) -> str:
        if not self._shares:
            return "none"
        low, high = f"{min(self._shares):.0%}", f"{max(self._shares):.0%}"
        return f"at {low if low == high else f'{low} to {high}'} used"


# ---------------------------------------------------------------------- surroundings


def _folder(ends: ExitStack) -> Path:
    made = tempfile.mkdtemp(prefix="issuer-demo-")
    ends.callback(shutil.rmtree, made, ignore_errors=True)
    if len(os.fsencode(made)) + len("/redis.sock") > LONGEST_SOCKET:
        made = tempfile.mkdtemp(prefix="issuer-demo-", dir="/tmp")
        ends.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _fake(ends: ExitStack) -> str:
    try:
        from issuer.chaos.demo.fake import FakeRedis
    except ImportError as error:
        raise IssuerError(
            "the demo needs a redis-server or valkey-server on PATH (Debian: apt-get install redis-server), "
            'or fakeredis: pip install "segment-issuer[demo]"'
        ) from error
    server = FakeRedis()
    ends.callback(server.close)
    return server.url
