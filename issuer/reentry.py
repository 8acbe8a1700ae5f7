"""Locks against calls inside calls.

A finalizer, a weakref callback or a log handler can run in the middle of any call of the issuer, and call the issuer
itself. If this inner call waited for a lock of the interrupted call, it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from inspect import currentframe
from types import CodeType

from issuer.errors import CalledWithin


class CallLock:
    """A lock that rejects a call inside a call: `with lock.thread, lock.call():`. Other threads wait.

    A CallLock consists of two locks in C. A signal handler's exception can occur before or after a lock is taken, not
    halfway.
    """

    __slots__ = ("_call", "thread")

    def __init__(self) -> None:
        #: Admits one thread. The lock is re-entrant, so that a call inside a call reaches `call`, which rejects the
        #: inner call.
        self.thread = threading.RLock()
        self._call = threading.Lock()

    def call(self) -> threading.Lock:
        """Return the second lock, for `with`. The thread must hold the first lock, `thread`.

        Raises CalledWithin if the second lock is held: an outer call of this thread is changing the protected data.
        """
        if self._call.locked():
            raise CalledWithin
        return self._call


def callees(methods: Collection[CodeType], within: CodeType | None = None) -> Iterator[object]:
    """Yield the object of each of these methods that this thread is executing, innermost first, up to code `within`."""
    frame = currentframe()
    while frame is not None and frame.f_code is not within:
        if frame.f_code in methods:
            yield frame.f_locals["self"]
        frame = frame.f_back


def inside(package: str) -> bool:
    """Return whether this thread is executing a function of the package."""
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None
