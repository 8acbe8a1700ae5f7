"""Forks: objects of a process that must be made fresh in a forked child."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TypeVar

from issuer.persistence.forks import in_uwsgi_master, leave_signals, notice, register, under_way

__all__ = ["PARENTS", "in_uwsgi_master", "leave_signals", "living", "notice", "register", "under_way"]

log = logging.getLogger("issuer")

M = TypeVar("M")

#: In a forked child: connections and tasks of its parent's loop, kept, so that nothing of them is collected and closed.
#: Closing takes a socket out of the epoll that parent and child share, and then the parent waits in vain for replies
#: that are there (seen: 5 s and RedisUnavailable, until each of its connections had been dropped).
PARENTS: list[object] = []


def living(
    reset: Callable[[M], None],
    *,
    unseen: Callable[[M], None] | None = None,
    unseen_over: Callable[[M], None] | None = None,
) -> weakref.WeakSet[M]:
    """Return a set: what is in it when the process forks is `reset` in the child, each even if others fail.

    Sets are gone through in the order in which they were made. `unseen`, `unseen_over`: see `register`.
    """
    members: weakref.WeakSet[M] = weakref.WeakSet()

    def each(call: Callable[[M], None] | None) -> Callable[[], None] | None:
        def run() -> None:
            for member in list(members):
                try:
                    call(member)  # type: ignore[misc]  # not None, see below
                except Exception:
                    log.exception("%r: not all of it was done around a fork", member)

        return None if call is None else run

    register(in_child=each(reset), unseen=each(unseen), unseen_over=each(unseen_over))
    return members
