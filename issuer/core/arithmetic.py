"""The rate at which a tag is used, and the time until its numbers run out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import Tag


class TimedRange(Protocol):
    """A ledger entry, as `rate` needs it: the numbers low + 1 .. high, and the time in ms since 1970."""

    @property
    def time(self) -> int:
        """When it was made."""

    @property
    def low(self) -> int:
        """The number before the first one."""

    @property
    def high(self) -> int:
        """The last number."""


def rate(entries: Sequence[TimedRange], now: int) -> float | None:
    """Return the numbers used per second, estimated from reservations. None if there are fewer than two reservations.

    The estimate assumes that a segment is used up when the next one is reserved.

    Args:
        entries: The reservations, newest first.
        now: Time in ms since 1970. If the newest reservation is older than the average interval between two
            reservations, the additional time counts as time without use.
    """
    if len(entries) < 2:  # noqa: PLR2004 - one interval has two ends
        return None
    used = sum(entry.high - entry.low for entry in entries[1:])
    span = entries[0].time - entries[-1].time
    if span <= 0:
        return None
    quiet = max(0, now - entries[0].time - span // (len(entries) - 1))
    return used * 1000 / (span + quiet)


def rate_at_refill(segments: Sequence[LedgerEntry], refill_at: float, now: int) -> float | None:
    """Return the numbers used per second until `now`, when the next segment is due. None if unknown.

    When a segment is reserved, the share `refill_at` of the previous segment is used, and all earlier segments are used
    up. Sizes of segments may differ.

    Args:
        segments: The newest segments, newest first.
        refill_at: Share of a segment that is used when the next one is reserved.
        now: Time in ms since 1970.
    """
    sizes = [each.high - each.low for each in segments] + [0] * (len(segments) == 1)
    used = sum(new * refill_at + old * (1 - refill_at) for new, old in pairwise(sizes))
    elapsed = now - segments[len(sizes) - 2].time if segments else -1
    return None if elapsed < 0 else used * 1000 / max(1, elapsed)


def target(record: Tag, usual: float) -> float:
    """Return how long a step should last, in seconds: `usual`, or longer if the tag has the setting `survive`.

    `survive` is the length of an outage, in seconds. With it, a segment lasts at least 2 x `survive`. If it were
    shorter, the next segment would often be fetched before the share `refill_at` is used: otherwise the rest would not
    outlast the outage.
    """
    return max(usual, 2 * record.survive / record.ahead)


def too_small(step: int, rate: float, target: float) -> bool:
    """Return True if an adapted step should be doubled: at this rate it lasts less than 3/4 of `target` seconds."""
    return rate * target * 3 > step * 4


def too_large(step: int, rate: float, target: float) -> bool:
    """Return True if an adapted step should be halved: at this rate it lasts more than 2 x `target` seconds."""
    return rate * target * 2 < step


#: To estimate a rate, at least FEW full segments must have been reserved, over at least BURST ms. In less time, the use
#: may be only a burst.
FEW, BURST = 3, 3000


def conclusive(entries: Sequence[LedgerEntry], segment: int, most: int) -> bool:
    """Whether the newest reservations are enough to estimate a tag's rate of use.

    `entries`: these reservations, at most `most`. `segment`: how many numbers a full segment has. A reservation of
    fewer than `segment` numbers is ignored, because a part of it was returned. `most` reservations of full segments are
    always enough, even if they were made within less than BURST ms.
    """
    whole = [entry for entry in entries if entry.high - entry.low >= segment]
    return len(whole) >= FEW and (whole[0].time - whole[-1].time >= BURST or len(whole) == most)


def runway(remaining: int | None, per_second: float | None) -> float | None:
    """Return for how many seconds the remaining numbers last. None if an argument is unknown."""
    if remaining is None or not per_second:
        return None
    return remaining / per_second
