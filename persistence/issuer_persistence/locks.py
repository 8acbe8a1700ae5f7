"""Locks on files, by flock. They work on local file systems.

SQLite and `fcntl.lockf` use POSIX locks. A process loses its POSIX locks on a file as soon as any part of it closes any
descriptor of the file, for example a backup in a thread. An flock belongs to its descriptor. It ends when the
descriptor is unlocked, or when the last copy of the descriptor is closed.
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

#: Limits of the pause between two attempts, in seconds. The pause is a thousandth of the wait so far. A process that
#: locks again and again leaves 0.2 ms between two transactions of 8 ms. With an attempt every 5 ms, others waited up to
#: 3.6 s.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0003, 0.005

_random = random.SystemRandom()


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file for locking. Forked children, and programs that this process starts, do not get the descriptor."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    _descriptors.add(descriptor)
    return descriptor


def locked(path: Path, flags: int, deadline: CallDeadline, mode: int = 0o666) -> int:
    """Open the file at the path, and take its lock. Raises the errors of `lock`."""
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
        # The file was replaced during the wait. The other processes lock the new file.
        close(descriptor)


def lock(descriptor: int, deadline: CallDeadline) -> None:
    """Take the exclusive lock. Raise Unconfirmed if another descriptor holds it until the deadline."""
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
    """Return True if the descriptor's file is still at the path. If not, other processes lock another file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # also in a child that was forked within the call, where it was closed
        return False


def close(descriptor: int) -> None:
    """Release the lock, and close the descriptor."""
    if descriptor not in _descriptors:
        return  # this child was forked during the call: the lock belongs to its parent
    # Unlock first: a child that was forked just now also has the file open, and would keep the lock.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _descriptors.discard(descriptor)
    os.close(descriptor)


#: Open descriptors. A forked child closes them, or it would keep the lock after its parent was killed.
_descriptors: set[int] = set()


def _close_in_child() -> None:
    for descriptor in list(_descriptors):
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


forks.register(in_child=_close_in_child)
