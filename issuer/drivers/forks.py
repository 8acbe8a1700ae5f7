"""What becomes of a process's issuers in a forked child."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol, TypeVar

log = logging.getLogger("issuer")


#: In a forked child: connections and tasks of its parent's loop, kept, so that nothing of them is collected and closed.
#: Closing takes a socket out of the epoll that parent and child share, and then the parent waits in vain for replies
#: that are there (seen: 5 s and RedisUnavailable, until each of its connections had been dropped).
PARENTS: list[object] = []


class Forkable(Protocol):
    """An issuer of either colour."""

    def _after_fork(self) -> None:
        """Forget what is the parent's."""


F = TypeVar("F", bound=Forkable)


def living() -> weakref.WeakSet[F]:
    """Return a set for the issuers of this process: each that is in it when the process forks is reset in the child."""
    members: weakref.WeakSet[F] = weakref.WeakSet()

    def reset() -> None:
        for member in list(members):
            try:
                member._after_fork()  # noqa: SLF001 - the hook belongs to the class
            except Exception:
                log.exception("%r: not all of it was reset in the forked child", member)

    os.register_at_fork(after_in_child=reset)
    return members
