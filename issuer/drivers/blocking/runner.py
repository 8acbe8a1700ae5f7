"""Runs the generators of `core` for threads. A generator yields steps: to call Redis or the store, or to wait."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from issuer import clock
from issuer.clock import Deadline
from issuer.core.steps import Ask, Flight, Sleep, Step, Steps, Wait, public
from issuer.drivers import spans
from issuer.drivers.running import AnyRunner, thrown
from issuer.drivers.store_pool import StorePool
from issuer.errors import CalledWithin
from issuer.forks import refuse_inherited
from issuer.reentry import amid_locks, callees
from issuer.threads import finished

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from issuer.core.supply.runtime import Job
    from issuer.drivers.blocking.connections import Connections

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], do: Callable[[S], Any], generation: int, tag: str | None) -> T:
    """Run the generator `steps` to its end: execute each step with `do`, and send the result or error back into it.

    `generation`: that of the process in which the steps belong. In a forked child, all further steps are refused.
    """
    try:
        wanted = next(steps)
        while True:
            try:
                refuse_inherited(generation, tag)
                result = do(wanted)
                refuse_inherited(generation, tag)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means, also for an interrupt
                wanted = thrown(steps, error, generation, tag)
            else:
                wanted = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


#: A waiting thread wakes up after this many seconds to check: the thread that should wake it may have been interrupted.
LOOK_AGAIN = 1.0


class ThreadLatch:
    """Wakes the threads that wait for a flight (work that one thread does for all), with a lock written in C.

    The lock is held until the flight has ended. Then the waiting threads acquire and release it one after another.
    threading.Event is not used, because it is written in Python: an interrupt can leave the event's lock held, so that
    all threads would wait for ever.
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        #: A waiting thread that acquires the lock releases the lock at once: this wakes the next waiting thread.
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> None:
        """Wake all present and future waiters."""
        self.lock.release()


def new_flight() -> Flight:
    """Return a new flight for threads. A flight is work that one thread does while the other threads wait for it."""
    return Flight(ThreadLatch(), threading.get_ident)


def waited(flight: Flight, seconds: float) -> bool:
    """Wait at most `seconds` seconds until the flight has ended. Returns whether the flight has ended."""
    end = Deadline(seconds)
    latch: ThreadLatch = flight.latch  # type: ignore[assignment]  # made by this driver
    while not flight.finished:
        left = end.left()
        if left <= 0:
            return False
        if latch.lock.acquire(timeout=min(left, LOOK_AGAIN)):
            latch.lock.release()
    return True


class Runner(AnyRunner[Any]):
    """Runs the generators of `core`: executes their calls to the store and to Redis, if there is one."""

    redis: Connections | None

    def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run the steps to their end and return their value. Errors of the store become public errors."""
        if amid_locks():
            raise CalledWithin(tag=tag)
        do = partial(self._result, deadline=deadline, tag=tag)
        return drive(public(steps, tag, self.store), do, self.generation, tag)

    def work(self, window: float, job: Job) -> None:
        """Run a job of the scheduler, for at most `window` seconds."""
        deadline = Deadline(window)
        do = partial(self._result, deadline=deadline, tag=None)
        drive(public(job(deadline), None, self.store), do, self.generation, None)

    def within(self, calls: int = 0) -> bool:
        """Whether this thread is inside more than `calls` calls of this runner (`run`, `work`) or of its store."""
        others = (each for each in callees(_CALLS, within=run_in_thread.__code__))
        own = (each is self or (isinstance(each, StorePool) and each.store.url == self.store.url) for each in others)
        return sum(own) > calls

    def _result(self, step: Step, deadline: Deadline, tag: str | None) -> object:
        if isinstance(step, Ask | Sleep | Wait) and self.within(1):
            raise CalledWithin(tag=tag)
        match step:
            case Ask():
                with spans.around(step, tag, self.store):
                    return self.pool.ask(step, deadline, tag)
            case Sleep():
                clock.sleep(step.seconds)
                return None
            case Wait():
                return waited(step.flight, step.seconds)
        redis = self.redis
        if redis is None:
            return self._result(self.instead(step), deadline, tag)
        with spans.around(step, tag):
            return finished(lambda: redis.do(step, deadline, tag))


def run_in_thread(runner: Runner, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
    """Run the steps of a strategy that blocks. The caller is in a thread of the store pool."""
    return runner.run(steps, deadline, tag)


#: A call that runs inside one of these functions must not wait: it could wait for its own thread.
_CALLS = frozenset(each.__code__ for each in (Runner.run, Runner.work, StorePool.answer))
