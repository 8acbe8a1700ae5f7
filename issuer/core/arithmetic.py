"""The sums of the protocol, on exact integers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import LEASE_MOST

#: The share of a segment after whose use the next one is fetched: 20 %.
REFILL_AFTER_USED = Fraction(20, 100)


#: In seconds. If a stream uses up what it has drawn ahead within the first, it draws twice as much; if it takes longer
#: than the second, half as much. If the process is killed, all numbers that lie in it are a gap.
QUICK, SLOW = 0.05, 1.0


def stream_lease(before: int, lasted: float, *, least: int, segment: int) -> int:
    """Return how many numbers to draw ahead after `before` of them have lasted `lasted` seconds.

    A fifth of a segment at most, or `least`: with more at once segments would be used up before the next one is there.
    """
    most = max(least, min(LEASE_MOST, segment * REFILL_AFTER_USED.numerator // REFILL_AFTER_USED.denominator))
    wanted = before * 2 if lasted < QUICK else before // 2 if lasted > SLOW else before
    return min(most, max(least, wanted))


#: Percent of the limit at which a tag is worth a warning.
WARN_AT = 80


def spent(value: int, limit: int) -> bool:
    """Whether 80 % of the numbers up to the limit are spent, exactly: `value` is the highest of them so far."""
    return value * 100 >= limit * WARN_AT


def mark(low: int, high: int) -> int:
    """Return the number whose draw asks for the next segment: low + max(1, ceil(size x 20 %)), exactly."""
    size = high - low
    return low + max(1, -(-size * REFILL_AFTER_USED.numerator // REFILL_AFTER_USED.denominator))


def rate(entries: Sequence[LedgerEntry], now: int) -> float | None:
    """Numbers per second that the tag's newest reservations (newest first) speak of; None if there are too few.

    Each reservation tells that about as many numbers as the one before it brought were used since. A pause longer than
    the average interval, up to `now` (ms since 1970), counts as time without use.
    """
    if len(entries) < 2:  # noqa: PLR2004 - one interval has two ends
        return None
    used = sum(entry.high - entry.low for entry in entries[1:])
    span = entries[0].time - entries[-1].time
    if span <= 0:
        return None
    quiet = max(0, now - entries[0].time - span // (len(entries) - 1))
    return used * 1000 / (span + quiet)


#: As many reservations as a first segment and two that followed it; over this many ms they are no mere burst.
FEW, BURST = 3, 3000


def telling(entries: Sequence[LedgerEntry], segment: int, most: int) -> bool:
    """Whether these reservations, the newest `most` of a tag, show at what rate it is used.

    Only whole segments of the present size count: what was handed back was too much. `most` of them in a row settle it,
    however short a time they took.
    """
    whole = [entry for entry in entries if entry.high - entry.low >= segment]
    return len(whole) >= FEW and (whole[0].time - whole[-1].time >= BURST or len(whole) == most)


def runway(remaining: int | None, per_second: float | None) -> float | None:
    """Seconds that the numbers in hand last at this rate; None where one of the two is unknown."""
    if remaining is None or not per_second:
        return None
    return remaining / per_second
