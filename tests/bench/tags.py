"""What many tags cost a process that has drawn from all of them, and now draws from a few."""

import gc
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import issuer
from issuer import Issuer
from issuer.care.keeper import PAGE_EVERY
from issuer.core.record import PAGE
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer.threads import finished
from issuer_persistence.contract import Store
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.bench.figures import Bound, Figure, ratio
from tests.bench.rounds import FULL, Effort, alternate
from tests.bench.servers import PREFIX, redis_server
from tests.servers.redis import RedisServer
from tests.waiting import until

#: Tags of a process that knows few, and of one that knows many.
FEW, MANY, FEWER = 100, 20_000, 2000

#: New tags whose first number is drawn, in each round.
FIRSTS = 100

#: Tags in the store of a keeper, and for how many seconds some of them are drawn once a second.
KEPT, ACTIVE = 100_000, 10

#: How long a sweep takes to find that nobody draws any more, and how long commands are counted after that, in seconds.
REST, COUNTED = 3.0, 5.0


def tags(effort: Effort) -> Iterator[Figure]:
    """Many tags in one process: what they cost while nobody draws, the first number of another one, and memory."""
    many = MANY if effort.rounds == FULL.rounds else FEWER
    with redis_server() as server, _used(server, "few", FEW) as few, _used(server, "many", many) as ids:
        yield from _at_rest(server, many)
        firsts = alternate({"with 100 known": _First(few), f"with {many} known": _First(ids)}, effort.rounds, "us")
        yield from firsts.figures()
        first = "first number of a tag"
        yield firsts.ratio(f"with {many} known", "with 100 known", Bound(1.3, 1.0), what=f"{first}: many / few known")
    with redis_server() as server:
        yield from _memory(server, many)
    with redis_server() as server, TemporaryDirectory() as folder:
        yield from _keeper(server, folder, effort.rounds)


@contextmanager
def _used(server: RedisServer, prefix: str, count: int, store: Store | None = None) -> Iterator[Issuer]:
    """Connect an issuer, and draw a number of each of so many tags."""
    with issuer.connect(redis=server.url, store=store or MemoryStore(), prefix=prefix) as ids:
        for number in range(count):
            draw_first(ids, f"customer-{number}")
        yield ids


def draw_first(ids: Issuer, tag: str) -> None:
    ids.engine.config.store.create(tag, TagSettings(), timeout=10)
    ids.next(tag)


def _at_rest(server: RedisServer, count: int) -> Iterator[Figure]:
    time.sleep(REST)
    with server.client() as client:
        commands, spent, began = client.info("stats")["total_commands_processed"], time.process_time(), time.monotonic()
        time.sleep(COUNTED)
        seconds = time.monotonic() - began
        share = (time.process_time() - spent) / seconds
        rate = (client.info("stats")["total_commands_processed"] - commands - 1) / seconds
    yield Figure(f"nobody draws from {count} tags: commands", (rate,), "1/s", Bound(5, 1))
    yield Figure(f"nobody draws from {count} tags: processor", (share * 100,), "%")


class _First:
    """Draws the first numbers of further tags. Returns the processor time of one in us."""

    def __init__(self, ids: Issuer) -> None:
        self._ids = ids
        self._made = 0

    def __call__(self) -> float:
        names = [f"new-{number}" for number in range(self._made, self._made + FIRSTS)]
        self._made += FIRSTS
        began = time.process_time()
        for name in names:
            draw_first(self._ids, name)
        return (time.process_time() - began) / FIRSTS * 1e6


def _memory(server: RedisServer, count: int) -> Iterator[Figure]:
    with (
        TemporaryDirectory() as folder,
        _used(server, "few", FEW, open_store(f"sqlite:///{folder}/tags.db")) as ids,
        server.client() as client,
    ):
        held = client.info("memory")["used_memory"]
        tracemalloc.start()
        before = traced()
        names = [f"more-{number}" for number in range(count)]
        for name in names:
            draw_first(ids, name)
        time.sleep(REST)
        known = traced()
        with patch("issuer.operations.registry.RESTING_MOST", -1):
            while ids.engine.registry.combiners:
                time.sleep(0.1)
        forgotten = traced()
        tracemalloc.stop()
        redis = client.info("memory")["used_memory"] - held
    yield Figure(f"memory of a tag, {count} used", ((known - before) / count / 1000,), "KB", Bound(3, 1))
    yield Figure("memory of a forgotten tag", ((forgotten - before) / count / 1000,), "KB", Bound(0.3, 0))
    yield Figure("memory of a tag in Redis", (redis / count,), "bytes", Bound(300, 220))


def _keeper(server: RedisServer, folder: str, rounds: int) -> Iterator[Figure]:
    """Measure what a keeper costs whose 100 tags are drawn by EVALSHA, and a page of a walk over 100 000 tags."""
    few, many = (f"sqlite:///{folder}/{name}.db" for name in ("few", "many"))
    names = _made(few, FEW)
    words = [sys.executable, "-m", "issuer", "--redis", server.url, "--store", few, "keeper"]
    alone, pages = [], []
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process, server.client() as client:
        draw = client.register_script(script("next").text)

        def active() -> bool:
            replies = [draw(keys=[redis_key(PREFIX, name)], args=[10, -1]) for name in names]
            return all(status == b"ok" for status, *_ in replies)

        until(active, 60)
        for at in range(0, FEW, 10):  # from now on, each second draws of one tag reach its threshold
            for name in names[at:]:
                draw(keys=[redis_key(PREFIX, name)], args=[100, -1])
        time.sleep(REST)
        for _ in range(rounds):
            spent, began = _spent(process.pid), time.monotonic()
            for _ in range(ACTIVE):
                time.sleep(1.0)
                active()
            alone.append((_spent(process.pid) - spent) / (time.monotonic() - began) * 100)
        process.terminate()
        client.flushall()
    _made(many, KEPT)
    for command in ("verify", "doctor", "tags", "tags --json", "tags --json-lines"):
        words = [sys.executable, "-m", "issuer", "--redis", server.url, "--store", many, *command.split()]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, _, used = os.wait4(process.pid, 0)
        yield Figure(f"issuer {command}, {KEPT} tags: memory", (used.ru_maxrss / 1024,), "MB", Bound(200, 60))
        yield Figure(f"issuer {command}, {KEPT} tags: processor", (used.ru_utime + used.ru_stime,), "s")
    with issuer.connect(redis=server.url, store=many, scheduler=None, store_timeout=60) as ids:
        ids.keep()
        keeper = ids.engine.upkeep.keeper
        assert keeper is not None
        for _ in range(rounds + 1):
            until(lambda: keeper.walks)
            began = time.process_time()
            finished(keeper.walk)
            pages.append((time.process_time() - began) * 1000)
    del pages[0]  # it opened connections
    yield Figure(f"keeper, {FEW} of {FEW} tags drawn: processor", tuple(alone), "%")
    yield Figure(f"keeper, a page of {PAGE} tags: processor", tuple(pages), "ms")
    both = [share + page / PAGE_EVERY / 10 for share, page in zip(alone, pages, strict=True)]
    yield ratio(f"keeper, {FEW} of {KEPT} tags drawn / of {FEW}", both, alone, Bound(1.5, 1.1))


def _made(store: str, count: int) -> list[str]:
    """Create so many tags in the store. Return their names."""
    names = [f"customer-{number:06}" for number in range(count)]
    opened = open_store(store)
    for first in range(0, count, PAGE):
        opened.create_many({name: TagSettings() for name in names[first : first + PAGE]}, timeout=60)
    opened.close()
    return names


def _spent(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    each = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in each) / 1e9


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
