"""A circuit breaker: a server that does not answer is not called for a while, by any caller of the process."""

from __future__ import annotations

import redis

from issuer.clock import monotonic, pause

#: If a server did not answer in less time, it may only be slow. A caller with little time must not block it for all.
EVIDENCE = 0.25

#: After this many seconds another trial may start, even if the last one has not ended. Callers whose numbers come from
#: Redis alone wait for the first trial that succeeds.
TRIAL = 0.5

#: If the server was not tried for this many seconds, any caller may try it: there may be no scheduler to do so.
FORGOTTEN = 5.0


class LeftAlone(redis.ConnectionError):
    """The server was not called, because it did not answer a moment ago. The text has the last error."""


class Breaker:
    """Knowledge of this process whether a server answers.

    Without it, a server behind a cut cable would cost each of 1000 tags its own timeout, and each waiting caller would
    connect again every quarter of a second. With it, the first failed call opens the breaker for all. Then one call at
    a time is a trial, after a random pause that grows from 5 to 250 ms, and all others fail at once. Any reply closes
    the breaker.

    There is no lock: a race only allows one more trial, and an interrupt leaves nothing locked.
    """

    __slots__ = ("_failed_at", "_next", "_why", "failures")

    def __init__(self) -> None:
        #: How many calls in a row got no reply. While it is 0, `admit` and `answered` do nothing.
        self.failures = 0
        self._failed_at = 0.0
        self._next = 0.0
        self._why = ""

    def admit(self, *, probe: bool) -> bool:
        """Allow a call, or raise LeftAlone. Returns whether the call is a trial.

        `probe`: whether this call may wait for the timeout of a trial. False if its caller can do without the server.
        """
        if not self.failures:
            return False
        now = monotonic()
        due = self._next if probe else max(self._next, self._failed_at + FORGOTTEN)
        if now < due:
            raise LeftAlone(self._why)
        self._next = now + TRIAL
        return True

    def answered(self) -> None:
        """Record a reply, which may be an error."""
        self.failures = 0

    def silent(self, why: object, began: float) -> None:
        """Record that a call got no reply. `began`: its start on the monotonic clock.

        Of several concurrent calls only the first one counts.
        """
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = monotonic()
            self._next = self._failed_at + pause(self.failures)
        self._why = str(why)

    def retry_after(self) -> float:
        """Seconds until the next trial, 0.0 if the server may be called now."""
        return max(0.0, self._next - monotonic()) if self.failures else 0.0
