"""Conclusions from a tag's ledger: its rate over time, its gaps with their causes, and its needs in the next hour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from issuer.care.chronicle import Act
from issuer.care.inspection import Inspection
from issuer.care.recovery import BUFFERS
from issuer.core import arithmetic
from issuer_persistence.ledger import FOREIGN, LedgerEntry

_HOUR: Final = 3600


def rates(entries: Sequence[arithmetic.TimedRange], parts: int) -> list[tuple[int, int, float]]:
    """Return the rate over time: periods between reservations, each with numbers per second. The oldest is first.

    As for `arithmetic.rate`, a reservation is used up when the next one is made.

    Args:
        entries: Reservations, newest first.
        parts: Maximum number of periods. Shorter ones are joined: reservations of one moment would look like a peak.
    """
    found: list[tuple[int, int, float]] = []
    if not entries:
        return found
    least = max(1, (entries[0].time - entries[-1].time) / parts)
    begin, size = entries[-1].time, 0
    for older, newer in pairwise(reversed(entries)):
        size += older.high - older.low
        if newer.time - begin >= least:
            found.append((begin, newer.time, size * 1000 / (newer.time - begin)))
            begin, size = newer.time, 0
    return found


@dataclass(frozen=True, slots=True)
class LedgerGap:
    """Numbers that nobody gets, or may not get.

    Attributes:
        first: First number of the gap.
        last: Last number of the gap.
        sure: True if no number of the range is issued. False if the range is an upper bound.
        cause: The cause, as text.
        time: Time of the reservation after which the gap was made, in ms since 1970.
        host: Host of the process that made this reservation.
        pid: Its process id.
    """

    first: int
    last: int
    sure: bool
    cause: str
    time: int
    host: str
    pid: int


def gaps(entries: Sequence[LedgerEntry], maximum: int, acts: Sequence[Act]) -> list[LedgerGap]:
    """Return the gaps between the entries of a part of the ledger, the highest first.

    `entries`: a page of the ledger, the highest numbers first. `maximum`: the store's `max`, or the `low` of the entry
    before. `acts`: what operators did to the tag.
    """
    return list(_gaps(entries, maximum, acts))


def _gaps(entries: Sequence[LedgerEntry], upper: int, acts: Sequence[Act]) -> Iterator[LedgerGap]:
    after: LedgerEntry | None = None
    for at, entry in enumerate(entries):
        if entry.high < upper:
            cause = _skipped(acts, entry.time, None if after is None else after.time)
            yield _gap(entry.high + 1, upper, cause, entry)
        if entry.reason == FOREIGN and entry.high > entry.low:
            cause = "issued by another program that uses the same table"
            yield _gap(entry.low + 1, entry.high, cause, entry)
        if after is not None and after.born and entry.born and after.born != entry.born:
            # Redis holds at most two segments, so at most these numbers were lost with the old hash.
            held = [each for each in entries[at : at + BUFFERS] if each.born == entry.born]
            cause = "left in Redis when its hash ended: a restart, a failover, or `recover`"
            yield _gap(held[-1].low + 1, entry.high, cause, entry, sure=False)
        if entry.high > entry.low:
            after, upper = entry, min(upper, entry.low)


def _gap(first: int, last: int, cause: str, after: LedgerEntry, *, sure: bool = True) -> LedgerGap:
    return LedgerGap(first, last, sure, cause, after.time, after.host, after.pid)


def _skipped(acts: Sequence[Act], since: int, until: int | None) -> str:
    """Return why numbers have no reservation. `since`, `until`: times of the reservations around them."""
    between = [each for each in acts if each.time >= since and (until is None or each.time <= until)]
    for what, cause in (("recover", "skipped by `recover`"), ("configure", "skipped by a change of its settings")):
        if found := next((each for each in between if each.what == what), None):
            return f"{cause}, by {found.who}"
    return "handed back too late, after others had reserved, or skipped by an act that is no longer in the list"


@dataclass(frozen=True, slots=True)
class Hour:
    """The needs of a tag in the next hour at its present rate.

    Attributes:
        numbers: Numbers used.
        step: Step in force at the end of the hour. An adapted step changes by a factor of two at a time.
        segments: Reservations.
        wasted: Numbers of these that nobody gets, at the tag's present waste. None if the waste is unknown.
        left: Share of the limit that is left then, 0..1.
    """

    numbers: int
    step: int
    segments: float
    wasted: int | None
    left: float


def next_hour(seen: Inspection, rate: float, target: float, used: float, last: int) -> Hour:
    """Return the outlook for an hour.

    Args:
        seen: State of the tag.
        rate: Numbers per second.
        target: How long an adapted step should last, in seconds.
        used: How many numbers are reserved.
        last: How many numbers the limit permits.
    """
    store, numbers = seen.store, round(rate * _HOUR)
    step = store.step
    if store.step_mode == "auto":
        while step < store.max_step and arithmetic.too_small(step, rate, target):
            step *= 2
        while step > store.min_step and arithmetic.too_large(step, rate, target):
            step //= 2
        step = min(store.max_step, max(store.min_step, step))
    waste = seen.waste
    wasted = round(numbers * waste.numbers / waste.of) if waste is not None and waste.of else None
    return Hour(numbers, step, numbers / (step * store.ahead), wasted, max(0.0, 1 - (used + numbers) / last))
