"""Time: deadlines on the monotonic clock, and pauses between attempts. The wall clock decides nothing."""

from __future__ import annotations

import random
import time

monotonic = time.monotonic


def sleep(seconds: float) -> None:
    """Let `seconds` seconds pass."""
    time.sleep(seconds)  # looked up each time: gevent may have put its own there since this module was imported


class Deadline:
    """A moment on the monotonic clock by which a call must have ended."""

    __slots__ = ("at",)

    def __init__(self, seconds: float) -> None:
        self.at = monotonic() + seconds

    @classmethod
    def until(cls, at: float) -> Deadline:
        """Return the deadline at that moment of the monotonic clock."""
        deadline = cls.__new__(cls)
        deadline.at = at
        return deadline

    def left(self) -> float:
        """Seconds that remain, 0.0 when it has passed."""
        return max(0.0, self.at - monotonic())


#: The longest pause before trying again, in seconds.
LONGEST_PAUSE = 0.25


def pause(attempt: int) -> float:
    """Seconds to wait before trying again: growing from 5 ms to 250 ms, jittered so that processes fall out of step."""
    return jittered(min(LONGEST_PAUSE, 0.005 * 2.0 ** min(attempt, 10)))


def jittered(seconds: float) -> float:
    """Return a half to the whole of it, at random."""
    return seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
