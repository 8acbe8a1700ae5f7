"""The breaker: a server that doesn't answer is left alone for a while, by every tag and every caller of a process."""

from __future__ import annotations

import redis

from issuer.clock import monotonic, pause

#: A server that is silent for less is perhaps only slow: a caller in a hurry must not send all others away from it.
EVIDENCE = 0.25

#: A trial that has not ended after this many seconds keeps the next one waiting no longer: callers whose numbers come
#: from Redis alone wait for the first trial that succeeds.
TRIAL = 0.5

#: If the server was not tried for this many seconds, a caller that can do without it tries it all the same: there may
#: be no scheduler to do so.
FORGOTTEN = 5.0


class LeftAlone(redis.ConnectionError):
    """A server was not asked, as it was silent a moment ago. The text says what was wrong then."""


class Breaker:
    """A process's knowledge of whether a server answers.

    Without it a server behind a cable that was cut costs each of 1000 tags its own time-out, and each waiting caller
    dials it again every quarter of a second. With it the first call that fails opens it for all. From then on one call
    at a time is a trial, after a pause that grows from 5 to 250 ms, jittered, and the others are refused at once. Any
    answer of the server closes it.

    No lock: a race lets one more trial through, and an interrupt leaves nothing locked.
    """

    __slots__ = ("_failed_at", "_next", "_why", "failures")

    def __init__(self) -> None:
        #: How many calls in a row got no answer. As long as it is 0, `admit` and `answered` have nothing to do.
        self.failures = 0
        self._failed_at = 0.0
        self._next = 0.0
        self._why = ""

    def admit(self, *, probe: bool) -> bool:
        """Let a call go out, or raise LeftAlone at once. Returns whether the call is a trial.

        `probe`: whether this call may wait for a trial's time-out; else its caller can do without the server.
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
        """Take note of an answer, be it an error."""
        self.failures = 0

    def silent(self, why: object, began: float) -> None:
        """Take note that a call which began at that moment of the monotonic clock got no answer.

        Of the calls that were under way together the first counts.
        """
        if began >= self._failed_at:
            self.failures += 1
            self._failed_at = monotonic()
            self._next = self._failed_at + pause(self.failures)
        self._why = str(why)

    def retry_after(self) -> float:
        """Seconds until the server is tried again, 0.0 if it may be asked now."""
        return max(0.0, self._next - monotonic()) if self.failures else 0.0
