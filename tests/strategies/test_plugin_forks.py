"""Plugins in a forked child: no lock of the parent's is waited for."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from issuer.core import sparing
from issuer.core.events import Rejected, RejectedLog
from issuer.errors import LimitReached
from issuer.plugins import Call, Chain
from tests.forks import in_child
from tests.strategies.surrounding import Raising

# CPython warns that a fork in a process with threads may deadlock: that it does not is what is shown here.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

CALL = Call("a", 3)


@contextmanager
def held(*locks: threading.RLock) -> Iterator[None]:
    """Another thread holds the locks, as it may at the moment of a fork."""
    with ThreadPoolExecutor(1) as pool:
        [*pool.map(lambda lock: lock.acquire(), locks)]
        yield
        [*pool.map(lambda lock: lock.release(), locks)]


def draw() -> list[int]:
    return [1, 2, 3]


def test_a_child_waits_for_no_lock_of_its_parents() -> None:
    logged = RejectedLog()
    chain = Chain([Raising(ValueError(), "before", "after")])
    assert chain.around(CALL, draw) == [1, 2, 3]

    def work() -> object:
        logging.disable()
        numbers = chain.around(CALL, draw)
        logged(Rejected("a", LimitReached("a", limit=9, value=9)))
        return numbers

    with held(chain._sparing._lock, logged._sparing._lock):
        result = in_child(work)
        assert result() == [1, 2, 3]


def free(lock_of: Callable[[], threading.RLock]) -> Callable[[], object]:
    return lambda: lock_of().acquire(timeout=0.05)


def test_without_the_guard_the_childs_locks_are_never_free() -> None:
    messages = sparing.Sparing()
    with held(messages._lock):
        assert in_child(free(lambda: messages._lock))() is True
        sparing._living.discard(messages)
        assert in_child(free(lambda: messages._lock))() is False
