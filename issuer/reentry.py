"""Locks that reject a call of the issuer inside another call of the issuer on the same thread.

A finalizer, a weakref callback or a log handler can run in the middle of any call of the issuer. It can then call the
issuer itself. If this inner call waited for a lock of the interrupted call, it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from inspect import currentframe
from types import CodeType

from issuer.errors import CalledWithin

_OURS = frozenset({"issuer", "issuer_persistence"})

#: Where modules take two locks, one after the other.
_LOCKING = ("issuer.core.", "issuer.reentry")


class CallLock:
    """A lock that makes other threads wait, but rejects a call inside a call of the same thread.

    Use it as `with lock.thread, lock.call():`. It consists of two locks that are written in C. So the exception of a
    signal handler can occur before or after such a lock is taken, but never while it is being taken.
    """

    __slots__ = ("_call", "thread")

    def __init__(self) -> None:
        #: The first lock. Only one thread can hold it. It is re-entrant: a call inside a call of the same thread gets
        #: it as well, and then `call` rejects this inner call.
        self.thread = threading.RLock()
        self._call = threading.Lock()

    def call(self) -> threading.Lock:
        """Return the second lock, for `with`. The thread must hold the first lock, `thread`.

        If the second lock is held, an outer call of this thread is changing the protected data. CalledWithin is raised.
        """
        if self._call.locked():
            raise CalledWithin
        return self._call


def callees(methods: Collection[CodeType], within: CodeType | None = None) -> Iterator[object]:
    """Yield the object (`self`) of each call of these methods that this thread is executing, innermost first.

    `methods`: code objects of the methods. `within`: code object of a function at which the search ends.
    """
    frame = currentframe()
    while frame is not None and frame.f_code is not within:
        if frame.f_code in methods:
            yield frame.f_locals["self"]
        frame = frame.f_back


def inside(package: str) -> bool:
    """Return whether this thread is executing a function of the package, or a function that one of them has called."""
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None


def amid_locks() -> bool:
    """Return whether foreign code, such as a finalizer, made this call in the middle of a function that takes locks.

    `CallLock.call` rejects such a call only once both locks are held. Between the two, the call would go on and could
    wait for a lock of another thread, which waits for the first lock of this thread.
    """
    foreign, frame = False, currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _OURS:
            foreign = True
        elif foreign and name.startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False
