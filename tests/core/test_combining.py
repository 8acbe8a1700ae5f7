"""Callers of a process share draws, and each number is still drawn after its call began: strict order under load."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.clock import Deadline
from issuer.drivers.blocking import combiner as thread_line
from issuer_persistence.memory import MemoryStore
from tests.audit import Draw, awaited, drawn, order_violations, repeats
from tests.drivers.drawer import by_processes, by_tasks, by_threads
from tests.waiting import eventually, run, until

pytestmark = pytest.mark.live

Spent = Callable[[], int]


@pytest.fixture
def spent(redis_client: redis.Redis) -> Spent:
    """Return how many scripts this server has run."""
    return lambda: int(redis_client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


#: How many callers of which kind, the step, within which all is drawn or whose border comes again and again, and what
#: loads. The pairs that matter, with grants that are too short for all.
_LOADS: list[Any] = [
    ("threads", 32, 1_000_000, None),
    ("threads", 32, 150, "background"),
    ("threads", 50, 3, "background"),
    ("tasks", 200, 150, None),
    ("tasks", 1000, 1_000_000, "background"),
    ("tasks", 50, 3, "background"),
]


@pytest.mark.covers("1.3", "N.2", "3.8", "0.2", "2.3")
@pytest.mark.parametrize(("kind", "callers", "step", "scheduler"), _LOADS)
def test_callers_see_strict_order(redis_url: str, kind: str, callers: int, step: int, scheduler: Any) -> None:
    each = max(2, (300 if step == 3 else 2000) // callers)

    async def tasks() -> list[Draw]:
        async with issuer.aconnect(redis=redis_url, store="memory://", scheduler=scheduler) as ids:
            await ids.create("a", step=step)
            return await by_tasks(ids, callers, each)

    if kind == "tasks":
        draws = run(tasks(), 120)
    else:
        with issuer.connect(redis=redis_url, store="memory://", scheduler=scheduler) as ids:
            ids.create("a", step=step)
            draws = by_threads(ids, callers, each)
    assert sorted(draw.number for draw in draws) == list(range(1, callers * each + 1))
    assert order_violations(draws) == []


@pytest.mark.covers("3.1", "1.1", "1.3", "3.2", "4.1", "4.3")
@pytest.mark.parametrize(
    ("store_url", "kinds", "each"),
    [
        ("sqlite", [("threads", 1), ("threads", 16), ("tasks", 200)], 800),
        ("mongodb", [("threads", 1), ("threads", 4)], 800),
        pytest.param("mongodb", [("threads", 1)] * 8, 20_000, marks=pytest.mark.soak),
        pytest.param("mongodb", [("threads", 4)] * 8, 20_000, marks=pytest.mark.soak),
        pytest.param("sqlite", [("threads", 16), ("tasks", 200)] * 3, 20_000, marks=pytest.mark.soak),
    ],
    indirect=["store_url"],
)
def test_processes_repeat_nothing_and_keep_the_order_of_their_calls(
    redis_url: str, store_url: str, tmp_path: Path, kinds: list[tuple[str, int]], each: int
) -> None:
    with issuer.connect(redis=redis_url, store=store_url, scheduler=None) as ids:
        ids.create("a", step=500)
        draws = list(by_processes(redis_url, store_url, kinds, each, tmp_path))
        assert len(draws) == len(kinds) * each
        assert repeats(draw.number for draw in draws) == []
        assert order_violations(draws) == []
        assert max(draw.number for draw in draws) <= ids.inspect("a").store.max


@pytest.mark.covers("N.2")
def test_two_hundred_tasks_share_each_draw(redis_url: str, spent: Spent) -> None:
    """What that gives beside INCR, in numbers a second: `make bench`."""

    async def main() -> list[Draw]:
        async with issuer.aconnect(redis=redis_url, store="memory://", scheduler=None) as ids:
            await ids.create("a", step=1_000_000)
            await ids.next("a")
            before = spent()
            draws = await by_tasks(ids, 200, 50)
            assert spent() - before <= 2 * 50
            return draws

    draws = run(main(), 120)
    assert sorted(draw.number for draw in draws) == list(range(2, 10_002))
    assert order_violations(draws) == []


def seats(line: thread_line.Combiner) -> int:
    return int(repr(line._batch.seats)[len("count(") : -1]) - 1


@pytest.mark.covers("N.2")
def test_threads_that_wait_for_a_draw_share_the_next_and_those_back_from_it_the_one_after(
    redis_url: str, spent: Spent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for patience in ("TURN", "PASSING", "UNCLAIMED"):
        monkeypatch.setattr(thread_line, patience, 60.0)
    number = thread_line.Batch.number
    taken, go_on = count(1), threading.Event()

    def last_one_lingers(batch: thread_line.Batch, seat: int) -> int:
        if next(taken) == 32:
            assert go_on.wait(60)
        return number(batch, seat)

    monkeypatch.setattr(thread_line.Batch, "number", last_one_lingers)
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1_000_000)
        ids.next("a")
        line = ids.engine.registry.combiner("a")
        before = spent()
        line._turn.acquire()
        draws: list[Draw] = []
        drawing = threading.Thread(target=lambda: draws.extend(by_threads(ids, 32, 2)))
        drawing.start()
        until(lambda: seats(line) == 32, 60)
        line._turn.release()
        until(lambda: seats(line) == 31, 60, "all but the last have taken their numbers, and are back")
        assert spent() - before == 1
        go_on.set()
        drawing.join()
        assert spent() - before <= 3  # the last one may come too late for the second
    assert sorted(draw.number for draw in draws) == list(range(2, 66))


def late_thread(**servers: Any) -> list[Draw]:
    """Let one batch's reply be late, draw elsewhere meanwhile, and begin a call that may find the batch open."""
    with issuer.connect(**servers, scheduler=None) as ids, issuer.connect(**servers, scheduler=None) as other:
        ids.create("a", step=1000)
        ids.next("a")
        draws: list[Draw] = []
        line = ids.engine.registry.combiner("a")
        draw, executed, reply = line._draw, threading.Event(), threading.Event()

        def slowly(n: int, deadline: Deadline) -> Sequence[int]:
            numbers = draw(n, deadline)
            executed.set()
            assert reply.wait(60)
            return numbers

        line._draw = slowly  # type: ignore[method-assign]  # a slow network
        first, late = (threading.Thread(target=lambda: draws.append(drawn(lambda: ids.next("a")))) for _ in range(2))
        line._turn.acquire()
        first.start()
        until(lambda: line._batch.started, 60)
        line._turn.release()
        assert executed.wait(60)
        draws.append(drawn(lambda: other.next("a")))
        seated = seats(line)
        late.start()
        until(lambda: seats(line) > seated, 60)
        reply.set()
        first.join()
        late.join()
    return draws


