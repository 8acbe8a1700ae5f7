"""What a forked child finds of its parent's plugins: no lock that nobody will ever let go."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Who wants to know, in a forked child, that it is one."""

    def after_fork(self) -> None:
        """Forget what is the parent's."""


class Mutex:
    """Holds a lock that a forked child finds free: `with mutex.lock:`.

    Whoever holds it when the process forks has no thread in the child, which would wait for ever. Re-entrant, as a
    signal handler may draw numbers on top of what it interrupts.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.after_fork()
        follow(self)

    def after_fork(self) -> None:
        """Make a new lock."""
        self.lock = threading.RLock()


_living: weakref.WeakSet[Forkable] = weakref.WeakSet()


def follow(member: Forkable) -> None:
    """Call its `after_fork` in every child that is forked as long as it lives."""
    _living.add(member)


def _in_child() -> None:
    for member in list(_living):
        member.after_fork()


os.register_at_fork(after_in_child=_in_child)
