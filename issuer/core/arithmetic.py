"""The rate at which a tag is used, and the time until its numbers run out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import Tag


def rate(entries: Sequence[LedgerEntry], now: int) -> float | None:
    """Return the numbers used per second, estimated from reservations, newest first. None for fewer than two of them.

    When a segment is reserved, the previous segment is almost used up. If at `now` (ms since 1970) the newest
    reservation is older than the average interval between two, the additional time counts as time without use.
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
    """Return the numbers used per second until `now` (ms since 1970), when the next segment is due. None if unknown.

    When a segment is reserved, all numbers of the tag are used except the rest of the segment before: of this one, the
    share `refill_at` is used. Sizes of segments may differ.

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
    """Return how long a step should last, in seconds: `usual`, or longer if the tag must survive an outage.

    Then a segment lasts twice as long as the outage, and the next one is rarely fetched earlier than at `refill_at`.
    """
    return max(usual, 2 * record.survive / record.ahead)


#: A rate needs at least FEW full segments, reserved over at least BURST ms. Within less time, the use may be only a
#: burst.
FEW, BURST = 3, 3000


def conclusive(entries: Sequence[LedgerEntry], segment: int, most: int) -> bool:
    """Whether these newest reservations of a tag, at most `most`, are enough to estimate its rate of use.

    A reservation of fewer than `segment` numbers is ignored, because a part of it was returned. If all `most`
    reservations are full segments, they are always enough, even if they were made within less than BURST ms.
    """
    whole = [entry for entry in entries if entry.high - entry.low >= segment]
    return len(whole) >= FEW and (whole[0].time - whole[-1].time >= BURST or len(whole) == most)


def runway(remaining: int | None, per_second: float | None) -> float | None:
    """Return for how many seconds the remaining numbers last. None if an argument is unknown."""
    if remaining is None or not per_second:
        return None
    return remaining / per_second
