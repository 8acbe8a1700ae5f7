"""Costs of strikes in numbers that no caller was given: each is judged by itself, so that none hides behind the others.

When a number was lost stands nowhere, but between which moments it was does:

- not before it was reserved: `max` was below it when the store was last asked before;
- strict: not after a higher number was returned to any caller. Numbers come in order, so no caller gets it any more;
- trend: a process may hold numbers while others are given higher ones, but it goes up itself. So not after each process
  that was there when the first higher number came had returned a higher one too, or, if it never did, had ended;
- trend, through a server: at any time after that, as its processes share their clients.

A strike may have cost what was lost between the moment when all was well before it, and when nothing that was under way
at its end can last any longer. Numbers that several strikes may have cost are charged to the last of them that has room
in what the design allows it, so that strikes which can't be told apart share what they are allowed. What is left when
none has room is charged to the last of them, which then has cost too much. So a strike is only blamed if there is no
way to share the gaps out within all bounds: those that may have cost a number are neighbours, and with neighbours,
serving first what has the fewest choices left finds a way if there is one.
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

#: The entry of gaps that lie near no strike.
NO_FAULT = "no fault"
#: The entry of numbers that were reserved, and held or still in Redis, when the drawing was ended.
THE_END = "the end"

_FOREVER = 1 << 63


@dataclass(slots=True)
class Cost:
    """Numbers that the strikes of one name have cost.

    `strikes`: how many there were. `gap`: numbers in all. `worst`: of one strike and one tag, of which `allowed` were
    allowed. `over`: how often one cost a tag more than that.
    """

    strikes: int = 0
    gap: int = 0
    worst: int = 0
    allowed: int = 0
    over: int = 0

    def charge(self, gap: int, allowed: int) -> None:
        """Enter what one strike has cost one tag."""
        self.gap += gap
        self.over += gap > allowed
        if (gap > allowed, gap) > (self.worst > self.allowed, self.worst):
            self.worst, self.allowed = gap, allowed

    def add(self, other: Cost) -> None:
        """Count the other one in."""
        strikes, gap, over = self.strikes + other.strikes, self.gap, self.over
        self.charge(other.worst, other.allowed)
        self.strikes, self.gap, self.over = strikes, gap + other.gap, over + other.over


def allowance(tag: Watched, segments: int, hits: int) -> int:
    """Return how many of the tag's numbers may be lost with that many segments in Redis, and processes hit."""
    # In a process two segments of its own and one in hand, two leases, and what a draw under way had.
    return segments * tag.step + hits * (3 * tag.step + 2 * tag.lease)


def allowed(tag: Watched, strike: Strike) -> int:
    """Return how many of the tag's numbers one strike may cost."""
    if tag.order == "strict":
        # Never leased or served direct: a process has one segment in hand.
        return (strike.segments + strike.hits) * tag.step
    return allowance(tag, strike.segments, strike.hits)


class _Lost(NamedTuple):
    """A number of numbers, lost between two moments in ns."""

    numbers: int
    earliest: int
    latest: int


@dataclass(slots=True)
class Missing:
    """The stretches of numbers that no caller got, found while what was granted is taken in order."""

    tag: Watched
    _stretches: list[tuple[int, int]] = field(default_factory=list)
    #: For each stretch, when each worker's next higher number was returned.
    _passed: list[dict[str, int]] = field(default_factory=list)
    #: For each worker: of how many stretches it has been told, when its first call began, and when its last one ended.
    _seen: dict[str, int] = field(default_factory=dict)
    _lives: dict[str, tuple[int, int]] = field(default_factory=dict)
    _highest: int = 0

    def __post_init__(self) -> None:
        self._highest = self.tag.base

    def told(self, call: CallEntry, worker: str) -> None:
        """Take what was granted; `call.first` never goes back."""
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
        """How many numbers below the highest no caller got."""
        return sum(last - first + 1 for first, last in self._stretches)

    def lost(self, *, ended: bool) -> Iterator[_Lost]:
        """Yield what is missing, and between which moments it was lost; `ended`: also what lies above the highest."""
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
            # A worker that has ended may have been in a call then.
            passed.get(worker, ended + self.tag.timeout)
            for worker, (began, ended) in self._lives.items()
            if began <= soonest
        )

    def _pieces(self, highs: Sequence[int], first: int, last: int, latest: int) -> Iterator[_Lost]:
        """Cut it where `max` once was: what was reserved later was lost later. `highs`: what it had been at most."""
        while first <= last:
            at = bisect_left(highs, first)
            top = min(last, highs[at]) if at < len(highs) else last
            earliest = self.tag.samples[at - 1][0] if at else 0
            yield _Lost(top - first + 1, min(earliest, latest), latest)
            first = top + 1


def charge(
    costs: dict[str, Cost], missing: Missing, strikes: Sequence[Strike], workers: int, end: Strike | None
) -> None:
    """Charge what is missing of a tag to the strikes; `workers`: how many drew it. `end`: when the drawing ended."""
    tag = missing.tag
    strikes = sorted(strikes, key=lambda strike: strike.since)
    if end is not None:
        strikes = [*strikes, replace(end, back=_FOREVER)]
    starts = [strike.since for strike in strikes]
    # One that was over before an earlier one reaches as far as that: so what may have cost a number are neighbours.
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
    """Return what each strike has cost, and what none has."""
    gaps = [0] * len(starts)
    elsewhere = 0
    #: By the last strike that may have cost it: the first one, and how many numbers.
    waiting: dict[int, list[tuple[int, int]]] = {}
    for piece in pieces:
        first, last = bisect_left(ends, piece.earliest), bisect_right(starts, piece.latest) - 1
        if first > last:
            elsewhere += piece.numbers
        else:
            waiting.setdefault(last, []).append((first, piece.numbers))
    #: What has the fewest choices left comes first: minus the first strike that may have cost it, how many, the last.
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
