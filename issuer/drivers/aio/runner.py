"""Runs the generators of `core` for tasks. A generator yields steps: to call Redis, to call the store, or to wait.

The store is called in a thread. Each step ends at the deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from issuer.clock import Deadline
from issuer.core.steps import Ask, Flight, Sleep, Step, Steps, Wait, public
from issuer.core.supply.runtime import Job
from issuer.drivers import spans
from issuer.drivers.aio.connections import AsyncConnections
from issuer.drivers.aio.link import Draw, abandoned
from issuer.drivers.running import AnyRunner, thrown
from issuer.drivers.store_pool import GRACE, Answer
from issuer.forks import refuse_inherited
from issuer_persistence.contract import Store

S = TypeVar("S")
T = TypeVar("T")


async def drive(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]], generation: int, tag: str | None) -> T:
    """Run the generator `steps` to its end: execute each step with `do`, and send the result or error back into it.

    A cancellation is also thrown into the generator, so that the generator can clean up. `generation`: that of the
    process in which the steps belong. In a forked child, all further steps are refused.
    """
    try:
        wanted = next(steps)
        while True:
            try:
                refuse_inherited(generation, tag)
                result = await do(wanted)
                refuse_inherited(generation, tag)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                wanted = thrown(steps, error, generation, tag)
            else:
                wanted = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class TaskLatch:
    """Wakes the tasks of one loop that wait for a flight (work that one task does for all)."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        """Wake all present and future waiters."""
        self.event.set()


def new_flight() -> Flight:
    """Return a new flight for tasks. A flight is work that one task does while the other tasks wait for it."""
    return Flight(TaskLatch(), asyncio.current_task)


async def waited(flight: Flight, seconds: float) -> bool:
    """Wait at most `seconds` seconds until the flight has ended. Returns whether the flight has ended."""
    latch: TaskLatch = flight.latch  # type: ignore[assignment]  # made by `new_flight`
    try:
        async with asyncio.timeout(seconds):
            await latch.event.wait()
    except TimeoutError:
        return bool(flight.finished)
    return True


#: If a job of the scheduler is cancelled, it still waits this many seconds for an answer of the store.
OUTLAST = 0.05


class AsyncRunner(AnyRunner[Any]):
    """Runs the generators of `core`: executes their calls to the store and to Redis, if there is one."""

    redis: AsyncConnections | None

    def __init__(self, store: Store, redis: AsyncConnections | None, store_timeout: float, relay: Any = None) -> None:
        super().__init__(store, redis, store_timeout, relay)
        #: The draws that process a reply of Redis although their caller was cancelled.
        self._left: set[Draw[Any]] = set()

    async def see_through(self, draw: Coroutine[Any, Any, T]) -> T:
        """Run a draw. If its caller is cancelled, the draw ends. If it has sent a request, it reads the reply first.

        Otherwise the connection would be lost. The process would also have to assume that the draw has elected this
        process to load the next segment.
        """
        task = Draw(draw)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._left.add(task)
            task.add_done_callback(self._ended)
            task.leave()
            raise

    def _ended(self, task: Draw[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # nobody else reads it

    def go_on(self) -> None:
        """Raise CancelledError if the current task is a draw with a cancelled caller."""
        if abandoned():
            raise asyncio.CancelledError

    async def end(self, seconds: float) -> None:
        """Wait at most `seconds` seconds for the draws of cancelled callers, then cancel these draws."""
        if self._left:
            _, late = await asyncio.wait(self._left, timeout=seconds)
            for task in late:
                task.cancel()

    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run the steps to their end and return their value. Errors of the store become public errors.

        A cancellation is thrown into the steps like any exception, so that they can clean up. A call to the store then
        continues in its thread, and numbers that this call reserves are a gap.
        """
        do = partial(self._result, deadline=deadline, tag=tag)
        return await drive(public(steps, tag, self.store), do, self.generation, tag)

    async def work(self, window: float, job: Job) -> None:
        """Run a job of the scheduler, for at most `window` seconds.

        asyncio.run cancels all tasks when it ends. If the job is just reserving a segment, the job continues: otherwise
        this segment would be a gap, and the next loop would reserve another segment.
        """
        deadline = Deadline(window)
        do = partial(self._result, deadline=deadline, tag=None, outlasts=True)
        await drive(public(job(deadline), None, self.store), do, self.generation, None)

    async def _result(self, step: Step, deadline: Deadline, tag: str | None, *, outlasts: bool = False) -> object:
        """`outlasts`: after a cancellation, wait OUTLAST seconds for the store, so that no reserved segment is lost."""
        self.go_on()
        match step:
            case Ask():
                with spans.around(step, tag, self.store):
                    return await self._asked(step, deadline, tag, outlasts=outlasts)
            case Sleep():
                await asyncio.sleep(step.seconds)
                return None
            case Wait():
                return await waited(step.flight, step.seconds)
        if self.redis is None:
            return await self._result(self.instead(step), deadline, tag)
        with spans.around(step, tag):
            return await self.redis.do(step, deadline, tag)

    async def _asked(self, step: Ask, deadline: Deadline, tag: str | None, *, outlasts: bool) -> object:
        loop = asyncio.get_running_loop()
        #: An error is a result too. As the exception of a future that nobody awaits any more, it would be logged.
        answered: asyncio.Future[Answer] = loop.create_future()

        def tell(found: Answer) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(answered.set_result, found)

        timeout = self.pool.submit(step, deadline, tag, tell)
        try:
            await asyncio.wait((answered,), timeout=timeout + GRACE)
        except asyncio.CancelledError:
            if not outlasts or not (await asyncio.wait((answered,), timeout=min(timeout, OUTLAST)))[0]:
                raise
        if not answered.done():
            raise self.pool.late(timeout, tag)
        answer, error = answered.result()
        if error is not None:
            raise error
        return answer
