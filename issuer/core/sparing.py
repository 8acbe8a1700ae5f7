"""Saying the same thing once a minute: what fails for every number would fill the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from issuer.clock import monotonic
from issuer.forks import living
from issuer.interrupts import raise_interrupt

#: Seconds for which the same thing isn't said again.
QUIET = 60.0

#: The most things of which it is remembered when they were said last. Tags may be made up: beyond that all of a kind
#: are one.
REMEMBERED = 1000

#: Seconds between two looks for what may be forgotten, when there are too many: a look takes 0.1 ms.
SWEEP_EVERY = 1.0


class Mutex:
    """Holds a lock that a forked child finds free: `with mutex.lock:`.

    If a thread holds it when the process forks, the child has no such thread, and would wait for ever. Re-entrant, so
    that it adds no wait of its own where a signal handler draws on top of what it interrupts. That may wait for ever
    all the same, for a lock of the issuer's: handlers shouldn't draw.
    """

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.after_fork()
        _living.add(self)

    def after_fork(self) -> None:
        """Replace the lock: a forked child has no thread that could release the parent's."""
        self.lock = threading.RLock()


_living = living(Mutex.after_fork)


class Sparing:
    """Remembers what was said, and how often it was not. Safe to share among threads."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: seconds that never go back; None: the monotonic clock."""
        self._clock = monotonic if clock is None else clock
        self._mutex = Mutex()
        #: When each thing was said last, and how often it was kept back since.
        self._said: dict[tuple[str | None, object], tuple[float, int]] = {}
        self._sweep_due = self._clock()

    def say(
        self,
        log: Callable[..., None],
        subject: str,
        kind: object,
        message: str,
        *arguments: object,
        error: BaseException | None = None,
    ) -> None:
        """Log it, by a method of a logger, unless it was said less than a minute ago. Raises nothing of its own.

        A handler or filter of the user's may raise, and what is logged may fail to show itself, while the caller is
        about to hand out a number, or an error.
        """
        try:
            kept_back = self.due(subject, kind)
            if kept_back is not None:
                more = f" (and {kept_back} times since this was last logged)" if kept_back else ""
                log(message + more, *arguments, exc_info=error)
        except Exception as failed:  # noqa: BLE001 - there is nowhere else to say it
            raise_interrupt(failed)

    def due(self, subject: str, kind: object) -> int | None:
        """Return None if it was said less than a minute ago, else how often it was kept back since."""
        with self._mutex.lock:
            now = self._clock()
            thing = self._remembered((subject, kind), now)
            said = self._said.get(thing)
            if said is not None and now - said[0] < QUIET:
                self._said[thing] = said[0], said[1] + 1
                return None
            self._said[thing] = now, 0
            return 0 if said is None else said[1]

    def _remembered(self, thing: tuple[str | None, object], now: float) -> tuple[str | None, object]:
        """Return the thing, or what stands for all of its kind if there are too many."""
        if thing in self._said or len(self._said) < REMEMBERED:
            return thing
        if now >= self._sweep_due:
            self._sweep_due = now + SWEEP_EVERY
            self._said = {each: said for each, said in self._said.items() if now - said[0] < QUIET}
        return thing if len(self._said) < REMEMBERED else (None, thing[1])
