"""Limits the log: the same message is written at most once a minute. Otherwise failing draws could fill the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from issuer.clock import monotonic
from issuer.forks import living
from issuer.interrupts import raise_interrupt

#: The same message is not repeated for this long, in seconds.
QUIET = 60.0

#: How many messages are remembered. Clients may invent tag names, so all further messages of one kind share an entry.
REMEMBERED = 1000

#: Seconds between two removals of old entries, when there are too many. A removal takes 0.1 ms.
SWEEP_EVERY = 1.0


class Sparing:
    """Logs each message at most once a minute, and counts how often it was suppressed since. Thread-safe."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        """`clock`: returns seconds and never goes back. None: the monotonic clock."""
        self._clock = monotonic if clock is None else clock
        self.after_fork()
        _living.add(self)
        #: When each message was last logged, and how often it was suppressed since.
        self._said: dict[tuple[str | None, object], tuple[float, int]] = {}
        self._sweep_due = self._clock()

    def after_fork(self) -> None:
        """Replace the lock: a forked child has no thread that could release the parent's lock."""
        #: Re-entrant: a signal handler may take the lock while its own thread holds it. Nevertheless, signal handlers
        #: should not draw, because other locks of the issuer can deadlock there.
        self._lock = threading.RLock()

    def say(
        self,
        log: Callable[..., None],
        subject: str,
        kind: object,
        message: str,
        *arguments: object,
        error: BaseException | None = None,
    ) -> None:
        """Log the message, unless the same one was logged less than a minute ago. `log` is a logger's method.

        Two messages are the same if `subject`, such as a tag's name, and `kind` are equal.

        Raises no error, even if a handler, a filter or an argument's `__repr__` raises one. Such an error would replace
        the number that the caller is about to return, or the caller's own error.
        """
        try:
            kept_back = self.due(subject, kind)
            if kept_back is not None:
                more = f" (and {kept_back} times since this was last logged)" if kept_back else ""
                log(message + more, *arguments, exc_info=error)
        except Exception as failed:  # noqa: BLE001 - logging failed, so there is nowhere to report it
            raise_interrupt(failed)

    def due(self, subject: str, kind: object) -> int | None:
        """Return None if the message was logged less than a minute ago, else how often it was suppressed since."""
        with self._lock:
            now = self._clock()
            thing = self._remembered((subject, kind), now)
            said = self._said.get(thing)
            if said is not None and now - said[0] < QUIET:
                self._said[thing] = said[0], said[1] + 1
                return None
            self._said[thing] = now, 0
            return 0 if said is None else said[1]

    def _remembered(self, thing: tuple[str | None, object], now: float) -> tuple[str | None, object]:
        """Return the key for the message. If REMEMBERED keys are in use, further messages of a kind share one key."""
        if thing in self._said or len(self._said) < REMEMBERED:
            return thing
        if now >= self._sweep_due:
            self._sweep_due = now + SWEEP_EVERY
            self._said = {each: said for each, said in self._said.items() if now - said[0] < QUIET}
        return thing if len(self._said) < REMEMBERED else (None, thing[1])


_living = living(Sparing.after_fork)
