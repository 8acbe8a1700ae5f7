"""Runs a protocol generator for a thread: sends its Redis calls, asks the store, waits, all within a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeVar

from issuer import clock
from issuer.clock import Deadline
from issuer.core.steps import Ask, Flight, Sleep, Step, Steps, Wait, public
from issuer.core.supply.runtime import Job
from issuer.drivers import spans
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.spans import REDIS
from issuer.drivers.store_pool import StorePool
from issuer.errors import CalledWithin, ConfigurationError
from issuer.reentry import callees
from issuer_persistence.contract import Store

S = TypeVar("S")
T = TypeVar("T")


def drive(steps: Generator[S, Any, T], do: Callable[[S], Any]) -> T:
    """Run the steps to their end: each step is done, and its result, or its error, goes back into them."""
    try:
        wanted = next(steps)
        while True:
            try:
                result = do(wanted)
            except BaseException as error:  # noqa: BLE001 - the steps decide what it means, an interrupt too
                wanted = steps.throw(error)
            else:
                wanted = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


#: A waiter looks again after this many seconds: the thread that was to wake it may have been interrupted just then.
LOOK_AGAIN = 1.0


class ThreadLatch:
    """Wakes threads: a lock in C, held until the flight has ended, then passed on from waiter to waiter.

    Not threading.Event, which is Python: an interrupt inside of it can leave its own lock held, and then all
    waiters wait for ever.
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        #: Each waiter that gets it releases it at once: that wakes the next.
        self.lock = threading.Lock()
        self.lock.acquire()

    def wake(self) -> None:
        """Wake every waiter, later ones too."""
        self.lock.release()


def new_flight() -> Flight:
    """Make a flight whose waiters are threads."""
    return Flight(ThreadLatch(), threading.get_ident)


def waited(flight: Flight, seconds: float) -> bool:
    """Wait for the flight's end, `seconds` seconds at most; return whether it came."""
    end = Deadline(seconds)
    latch: ThreadLatch = flight.latch  # type: ignore[assignment]  # made by this driver
    while not flight.finished:
        left = end.left()
        if left <= 0:
            return False
        if latch.lock.acquire(timeout=min(left, LOOK_AGAIN)):
            latch.lock.release()
    return True


class Runner:
    """A store and, unless it is direct, Redis: what a protocol generator works with."""

    def __init__(self, store: Store, redis: Connections | None, store_timeout: float) -> None:
        """`store_timeout`: the longest that one call of the store may take, in seconds."""
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout
        self.pool = StorePool(self.store, self.store_timeout)

    def after_fork(self) -> None:
        """In a forked child: leave connections and threads to the parent."""
        self.pool = StorePool(self.store, self.store_timeout)
        if self.redis is not None:
            self.redis.begin()

    def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run it to its end and return its value. What a store raises is thrown in, and comes out as a public error."""
        return drive(public(steps, tag, self.store), partial(self._result, deadline=deadline, tag=tag))

    def work(self, window: float, job: Job) -> None:
        """Run a job of the scheduler, within `window` seconds from now."""
        deadline = Deadline(window)
        drive(public(job(deadline), None, self.store), partial(self._result, deadline=deadline, tag=None))

    def within(self, calls: int = 0) -> bool:
        """Whether this thread is in more than so many runs, or is asking the same store."""
        others = (each for each in callees(_CALLS, within=run_in_thread.__code__))
        own = (each is self or (isinstance(each, StorePool) and each.store.url == self.store.url) for each in others)
        return sum(own) > calls

    def _result(self, step: Step, deadline: Deadline, tag: str | None) -> object:
        if isinstance(step, Ask | Sleep | Wait) and self.within(1):
            raise CalledWithin(tag=tag)
        match step:
            case Ask():
                with spans.around(step, tag, self.store.url):
                    return self.pool.ask(step.question, deadline, tag)
            case Sleep():
                clock.sleep(step.seconds)
                return None
            case Wait():
                return waited(step.flight, step.seconds)
        if self.redis is None:
            raise ConfigurationError("this issuer has no Redis")
        with spans.around(step, tag, REDIS):
            return self.redis.do(step, deadline, tag)


def run_in_thread(runner: Runner, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
    """Run the steps for code that a thread of the store's runs: a strategy's."""
    return runner.run(steps, deadline, tag)


#: A call of one of these in the middle of another one waits for nothing.
_CALLS = frozenset(each.__code__ for each in (Runner.run, Runner.work, StorePool.answer))
