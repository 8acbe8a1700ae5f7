"""One clock for threads and tasks that take turns: it moves only when all of them wait, and then at once.

Within the block the modules of the product see other names: `monotonic`, `threading`, `queue`, `time`, `random` and the
thread pool are those of this module. Each virtual thread is a greenlet, so that one runs at a time, and goes on until
it waits; which of those who could go on does is up to the seed. The product has no seam for that, and pays nothing; and
both drivers are tried whole, with their runners, locks and schedulers, where a runner made for tests would show itself.
"""

import asyncio
import concurrent.futures
import itertools
import queue
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, tzinfo
from functools import partial
from heapq import heappop, heappush
from types import SimpleNamespace
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

import issuer.engine.aio  # all that is swapped is imported here: later would be too late
import issuer.engine.blocking
import issuer.wiring  # noqa: F401
from issuer import clock
from issuer.forks import leave_signals

T = TypeVar("T")

#: Whose names are swapped. `faults.hanging`: a store that hangs does so in virtual time too.
_MODULES = ("issuer.", "issuer_persistence.", "apscheduler.", "tests.hanging")

#: Whose `datetime` is swapped.
_DATED = {"apscheduler.schedulers.base", "apscheduler.executors.base", "issuer.engine.scheduler"}

#: Seconds since 1970 at the beginning.
_EPOCH = 1_700_000_000.0

#: What one round of an event loop takes: one that polls, as it looks out for a reply, would hold the clock up.
_ROUND = 0.00001


class Wait:
    """One wait of one thread."""

    __slots__ = ("over", "who", "woken")

    def __init__(self) -> None:
        self.who: Any = None
        self.over = self.woken = False


class Turns:
    """Gives virtual threads their turns. `now`: seconds on the monotonic clock."""

    def __init__(self, seed: int) -> None:
        self.now = 1000.0
        self.chance = random.Random(seed)
        self._ready: list[greenlet] = []
        self._alarms: list[tuple[float, int, Wait | Callable[[], object]]] = []
        self._order = itertools.count()
        self._threads: list[greenlet] = []
        self._ended = False
        self._hub = greenlet(self._go)
        self._loops: list[Loop] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return _EPOCH + self.now

    def sleep(self, seconds: float) -> None:
        self.wait(Wait(), seconds)

    def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Look every millisecond whether it holds."""
        end = self.now + seconds
        while not condition():
            assert self.now < end, f"not within {seconds} virtual seconds"
            self.sleep(0.001)

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call it after so many seconds; it must not wait."""
        heappush(self._alarms, (self.now + seconds, next(self._order), call))

    def wait(self, wait: Wait, seconds: float | None) -> bool:
        """Let others have their turns until somebody wakes it, so many seconds at most; return whether somebody has."""
        if self._ended or self._hub.dead:
            raise GreenletExit
        wait.who = getcurrent()
        if seconds is not None:
            heappush(self._alarms, (self.now + max(0.0, seconds), next(self._order), wait))
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            self._hub.switch()
        finally:
            asyncio._set_running_loop(loop)
        return wait.woken

    def wake(self, wait: Wait) -> None:
        """End the wait."""
        if not wait.over:
            wait.over = wait.woken = True
            self._ready.append(wait.who)

    def spawn(self, work: Callable[[], object]) -> greenlet:
        """Run it as a thread."""
        made = greenlet(work, self._hub)
        self._threads.append(made)
        self._ready.append(made)
        return made

    def _go(self) -> None:
        while True:
            while self._ready:
                self._ready.pop(self.chance.randrange(len(self._ready))).switch()
            assert self._alarms, "everybody waits for ever"
            self.now = max(self.now, self._alarms[0][0])
            while self._alarms and self._alarms[0][0] <= self.now:
                due = heappop(self._alarms)[2]
                if not isinstance(due, Wait):
                    due()
                elif not due.over:
                    due.over = True
                    self._ready.append(due.who)

    def new_loop(self) -> "Loop":
        """Return an event loop that runs in a thread of its own."""
        loop = Loop(self)
        self._loops.append(loop)
        self.spawn(loop.run_forever)
        return loop

    def run(self, steps: Coroutine[Any, Any, T], loop: "Loop | None" = None) -> T:
        """Run a coroutine in the loop, or one of its own, to its end, and return what it returns."""
        done = Event(self)
        future = asyncio.run_coroutine_threadsafe(steps, loop or self.new_loop())
        future.add_done_callback(lambda _: done.set())
        done.wait()
        return future.result()

    def end(self) -> None:
        for loop in self._loops:
            if not self._hub.dead:
                loop.call_soon_threadsafe(loop.stop)
                self.until(lambda loop=loop: not loop.is_running())  # type: ignore[misc]
            loop.close()
        self._ended = True
        for thread in self._threads:
            if not thread.dead:
                thread.parent = getcurrent()
                thread.throw(GreenletExit)


class Lock:
    """A threading.Lock. Who finds it free takes it, whoever waits for it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held = False
        self._waits: deque[Wait] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        end = self._turns.now + timeout
        while self._held:
            left = None if timeout < 0 else end - self._turns.now
            if not blocking or (left is not None and left <= 0):
                return False
            self._waits.append(Wait())
            self._turns.wait(self._waits[-1], left)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        while self._waits:
            wait = self._waits.popleft()
            if not wait.over:
                self._turns.wake(wait)
                return

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """A threading.Event."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._set = False
        self._waits: list[Wait] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waits, self._waits = self._waits, []
        for wait in waits:
            self._turns.wake(wait)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            self._waits.append(Wait())
            self._turns.wait(self._waits[-1], timeout)
        return self._set


