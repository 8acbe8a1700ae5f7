"""What the callers of other tags notice of a tag whose calls to the store take five seconds."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import issuer
from issuer import AsyncIssuer
from issuer.core.events import ElectionWon, Event, SegmentLoaded
from issuer_persistence.ledger import Reservation
from issuer_persistence.sqlite.store import SQLiteStore
from tests.bench.figures import Bound, Figure, percentile, ratio
from tests.bench.rounds import FULL, Effort
from tests.bench.servers import redis_server

#: The tags that are not delayed, and how many callers draw how often from these tags.
OTHERS, CALLERS, RATE = 20, 4, 1000

NAMES = [f"tag-{number}" for number in range(OTHERS)]
#: The steps differ: otherwise all tags would need their next segment in the same moment.
TAGS: dict[str, dict[str, Any]] = {
    "delayed": {"step": 1},
    **{name: {"step": 50 + 7 * number} for number, name in enumerate(NAMES)},
}

#: Settings of the issuers: no call fails.
PATIENT: dict[str, Any] = {"timeout": 60, "insist": 60, "store_timeout": 30}

#: How long the store takes for the delayed tag, and how long a round is, in seconds.
DELAY, ROUND = 5.0, 4.0


class DelayedStore(SQLiteStore):
    """A store that takes `seconds` longer to reserve numbers of the tag "delayed"."""

    seconds = 0.0

    def reserve_checked(self, tag: str, n: int | None, **given: Any) -> Reservation:
        """Reserve numbers, later."""
        if tag == "delayed":
            time.sleep(self.seconds)
        return super().reserve_checked(tag, n, **given)


class Latencies:
    """How long the calls of one round took, and its loads: from the election to the loaded segment. In ms."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.loads: list[float] = []
        self._elected: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, ElectionWon):
            self._elected[event.tag] = time.perf_counter()
        elif isinstance(event, SegmentLoaded) and event.tag != "delayed" and event.tag in self._elected:
            self.loads.append((time.perf_counter() - self._elected.pop(event.tag)) * 1000)


class _Round:
    """One round at a time: what the store takes, until when it lasts, and its latencies."""

    def __init__(self, store: DelayedStore) -> None:
        self._store = store
        self.of: dict[float, list[Latencies]] = {0.0: [], DELAY: []}

    def begin(self, seconds: float) -> None:
        """Begin a round in which the store takes so many seconds longer for the delayed tag."""
        self.latencies, self._store.seconds = Latencies(), seconds
        self.of[seconds].append(self.latencies)
        self.until = time.perf_counter() + ROUND

    def observe(self, event: Event) -> None:
        self.latencies(event)

    def calls(self, caller: int) -> Iterator[tuple[str, float]]:
        """Yield the tag of each call of a caller, and how long to wait before."""
        due = time.perf_counter()
        for number in range(caller, 10**9, CALLERS):
            due += CALLERS / RATE
            if due > self.until:
                return
            yield NAMES[number % OTHERS], max(0.0, due - time.perf_counter())


def _threads(url: str, store: DelayedStore, round_: _Round, rounds: list[float]) -> None:
    def caller(number: int) -> None:
        for tag, pause in round_.calls(number):
            time.sleep(pause)
            began = time.perf_counter()
            ids.next(tag)
            round_.latencies.calls.append((time.perf_counter() - began) * 1000)

    def slow() -> None:
        while not ended.wait(0.01):
            ids.next("delayed")

    ended = threading.Event()
    with issuer.connect(redis=url, store=store, **PATIENT) as ids, ThreadPoolExecutor(CALLERS + 1) as pool:
        ids.observe(round_.observe)
        ids.create_many(TAGS)
        waits = pool.submit(slow)
        for seconds in rounds:
            round_.begin(seconds)
            list(pool.map(caller, range(CALLERS)))
        store.seconds = 0.0
        ended.set()
        waits.result()


def _tasks(url: str, store: DelayedStore, round_: _Round, rounds: list[float]) -> None:
    async def caller(ids: AsyncIssuer, number: int) -> None:
        for tag, pause in round_.calls(number):
            await asyncio.sleep(pause)
            began = time.perf_counter()
            await ids.next(tag)
            round_.latencies.calls.append((time.perf_counter() - began) * 1000)

    async def slow(ids: AsyncIssuer) -> None:
        while True:
            await ids.next("delayed")
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with issuer.aconnect(redis=url, store=store, **PATIENT) as ids:
            ids.observe(round_.observe)
            await ids.create_many(TAGS)
            waits = asyncio.create_task(slow(ids))
            for seconds in rounds:
                round_.begin(seconds)
                await asyncio.gather(*(caller(ids, number) for number in range(CALLERS)))
            store.seconds = 0.0
            waits.cancel()

    asyncio.run(main())


def delayed(effort: Effort) -> Iterator[Figure]:
    """One tag's calls to the store take 5 s: how long the calls of 20 other tags take, in threads and in tasks."""
    rounds = 5 if effort.rounds == FULL.rounds else 1
    for way, measure in {"threads": _threads, "tasks": _tasks}.items():
        with redis_server() as server, TemporaryDirectory() as folder:
            store = DelayedStore(Path(folder, "ids.db"))
            round_ = _Round(store)
            # The first two rounds are not counted: they draw the first numbers.
            measure(server.url, store, round_, [0.0, DELAY] * (rounds + 1))
            store.close()
        for what in ("calls", "loads"):
            alone, beside = (
                [percentile(sorted(getattr(each, what)), 0.999) for each in found[1:]] for found in round_.of.values()
            )
            name = f"{way}, p99.9 of {what}"
            yield Figure(name, tuple(alone), "ms")
            yield Figure(f"{name}, a tag delayed", tuple(beside), "ms")
            yield ratio(f"{name}: delayed / not", beside, alone, Bound(1.2, 1.0))
