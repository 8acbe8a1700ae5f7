"""AsyncIssuer and the loops it lives in: one after the other, several at once, ended with calls pending, forked."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

import issuer
from issuer import async_facade
from issuer.drivers.asyncio.line import Line
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.faults.test_fork import in_child
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import run

# CPython warns that a fork in a process with threads may deadlock: that it does not is what is shown here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


async def drawn(ids: issuer.AsyncIssuer, tag: str, count: int) -> list[int]:
    return list(await asyncio.gather(*(ids.next(tag) for _ in range(count))))


# ---------------------------------------------------------------------------------------------- one after the other


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("scheduler", ["background", None])
def test_one_issuer_serves_one_loop_after_the_other(redis_server: RedisServer, redis_url: str, scheduler: Any) -> None:
    assert redis_server.running
    ids = issuer.aconnect(redis=redis_url, store=MemoryStore(), scheduler=scheduler)
    run(ids.create("a", step=20))
    numbers = [number for _ in range(4) for number in run(drawn(ids, "a", 30))]
    assert sorted(numbers) == list(range(1, 121))
    assert run(ids.tick()) in (0, 1)
    run(ids.close())
    with pytest.raises(issuer.IssuerError, match="closed"):
        run(ids.next("a"))


def test_a_loop_that_ends_without_a_close_gives_numbers_back(fake_server: FencedFakeServer) -> None:
    store = MemoryStore()
    for redis, lease in ((None, 0), (fake_server.async_client(), 50)):
        ids = issuer.aconnect(redis=redis, store=store, lease=lease, prefix=f"p{lease}")
        tag = f"a{lease}"
        run(ids.create(tag, step=1000, order="trend"))
        numbers = [run(ids.next(tag)) for _ in range(5)]
        assert numbers == [1, 2, 3, 4, 5]
        run(ids.close())


def test_it_begins_anew_after_a_loop_that_was_only_closed(fake_server: FencedFakeServer) -> None:
    """Nobody shut its generators and tasks down, as asyncio.run does: numbers in hand are lost, and not repeated."""
    ids = issuer.aconnect(redis=None, store=MemoryStore())
    numbers = []
    for first in (True, False, False):
        loop = asyncio.new_event_loop()
        if first:
            loop.run_until_complete(ids.create("a", step=10))
        numbers.append(loop.run_until_complete(ids.next("a")))
        loop.close()
    assert numbers == sorted(set(numbers))
    run(ids.close())
    assert fake_server.connected


# ---------------------------------------------------------------------------------------------- several at once


def test_each_loop_of_a_process_has_an_issuer_of_its_own(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_server.running
    store = MemoryStore()
    results: list[list[int]] = []

    async def draw() -> None:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            results.extend([await drawn(ids, "a", 100) for _ in range(5)])

    with issuer.connect(redis=redis_url, store=store) as ids:
        ids.create("a", step=70)
        threads = [threading.Thread(target=lambda: run(draw())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 30
    assert repeats(number for part in results for number in part) == []


@pytest.mark.parametrize("name", ["next", "take", "tick", "tags", "stream", "close"])
def test_a_second_loop_is_refused_while_the_first_one_lives(name: str) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=None, store="memory://") as ids:
            await ids.create("a", step=10)
            assert await ids.next("a") == 1

            async def other() -> None:
                calls: dict[str, Callable[[], Awaitable[object]]] = {
                    "next": lambda: ids.next("a"),
                    "take": lambda: ids.take("a", 2),
                    "stream": lambda: anext(ids.stream("a")),
                }
                call = calls.get(name, getattr(ids, name))
                with pytest.raises(issuer.IssuerError, match="another event loop"):
                    await call()

            await asyncio.to_thread(lambda: run(other()))
            assert not ids.closed
            assert await ids.next("a") == 2

    run(main())


# ---------------------------------------------------------------------------------------------- ended in the middle

ENDED = """
import asyncio, os, signal, sys
import issuer
from persistence.memory import MemoryStore

class Slow(MemoryStore):
    def reserve(self, *args, **options):
        import threading
        threading.Event().wait(0.2)
        return super().reserve(*args, **options)

async def main(redis, how, closing):
    ids = issuer.aconnect(redis=redis, store=Slow(), timeout=30)
    await ids.create("a", step=3, order="strict")
    await ids.create("t", step=3, order="trend")
    await ids.create("l", step=3, order="trend", lease=2)

    async def caller(tag):
        try:
            while True:
                await ids.next(tag)
        except (asyncio.CancelledError, issuer.IssuerError):
            pass

    async def streamer():
        try:
            async for _ in ids.stream("l"):
                pass
        except (asyncio.CancelledError, issuer.IssuerError):
            pass

    tasks = [asyncio.create_task(caller(tag)) for tag in "atl" for _ in range(20)]
    tasks.append(asyncio.create_task(streamer()))
    await asyncio.sleep(0.5)
    if closing:
        async with ids:
            await end(how)
    else:
        await end(how)

async def end(how):
    if how == "raise":
        raise ValueError("on purpose")
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(20)

try:
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "close"), debug=False)
except (ValueError, KeyboardInterrupt):
    pass
