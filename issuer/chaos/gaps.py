"""The gap that each fault caused: how many numbers no caller received because of the fault.

A strike is one occurrence of a fault. The report compares each strike with its own limit, so that a costly strike
cannot hide behind cheap strikes.

The time at which a number was lost is not recorded. But this time is between two known moments:

- The number was not lost before it was reserved. At the last read of the store before the reservation, `max` was lower.
- Strict tags: the number was not lost after a caller received a higher number. Numbers are drawn in order, so no caller
  can receive the lower number later.
- Trend tags: a process can hold numbers while other processes receive higher numbers, but within a process numbers
  increase. So the number was lost before every process that drew at that time had received a higher number, or had
  ended.
- Trend tags that are drawn through a server: there is no upper bound, because its processes share their clients.

A strike can have lost numbers in the time from the end of the previous strike to one timeout after its own end: a call
that is running at its end can last so long. So several strikes can explain the same numbers. These numbers are charged
to the last of these strikes that is still below its allowed gap. If all are at their limit, the last strike is charged,
and exceeds its limit.

So a strike exceeds its limit only if no distribution of the gaps keeps all limits. Reason: the strikes that can explain
a number are consecutive, and the numbers with the fewest possible strikes are distributed first.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple

from issuer.chaos.call_files import CallEntry
from issuer.chaos.watched import Strike, Watched

#: Name of the entry for gaps that no fault can explain.
NO_FAULT = "no fault"
#: Name of the entry for numbers that were in Redis or held by processes when the run ended.
THE_END = "the end"

_FOREVER = 1 << 63


@dataclass(slots=True)
class Cost:
    """The gaps that the faults of one name caused. Each occurrence of a fault is a strike.

    `strikes`: number of strikes. `gap`: size of all gaps together. `worst`: largest gap of one strike in one tag.
    `allowed`: how large this gap may be by design. `over`: how often a gap was larger than allowed.
    """

    strikes: int = 0
    gap: int = 0
    worst: int = 0
    allowed: int = 0
    over: int = 0

    def charge(self, gap: int, allowed: int) -> None:
        """Add the gap that one strike caused in one tag. `allowed`: how large this gap may be."""
        self.gap += gap
        self.over += gap > allowed
        if (gap > allowed, gap) > (self.worst > self.allowed, self.worst):
            self.worst, self.allowed = gap, allowed

    def add(self, other: Cost) -> None:
        strikes, gap, over = self.strikes + other.strikes, self.gap, self.over
        self.charge(other.worst, other.allowed)
        self.strikes, self.gap, self.over = strikes, gap + other.gap, over + other.over


def allowance(tag: Watched, segments: int, hits: int) -> int:
    """Return the largest gap that the design allows in the tag, as a count of numbers.

    `segments`: how many segments in Redis may lose their numbers. `hits`: how many processes may lose the numbers that
    they hold.
    """
    # A process holds at most two segments of its own (direct mode), the segment of a running draw, and two leases.
    return segments * tag.step + hits * (3 * tag.step + 2 * tag.lease)


def allowed(tag: Watched, strike: Strike) -> int:
    if tag.order == "strict":
        # A strict tag has no leases and no direct mode: a process holds at most one segment.
        return (strike.segments + strike.hits) * tag.step
    return allowance(tag, strike.segments, strike.hits)


class _Lost(NamedTuple):
    """A count of numbers that were lost between two moments, which are in ns."""

    numbers: int
    earliest: int
    latest: int


@dataclass(slots=True)
class Missing:
    """Finds the numbers of a tag that no caller received. Calls must be passed to `told` sorted by first number."""

    tag: Watched
    _stretches: list[tuple[int, int]] = field(default_factory=list)
    #: For each range of missing numbers: when each worker first received a higher number.
    _passed: list[dict[str, int]] = field(default_factory=list)
    #: For each worker. `_seen`: how many entries of `_passed` include the worker. `_lives`: when its first call began,
    #: and when its last call ended.
    _seen: dict[str, int] = field(default_factory=dict)
    _lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    _highest: int = 0

    def __post_init__(self) -> None:
        self._highest = self.tag.base

    def told(self, call: CallEntry, worker: str) -> None:
        """Process the next call. Its first number must not be lower than that of the previous call."""
        if call.first > self._highest + 1:
            self._stretches.append((self._highest + 1, call.first - 1))
            self._passed.append({})
        self._highest = max(self._highest, call.last)
        if self._seen.get(worker, 0) < len(self._passed):
            for passed in self._passed[self._seen.get(worker, 0) :]:
                passed[worker] = call.ended
            self._seen[worker] = len(self._passed)
        began, ended = self._lives.get(worker, (call.began, 0))
        self._lives[worker] = min(began, call.began), max(ended, call.ended)

    @property
    def count(self) -> int:
        """How many numbers are missing: no caller received them, but a caller received a higher number."""
        return sum(last - first + 1 for first, last in self._stretches)

    def lost(self, *, ended: bool) -> Iterator[_Lost]:
        """Yield the missing numbers. `ended`: also yield reserved numbers above the highest that a caller received."""
        highs = [*accumulate((value for _, value in self.tag.samples), max)]
        for (first, last), passed in zip(self._stretches, self._passed, strict=True):
            yield from self._pieces(highs, first, last, self._latest(passed))
        left = self.tag.samples[-1][1] if ended and self.tag.samples else 0
        if left > self._highest:
            yield from self._pieces(highs, self._highest + 1, left, _FOREVER)

    def _latest(self, passed: dict[str, int]) -> int:
        soonest = min(passed.values())
        if self.tag.order == "strict":
            return soonest
        if not self.tag.ascends:
            return _FOREVER
        return max(
            # A worker that was killed may have received no higher number. Its last call is not recorded, and may have
            # been running until one timeout after the end of its last recorded call.
            passed.get(worker, ended + self.tag.timeout)
            for worker, (began, ended) in self._lives.items()
            if began <= soonest
        )

    def _pieces(self, highs: Sequence[int], first: int, last: int, latest: int) -> Iterator[_Lost]:
        """Split first..last by time of reservation. `highs`: `max` at each read. `latest`: last time of the loss."""
        while first <= last:
            at = bisect_left(highs, first)
            top = min(last, highs[at]) if at < len(highs) else last
            earliest = self.tag.samples[at - 1][0] if at else 0
            yield _Lost(top - first + 1, min(earliest, latest), latest)
            first = top + 1


def charge(
    costs: dict[str, Cost], missing: Missing, strikes: Sequence[Strike], workers: int, end: Strike | None
) -> None:
    """Attribute the missing numbers of a tag to faults (`strikes`), and add them to `costs`.

    `workers`: how many workers drew numbers of the tag. `end`: the end of the run. Numbers that were reserved and not
    issued at the end are attributed to it. If it is None, they are left out.
    """
    tag = missing.tag
    strikes = sorted(strikes, key=lambda strike: strike.since)
    if end is not None:
        strikes = [*strikes, replace(end, back=_FOREVER)]
    starts = [strike.since for strike in strikes]
    # The ends must not decrease, so that the faults that can explain a number are consecutive.
    ends = [*accumulate((strike.back + tag.timeout for strike in strikes), max)]
    bounds = [allowed(tag, strike) for strike in strikes]
    gaps, elsewhere = _shared(missing.lost(ended=end is not None), starts, ends, bounds)
    for strike, gap, bound in zip(strikes, gaps, bounds, strict=True):
        if gap:
            costs.setdefault(strike.name, Cost()).charge(gap, bound)
    if elsewhere:
        costs.setdefault(NO_FAULT, Cost()).charge(elsewhere, allowance(tag, 2, workers))


def _shared(
    pieces: Iterable[_Lost], starts: Sequence[int], ends: Sequence[int], bounds: Sequence[int]
) -> tuple[list[int], int]:
    """Return the gap of each fault that occurred, and the gap that no fault can explain.

    `pieces`: the missing numbers. For each fault, `starts` and `ends` limit the time at which it can have lost numbers,
    in ns, and `bounds` has its allowed gap.
    """
    gaps = [0] * len(starts)
    elsewhere = 0
    #: Key: the last fault that can explain some numbers. Values: the first fault that can, and the count of numbers.
    waiting: dict[int, list[tuple[int, int]]] = {}
    for piece in pieces:
        first, last = bisect_left(ends, piece.earliest), bisect_right(starts, piece.latest) - 1
        if first > last:
            elsewhere += piece.numbers
        else:
            waiting.setdefault(last, []).append((first, piece.numbers))
    #: A heap of entries (minus the first fault that can explain some numbers, count of these numbers, last such fault).
    #: The faults are tried from the last to the first. So the entry at the top of the heap has the fewest faults left.
    open_: list[tuple[int, int, int]] = []
    for at in reversed(range(len(starts))):
        for first, count in waiting.get(at, ()):
            heapq.heappush(open_, (-first, count, at))
        while open_ and (gaps[at] < bounds[at] or open_[0][0] == -at):
            first, count, last = heapq.heappop(open_)
            fits = min(count, max(0, bounds[at] - gaps[at]))
            gaps[at] += fits
            if fits < count and -first == at:
                gaps[last] += count - fits
            elif fits < count:
                heapq.heappush(open_, (first, count - fits, last))
    return gaps, elsewhere
