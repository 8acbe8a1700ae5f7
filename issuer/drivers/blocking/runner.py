"""Runs a protocol generator for a thread: sends its Redis calls, asks the store, waits, all within a deadline."""

from __future__ import annotations

import threading
from typing import TypeVar

from issuer import clock
from issuer.clock import Deadline
from issuer.core.single_flight import Flight
from issuer.core.steps import Ask, Elsewhere, Masters, Send, Sleep, Step, Steps, Visit, public
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.store_pool import StorePool
from issuer.errors import ConfigurationError, StoreUnavailable
from issuer.persistence.contract import Store

T = TypeVar("T")

#: A waiter looks again after this many seconds: the thread that was to wake it may have been interrupted just then.
LOOK_AGAIN = 1.0


class Gate:
    """Wakes threads: a lock in C, held until the landing, then passed on from waiter to waiter.

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

    def wait(self, seconds: float) -> None:
        """Return when woken, or after `seconds` seconds."""
        if self.lock.acquire(timeout=seconds):
            self.lock.release()


def new_flight() -> Flight:
    """Make a flight whose waiters are threads."""
    return Flight(Gate(), threading.get_ident)


def waited(flight: Flight, seconds: float) -> bool:
    """Wait for the flight's end, `seconds` seconds at most; return whether it came."""
    end = Deadline(seconds)
    while not flight.landed:
        left = end.left()
        if left <= 0:
            return False
        gate: Gate = flight.landing  # type: ignore[assignment]  # made by this driver
        gate.wait(min(left, LOOK_AGAIN))
    return True


class Runner:
    """A store and, unless it is direct, Redis: what a protocol generator works with."""

    def __init__(self, store: Store, redis: Connections | None, store_timeout: float) -> None:
        """`store_timeout`: the longest that one call of the store may take, in seconds."""
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout
        self.pool = StorePool()

    def after_fork(self) -> None:
        """In a forked child: leave connections and threads to the parent."""
        self.pool = StorePool()
        if self.redis is not None:
            self.redis.after_fork()

    def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run it to its end and return its value. What a store raises is thrown in, and comes out as a public error."""
        steps = public(steps, tag, self.store)
        try:
            step = next(steps)
            while True:
                try:
                    result = self._result(step, deadline, tag)
                except BaseException as error:  # noqa: BLE001 - the generator decides what it means, an interrupt too
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value

    def _result(self, step: Step, deadline: Deadline, tag: str | None) -> object:
        match step:
            case Send():
                return self._redis().call(step.call, deadline, tag, probe=step.probe)
            case Masters() | Visit() | Elsewhere():
                return self._looked(step, deadline)
            case Ask():
                timeout = min(self.store_timeout, deadline.left())
                if timeout <= 0:
                    raise StoreUnavailable(f"no time was left to ask the store {self.store.url}", tag=tag)
                return self.pool.ask(self.store, step.question, timeout, tag)
            case Sleep():
                clock.sleep(step.seconds)
                return None
        return waited(step.flight, step.seconds)

    def _looked(self, step: Masters | Visit | Elsewhere, deadline: Deadline) -> object:
        match step:
            case Masters():
                return self._redis().masters(deadline)
            case Visit():
                return self._redis().visit(step.server, step.call, deadline)
        return self._redis().elsewhere(step.call, deadline)

    def _redis(self) -> Connections:
        if self.redis is None:
            raise ConfigurationError("this issuer has no Redis")
        return self.redis
