"""A check of all that must be true of the numbers that were issued, made from the records alone."""

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

#: This many of each kind are kept, to be shown.
EXAMPLES = 5


@dataclass(slots=True)
class Verdict:
    """The result of a check. Numbers are counted, times are in seconds."""

    attempted: int = 0
    acknowledged: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    repeats: int = 0
    above: int = 0
    disorder: int = 0
    #: Keys that were given another number when they came again.
    changed: int = 0
    gap: int = 0
    allowed_gap: int = 0
    #: The cost of the strikes of each name; see gaps.
    costs: dict[str, Cost] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    #: How often each fault had its turn, by its name on a command line: a turn may be several faults.
    turns: Counter[str] = field(default_factory=Counter)
    without_service: float = 0.0
    slowest: str = ""
    latest: float = float("-inf")
    examples: list[str] = field(default_factory=list)
    #: Why a run could not go on: no worker got numbers any more, or a fault could not be brought about.
    stuck: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether no number came twice, from above the store's `max`, or out of order, and no key had two of them."""
        return not (self.repeats or self.above or self.disorder or self.changed)

    @property
    def kept(self) -> bool:
        """Whether every promise was kept: sound, no more lost than the design allows, and a worker always drew on."""
        return self.sound and not self.stuck and self.gap <= self.allowed_gap

    @property
    def struck(self) -> int:
        """How many faults there were."""
        return self.faults.total()

    def add(self, other: Verdict) -> None:
        """Count the other one in."""
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
    """Check all tags. `lasting`: the workers that drew to the end; `stopped`: when which of them was stopped.

    `end`: when the drawing was ended, and how many of them held something; what is left then is no gap, but has bounds.
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
    """Return the calls as if each had been for a number; of those that brought a key the same one, the first."""
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
    """Return what was granted by its first number. Nearly always it came like that."""
    highest = 0
    for call in calls.granted():
        if call.first < highest:
            return sorted(calls.granted())
        highest = call.first
    return calls.granted()


def _repeats(verdict: Verdict, tag: Watched, callers: Iterable[Calls]) -> Missing:
    """Find numbers that came twice, and return those below the highest that never came."""
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
    """Find numbers above what the store's `max` was, or had been, when their call had returned."""
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
    """Yield what was granted while one master ruled."""
    for call in calls.granted():
        if not any(split.began <= call.ended and call.began <= split.back for split in splits):
            yield call


def _disorder(verdict: Verdict, tag: Watched, callers: Sequence[Calls], splits: Sequence[Strike]) -> None:
    """Find calls that began after another one had ended, yet brought lower numbers."""
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
    """How long after a fault each worker had to wait for its next number."""
    ends: dict[str, list[int]] = {}
    for calls in callers:
        ends.setdefault(calls.worker, []).extend(call.ended for call in calls.granted())
    last = max(chain.from_iterable(ends.values()), default=0)
    for worker, moments in ends.items():
        moments.sort()
        for strike in strikes:
            at = bisect_left(moments, strike.back)
            # The worker had not started yet, or it ended before it could get another number.
            begun = moments and moments[0] < strike.back
            if not begun or (at == len(moments) and worker not in lasting):
                continue
            took = (max(moments[at] if at < len(moments) else last, strike.back) - strike.back) / NS
            if took > verdict.without_service:
                verdict.without_service = took
                verdict.slowest = f"{strike.name}: {tag.name} in {worker}"


def _late(verdict: Verdict, tag: Watched, callers: Iterable[Calls], stopped: Mapping[str, Sequence[Strike]]) -> None:
    """How long after its deadline a call returned, not counting while its process was stopped."""
    for calls in callers:
        pauses = [strike for strike in stopped.get(calls.worker, ()) if strike.back]
        for call in calls:
            took = call.ended - call.began
            if (took - tag.timeout) / NS > verdict.latest:
                took -= sum(max(0, min(call.ended, e.back) - max(call.began, e.began)) for e in pauses)
                verdict.latest = max(verdict.latest, (took - tag.timeout) / NS)
