"""Formulas of the protocol, computed exactly, with integers."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import LEASE_MOST

#: The next segment is loaded when this share of the current one is used: 20 %.
REFILL_AFTER_USED = Fraction(20, 100)


#: In seconds. If a stream uses up a lease in less than QUICK, the next lease is twice as large. If a lease lasts longer
#: than SLOW, the next one is half as large. If the process is killed, the rest of the lease is a gap.
QUICK, SLOW = 0.05, 1.0


def stream_lease(before: int, lasted: float, *, least: int, segment: int) -> int:
    """Return the size of the next lease, after one of `before` numbers lasted `lasted` seconds.

    At most a fifth of a segment, or `least`: larger leases would use up segments before the next one is loaded.
    """
    most = max(least, min(LEASE_MOST, segment * REFILL_AFTER_USED.numerator // REFILL_AFTER_USED.denominator))
    wanted = before * 2 if lasted < QUICK else before // 2 if lasted > SLOW else before
    return min(most, max(least, wanted))


#: Warn when this share of the numbers is used, in percent of the limit.
WARN_AT = 80


def spent(value: int, limit: int) -> bool:
    """Whether at least 80 % of the numbers up to the limit are used. `value` is the highest number used."""
    return value * 100 >= limit * WARN_AT


def mark(low: int, high: int) -> int:
    """Return the threshold, low + max(1, ceil(size x 20 %)). The draw of this number triggers the next load."""
    size = high - low
    return low + max(1, -(-size * REFILL_AFTER_USED.numerator // REFILL_AFTER_USED.denominator))


def rate(entries: Sequence[LedgerEntry], now: int) -> float | None:
    """Return the numbers used per second, estimated from reservations (newest first). None if there are fewer than two.

    When a segment is reserved, the one before it is about used up. If the newest reservation is older than the average
    interval at `now` (ms since 1970), the excess counts as time without use.
    """
    if len(entries) < 2:  # noqa: PLR2004 - one interval has two ends
        return None
    used = sum(entry.high - entry.low for entry in entries[1:])
    span = entries[0].time - entries[-1].time
    if span <= 0:
        return None
    quiet = max(0, now - entries[0].time - span // (len(entries) - 1))
    return used * 1000 / (span + quiet)


#: FEW: a first segment and two more. BURST in ms: reservations over a longer time are more than a short burst.
FEW, BURST = 3, 3000


def telling(entries: Sequence[LedgerEntry], segment: int, most: int) -> bool:
    """Whether the newest reservations of a tag, at most `most`, are enough to estimate the rate of use.

    Smaller ones than `segment` are ignored, as a part of them was returned. `most` full segments in a row are always
    enough, even if they took less than BURST.
    """
    whole = [entry for entry in entries if entry.high - entry.low >= segment]
    return len(whole) >= FEW and (whole[0].time - whole[-1].time >= BURST or len(whole) == most)


def runway(remaining: int | None, per_second: float | None) -> float | None:
    """Return for how many seconds the remaining numbers last. None if an argument is unknown."""
    if remaining is None or not per_second:
        return None
    return remaining / per_second