class Thread:
    """A threading.Thread."""

    def __init__(self, turns: Turns, target: Callable[..., object], args: tuple[Any, ...] = (), **_: object) -> None:
        self._turns = turns
        self._work = partial(target, *args)
        self._ended = Event(turns)

    def start(self) -> None:
        self._turns.spawn(self._run)

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.set()

    def is_alive(self) -> bool:
        return not self._ended.is_set()

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)


class Jobs:
    """A queue.SimpleQueue."""

    def __init__(self, turns: Turns) -> None:
        self._jobs: deque[Any] = deque()
        self._filled = Event(turns)
        self._turns = turns

    def qsize(self) -> int:
        return len(self._jobs)

    def put(self, job: object) -> None:
        self._jobs.append(job)
        self._filled.set()

    def get(self, timeout: float | None = None) -> Any:
        end = None if timeout is None else self._turns.monotonic() + timeout
        while not self._jobs:
            self._filled.clear()
            left = None if end is None else end - self._turns.monotonic()
            if left is not None and left <= 0:
                raise queue.Empty
            self._filled.wait(left)
        return self._jobs.popleft()


class Pool:
    """A ThreadPoolExecutor."""

    def __init__(
        self, turns: Turns, workers: int, thread_name_prefix: str = "", initializer: Callable[[], object] | None = None
    ) -> None:
        assert (thread_name_prefix, initializer) == ("issuer", leave_signals)  # which does nothing here
        self._turns, self._free = turns, workers
        self._jobs: deque[Callable[[], None]] = deque()
        self._shut = False

    def submit(self, work: Callable[..., Any], *args: Any, **options: Any) -> "concurrent.futures.Future[Any]":
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._jobs.append(partial(settle, future, partial(work, *args, **options)))
        if self._free:
            self._free -= 1
            self._turns.spawn(self._work)
        return future

    def _work(self) -> None:
        while self._jobs:
            self._jobs.popleft()()
        self._free += 1

    def shutdown(self, wait: bool = True) -> None:
        assert not wait
        self._shut = True


def settle(future: "concurrent.futures.Future[Any]", work: Callable[[], Any]) -> None:
    """Do the work, unless nobody waits for it by now, and tell the future what came of it."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except Exception as error:  # noqa: BLE001 - the future's affair
        future.set_exception(error)
    else:
        future.set_result(result)


class Loop(asyncio.BaseEventLoop):
    """An event loop without sockets: it sleeps as a virtual thread, and its executor's threads are virtual ones."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns
        self._selector = self
        self._sleep = Wait()

    def time(self) -> float:
        return self._turns.now

    def select(self, timeout: float | None) -> tuple[()]:
        self._sleep = Wait()
        self._turns.wait(self._sleep, None if timeout is None else max(timeout, _ROUND))
        return ()

    def _process_events(self, events: tuple[()]) -> None:
        pass

    def _write_to_self(self) -> None:
        if self._sleep.who is not None:
            self._turns.wake(self._sleep)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        assert executor is None
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._turns.spawn(partial(settle, future, partial(func, *args)))
        return asyncio.wrap_future(future, loop=self)


def _dates(turns: Turns) -> type[datetime]:
    """Return the datetime that APScheduler reckons with."""

    class Dates(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(turns.wall(), tz or UTC)

    return Dates


class _Names(SimpleNamespace):
    """A module with some names of ours."""

    def __init__(self, module: object, **names: object) -> None:
        super().__init__(**names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@contextmanager
def swapped(turns: Turns) -> Iterator[None]:
    """Let the product see other names while the block runs."""
    clocks: dict[str, object] = {"monotonic": turns.monotonic, "sleep": turns.sleep, "time": turns.wall}
    clocks["time_ns"] = lambda: round(turns.wall() * 1e9)
    locks = {kind.__name__: partial(kind, turns) for kind in (Lock, Event, Thread)}
    #: By the object that a module knows under some name.
    ours: dict[int, object] = {
        id(clock.monotonic): turns.monotonic,
        id(time): _Names(time, **clocks),
        id(threading): _Names(threading, get_ident=lambda: id(getcurrent()), **locks),
        id(queue): _Names(queue, SimpleQueue=partial(Jobs, turns)),
        id(random): turns.chance,
        id(concurrent.futures.ThreadPoolExecutor): partial(Pool, turns),
        id(datetime): _dates(turns),
    }
    before = [
        (vars(module), each, value)
        for name, module in list(sys.modules.items())
        if name.startswith(_MODULES)
        for each, value in list(vars(module).items())
        if id(value) in ours and not (value is datetime and name not in _DATED)
    ]
    for names, name, value in before:
        names[name] = ours[id(value)]
    try:
        yield
    finally:
        for names, name, value in before:
            names[name] = value


@contextmanager
def virtual(seed: int = 0) -> Iterator[Turns]:
    """Let the product run in virtual time. Make all that belongs to it within the block, and close it there."""
    turns = Turns(seed)
    hooks = sys.get_asyncgen_hooks()
    with swapped(turns):
        try:
            yield turns
        finally:
            turns.end()
            # Each loop puts back what it has found, and they don't end in the opposite order.
            sys.set_asyncgen_hooks(*hooks)
