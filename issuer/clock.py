"""Deadlines and pauses between attempts. They use the monotonic clock, which nobody can set back."""

from __future__ import annotations

import random
import time

from issuer_persistence.clock import monotonic, monotonic_ns

__all__ = ["LONGEST_PAUSE", "Deadline", "jittered", "monotonic", "monotonic_ns", "pause", "sleep"]


def sleep(seconds: float) -> None:
    """Wait for `seconds` seconds."""
    time.sleep(seconds)  # not imported by name: gevent may replace it after this module was imported


class Deadline:
    """The time on the monotonic clock at which a call must end."""

    __slots__ = ("at",)

    def __init__(self, seconds: float) -> None:
        self.at = monotonic() + seconds

    @classmethod
    def until(cls, at: float) -> Deadline:
        """Return a deadline. `at`: its time on the monotonic clock, in seconds."""
        deadline = cls.__new__(cls)
        deadline.at = at
        return deadline

    def left(self) -> float:
        """Return the remaining seconds, 0.0 if the deadline has passed."""
        return max(0.0, self.at - monotonic())


#: Longest pause before a retry, in seconds.
LONGEST_PAUSE = 0.25


def pause(attempt: int) -> float:
    """Return how long to wait before a retry, in seconds: 0.005 to 0.25, and more after each failed attempt.

    The time is random, so that several processes do not retry at the same moments. `attempt`: number of attempts that
    have failed.
    """
    return jittered(min(LONGEST_PAUSE, 0.005 * 2.0 ** min(attempt, 10)))


def jittered(seconds: float) -> float:
    """Return a random duration between half of `seconds` and `seconds`."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