async def late_task(**servers: Any) -> list[Draw]:
    async with issuer.aconnect(**servers, scheduler=None) as ids, issuer.aconnect(**servers, scheduler=None) as other:
        await ids.create("a", step=1000)
        await ids.next("a")
        line = ids.engine.registry.combiner("a")
        draw, executed, reply = line._draw, asyncio.Event(), asyncio.Event()

        async def slowly(n: int, until: float) -> Sequence[int]:
            numbers = await draw(n, until)
            executed.set()
            await reply.wait()
            return numbers

        line._draw = slowly  # type: ignore[method-assign]  # a slow network
        first = asyncio.ensure_future(awaited(lambda: ids.next("a")))
        await executed.wait()
        between = await awaited(lambda: other.next("a"))
        late = asyncio.ensure_future(awaited(lambda: ids.next("a")))
        await eventually(lambda: line._queue.callers, 60)
        reply.set()
        return [await first, between, await late]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_who_comes_after_the_draw_was_sent_gets_no_number_of_it(
    redis_url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_line, "TURN", 60.0)  # else who waits for a turn may leave the batch that it is seen in
    servers: dict[str, Any] = {"redis": redis_url, "store": MemoryStore()}
    draws = late_thread(**servers) if kind == "threads" else run(late_task(**servers), 120)
    assert order_violations(draws) == []


@pytest.mark.parametrize("arguments", [{}, {"timeout": 60}])
def test_who_finds_numbers_in_memory_waits_for_nobody(redis_url: str, arguments: dict[str, Any]) -> None:
    """Of 32 threads that wait for each other at each few thousand numbers, all get half as many."""
    with issuer.connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a", order="trend", lease=100)
        ids.next("a")
        line = ids.engine.registry.combiner("a")
        assert line.state.buffer is not None
        line.state.buffer.unpublish()
        before = seats(line)
        with line._turn:
            assert ids.next("a", **arguments) == 2
        assert seats(line) == before
