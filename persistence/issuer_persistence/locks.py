"""Locks on files of our own, held by flock.

SQLite, and `fcntl.lockf`, use POSIX locks. A process loses those on a file as soon as any part of it closes any
descriptor of that file, as a backup in a thread does. An flock belongs to its descriptor: it ends when that is
unlocked, or when its last copy is closed. For local file systems.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from issuer_persistence import forks

if TYPE_CHECKING:
    from pathlib import Path

    from issuer_persistence.contract import CallDeadline

#: Seconds between two attempts: a thousandth of the wait so far, within these. A process that locks again and again
#: leaves others 0.2 ms between two transactions of 8 ms: who tried every 5 ms waited for up to 3.6 s.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0003, 0.005

_random = random.SystemRandom()


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Return a descriptor for a lock. It is closed in forked children, and in programs that this one starts."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    _descriptors.add(descriptor)
    return descriptor


def locked(path: Path, flags: int, deadline: CallDeadline, mode: int = 0o666) -> int:
    """Open the file at the path, and take its lock. See `lock` for what it raises."""
    forks.notice()
    while True:
        descriptor = open_file(path, flags, mode)
        try:
            lock(descriptor, deadline)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            close(descriptor)
            raise
        # Another file took its place while the lock was waited for: the other processes lock that one.
        close(descriptor)


def lock(descriptor: int, deadline: CallDeadline) -> None:
    """Take the exclusive lock. Unconfirmed if another descriptor holds it until the deadline; OSError."""
    began = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause = min(max((time.monotonic() - began) / 1000, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            time.sleep(min(deadline.left(), _random.uniform(pause / 2, pause)))
        else:
            return


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the file of the descriptor is still the one at the path: else another process locks another file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # also in a child that was forked within the call, where it was closed
        return False


def close(descriptor: int) -> None:
    """Release the lock, and close the descriptor."""
    if descriptor not in _descriptors:
        return  # this is a child that was forked within the call: the lock is its parent's
    # Unlocked first: a child that was forked just now has the file open too, and would keep the lock.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _descriptors.discard(descriptor)
    os.close(descriptor)


#: The descriptors open at this moment. A forked child closes them: if its parent is killed, it would keep the lock.
_descriptors: set[int] = set()


def _close_in_child() -> None:
    for descriptor in list(_descriptors):
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


forks.register(in_child=_close_in_child)
