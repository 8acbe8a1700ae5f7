"""A lock of a plugin's, which a forked child can take."""

from __future__ import annotations

import threading

from issuer.forks import living


class Mutex:
    """Holds a lock that a forked child finds free: `with mutex.lock:`.

    Whoever holds it when the process forks has no thread in the child, which would wait for ever. Re-entrant, so that
    it adds no wait of its own where a signal handler draws on top of what it interrupts. That may wait for ever all the
    same, for a lock of the issuer's: handlers shouldn't draw.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self._renew()
        _living.add(self)

    def _renew(self) -> None:
        self.lock = threading.RLock()


_living = living(Mutex._renew)  # noqa: SLF001 - the hook belongs to the class
