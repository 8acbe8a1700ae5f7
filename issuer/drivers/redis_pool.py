"""Limits the connections of a process to Redis, and queues calls that wait for one."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from issuer import clock
from issuer.clock import Deadline

#: A waiting call checks again after this many seconds, as the thread that should wake it may have been interrupted.
LOOK_AGAIN = 0.25


class Crowded(Exception):
    """The deadline has passed while all connections were in use. Not a RedisError, as the server may be fine."""


class Permit:
    """Permission for one connection. It returns to its pool when its last reference is gone.

    So a connection that is lost, for example in an interrupt, does not keep its permit.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: weakref.ref[Pool[Any]]) -> None:
        self._pool = pool

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            # A new object, as Python finalizes an object only once.
            pool.free.append(Permit(self._pool))
            pool.wake()


class AnyWaker(Protocol):
    """Lets a call sleep. `wait` returns None or an awaitable."""

    def wake(self) -> None:
        """Wake the call, or skip its next sleep. May be called from any thread."""

    def wait(self, seconds: float) -> Any:
        """Sleep until `wake`, at most `seconds` seconds."""


W = TypeVar("W", bound=AnyWaker)


class Turn(Generic[W]):
    """A place in the queue. `until`: deadline of its call, on the monotonic clock."""

    __slots__ = ("until", "waker")

    def __init__(self, waker: W, until: float) -> None:
        self.waker = waker
        self.until = until


class Pool(Generic[W]):
    """Permits for a number of connections to any servers, and the queue of waiting calls, first come first served.

    There is no lock: each step is one atomic operation of a deque, and a call checks again after it was queued.
    """

    def __init__(self, most: int, waker: Callable[[], W]) -> None:
        self.most = most
        self._waker = waker
        itself = weakref.ref(self)
        self.free = deque(Permit(itself) for _ in range(most))
        #: The fast path of a draw reads this.
        self.waiting: deque[Turn[W]] = deque()

    def is_next(self, turn: Turn[W] | None) -> bool:
        """Whether the turn is the first in the queue. None: whether the queue is empty."""
        waiting = self.waiting
        while True:
            try:
                first = waiting[0]
                if first is turn:
                    return True
                if first.until > clock.monotonic():
                    return False
                waiting.remove(first)  # its call was interrupted
            except (IndexError, ValueError):  # another thread was faster
                if not waiting:
                    return True

    def permit(self) -> Permit | None:
        """Return a permit for one more connection, None if there is none."""
        try:
            return self.free.pop()
        except IndexError:
            return None

    def queue(self, end: Deadline) -> Turn[W]:
        """Take a place in the queue."""
        turn = Turn(self._waker(), end.at)
        self.waiting.append(turn)
        return turn

    def leave(self, turn: Turn[W]) -> None:
        """Leave the queue, and wake the next call, as there may be a connection for it."""
        with suppress(ValueError):
            self.waiting.remove(turn)
        self.wake()

    def wake(self) -> None:
        """Wake the first call in the queue: a connection is idle, or a permit is free."""
        try:
            self.waiting[0].waker.wake()
        except IndexError:
            return
