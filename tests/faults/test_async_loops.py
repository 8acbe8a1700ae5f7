"""AsyncIssuer and the loops it lives in: one after the other, several at once, ended with calls pending, forked."""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler

import issuer
from issuer import async_facade
from issuer.core import refill
from issuer.drivers.asyncio.connections import Link
from issuer.persistence.memory import MemoryStore
from tests.audit import repeats
from tests.faults.conftest import covering
from tests.faults.test_fork import in_child
from tests.servers.fake import FencedFakeServer
from tests.waiting import run

# CPython warns that a fork in a process with threads may deadlock: that it does not is what is shown here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.usefixtures("patient"),
]


async def drawn(ids: issuer.AsyncIssuer, tag: str, count: int) -> list[int]:
    return list(await asyncio.gather(*(ids.next(tag) for _ in range(count))))


# ---------------------------------------------------------------------------------------------- one after the other


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("scheduler", ["background", None])
def test_one_issuer_serves_one_loop_after_the_other(redis_url: str, scheduler: Any) -> None:
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
    for redis, lease in (("none", 0), (fake_server.async_client(), 50)):
        ids = issuer.aconnect(redis=redis, store=store, lease=lease, prefix=f"p{lease}")
        tag = f"a{lease}"
        run(ids.create(tag, step=1000, order="trend"))
        numbers = [run(ids.next(tag)) for _ in range(5)]
        assert numbers == [1, 2, 3, 4, 5]
        run(ids.close())


def test_it_begins_anew_after_a_loop_that_was_only_closed() -> None:
    """Nobody shut its generators and tasks down, as asyncio.run does: numbers in hand are lost, and not repeated."""
    ids = issuer.aconnect(redis="none", store=MemoryStore())
    numbers = []
    for first in (True, False, False):
        loop = asyncio.new_event_loop()
        if first:
            loop.run_until_complete(ids.create("a", step=10))
        numbers.append(loop.run_until_complete(ids.next("a")))
        loop.close()
    assert numbers == sorted(set(numbers))
    run(ids.close())


# ---------------------------------------------------------------------------------------------- several at once


def test_each_loop_of_a_process_has_an_issuer_of_its_own(redis_url: str) -> None:
    store = MemoryStore()

    async def draw() -> list[int]:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            return [number for _ in range(5) for number in await drawn(ids, "a", 100)]

    with issuer.connect(redis=redis_url, store=store) as ids, ThreadPoolExecutor(6) as pool:
        ids.create("a", step=70)
        results = list(pool.map(lambda _: run(draw(), 60), range(6)))
    assert [len(part) for part in results] == [500] * 6
    assert repeats(number for part in results for number in part) == []


def test_a_second_loop_is_refused_while_the_first_one_lives() -> None:
    async def main() -> None:
        async with issuer.aconnect(redis="none", store="memory://") as ids:
            await ids.create("a", step=10)
            assert await ids.next("a") == 1
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "next": lambda: ids.next("a"),
                "take": lambda: ids.take("a", 2),
                "stream": lambda: anext(ids.stream("a")),
                "tick": ids.tick,
                "tags": ids.tags,
                "close": ids.close,
            }

            async def refusal(call: Callable[[], Awaitable[object]]) -> str:
                with pytest.raises(issuer.IssuerError) as caught:
                    await call()
                return str(caught.value)

            told = {
                name: await asyncio.to_thread(lambda call=call: run(refusal(call)))  # type: ignore[misc]  # bound at once
                for name, call in calls.items()
            }
            assert {name: text for name, text in told.items() if "another event loop" not in text} == {}
            assert not ids.closed
            assert await ids.next("a") == 2

    run(main())


# ---------------------------------------------------------------------------------------------- ended in the middle

ENDED = """
import asyncio, faulthandler, os, signal, sys, time
import issuer
from issuer.persistence.memory import MemoryStore

faulthandler.dump_traceback_later(200, exit=True)  # so that one that hangs says where
drawn = {"a": 0, "t": 0, "l": 0, "stream": 0}

class Slow(MemoryStore):
    def reserve(self, *args, **options):
        time.sleep(0.2)
        return super().reserve(*args, **options)

async def main(redis, how, closing):
    ids = issuer.aconnect(redis=redis, store=Slow(), timeout=150)
    await ids.create("a", step=3, order="strict")
    await ids.create("t", step=3, order="trend")
    await ids.create("l", step=3, order="trend", lease=2)

    async def caller(tag):
        try:
            while True:
                await ids.next(tag)
                drawn[tag] += 1
        except (asyncio.CancelledError, issuer.IssuerError):
            pass

    async def streamer():
        try:
            async for _ in ids.stream("l"):
                drawn["stream"] += 1
        except (asyncio.CancelledError, issuer.IssuerError):
            pass

    tasks = [asyncio.create_task(caller(tag)) for tag in "atl" for _ in range(20)]
    tasks.append(asyncio.create_task(streamer()))
    while min(drawn.values()) < 3:
        await asyncio.sleep(0.01)
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
        await asyncio.sleep(60)

try:
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "close"), debug=False)
except (ValueError, KeyboardInterrupt):
    pass
import gc
gc.collect()
print("over")
"""


@covering("how, close", [("return", "no"), ("interrupt", "close")], ["return", "raise", "interrupt"], ["no", "close"])
def test_a_loop_that_ends_with_calls_pending_ends_in_silence(redis_url: str, how: str, close: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", ENDED, redis_url, how, close],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.stdout, complaints) == ("over\n", [])


# ---------------------------------------------------------------------------------------------- fork


def dropped_after_a_fork(redis_url: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fork while a loop runs that has connections, draw, and return how many of them its parent had to drop.

    A connection is dropped when no reply has come for so many seconds.
    """
    dropped = 0
    drop = Link.drop

    async def counted(link: Link) -> None:
        nonlocal dropped
        dropped += 1
        await drop(link)

    async def main() -> int:
        store = MemoryStore()
        async with issuer.aconnect(redis=redis_url, store=store, timeout=50, redis_timeout=seconds) as ids:
            await ids.create("a", step=100_000)
            await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))
            assert in_child(collected)() == "collected"
            with monkeypatch.context() as counting:
                counting.setattr(Link, "drop", counted)
                await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))
                return dropped

    return run(main(), 60)


def collected() -> str:
    import gc
    import warnings

    warnings.simplefilter("ignore")  # in the child, and only there
    gc.collect()
    return "collected"


@pytest.mark.covers("U.14")
def test_a_fork_costs_the_parents_loop_nothing(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dropped_after_a_fork(redis_url, 50, monkeypatch) == 0


# What the child collects may still be open there.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_child_that_collects_its_parents_connections_cuts_the_parent_off(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nowhere(list[object]):
        def append(self, _: object) -> None:
            pass

    monkeypatch.setattr(async_facade, "PARENTS", Nowhere())
    assert dropped_after_a_fork(redis_url, 0.3, monkeypatch) > 0


@pytest.mark.live
def test_a_child_does_not_wait_for_a_scheduler_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refill, "UNCLAIMED", 60.0)  # what a caller waits for it, for each of six segments

    async def main() -> None:
        theirs = AsyncIOScheduler(timezone="UTC")
        theirs.start()
        ids = issuer.aconnect(redis="none", store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=theirs)
        async with ids:
            await ids.create("a", step=5)
            assert await ids.next("a") == 1
            answer = await asyncio.to_thread(in_child(lambda: run(ids.take("a", 30, timeout=40), 50)))
            assert isinstance(answer, list), answer
            assert len(answer) == 30
        theirs.shutdown()

    run(main(), 60)
