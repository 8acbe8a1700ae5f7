"""What becomes of a process's objects in a forked child."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger("issuer")

M = TypeVar("M")

#: In a forked child: connections and tasks of its parent's loop, kept, so that nothing of them is collected and closed.
#: Closing takes a socket out of the epoll that parent and child share, and then the parent waits in vain for replies
#: that are there (seen: 5 s and RedisUnavailable, until each of its connections had been dropped).
PARENTS: list[object] = []


def living(reset: Callable[[M], None]) -> weakref.WeakSet[M]:
    """Return a set: what is in it when the process forks is `reset` in the child, each whatever becomes of the others.

    Sets are gone through in the order in which they were made.
    """
    members: weakref.WeakSet[M] = weakref.WeakSet()

    def in_child() -> None:
        for member in list(members):
            try:
                reset(member)
            except Exception:
                log.exception("%r: not all of it was reset in the forked child", member)

    os.register_at_fork(after_in_child=in_child)
    return members
