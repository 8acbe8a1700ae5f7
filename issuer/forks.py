"""Resets objects such as locks and issuers in a child process after a fork."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from issuer.errors import Unavailable
from issuer_persistence.forks import GENERATION, in_uwsgi_master, leave_signals, notice, register, under_way
from issuer_persistence.holding import acquired

__all__ = [
    "GENERATION",
    "in_uwsgi_master",
    "leave_signals",
    "living",
    "no_fork",
    "notice",
    "refuse_inherited",
    "register",
    "under_way",
]

log = logging.getLogger("issuer")

M = TypeVar("M")


#: How long a fork waits for another thread to finish its imports, in seconds.
IMPORTS = 15.0

_importing = threading.RLock()
_waited: list[threading.RLock] = []


def no_fork() -> threading.RLock:
    """Return the lock to hold during imports. A fork by another thread waits until this lock is released.

    If a process were forked during an import, the child would wait for Python's import lock for ever (seen). The reason
    is that the thread that holds the import lock does not exist in the child.
    """
    notice()
    return _importing


def _wait_for_imports() -> None:
    if not acquired(_importing, IMPORTS, _waited):
        log.error(
            "another thread has been importing modules for %g s: the process is forked before the import has finished",
            IMPORTS,
        )


def _go_on() -> None:
    if _waited:
        _waited.pop().release()


def _fresh_imports() -> None:
    global _importing  # noqa: PLW0603 - in the child, the holder of the old lock does not exist
    _importing = threading.RLock()
    _waited.clear()


register(before=_wait_for_imports, in_parent=_go_on, in_child=_fresh_imports)


def refuse_inherited(generation: int, tag: str | None = None) -> None:
    """Raise Unavailable if the process was forked since `GENERATION.now` had this value, and this is the child.

    A call that was in progress at a fork can continue in the child: greenlets, tasks of an event loop, or the code that
    a signal handler interrupted and forked in. The parent returns the numbers that such a call has drawn.
    """
    if generation != GENERATION.now:
        call = "the call" if tag is None else f"tag {tag!r}: the call"
        raise Unavailable(f"{call} began in the parent process, before the fork: repeat it", tag=tag, retry_after=0.001)


def living(
    reset: Callable[[M], None],
    *,
    unseen: Callable[[M], None] | None = None,
    unseen_over: Callable[[M], None] | None = None,
) -> weakref.WeakSet[M]:
    """Return a set to which objects can be added. After each fork, the child calls `reset` with each of these objects.

    If `reset` fails for one object, it is still called for the others. If there are several sets, the set that was
    created first is processed first.

    If C code forks the process, as uWSGI does, the parent calls `unseen` with each object before the fork, and
    `unseen_over` with each object after it. `unseen` removes numbers that the child could use before `reset` is called.
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
