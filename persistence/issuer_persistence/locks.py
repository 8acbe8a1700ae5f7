"""Locks on files, by `flock`, on local file systems.

POSIX locks, which SQLite and `fcntl.lockf` use, are not safe here. A process loses its POSIX locks on a file when it
closes any descriptor of the file, for example the descriptor of a backup in another thread. An flock belongs to one
descriptor. The flock ends when the descriptor is unlocked, or when the last copy of the descriptor is closed.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from issuer_persistence import forks
from issuer_persistence.clock import monotonic
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Unconfirmed

#: Shortest and longest pause between two attempts to lock, in seconds. Between these limits, the pause is a thousandth
#: of the wait so far. The first attempts must be frequent: a busy process unlocks for only 0.2 ms between two
#: transactions of 8 ms. With an attempt every 5 ms, other processes waited up to 3.6 s.
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0003, 0.005

_random = random.SystemRandom()


def open_file(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a file for locking. Forked children close the descriptor, and started programs do not inherit it."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    _descriptors.add(descriptor)
    return descriptor


@contextmanager
def locked(path: Path, opened: Callable[[], int], deadline: CallDeadline) -> Iterator[int]:
    """Hold the lock of the file at the path during the block. `opened` opens the file. Errors are those of `lock`.

    Nothing runs between the lock and the block, so an exception of a signal handler leaves no lock behind.
    """
    forks.notice()
    while True:
        descriptor = opened()
        try:
            try:
                lock(descriptor, deadline)
            except Unconfirmed as error:
                raise Unconfirmed(f"{path} is locked by another process: {error}") from error
            if is_same := is_at(descriptor, path):
                yield descriptor
        finally:
            close(descriptor)
        if is_same:
            return
        # The file was replaced during the wait. Other processes lock the new file, so open the new file, too.


def lock(descriptor: int, deadline: CallDeadline) -> None:
    """Take the exclusive lock of the file. If another descriptor holds it until the deadline, raise Unconfirmed."""
    began = monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause = min(max((monotonic() - began) / 1000, _SHORTEST_PAUSE), _LONGEST_PAUSE)
            time.sleep(min(deadline.left(), _random.uniform(pause / 2, pause)))
        else:
            return


def is_at(descriptor: int, path: Path) -> bool:
    """Return True if the descriptor's file is still at the path. If it was replaced, a lock on it excludes nobody."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:  # for example in a child forked during the call: the descriptor is closed there
        return False


def close(descriptor: int) -> None:
    """Release the lock, and close the descriptor."""
    if descriptor not in _descriptors:
        return  # this child was forked during the call: the lock belongs to its parent
    # Closing is not enough: a child that was forked just now still has a copy of the descriptor, which keeps the lock.
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    _descriptors.discard(descriptor)
    os.close(descriptor)


#: Open descriptors. A forked child closes its copies. Otherwise the copies would keep the lock if the parent is killed.
_descriptors: set[int] = set()


def _close_in_child() -> None:
    for descriptor in list(_descriptors):
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


forks.register(in_child=_close_in_child)
