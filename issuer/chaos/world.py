"""The world of a run: two Redis servers, a store, proxies before them, and the processes that draw."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
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
from issuer.chaos.proxy import FaultProxy
from issuer.chaos.scratch import plain_environment
from issuer.chaos.server import RedisServer
from issuer.chaos.waiting import until
from issuer.chaos.watched import Strike, Watched
from issuer.chaos.worker import Colour, Job, Setup
from issuer.clock import monotonic_ns
from issuer.errors import IssuerError
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer.wiring import connect, without_environment
from issuer_persistence.records import Tag

#: Indices of the tags: a strict tag, a trend tag with a lease, and a trend tag without a lease.
STRICT, TREND, PLAIN = range(3)
PREFIX = "issuer"

#: The strict tag starts below 2^53 and passes it. Above 2^53, a double cannot represent every whole number.
NEAR_2_53 = 2**53 - 3000

#: Seconds between two reads of the store's `max`.
SAMPLED_EVERY = 0.05

#: Program that runs a command line in several processes at once. It imports the modules once, before it forks.
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

now = monotonic_ns


@dataclass(frozen=True, slots=True)
class Terms:
    """Settings of a run. Times are in seconds.

    `step`, `lease`: settings of the tags. `callers`: how many threads or tasks of a worker do the same job. `pace`:
    pause between two calls of a caller.
    `most`: maximum count of numbers of a call. `timeout`: timeout of a call. `patience`: time without numbers after
    which a run is stuck. `journal`: whether reservations are written to a journal.
    """

    step: int = 1500
    lease: int = 100
    pace: float = 0.004
    most: int = 20
    callers: int = 2
    timeout: float = 4.0
    patience: float = 20.0
    journal: bool = False


class World:
    """The servers and processes of a run. `master` is the Redis master, `other` can become its replica.

    Half of the workers connect to Redis through the first proxy in `fronts`, half through the second. The run itself
    connects through `desk`, a proxy that no fault uses.
    """

    #: Class of a worker's settings. The class names the program that the worker runs.
    setup_kind: ClassVar[type[Setup]] = Setup

    def __init__(self, folder: Path, binary: Path, terms: Terms, store: str | None = None) -> None:
        """Start the servers and the workers. `store`: URL of the store; None means an SQLite file in the folder."""
        self.folder = folder
        self.terms = terms
        self.store = store or f"sqlite:///{folder / 'store' / 'issuer.db'}"
        (folder / "store").mkdir(exist_ok=True)
        self.crew = Workers(terms.patience)
        self.strikes: list[Strike] = []
        self.tags: list[Watched] = []
        self._ends = ExitStack()
        self._stop = threading.Event()
        self._sampling = threading.Lock()
        #: The time at which all workers had received numbers after the last fault.
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
        self.crew.wait_served(0, self.crew.start(*self.setups(config)), 30.0)

    @property
    def journal(self) -> str:
        """Path of the journal, which all processes share. "" without a journal."""
        return str(self.folder / "journal" / "journal") if self.terms.journal else ""

    def connected(self) -> Issuer:
        """Return an issuer for this process, which connects through `desk`."""
        return without_environment(
            connect,
            redis=self.desk_url,
            store=self.store,
            prefix=PREFIX,
            timeout=10.0,
            scheduler=None,
            config=self.folder / "issuer.toml",
            journal=self.journal,
        )

    def commanded(self, times: int, *words: str) -> None:
        """Run an `issuer` command in `times` processes at once. Raises IssuerError if one fails."""
        # The default Redis timeout of 1 s was too short once in a long run, because all these processes start at once
        # under load.
        environment = plain_environment() | {"ISSUER_REDIS_TIMEOUT": "5"}
        environment |= {"ISSUER_JOURNAL": self.journal} if self.journal else {}
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
        """Start the servers and the proxies. Set `fronts`, `desk` and `link`, the proxy between replica and master."""
        self.master = self._ends.enter_context(self.server(binary))
        self.other = self._ends.enter_context(self.server(binary))
        self.link, self.desk, *self.fronts = [
            self._ends.enter_context(self.proxy(self.master.address)) for _ in range(4)
        ]

    def server(self, binary: Path) -> RedisServer:
        return RedisServer(binary)

    def proxy(self, upstream: tuple[str, int]) -> FaultProxy:
        return FaultProxy(upstream)

    @property
    def desk_url(self) -> str:
        return self.desk.url

    def front_url(self, at: int) -> str:
        """Return the URL of Redis for one half of the workers. `at`: 0 or 1, index of the half's proxy."""
        return self.fronts[at].url

    def setups(self, config: str) -> list[Setup]:
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
                journal=self.journal,
            )
            for name, front, colour, jobs in each
        ]

    def create(self, name: str, order: str, *, above: int = 0, lease: int | None = None, keyed: bool = False) -> int:
        """Create a tag, and return its index. Its numbers are checked from now on."""
        self.ids.create(name, step=self.terms.step, order=order, above=above, lease=lease)  # type: ignore[arg-type]
        return self.watch(name, order, above, keyed=keyed)

    def watch(self, name: str, order: str, base: int, *, keyed: bool = False, counted: bool = True) -> int:
        """From now on, check the numbers of an existing tag above `base`. Return the tag's index.

        `keyed`: each number is drawn for an idempotency key. `counted`: the numbers come from the tag's counter.
        """
        timeout = int(self.terms.timeout * 1e9)
        watched = Watched(name, order, base, self.terms.step, self.terms.lease, timeout, keyed=keyed, counted=counted)
        with self._sampling:
            self.tags.append(watched)
        return len(self.tags) - 1

    @contextmanager
    def fault(self, name: str, *, segments: int = 2, hits: int = 0, split: bool = False) -> Iterator[None]:
        """Record a fault, which lasts as long as the block. At its end, all servers must work again.

        `segments`: how many segments in Redis may lose their numbers. `hits`: how many processes may lose the numbers
        that they hold. `split`: two masters serve at once, so no order is promised during the fault.
        """
        settled, began = self._settled, now()
        yield
        self._settled = now()
        self.strikes.append(Strike(name, began, self._settled, segments, hits, split, settled))

    def more(self) -> None:
        """Wait until each worker has received new numbers of each of its tags."""
        self.crew.wait_served(now())
        self._settled = now()

    @property
    def counted(self) -> list[str]:
        """Names of the tags that have a counter. Only such tags can be recovered."""
        return [tag.name for tag in self.tags if tag.counted]

    def halves(self) -> tuple[list[Worker], list[Worker]]:
        first = self.front_url(0)
        there = [worker for worker in self.crew.workers if worker.setup.redis == first]
        return there, [worker for worker in self.crew.workers if worker not in there]

    def key(self, at: int) -> str:
        return redis_key(PREFIX, self.tags[at].name)

    def sha(self, name: str) -> bytes:
        """Return the SHA-1 of a script in hex. Each call of the script contains these bytes."""
        return script(name).sha.encode()

    @contextmanager
    def held_load(self) -> Iterator[list[bytes]]:
        """Wait until a proxy holds a load, and yield the held requests. The end of the block delivers them."""
        for front in self.fronts:
            front.hold(self.sha("load"), times=1)
        yield until(self.held, 30, "a load is on its way")
        self.deliver()

    def held(self) -> list[bytes]:
        return [request for front in self.fronts for request in front.held]

    def deliver(self) -> None:
        """End the faults of the proxies of the workers, and deliver the held requests."""
        for front in self.fronts:
            front.pass_through()
            front.release()

    def follow(self) -> None:
        """Make the other server a replica, and wait until it has received all writes so far."""
        self.other.start()
        self.link.pass_through()
        self.link.redirect(self.master.address)
        self.other.replicaof(self.link)
        offset = self.master.replication()["master_repl_offset"]
        until(lambda: self.other.replication()["master_repl_offset"] >= offset, 10, "the replica has caught up")

    def lag(self) -> None:
        """Make the other server a replica, then let its connection to the master carry no more data.

        Return when workers have drawn numbers that the replica does not have.
        """
        self.follow()
        self.link.blackhole()
        # Do not call `more` here. A master that gets its first replica starts a new term, and this causes a gap. The
        # gap must be charged to the fault that the caller causes next. `more` would set `_settled` to the present time,
        # and only numbers that were lost later are charged to the next fault.
        self.crew.wait_served(now())

    def swap(self) -> None:
        """Redirect all processes to the other server, which is the master now."""
        self.master, self.other = self.other, self.master
        for front in (*self.fronts, self.desk):
            front.redirect(self.master.address)

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLED_EVERY):
            with suppress(IssuerError):
                self.sample()

    def sample(self) -> None:
        with self._sampling:
            asked = now()
            found: dict[str, Tag] = {record.tag: record for record in self.ids.tags(timeout=1)}
            for tag in self.tags:
                if tag.name in found:
                    tag.samples.append((asked, found[tag.name].max))

    def verdict(self) -> Verdict:
        until(self._sampled, 10, "max is read", ignoring=(IssuerError,))
        lasting = {worker.name for worker in self.crew.workers if worker.alive}
        end = Strike(THE_END, now(), 0, hits=len(lasting))
        self.crew.dismiss()
        # Read `max` again, because the workers have returned unused numbers, which are not lost.
        until(self._sampled, 10, "max is read", ignoring=(IssuerError,))
        callers = all_calls(self.folder)
        return check(self.tags, callers, self.strikes, lasting=lasting, stopped=self.crew.stopped, end=end)

    def _sampled(self) -> bool:
        self.sample()
        return True
