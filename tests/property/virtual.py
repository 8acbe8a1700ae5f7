"""Time that passes only where a call sleeps or waits, and no threads: what happens then depends on the calls alone."""

import sys
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self
from unittest.mock import patch

from issuer import clock, facade
from issuer.drivers.blocking.runner import Gate
from issuer.drivers.store_pool import Question, StorePool
from issuer.persistence.contract import Store
from issuer.scheduler import Job, Scheduler

BEGIN = 1000.0

#: When Redis believes it to be at the beginning, in seconds of the epoch.
_REDIS_BEGIN = 1_700_000_000.0

#: Seconds that a look at the clock takes, so that a loop which never sleeps comes to its deadline too.
_LOOK = 1e-5


class VirtualTime:
    """The clock of every blocking issuer of this process while the block lasts.

    Issuers have the function `monotonic` under that name in many modules. A module that is imported within the block
    keeps this one, so that it tells the machine's time afterwards.
    """

    def __init__(self) -> None:
        self.now = BEGIN
        self._runs = False

    def __call__(self) -> float:
        if not self._runs:
            return time.monotonic()
        self.now += _LOOK
        return self.now

    def redis(self) -> float:
        """Return the seconds of the epoch, for a server."""
        return _REDIS_BEGIN + self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)

    def __enter__(self) -> Self:
        def wait(gate: Gate, seconds: float) -> None:
            """Wait in vain unless it is open: there is no other thread that could open it."""
            if gate.lock.acquire(blocking=False):
                gate.lock.release()
            else:
                self.sleep(seconds)

        with ExitStack() as patches:
            patches.callback(setattr, self, "_runs", False)
            for name, module in list(sys.modules.items()):
                if name.startswith("issuer.") and vars(module).get("monotonic") in (time.monotonic, self):
                    patches.enter_context(patch.object(module, "monotonic", self))
            patches.enter_context(patch.object(clock, "sleep", self.sleep))
            patches.enter_context(patch.object(Gate, "wait", wait))
            patches.enter_context(patch.object(facade, "Scheduler", Inline))
            patches.enter_context(patch.object(StorePool, "ask", asked))
            self._runs = True
            self._patches = patches.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._patches.close()


def asked(_pool: StorePool, store: Store, question: Question, timeout: float, _tag: str | None) -> object:
    """Ask the store in the thread that wants to know."""
    return question(store, timeout)


class Inline(Scheduler):
    """Runs each job at once in the thread that hands it over, and sweeps only when the test does."""

    def background(self, job: Job) -> bool:
        job()
        return True

    def start(self) -> None:
        """There is nothing to start."""
