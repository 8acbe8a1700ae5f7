"""A batch of numbers reaches the tasks that wait for it in one callback of the loop, whatever one of them does."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec

import pytest

from issuer.drivers.asyncio.line import hand_out

P = ParamSpec("P")

NUMBERS = range(1, 6)

where: ContextVar[str] = ContextVar("where", default="nowhere")


def in_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run it in a loop of its own."""

    @wraps(test)
    def run(*args: P.args, **options: P.kwargs) -> None:
        asyncio.run(test(*args, **options))

    return run


async def waiting(
    work: Callable[[int, "asyncio.Future[int]"], Coroutine[Any, Any, int]],
) -> tuple[list["asyncio.Future[int]"], list["asyncio.Task[int]"]]:
    """Start a task for each future, and let all of them begin to wait."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in NUMBERS]
    tasks = [asyncio.create_task(work(seat, future)) for seat, future in enumerate(futures)]
    await asyncio.sleep(0)
    return futures, tasks


async def plain(_seat: int, future: "asyncio.Future[int]") -> int:
    return await future


@in_a_loop
async def test_all_tasks_have_gone_on_after_one_callback() -> None:
    futures, tasks = await waiting(plain)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    assert not any(task.done() for task in tasks)
    await asyncio.sleep(0)
    assert [task.result() for task in tasks] == [*NUMBERS]


@in_a_loop
async def test_each_goes_on_in_its_own_context() -> None:
    async def telling(seat: int, future: "asyncio.Future[int]") -> int:
        where.set(f"task {seat}")
        await future
        assert asyncio.current_task() is not None
        return int(where.get().removeprefix("task "))

    futures, tasks = await waiting(telling)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]


@in_a_loop
async def test_whoever_was_cancelled_before_it_gets_nothing() -> None:
    futures, tasks = await waiting(plain)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    tasks[2].cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended[2], asyncio.CancelledError)
    assert [*ended[:2], *ended[3:]] == [1, 2, 4, 5]


@in_a_loop
async def test_whoever_is_cancelled_by_a_task_before_it_in_the_batch_gets_nothing() -> None:
    tasks: list[asyncio.Task[int]] = []

    async def cancelling(seat: int, future: "asyncio.Future[int]") -> int:
        number = await future
        if seat == 1:
            tasks[3].cancel()
        return number

    futures, started = await waiting(cancelling)
    tasks += started
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended[3], asyncio.CancelledError)
    assert [*ended[:3], ended[4]] == [1, 2, 3, 5]


@in_a_loop
async def test_a_task_that_fails_keeps_no_number_from_the_others() -> None:
    async def failing(seat: int, future: "asyncio.Future[int]") -> int:
        return await future // (seat - 1)

    futures, tasks = await waiting(failing)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended[1], ZeroDivisionError)
    assert [*ended[:1], *ended[2:]] == [-1, 3, 2, 1]


def test_a_task_that_ends_the_program_keeps_no_number_from_the_others() -> None:
    async def ending(seat: int, future: "asyncio.Future[int]") -> int:
        number = await future
        if seat == 1:
            raise SystemExit(7)
        return number

    loop = asyncio.new_event_loop()
    futures, tasks = loop.run_until_complete(waiting(ending))
    loop.call_soon(hand_out, futures, NUMBERS)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.sleep(0, loop))
    ended = loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5))
    assert isinstance(ended[1], SystemExit)
    assert [*ended[:1], *ended[2:]] == [1, 3, 4, 5]
    loop.close()


@pytest.mark.parametrize("extra", ["callback", "python"])
@in_a_loop
async def test_a_future_that_others_look_at_does_what_it_always_does(extra: str) -> None:
    loop = asyncio.get_running_loop()
    told: list[int] = []
    # asyncio's own future in Python, as where the one in C is missing.
    future: asyncio.Future[int] = asyncio.futures._PyFuture(loop=loop) if extra == "python" else loop.create_future()  # type: ignore[attr-defined]
    task = asyncio.create_task(plain(0, future))
    await asyncio.sleep(0)
    if extra == "callback":
        future.add_done_callback(lambda done: told.append(done.result()))
    loop.call_soon(hand_out, [future], [7])
    assert await asyncio.wait_for(task, 5) == 7
    assert told == ([7] if extra == "callback" else [])
