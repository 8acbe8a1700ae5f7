"""Runs a protocol generator for a task: sends its Redis calls, asks the store in a thread, waits, within a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from issuer.clock import Deadline
from issuer.core.steps import Ask, Flight, Sleep, Step, Steps, Wait, public
from issuer.core.supply.runtime import Job
from issuer.drivers import spans
from issuer.drivers.aio.connections import AsyncConnections
from issuer.drivers.spans import REDIS
from issuer.drivers.store_pool import GRACE, Answer, StorePool
from issuer.errors import ConfigurationError
from issuer_persistence.contract import Store

S = TypeVar("S")
T = TypeVar("T")


async def drive(steps: Generator[S, Any, T], do: Callable[[S], Awaitable[Any]]) -> T:
    """Run the steps to their end: each step is done, and its result, or its error, goes back into them.

    So does a cancellation, as any other exception: the steps end what they have begun.
    """
    try:
        wanted = next(steps)
        while True:
            try:
                result = await do(wanted)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means
                wanted = steps.throw(error)
            else:
                wanted = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


class TaskLatch:
    """Wakes tasks of one loop."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def wake(self) -> None:
        """Wake every waiter, later ones too."""
        self.event.set()


def new_flight() -> Flight:
    """Make a flight whose waiters are tasks."""
    return Flight(TaskLatch(), asyncio.current_task)


async def waited(flight: Flight, seconds: float) -> bool:
    """Wait for the flight's end, `seconds` seconds at most; return whether it came."""
    latch: TaskLatch = flight.latch  # type: ignore[assignment]  # made by `new_flight`
    try:
        async with asyncio.timeout(seconds):
            await latch.event.wait()
    except TimeoutError:
        return bool(flight.finished)
    return True


class Work:
    """A draw in a task of its own. `left`: its caller was cancelled; `waits`: for something other than Redis."""

    __slots__ = ("left", "task", "waits")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.left = False
        self.waits = False


class AsyncRunner:
    """A store and, unless it is direct, Redis: what a protocol generator works with."""

    def __init__(self, store: Store, redis: AsyncConnections | None, store_timeout: float) -> None:
        """`store_timeout`: the longest that one call of the store may take, in seconds."""
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout
        self.pool = StorePool(self.store, self.store_timeout)
        self._work: dict[asyncio.Task[Any] | None, Work] = {}

    def after_fork(self) -> None:
        """In a forked child: leave the threads and tasks to the parent."""
        self.pool = StorePool(self.store, self.store_timeout)
        self._work = {}

    async def see_through(self, draw: Coroutine[Any, Any, T]) -> T:
        """Run a draw. If its caller is cancelled, the reply of Redis that is under way is still dealt with.

        If that was lost, its connection would be cut off in the middle of it, and the draw be taken for one that was
        elected to load the next segment. What comes after the reply is cancelled.
        """
        task = asyncio.Task(draw)  # not by the loop's task factory: an eager one would run it before it is noted
        work = self._work[task] = Work(task)
        task.add_done_callback(self._done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            work.left = True
            if work.waits:
                task.cancel()
            raise

    def _done(self, task: asyncio.Task[Any]) -> None:
        work = self._work.pop(task, None)
        if work is not None and work.left and not task.cancelled():
            task.exception()  # nobody else looks at it

    def go_on(self) -> None:
        """Raise CancelledError where this task draws for a caller that was cancelled."""
        work = self._work.get(asyncio.current_task()) if self._work else None
        if work is not None and work.left:
            raise asyncio.CancelledError

    async def end(self, seconds: float) -> None:
        """Cancel the draws whose callers were cancelled, and that have not ended after `seconds` seconds."""
        left = [work.task for work in self._work.values() if work.left]
        if left:
            _, late = await asyncio.wait(left, timeout=seconds)
            for task in late:
                task.cancel()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        work = self._work.get(asyncio.current_task())
        if work is None:
            yield
            return
        work.waits = True
        try:
            yield
        finally:
            work.waits = False

    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run it to its end and return its value. What a store raises is thrown in, and comes out as a public error.

        A cancellation is thrown into it as any other exception, so that it ends what it has begun. A store's call under
        way goes on in its thread, and what it reserves is a gap.
        """
        return await drive(public(steps, tag, self.store), partial(self._result, deadline=deadline, tag=tag))

    async def work(self, window: float, job: Job) -> None:
        """Run a job of the scheduler, within `window` seconds from now."""
        deadline = Deadline(window)
        await drive(public(job(deadline), None, self.store), partial(self._result, deadline=deadline, tag=None))

    async def _result(self, step: Step, deadline: Deadline, tag: str | None) -> object:
        self.go_on()
        match step:
            case Ask():
                with spans.around(step, tag, self.store.url), self._waiting():
                    return await self._asked(step, deadline, tag)
            case Sleep():
                with self._waiting():
                    await asyncio.sleep(step.seconds)
                return None
            case Wait():
                with self._waiting():
                    return await waited(step.flight, step.seconds)
        if self.redis is None:
            raise ConfigurationError("this issuer has no Redis")
        with spans.around(step, tag, REDIS):
            return await self.redis.do(step, deadline, tag)

    async def _asked(self, step: Ask, deadline: Deadline, tag: str | None) -> object:
        timeout = self.pool.seconds(deadline, tag)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[object] = loop.create_future()

        def settle(found: Answer) -> None:
            answer, error = found
            if answered.done():  # too late, or its caller was cancelled
                return
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(answer)

        def tell(found: Answer) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, found)

        self.pool.submit(step.question, timeout, tell)
        try:
            async with asyncio.timeout(timeout + GRACE):
                return await answered
        except TimeoutError:
            if answered.done() and not answered.cancelled():
                # The store's own; or a loop that was held up found answer and alarm at once, and the answer is there.
                return answered.result()
            raise self.pool.late(timeout, tag) from None
