"""Callers of a process share draws, and each number is still drawn after its call began: strict order under load."""

import asyncio
import contextlib
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import issuer
from issuer.drivers.asyncio import line as task_line
from issuer.drivers.blocking import line as thread_line
from persistence.memory import MemoryStore
from tests.audit import Draw, awaited, drawn, order_violations, repeats
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import eventually, run, until

pytestmark = pytest.mark.live

#: A step within which all is drawn, and one whose border comes again and again.
STEPS = [1_000_000, 150]


def by_threads(ids: issuer.Issuer, threads: int, each: int) -> list[Draw]:
    """Draw in so many threads at once."""
    draws: list[Draw] = []

    def draw() -> None:
        draws.extend([drawn(lambda: ids.next("a")) for _ in range(each)])

    running = [threading.Thread(target=draw) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert len(draws) == threads * each
    return draws


async def by_tasks(ids: issuer.AsyncIssuer, tasks: int, each: int) -> list[Draw]:
    """Draw in so many tasks at once."""

    async def draw() -> list[Draw]:
        return [await awaited(lambda: ids.next("a")) for _ in range(each)]

    return [one for part in await asyncio.gather(*(draw() for _ in range(tasks))) for one in part]


def evalshas(client: redis.Redis) -> int:
    return int(client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


# ---------------------------------------------------------------------------------------------- order under load


@pytest.mark.covers("1.3", "N.2")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("scheduler", ["background", None])
def test_threads_see_strict_order(redis_url: str, step: int, scheduler: Any) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=scheduler, timeout=20) as ids:
        ids.create("a", step=step)
        draws = by_threads(ids, 32, 60)
    assert repeats(draw.number for draw in draws) == []
    assert order_violations(draws) == []


@pytest.mark.covers("1.3", "N.2")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("tasks", [200, 1000])
@pytest.mark.parametrize("scheduler", ["background", None])
def test_tasks_see_strict_order(redis_url: str, tasks: int, step: int, scheduler: Any) -> None:
    async def main() -> list[Draw]:
        async with issuer.aconnect(redis=redis_url, store="memory://", scheduler=scheduler, timeout=20) as ids:
            await ids.create("a", step=step)
            return await by_tasks(ids, tasks, 10_000 // tasks)

    draws = run(main())
    assert repeats(draw.number for draw in draws) == []
    assert order_violations(draws) == []


@pytest.mark.covers("1.3", "3.1")
def test_processes_of_threads_and_of_tasks_see_strict_order_among_each_other(redis_url: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=500)
    kinds = [("threads", 1), ("threads", 16), ("tasks", 200)]
    files = [tmp_path / f"{kind}{count}" for kind, count in kinds]
    drawers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.drawer", redis_url, store, "a", "4000", str(count), file, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for (kind, count), file in zip(kinds, files, strict=True)
    ]
    for drawer in drawers:
        assert drawer.stdout is not None
        assert drawer.stdout.readline() == "ready\n"
    for drawer in drawers:
        assert drawer.stdin is not None
        drawer.stdin.write("go\n")
        drawer.stdin.flush()
    for drawer in drawers:
        drawer.communicate(timeout=60)
        assert drawer.returncode == 0
    draws = [
        Draw(number, began, ended)
        for file in files
        for number, began, ended in struct.iter_unpack("qqq", file.read_bytes())
    ]
    assert len(draws) == 12_000
    assert repeats(draw.number for draw in draws) == []
    assert order_violations(draws) == []


def test_grants_that_are_too_short_for_all_serve_everybody_in_order(redis_url: str) -> None:
    """Fifty callers and three numbers a segment."""

    async def main() -> list[Draw]:
        async with issuer.aconnect(redis=redis_url, store="memory://", timeout=20) as ids:
            await ids.create("a", step=3)
            return await by_tasks(ids, 50, 10)

    draws = run(main())
    assert sorted(draw.number for draw in draws) == list(range(1, 501))
    assert order_violations(draws) == []


def test_threads_are_served_by_short_grants_too(redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", timeout=20) as ids:
        ids.create("a", step=3)
        draws = by_threads(ids, 50, 4)
    assert sorted(draw.number for draw in draws) == list(range(1, 201))
    assert order_violations(draws) == []


# ---------------------------------------------------------------------------------------------- what it saves


@pytest.mark.covers("N.2")
def test_two_hundred_tasks_draw_at_a_multiple_of_incrs_speed(redis_url: str) -> None:
    async def rate(call: Callable[[], Awaitable[object]]) -> float:
        """Return calls per second of 200 tasks."""
        count, end = 0, time.monotonic() + 0.4

        async def repeat() -> None:
            nonlocal count
            while time.monotonic() < end:
                await call()
                count += 1

        began = time.monotonic()
        await asyncio.gather(*(repeat() for _ in range(200)))
        return count / (time.monotonic() - began)

    async def main() -> float:
        client = redis.asyncio.Redis.from_url(redis_url, max_connections=200)
        async with issuer.aconnect(redis=redis_url, store="memory://") as ids, client:
            await ids.create("a", step=10_000_000)
            await ids.next("a")
            await client.incr("n")
            # Side by side, so that a machine that is busy elsewhere slows down both.
            pairs = [(await rate(lambda: client.incr("n")), await rate(lambda: ids.next("a"))) for _ in range(3)]
        return sum(mine for _, mine in pairs) / sum(theirs for theirs, _ in pairs)

    assert run(main()) > 3


def test_many_tasks_share_few_draws(redis_server: RedisServer, redis_url: str) -> None:
    async def main() -> int:
        async with issuer.aconnect(redis=redis_url, store="memory://", scheduler=None) as ids:
            await ids.create("a", step=1_000_000)
            await ids.next("a")
            with redis_server.client() as client:
                before = evalshas(client)
                await by_tasks(ids, 200, 50)
                return evalshas(client) - before

    assert run(main()) < 1000


def test_many_threads_share_few_draws(redis_server: RedisServer, redis_url: str) -> None:
    with (
        issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids,
        redis_server.client() as client,
    ):
        ids.create("a", step=1_000_000)
        ids.next("a")
        before = evalshas(client)
        by_threads(ids, 32, 100)
        assert evalshas(client) - before < 1600  # of 3200; on a quiet machine 300


def test_a_batch_waits_for_the_threads_of_the_one_before(redis_server: RedisServer, redis_url: str) -> None:
    """Who has got a number calls again soon, and sits in the next batch: 32 threads share each draw, instead of 11."""
    with (
        issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids,
        redis_server.client() as client,
    ):
        ids.create("a", step=1_000_000)
        ids.next("a")
        together = threading.Barrier(32)
        spent: list[int] = []

        def draw() -> None:
            together.wait(30)
            for _ in range(300):
                ids.next("a")
            if together.wait(30) == 0:
                spent.append(evalshas(client))

        before = evalshas(client)
        threads = [threading.Thread(target=draw) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert spent[0] - before < 9600 / 16  # two thirds more if nobody is waited for


# ---------------------------------------------------------------------------------------------- a batch that is open


class LateThread(thread_line.Line):
    """The guard taken out: the batch is closed after its draw was sent, with numbers for whoever comes meanwhile."""

    def _lead(self, batch: thread_line.Batch, deadline: Any) -> None:
        with self._turn:
            low, high = self._draw(20, deadline)
            self._close(batch)
        batch.low, batch.got = low, high - low
        batch.land(progress=True)


def late_thread(redis_proxy: FaultProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> list[Draw]:
    """Let one batch's reply be late, draw elsewhere meanwhile, and then begin a call that may find the batch open."""
    store = MemoryStore()
    monkeypatch.setattr(thread_line, "UNCLAIMED", 5.0)
    with (
        issuer.connect(redis=redis_proxy.url, store=store, scheduler=None) as ids,
        issuer.connect(redis=redis_server.url, store=store, scheduler=None) as other,
    ):
        ids.create("a", step=1000)
        ids.next("a")
        draws: list[Draw] = []

        def draw() -> None:
            draws.append(drawn(lambda: ids.next("a")))

        line = ids._roster.line("a")
        line._turn.acquire()
        first = threading.Thread(target=draw)
        first.start()
        until(lambda: line._batch.claimed)
        redis_proxy.delay_replies(0.4, times=1)
        before = other.inspect("a").redis.cur  # type: ignore[union-attr]  # drawn from, so it is there
        line._turn.release()
        until(lambda: other.inspect("a").redis.cur != before)  # type: ignore[union-attr]  # the same
        draws.append(drawn(lambda: other.next("a")))
        late = threading.Thread(target=draw)
        late.start()
        first.join()
        late.join()
    return draws


def test_who_comes_after_the_draw_was_sent_gets_no_number_of_it(
    redis_proxy: FaultProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert order_violations(late_thread(redis_proxy, redis_server, monkeypatch)) == []


def test_a_batch_that_is_closed_after_its_draw_was_sent_breaks_the_order(
    redis_proxy: FaultProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.facade.Line", LateThread)
    assert order_violations(late_thread(redis_proxy, redis_server, monkeypatch)) != []


class LateTask(task_line.Line):
    """The same for tasks: whoever has come by the time of the reply gets a number of it."""

    async def _share(self, served: task_line.Queue) -> None:
        from issuer.clock import Deadline

        numbers = await self._draw(20, Deadline.until(max(served.until)))
        served.futures += self._queue.futures
        self._queue = task_line.Queue()
        for future, number in zip(served.futures, numbers, strict=False):
            future.set_result(number)


async def late_task(redis_proxy: FaultProxy, redis_server: RedisServer) -> list[Draw]:
    store = MemoryStore()
    async with (
        issuer.aconnect(redis=redis_proxy.url, store=store, scheduler=None) as ids,
        issuer.aconnect(redis=redis_server.url, store=store, scheduler=None) as other,
    ):
        await ids.create("a", step=1000)
        await ids.next("a")
        redis_proxy.delay_replies(0.4, times=1)

        async def cur() -> int | None:
            return (await other.inspect("a")).redis.cur  # type: ignore[union-attr]  # drawn from, so it is there

        before = await cur()
        first = asyncio.ensure_future(awaited(lambda: ids.next("a")))
        await eventually(lambda: redis_proxy.hits)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while await cur() == before:
                    pass
        between = await awaited(lambda: other.next("a"))
        late = await awaited(lambda: ids.next("a"))
        return [await first, between, late]


def test_a_task_that_comes_after_the_draw_was_sent_gets_no_number_of_it(
    redis_proxy: FaultProxy, redis_server: RedisServer
) -> None:
    assert order_violations(run(late_task(redis_proxy, redis_server))) == []


def test_a_queue_that_is_emptied_after_the_draw_was_sent_breaks_the_order(
    redis_proxy: FaultProxy, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.async_facade.Line", LateTask)
    assert order_violations(run(late_task(redis_proxy, redis_server))) != []


# ---------------------------------------------------------------------------------------------- numbers given twice


def test_a_batch_in_which_two_take_one_seat_repeats(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: seats are counted in steps that another thread may come between."""

    class Shared:
        """Gives each seat but the first twice."""

        def __init__(self) -> None:
            self._calls = 0

        def __next__(self) -> int:
            self._calls += 1
            return (self._calls + 2) // 2

    init = thread_line.Batch.__init__

    def shared(batch: thread_line.Batch) -> None:
        init(batch)
        batch.seats = Shared()  # type: ignore[assignment]  # the mutation

    monkeypatch.setattr(thread_line.Batch, "__init__", shared)
    with issuer.connect(redis=redis_url, store="memory://", timeout=20) as ids:
        ids.create("a", step=1_000_000)
        draws = by_threads(ids, 16, 100)
    assert repeats(draw.number for draw in draws) != []
