"""Checks whether the numbers that callers received keep all promises. It uses only the records of the run."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import attrgetter

from issuer.chaos.call_files import ERRORS, CallEntry, Calls
from issuer.chaos.gaps import Cost, Missing, allowance, charge
from issuer.chaos.watched import Strike, Watched

NS = 1_000_000_000

#: One check reports at most this many examples of broken promises.
EXAMPLES = 5


@dataclass(slots=True)
class Verdict:
    """The result of a check. Times are in seconds.

    `attempted`, `acknowledged`: how many numbers callers requested and received. `errors`: how many calls failed, by
    error. `repeats`: numbers issued twice. `above`: numbers above the store's `max`. `disorder`: calls that returned a
    lower number than an earlier call. `gap`: numbers that no caller received. `without_service`: longest wait for a
    number after a fault; `slowest` describes it. `latest`: longest time by which a call exceeded its deadline.
    """

    attempted: int = 0
    acknowledged: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    repeats: int = 0
    above: int = 0
    disorder: int = 0
    #: How often a repeated idempotency key returned a number different from its first.
    changed: int = 0
    gap: int = 0
    allowed_gap: int = 0
    #: The gaps that faults caused, by the name of the fault. The module `gaps` decides which fault caused which gap.
    costs: dict[str, Cost] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    #: How often each fault was caused, by the name that --faults takes. One fault can consist of several strikes.
    turns: Counter[str] = field(default_factory=Counter)
    without_service: float = 0.0
    slowest: str = ""
    latest: float = float("-inf")
    examples: list[str] = field(default_factory=list)
    #: Why the run ended early: a worker received no more numbers, or a fault could not be caused.
    stuck: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if no number was issued twice, above `max` or out of order, and each idempotency key had one number."""
        return not (self.repeats or self.above or self.disorder or self.changed)

    @property
    def kept(self) -> bool:
        """True if every promise was kept: the run is sound, it did not get stuck, and its gaps are small enough."""
        return self.sound and not self.stuck and self.gap <= self.allowed_gap

    @property
    def struck(self) -> int:
        """How many faults occurred in the run."""
        return self.faults.total()

    def add(self, other: Verdict) -> None:
        for name in ("attempted", "acknowledged", "repeats", "above", "disorder", "changed", "gap", "allowed_gap"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name, cost in other.costs.items():
            self.costs.setdefault(name, Cost()).add(cost)
        self.errors += other.errors
        self.faults += other.faults
        self.turns += other.turns
        if other.without_service > self.without_service:
            self.without_service, self.slowest = other.without_service, other.slowest
        self.latest = max(self.latest, other.latest)
        self.stuck += other.stuck
        self.examples = (self.examples + other.examples)[: 3 * EXAMPLES]


def check(
    tags: Sequence[Watched],
    callers: Sequence[Calls],
    strikes: Sequence[Strike],
    *,
    lasting: Collection[str],
    stopped: Mapping[str, Sequence[Strike]],
    end: Strike | None = None,
) -> Verdict:
    """Check the calls for all tags, and return what was found.

    `tags`: the tags of the run. `callers`: the recorded calls of each caller. `strikes`: the faults that occurred.
    `lasting`: names of the workers that drew until the end. `stopped`: for each worker, by name, the times during which
    it was suspended by SIGSTOP. `end`: the end of the run. At the end, some reserved numbers are in Redis or in
    processes, and nobody has received them. The result's `gap` does not include these numbers. But its `costs` has an
    entry for them, with a limit. If `end` is None, these numbers are not checked.
    """
    verdict = Verdict(faults=Counter(strike.name for strike in strikes))
    verdict.costs = {name: Cost(times) for name, times in verdict.faults.items()}
    for at, tag in enumerate(tags):
        made = [calls for calls in callers if calls.tag == at]
        own = _of_keys(verdict, tag, made) if tag.keyed else made
        _count(verdict, own)
        missing = _repeats(verdict, tag, own)
        workers = {calls.worker for calls in made}
        groups = [own] if tag.order == "strict" else [[c for c in own if c.worker == worker] for worker in workers]
        for group in groups if tag.ascends else []:
            _disorder(verdict, tag, group, [strike for strike in strikes if strike.split])
        _service(verdict, tag, made, strikes, lasting)
        _late(verdict, tag, made, stopped)
        if not tag.counted:
            continue
        _above(verdict, tag, own)
        verdict.gap += missing.count
        segments, hits = (sum(strike.segments for strike in strikes), sum(strike.hits for strike in strikes))
        verdict.allowed_gap += allowance(tag, segments + 2, hits + len(workers))
        charge(verdict.costs, missing, strikes, len(workers), end)
    return verdict


def _example(verdict: Verdict, text: str) -> None:
    if len(verdict.examples) < EXAMPLES:
        verdict.examples.append(text)


def _count(verdict: Verdict, callers: Iterable[Calls]) -> None:
    for calls in callers:
        for call in calls:
            if call.first > 0:
                verdict.acknowledged += call.last - call.first + 1
                verdict.attempted += call.last - call.first + 1
            else:
                verdict.attempted -= call.first
                verdict.errors[ERRORS[-call.last]] += 1


def _of_keys(verdict: Verdict, tag: Watched, callers: Sequence[Calls]) -> list[Calls]:
    """Leave out calls that repeated the number of their key. Count those with another number in `changed`."""
    given: dict[int, list[int]] = {}
    values: list[int] = []
    for call in sorted(chain.from_iterable(callers), key=attrgetter("ended")):
        if call.first > 0:
            numbers = given.setdefault(call.first, [])
            if call.last in numbers:
                continue
            if numbers:
                verdict.changed += 1
                _example(verdict, f"{tag.name}: key {call.first} was given {call.last} after {numbers[0]}")
            numbers.append(call.last)
            values += call._replace(first=call.last)
        else:
            values += call
    return [Calls(calls.tag, "", values) for calls in callers[:1]]


def _sorted(calls: Calls) -> Iterable[CallEntry]:
    """Return the calls that returned numbers, sorted by first number. Most calls are in this order already."""
    highest = 0
    for call in calls.granted():
        if call.first < highest:
            return sorted(calls.granted())
        highest = call.first
    return calls.granted()


def _repeats(verdict: Verdict, tag: Watched, callers: Iterable[Calls]) -> Missing:
    """Count the repeats. Return the missing numbers: nobody received them, but a caller received a higher one."""
    highest = 0
    missing = Missing(tag)
    for call, worker in heapq.merge(*(zip(_sorted(calls), repeat(calls.worker), strict=False) for calls in callers)):
        if call.first <= highest:
            twice = min(call.last, highest) - call.first + 1
            verdict.repeats += twice
            numbers = f"{call.first}..{call.first + twice - 1}" if twice > 1 else call.first
            _example(verdict, f"{tag.name}: {numbers} was issued twice")
        highest = max(highest, call.last)
        missing.told(call, worker)
    return missing


def _above(verdict: Verdict, tag: Watched, callers: Iterable[Calls]) -> None:
    """Count the numbers that were above the store's `max` when their call returned: issued, but not reserved."""
    times = [time for time, _ in tag.samples]
    highest: list[int] = []
    for _, value in tag.samples:
        highest.append(max(value, highest[-1] if highest else 0))
    for calls in callers:
        for call in calls.granted():
            at = min(bisect_left(times, call.ended), len(times) - 1)
            if call.last > highest[at]:
                verdict.above += call.last - max(call.first - 1, highest[at])
                _example(verdict, f"{tag.name}: {call.last} was issued while max had never been above {highest[at]}")


def _promised(calls: Calls, splits: Sequence[Strike]) -> Iterator[CallEntry]:
    """Yield the calls that returned numbers, except at the times of `splits`, for which no order is promised."""
    for call in calls.granted():
        if not any(split.began <= call.ended and call.began <= split.back for split in splits):
            yield call


def _disorder(verdict: Verdict, tag: Watched, callers: Sequence[Calls], splits: Sequence[Strike]) -> None:
    """Count the calls that began after another call had returned a higher number, except at the times of `splits`."""
    ended: list[tuple[int, int]] = []
    highest = 0
    for call in heapq.merge(*(_promised(calls, splits) for calls in callers), key=attrgetter("began")):
        while ended and ended[0][0] < call.began:
            highest = max(highest, heapq.heappop(ended)[1])
        if call.first < highest:
            verdict.disorder += 1
            _example(verdict, f"{tag.name}: {call.first} was issued to a call that began after {highest} was returned")
        heapq.heappush(ended, (call.ended, call.last))


def _service(
    verdict: Verdict, tag: Watched, callers: Sequence[Calls], strikes: Iterable[Strike], lasting: Collection[str]
) -> None:
    """Measure how long each worker waited after each fault. `lasting`: workers that drew until the end of the run."""
    ends: dict[str, list[int]] = {}
    for calls in callers:
        ends.setdefault(calls.worker, []).extend(call.ended for call in calls.granted())
    last = max(chain.from_iterable(ends.values()), default=0)
    for worker, moments in ends.items():
        moments.sort()
        for strike in strikes:
            at = bisect_left(moments, strike.back)
            # Skip a worker that had not received a number before the fault ended. Also skip a worker that received
            # none afterwards because it was ended.
            begun = moments and moments[0] < strike.back
            if not begun or (at == len(moments) and worker not in lasting):
                continue
            took = (max(moments[at] if at < len(moments) else last, strike.back) - strike.back) / NS
            if took > verdict.without_service:
                verdict.without_service = took
                verdict.slowest = f"{strike.name}: {tag.name} in {worker}"


def _late(verdict: Verdict, tag: Watched, callers: Iterable[Calls], stopped: Mapping[str, Sequence[Strike]]) -> None:
    """Find the longest time after a deadline. `stopped`: when each worker was suspended; these times do not count."""
    for calls in callers:
        pauses = [strike for strike in stopped.get(calls.worker, ()) if strike.back]
        for call in calls:
            took = call.ended - call.began
            if (took - tag.timeout) / NS > verdict.latest:
                took -= sum(max(0, min(call.ended, e.back) - max(call.began, e.began)) for e in pauses)
                verdict.latest = max(verdict.latest, (took - tag.timeout) / NS)
