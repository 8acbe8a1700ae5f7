"""The bound on a process's connections to Redis, and the queue of calls that wait for one of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from issuer import clock
from issuer.clock import Deadline

#: A call that waits looks again after this many seconds: what was to wake it may have been interrupted just then.
LOOK_AGAIN = 0.25


class Crowded(Exception):
    """A call's time is over, and all connections are in use. No RedisError: this says nothing of a server."""


class Permit:
    """The right to have one connection. It goes back to its pool when nothing refers to it any more.

    So no connection that is lost, as an interrupt can strike anywhere, takes its permit with it.
    """

    __slots__ = ("_pool",)

    def __init__(self, pool: weakref.ref[Pool[Any]]) -> None:
        self._pool = pool

    def __del__(self) -> None:
        pool = self._pool()
        if pool is not None:
            # Another one, as Python ends an object once only.
            pool.free.append(Permit(self._pool))
            pool.wake()


class AnyWaker(Protocol):
    """The sleep of a call: `wait` returns nothing, or what has to be awaited."""

    def wake(self) -> None:
        """End its sleep, or the next one if it does not sleep. Any thread may call it."""

    def wait(self, seconds: float) -> Any:
        """Sleep until `wake`, or for so long."""


W = TypeVar("W", bound=AnyWaker)


class Turn(Generic[W]):
    """A place in the queue. `until`: when its call gives up, on the monotonic clock."""

    __slots__ = ("until", "waker")

    def __init__(self, waker: W, until: float) -> None:
        self.waker = waker
        self.until = until


class Pool(Generic[W]):
    """Permits for so many connections, whatever servers they lead to, and the calls that wait, first come first served.

    No lock: each step is one of a deque's own, and a call looks again after it has come into the queue.
    """

    def __init__(self, most: int, waker: Callable[[], W]) -> None:
        self.most = most
        self._waker = waker
        itself = weakref.ref(self)
        self.free = deque(Permit(itself) for _ in range(most))
        #: Whether there are any, the short way of a draw looks for itself.
        self.waiting: deque[Turn[W]] = deque()

    def is_next(self, turn: Turn[W] | None) -> bool:
        """Whether no call was there before: that of the turn, or one that has none yet."""
        waiting = self.waiting
        while True:
            try:
                first = waiting[0]
                if first is turn:
                    return True
                if first.until > clock.monotonic():
                    return False
                waiting.remove(first)  # its call was interrupted, and left it here
            except (IndexError, ValueError):  # another thread was quicker
                if not waiting:
                    return True

    def permit(self) -> Permit | None:
        """Return the right to one more connection, None if there is none."""
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
        """Give the place up: the next call looks at once, as there may be a connection for it, too."""
        with suppress(ValueError):
            self.waiting.remove(turn)
        self.wake()

    def wake(self) -> None:
        """Have the first call in the queue look: a connection is idle, or a permit free."""
        try:
            self.waiting[0].waker.wake()
        except IndexError:
            return
