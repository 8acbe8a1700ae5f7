"""The world of a run: two Redis servers, a store, proxies before them, and the processes that draw."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from issuer.api.blocking import Issuer
from issuer.chaos.call_files import all_calls
from issuer.chaos.checker import Verdict, check
from issuer.chaos.crew import Worker, Workers
from issuer.chaos.gaps import THE_END
from issuer.chaos.guards import scripts_without
from issuer.chaos.proxy import FaultProxy
from issuer.chaos.server import RedisServer
from issuer.chaos.waiting import until
from issuer.chaos.watched import Strike, Watched
from issuer.chaos.worker import Colour, Job, Setup
from issuer.errors import IssuerError
from issuer.gateway.keys import redis_key
from issuer.wiring import connect
from issuer_persistence.records import Tag

#: The places of the tags: strict, leased, and a trend tag that is drawn number by number.
STRICT, TREND, PLAIN = range(3)
PREFIX = "issuer"

#: The strict tag goes across 2^53, above which a double can't tell neighbours apart.
NEAR_2_53 = 2**53 - 3000

#: Seconds between two looks at the store's `max`.
SAMPLED_EVERY = 0.05

#: Python that runs a command line in a number of processes at once: what each would load first has been loaded for all.
_AT_ONCE = """
import multiprocessing, sys
import issuer.cli.commands.recover, issuer.wiring
from issuer.cli import main
process = multiprocessing.get_context("fork").Process
children = [process(target=main, args=(sys.argv[2:],)) for _ in range(int(sys.argv[1]))]
for child in children:
    child.start()
for child in children:
    child.join()
sys.exit(any(child.exitcode for child in children))
"""

now = time.monotonic_ns


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a run. `pace`: seconds between two calls of a caller. `most`: numbers a call, `timeout`: seconds.

    `patience`: seconds without numbers after which a run is stuck. `without`: guards that are taken out.
    `journal`: whether every reservation is journalled.
    """

    step: int = 1500
    lease: int = 100
    pace: float = 0.004
    most: int = 20
    callers: int = 2
    timeout: float = 4.0
    patience: float = 20.0
    without: tuple[str, ...] = ()
    journal: bool = False


