"""Calls inside calls: a finalizer, a weakref callback or a log handler may run in the middle of any call of the issuer.

If such a call needs a lock that the interrupted call holds, it would wait for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from inspect import currentframe
from types import CodeType

from issuer.errors import CalledWithin


class CallLock:
    """A lock that rejects a call inside a call: `with lock.thread, lock.call():`. Other threads wait.

    Both parts are in C, so an exception of a signal handler can occur before or after a part, but not inside it.
    """

    __slots__ = ("_call", "thread")

    def __init__(self) -> None:
        #: Admits one thread. Re-entrant: a call inside a call gets as far as `call`, which rejects it.
        self.thread = threading.RLock()
        self._call = threading.Lock()

    def call(self) -> threading.Lock:
        """Return the second lock, for `with`. Only for the thread that holds `thread`.

        Raises CalledWithin if it is locked: an outer call of this thread is changing the protected data.
        """
        if self._call.locked():
            raise CalledWithin
        return self._call


def callees(methods: Collection[CodeType], within: CodeType | None = None) -> Iterator[object]:
    """Yield the objects whose methods this thread is executing, innermost first, up to the code `within`."""
    frame = currentframe()
    while frame is not None and frame.f_code is not within:
        if frame.f_code in methods:
            yield frame.f_locals["self"]
        frame = frame.f_back


def inside(package: str) -> bool:
    """Whether this thread is executing a function of the package."""
    frame = currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] != package:
        frame = frame.f_back
    return frame is not None