import gc
gc.collect()
print("over")
"""


@pytest.mark.parametrize("close", ["close", "no"])
@pytest.mark.parametrize("how", ["return", "raise", "interrupt"])
def test_a_loop_that_ends_with_calls_pending_ends_soon_and_in_silence(
    redis_server: RedisServer, redis_url: str, how: str, close: str
) -> None:
    assert redis_server.running
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", ENDED, redis_url, how, close],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]) == (
        "over\n",
        [],
    )
    assert time.monotonic() - began < 8


# ---------------------------------------------------------------------------------------------- fork


def through_a_fork(redis_url: str) -> float:
    """Fork while a loop runs that has connections, and return how long the parent's next five draws took."""

    async def main() -> float:
        async with issuer.aconnect(redis=redis_url, store=MemoryStore(), timeout=3, redis_timeout=0.3) as ids:
            await ids.create("a", step=100_000)
            await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))
            assert in_child(collected)() == "collected"
            began = time.monotonic()
            for _ in range(5):
                with contextlib.suppress(issuer.RedisUnavailable):
                    await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))
            return time.monotonic() - began

    return run(main())


def collected() -> str:
    import gc
    import warnings

    warnings.simplefilter("ignore")  # in the child, and only there
    gc.collect()
    return "collected"


@pytest.mark.covers("U.14")
def test_a_fork_costs_the_parents_loop_nothing(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_server.running
    assert through_a_fork(redis_url) < 0.25


# What the child collects may still be open there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_child_that_collects_its_parents_connections_cuts_the_parent_off(
    redis_server: RedisServer, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nowhere(list[object]):
        def append(self, _: object) -> None:
            pass

    assert redis_server.running
    monkeypatch.setattr(async_facade, "PARENTS", Nowhere())
    assert through_a_fork(redis_url) > 0.25


def drawn_in_a_loop_of_its_own(ids: issuer.AsyncIssuer, count: int) -> list[int]:
    async def main() -> list[int]:
        async with ids:  # the child's own
            return [*await drawn(ids, "a", count), *await ids.take("a", count)]

    return run(main())


@pytest.mark.live
@pytest.mark.covers("U.14")
@pytest.mark.parametrize("direct", [True, False])
def test_eight_children_of_a_running_loop_repeat_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, direct: bool
) -> None:
    redis = None if direct else request.getfixturevalue("redis_url")

    async def main() -> list[int]:
        async with issuer.aconnect(redis=redis, store=f"sqlite:///{tmp_path / 'a.db'}", timeout=20, lease=30) as ids:
            await ids.create("a", step=70, order="trend")
            numbers = await ids.take("a", 50)
            results = [in_child(lambda: drawn_in_a_loop_of_its_own(ids, 50)) for _ in range(8)]
            numbers += await drawn(ids, "a", 300)
            for result in results:
                answer = await asyncio.to_thread(result)
                assert isinstance(answer, list), answer
                assert len(answer) == 100
                numbers += answer
            return numbers

    assert repeats(run(main())) == []


@pytest.mark.live
def test_children_that_keep_their_parents_segments_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(ids: issuer.AsyncIssuer) -> None:
        # Without the loop the child would begin anew, which would spend the segments too.
        ids._loop = ids._stay = None
        ids._terms.store.after_fork()

    monkeypatch.setattr(issuer.AsyncIssuer, "_after_fork", keep)
    monkeypatch.setattr(Line, "_check_loop", lambda _: None)

    async def main() -> list[int]:
        ids = issuer.aconnect(redis=None, store=f"sqlite:///{tmp_path / 'a.db'}", timeout=20, scheduler=None)
        async with ids:
            await ids.create("a", step=10_000)
            numbers = await ids.take("a", 50)
            results = [in_child(lambda: drawn_in_a_loop_of_its_own(ids, 50)) for _ in range(2)]
            for result in results:
                answer = await asyncio.to_thread(result)
                assert isinstance(answer, list), answer
                numbers += answer
            return numbers

    assert repeats(run(main())) != []


@pytest.mark.live
def test_a_child_does_not_wait_for_a_scheduler_of_its_parents(tmp_path: Path) -> None:
    def timed(ids: issuer.AsyncIssuer) -> float:
        began = time.monotonic()
        drawn_in_a_loop_of_its_own(ids, 60)
        return time.monotonic() - began

    async def main() -> None:
        theirs = AsyncIOScheduler(timezone="UTC")
        theirs.start()
        ids = issuer.aconnect(redis=None, store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=theirs)
        async with ids:
            await ids.create("a", step=5)
            assert await ids.next("a") == 1
            took = await asyncio.to_thread(in_child(lambda: timed(ids)))
            assert isinstance(took, float), took
            assert took < 2  # 24 segments, each of which would wait 0.25 s
        theirs.shutdown()

    run(main())


def test_an_issuer_that_is_dropped_is_forgotten(fake_server: FencedFakeServer) -> None:
    async def main() -> None:
        before = set(async_facade._living)
        store = MemoryStore()
        for number in range(5):
            async with issuer.aconnect(redis=fake_server.async_client(), store=store) as ids:
                await ids.create(f"a{number}", step=10)
                await ids.next(f"a{number}")
        assert set(async_facade._living) == before
        assert os.getpid()

    run(main())
