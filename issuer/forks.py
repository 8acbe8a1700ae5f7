"""Resets objects of this process in forked children."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from issuer_persistence.forks import in_uwsgi_master, leave_signals, notice, register, under_way

__all__ = ["PARENTS", "in_uwsgi_master", "leave_signals", "living", "no_fork", "notice", "register", "under_way"]

log = logging.getLogger("issuer")

M = TypeVar("M")

#: In a forked child: connections and tasks of the parent's event loop. This list keeps them from being closed. Closing
#: would remove their sockets from the epoll object that parent and child share, and the parent would receive no more
#: replies (seen: its calls took 5 s and raised RedisUnavailable, until it had dropped each of its connections).
PARENTS: list[object] = []


#: How long a fork waits for another thread to finish its imports, in seconds.
IMPORTS = 15.0

_importing = threading.RLock()
_waited: list[threading.RLock] = []


def no_fork() -> threading.RLock:
    """Return the lock to hold during imports. A fork by another thread waits until this lock is released.

    A child that is forked during an import would wait for Python's import lock for ever: the thread that holds the
    import lock does not exist in the child (seen).
    """
    notice()
    return _importing


def _wait_for_imports() -> None:
    if _importing.acquire(timeout=IMPORTS):
        _waited.append(_importing)
    else:
        log.error(
            "another thread has been importing modules for %g s: the process is forked before the import has finished",
            IMPORTS,
        )


def _go_on() -> None:
    if _waited:
        _waited.pop().release()


def _fresh_imports() -> None:
    global _importing  # noqa: PLW0603 - the lock is held by a thread that the child does not have
    _importing = threading.RLock()
    _waited.clear()


register(before=_wait_for_imports, in_parent=_go_on, in_child=_fresh_imports)


def living(
    reset: Callable[[M], None],
    *,
    unseen: Callable[[M], None] | None = None,
    unseen_over: Callable[[M], None] | None = None,
) -> weakref.WeakSet[M]:
    """Return a set for objects. In a forked child, `reset` is called with each object, also if it fails for others.

    If there are several sets, the oldest is processed first. `unseen`, `unseen_over`: see `register`.
    """
    members: weakref.WeakSet[M] = weakref.WeakSet()

    def each(call: Callable[[M], None] | None) -> Callable[[], None] | None:
        def run() -> None:
            for member in list(members):
                try:
                    call(member)  # type: ignore[misc]  # not None, see below
                except Exception:
                    log.exception("the fork handler of %r failed", member)

        return None if call is None else run

    register(in_child=each(reset), unseen=each(unseen), unseen_over=each(unseen_over))
    return members