class World:
    """One run's servers and processes. `master` is the Redis that serves, `other` the one that may follow it.

    Half of the workers reach Redis through the first of `fronts`, half through the second; `desk`, where the
    harness itself asks, is hit by nothing.
    """

    #: The settings of a worker, which name the program that it runs.
    setup_kind: ClassVar[type[Setup]] = Setup

    def __init__(self, folder: Path, binary: Path, terms: Terms, store: str | None = None) -> None:
        """`store`: the workers' URL of it, if it isn't an SQLite file in the folder."""
        self.folder = folder
        self.terms = terms
        self.store = store or f"sqlite:///{folder / 'store' / 'issuer.db'}"
        (folder / "store").mkdir(exist_ok=True)
        self.crew = Workers(terms.patience)
        self.strikes: list[Strike] = []
        self.tags: list[Watched] = []
        self.scripts = scripts_without(terms.without)
        self._ends = ExitStack()
        self._stop = threading.Event()
        self._sampling = threading.Lock()
        #: When all was well again after the last fault.
        self._settled = now()
        try:
            self._begin(binary)
        except BaseException:
            self._ends.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ends.close()

    # ------------------------------------------------------------------ the servers

    def _begin(self, binary: Path) -> None:
        self.redis_began(binary)
        (self.folder / "issuer.toml").touch()
        (self.folder / "journal").mkdir()
        config = str(self.folder / "issuer.toml")
        self.ids = self.connected()
        self._ends.callback(self.ids.close)
        self.create("strict", "strict", above=NEAR_2_53)
        self.create("trend", "trend", lease=self.terms.lease)
        self.create("plain", "trend", lease=0)
        sampler = threading.Thread(target=self._sample, name="chaos-sampler", daemon=True)
        sampler.start()
        self._ends.callback(sampler.join)
        self._ends.callback(self._stop.set)
        self._ends.enter_context(self.crew)
        self.crew.hire(*self.setups(config))

    @property
    def journal(self) -> str:
        """The journal that all share; "": none."""
        return str(self.folder / "journal" / "journal") if self.terms.journal else ""

    def connected(self) -> Issuer:
        """Return an issuer of this process, which no fault on the wire hits unless it is the desk's."""
        return connect(
            redis=self.desk_url,
            store=self.store,
            prefix=PREFIX,
            timeout=10.0,
            scheduler=None,
            config=self.folder / "issuer.toml",
            journal=self.journal,
        )

    def commanded(self, times: int, *words: str) -> None:
        """Run an `issuer` command on the desk in `times` processes at once. Raises IssuerError if one fails."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
        environment |= {"ISSUER_JOURNAL": self.journal} if self.journal else {}
        # All these processes begin at once, beside a load: a second for a round trip was too little once in a long run.
        environment |= {"ISSUER_REDIS_TIMEOUT": "5"}
        options = {
            "--redis": self.desk_url,
            "--store": self.store,
            "--prefix": PREFIX,
            "--timeout": "10",
            "--config": str(self.folder / "issuer.toml"),
        }
        line = [sys.executable, "-c", _AT_ONCE, str(times), *chain.from_iterable(options.items()), *words]
        ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own module, no shell
        if ended.returncode:
            raise IssuerError(f"{times} issuer {' '.join(words)}: {ended.stderr.strip()}")

    def redis_began(self, binary: Path) -> None:
        """Start what the workers draw from; sets `fronts` and `desk`."""
        self.master = self._ends.enter_context(self.server(binary))
        self.other = self._ends.enter_context(self.server(binary))
        self.link, self.desk, *self.fronts = [
            self._ends.enter_context(self.proxy(self.master.address)) for _ in range(4)
        ]

    def server(self, binary: Path) -> RedisServer:
        """Make a server, not yet started."""
        return RedisServer(binary)

    def proxy(self, upstream: tuple[str, int]) -> FaultProxy:
        """Make a proxy before a server."""
        return FaultProxy(upstream)

    @property
    def desk_url(self) -> str:
        """The URL at which the harness itself finds Redis."""
        return self.desk.url

    def front_url(self, at: int) -> str:
        """Return the URL at which the workers of this half find Redis."""
        return self.fronts[at].url

    def setups(self, config: str) -> list[Setup]:
        """Return the settings of the workers."""
        most, callers = self.terms.most, self.terms.callers
        one, few, run, stream, plain = (
            Job(STRICT, "strict", "next", callers),
            Job(STRICT, "strict", "take", callers, most),
            Job(TREND, "trend", "run", 1, 10 * most),
            Job(TREND, "trend", "stream", 1, 10 * most),
            Job(PLAIN, "plain", "next", 1),
        )
        each: tuple[tuple[str, int, Colour, list[Job]], ...] = (
            ("w0", 0, "threads", [one, run, plain]),
            ("w1", 1, "threads", [few, stream]),
            ("w2", 0, "tasks", [one, Job(TREND, "trend", "take", callers, most)]),
            ("w3", 1, "threads", [few, run, plain]),
        )
        return [
            self.setup_kind(
                name=name,
                folder=str(self.folder),
                redis=self.front_url(front),
                store=self.store,
                config=config,
                jobs=jobs,
                colour=colour,
                pace=self.terms.pace,
                timeout=self.terms.timeout,
                without=[*self.terms.without],
                journal=self.journal,
            )
            for name, front, colour, jobs in each
        ]

    def create(self, name: str, order: str, *, above: int = 0, lease: int | None = None, keyed: bool = False) -> int:
        """Make a tag whose numbers are checked, and return its place."""
        self.ids.create(name, step=self.terms.step, order=order, above=above, lease=lease)  # type: ignore[arg-type]
        return self.watch(name, order, above, keyed=keyed)

    def watch(self, name: str, order: str, base: int, *, keyed: bool = False, counted: bool = True) -> int:
        """Check the numbers of a tag that is there already, above `base`, and return its place; see `Watched`."""
        timeout = int(self.terms.timeout * 1e9)
        watched = Watched(name, order, base, self.terms.step, self.terms.lease, timeout, keyed=keyed, counted=counted)
        with self._sampling:
            self.tags.append(watched)
        return len(self.tags) - 1

    # ------------------------------------------------------------------ faults

    @contextmanager
    def fault(self, name: str, *, segments: int = 2, hits: int = 0, split: bool = False) -> Iterator[None]:
        """Note a fault: what it breaks is whole again when the block ends. See `Strike`."""
        settled, began = self._settled, now()
        yield
        self._settled = now()
        self.strikes.append(Strike(name, began, self._settled, segments, hits, split, settled))

    def more(self) -> None:
        """Return when every worker has got numbers of each of its tags once more."""
        self.crew.wait_served(now())
        self._settled = now()

    @property
    def counted(self) -> list[str]:
        """The names of the tags whose numbers come of a counter: those that can be recovered."""
        return [tag.name for tag in self.tags if tag.counted]

    def halves(self) -> tuple[list[Worker], list[Worker]]:
        """Return the workers that reach Redis through the first of the fronts, and the others."""
        first = self.front_url(0)
        there = [worker for worker in self.crew.workers if worker.setup.redis == first]
        return there, [worker for worker in self.crew.workers if worker not in there]

    def key(self, at: int) -> str:
        """Return the tag's hash in Redis."""
        return redis_key(PREFIX, self.tags[at].name)

    def sha(self, script: str) -> bytes:
        """Return what a call of the script has in it."""
        return self.scripts[script].sha.encode()

    def hold_load(self) -> Callable[[], None]:
        """Return when a load is on its way, and held; what is returned lets it go on."""
        for front in self.fronts:
            front.hold(self.sha("load"), times=1)
        until(lambda: any(front.held for front in self.fronts), 30, "a load is on its way")

        def release() -> None:
            for front in self.fronts:
                front.pass_through()
                front.release()

        return release

    def follow(self) -> None:
        """Let the other server follow the master, and return when it has all that was written so far."""
        self.other.start()
        self.link.pass_through()
        self.link.redirect(self.master.address)
        with self.other.client() as client:
            client.execute_command("REPLICAOF", *self.link.address)
        until(lambda: self.other.replication().get("master_link_status") == "up", 20, "the replica follows")
        offset = self.master.replication()["master_repl_offset"]
        until(lambda: self.other.replication()["master_repl_offset"] >= offset, 10, "the replica has caught up")

    def lag(self) -> None:
        """Let the other server follow, and then lack what is drawn from now on; return when that is something."""
        self.follow()
        self.link.blackhole()
        # Not `more`: what following costs is the fault's, as a first replica brings the master a new reign.
        self.crew.wait_served(now())

    def swap(self) -> None:
        """Lead all processes to the other server, which has been promoted."""
        self.master, self.other = self.other, self.master
        for front in (*self.fronts, self.desk):
            front.redirect(self.master.address)

    # ------------------------------------------------------------------ the end

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLED_EVERY):
            with suppress(IssuerError):
                self.sample()

    def sample(self) -> None:
        """Note what the store's `max` of each tag is now."""
        with self._sampling:
            asked = now()
            found: dict[str, Tag] = {record.tag: record for record in self.ids.tags(timeout=1)}
            for tag in self.tags:
                if tag.name in found:
                    tag.samples.append((asked, found[tag.name].max))

    def verdict(self) -> Verdict:
        """End the drawing, and check all that was drawn."""
        until(self._sampled, 10, "the store says what max is", ignoring=(IssuerError,))
        lasting = {worker.name for worker in self.crew.workers if worker.alive}
        end = Strike(THE_END, now(), 0, hits=len(lasting))
        self.crew.dismiss()
        # What they hand back is not lost.
        until(self._sampled, 10, "the store says what max is", ignoring=(IssuerError,))
        callers = all_calls(self.folder)
        return check(self.tags, callers, self.strikes, lasting=lasting, stopped=self.crew.stopped, end=end)

    def _sampled(self) -> bool:
        self.sample()
        return True
