"""Calls within calls: a finalizer, a weakref's callback or a log handler may run in the middle of any call of ours.

What such a call needs may be what the one that it interrupts holds: waiting for that would take for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from inspect import currentframe
from types import CodeType

from issuer.errors import CalledWithin


class CallLock:
    """A lock that rejects a call within a call: `with lock.thread, lock.call():`. A second thread waits.

    Both parts are in C, so that an exception of a signal handler can strike before or after a part, not inside it.
    """

    __slots__ = ("_call", "thread")

    def __init__(self) -> None:
        #: Lets one thread in. Re-entrant: a call within a call reaches `call`, which rejects it.
        self.thread = threading.RLock()
        self._call = threading.Lock()

    def call(self) -> threading.Lock:
        """Return what the call holds, for `with`. Only for the thread that holds `thread`.

        Raises CalledWithin if it is locked: then an outer call of this thread is changing what the lock protects.
        """
        if self._call.locked():
            raise CalledWithin
        return self._call


def callees(methods: Collection[CodeType], within: CodeType | None = None) -> Iterator[object]:
    """Yield the object of each of these methods that this thread is in, the innermost first, as far as `within`."""
    frame = currentframe()
    while frame is not None and frame.f_code is not within:
        if frame.f_code in methods:
            yield frame.f_locals["self"]
        frame = frame.f_back


def inside(package: str) -> bool:
    """Whether this thread is in a function of the package."""
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None
