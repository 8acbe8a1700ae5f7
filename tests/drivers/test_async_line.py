"""A batch of numbers reaches the tasks that wait for it in one callback of the loop, whatever one of them does."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from issuer.drivers.aio.callers import hand_out

NUMBERS = range(1, 6)

Number = asyncio.Future[int]
Tasks = list["asyncio.Task[int]"]

where: ContextVar[str] = ContextVar("where", default="nowhere")


async def waiting(work: Callable[[int, Number, Tasks], Coroutine[Any, Any, int]]) -> tuple[list[Number], Tasks]:
    """Start a task for each number, and let all of them begin to wait."""
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in NUMBERS]
    tasks: Tasks = []
    tasks += [asyncio.create_task(work(seat, future, tasks)) for seat, future in enumerate(futures)]
    await asyncio.sleep(0)
    return futures, tasks


async def ends(tasks: Tasks) -> list[int | type]:
    """Return each task's result, or the kind of its error."""
    ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    return [type(each) if isinstance(each, BaseException) else each for each in ended]


async def plain(_seat: int, future: Number, _tasks: Tasks) -> int:
    return await future


async def in_its_context(seat: int, future: Number, _tasks: Tasks) -> int:
    where.set(f"task {seat}")
    await future
    assert asyncio.current_task() is not None
    return int(where.get().removeprefix("task "))


async def cancelling(seat: int, future: Number, tasks: Tasks) -> int:
    number = await future
    if seat == 1:
        tasks[3].cancel()
    return number


async def failing(seat: int, future: Number, _tasks: Tasks) -> int:
    return await future // (seat - 1)


@pytest.mark.parametrize(
    ("work", "ended"),
    [
        (plain, [1, 2, 3, 4, 5]),
        (in_its_context, [0, 1, 2, 3, 4]),
        (cancelling, [1, 2, 3, asyncio.CancelledError, 5]),
        (failing, [-1, ZeroDivisionError, 3, 2, 1]),
    ],
)
async def test_what_one_task_does_keeps_no_number_from_the_others_which_go_on_in_one_callback(
    work: Any, ended: list[int | type]
) -> None:
    futures, tasks = await waiting(work)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    assert not any(task.done() for task in tasks)
    await asyncio.sleep(0)
    assert work is cancelling or all(task.done() for task in tasks)
    assert await ends(tasks) == ended


async def test_whoever_was_cancelled_before_it_gets_nothing() -> None:
    futures, tasks = await waiting(plain)
    asyncio.get_running_loop().call_soon(hand_out, futures, NUMBERS)
    tasks[2].cancel()
    assert await ends(tasks) == [1, 2, asyncio.CancelledError, 4, 5]


def test_a_task_that_ends_the_program_keeps_no_number_from_the_others() -> None:
    async def ending(seat: int, future: Number, _tasks: Tasks) -> int:
        number = await future
        if seat == 1:
            raise SystemExit(7)
        return number

    loop = asyncio.new_event_loop()
    futures, tasks = loop.run_until_complete(waiting(ending))
    loop.call_soon(hand_out, futures, NUMBERS)
    with pytest.raises(SystemExit):
        loop.run_until_complete(asyncio.sleep(0, loop))
    assert loop.run_until_complete(ends(tasks)) == [1, SystemExit, 3, 4, 5]
    loop.close()


@pytest.mark.parametrize("extra", ["callback", "python"])
async def test_a_future_that_others_look_at_does_what_it_always_does(extra: str) -> None:
    loop = asyncio.get_running_loop()
    told: list[int] = []
    # asyncio's own future in Python, as where the one in C is missing.
    future: Number = asyncio.futures._PyFuture(loop=loop) if extra == "python" else loop.create_future()  # type: ignore[attr-defined]
    task = asyncio.create_task(plain(0, future, []))
    await asyncio.sleep(0)
    if extra == "callback":
        future.add_done_callback(lambda done: told.append(done.result()))
    loop.call_soon(hand_out, [future], [7])
    assert await asyncio.wait_for(task, 30) == 7
    assert told == ([7] if extra == "callback" else [])
