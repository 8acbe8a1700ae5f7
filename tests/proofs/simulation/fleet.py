"""Programs that draw from many tags for a day or a week of virtual time, and what comes of it."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from issuer import Issuer, events
from issuer.core.supply.local_buffer import threshold
from issuer.gateway.keys import redis_key
from issuer_persistence.ledger import LedgerEntry
from tests.proofs.simulation.store import CountingStore
from tests.proofs.simulation.traffic import Traffic
from tests.proofs.virtual.world import World, world

#: Seconds between two sweeps. Sweeps of every second would find the same, and take most of the time.
SWEEP_EVERY = 120.0

#: Numbers are drawn many at once: two draws for a step, one of them up to its mark. If a mark is somewhere else, in the
#: memory of a program or because of `survive`, there are more draws for a step.
PARTS, MORE_PARTS = 2, 5

#: At least one number is drawn within so many seconds if it is wanted: else the tag would become idle.
OFTEN = 600

#: So many draws of a strict tag go to the same program, then as many to the next one. For other tags, whose numbers are
#: in the memory of programs, each draw goes to another program.
STAYS = 8

#: A draw that takes longer, in seconds, has waited for a reservation. On the way to Redis, it takes 2 ms.
QUICK = 0.015

#: The groups of programs, each with its settings and how many programs it has.
GROUPS: dict[str, tuple[dict[str, Any], int]] = {"redis": ({}, 3), "direct": ({"redis": "none"}, 2)}


@dataclass(slots=True, eq=False)
class Series:
    """A tag, and what callers got."""

    tag: str
    traffic: Traffic
    settings: dict[str, Any]
    #: The programs that draw from it, one after the other.
    group: str = "redis"
    draws: int = 0
    issued: int = 0
    #: The issued numbers in their order, as ranges.
    ranges: list[range] = field(default_factory=list)

    @property
    def strict(self) -> bool:
        return "order" not in self.settings

    def got(self, numbers: range) -> None:
        self.issued += len(numbers)
        last = self.ranges[-1] if self.ranges else range(0)
        if last.stop == numbers.start:
            self.ranges[-1] = range(last.start, numbers.stop)
        else:
            self.ranges.append(numbers)


#: What happens at a time, in seconds.
Incident = tuple[float, Callable[["Fleet"], object]]


class Fleet:
    """The programs, over one Redis and one store."""

    def __init__(self, made: World, series: Sequence[Series]) -> None:
        self.series = series
        self.store = CountingStore(made.turns)
        made.store = self.store  # type: ignore[assignment] # it hangs in no test here
        self.events: Counter[type[events.Event]] = Counter()
        #: The draws that waited because the next segment was not there: tag, and when. After a loss, all wait.
        self.late: list[tuple[str, float]] = []
        #: When all tags of a group needed new segments: Redis lost its data, or a program without Redis began.
        self.disturbed: dict[str, list[float]] = {group: [] for group in GROUPS}
        self._made = made
        self._began = made.now
        self._programs = {group: [self._program(group) for _ in range(many)] for group, (_, many) in GROUPS.items()}

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._made.now - self._began

    def time_of(self, entry: LedgerEntry) -> float:
        """Return when a segment was reserved, in seconds since the beginning."""
        return entry.time / 1000 - self._made.turns.wall() + self.now

    def writes(self, each: Series) -> list[float]:
        """Return when the store wrote anything of this tag, in seconds since the beginning."""
        return [at - self._began for at in self.store.writes[each.tag]]

    def disturbances(self, each: Series) -> list[float]:
        """Return when a tag was given another step, or needed new segments for another reason than its use."""
        return [*self.disturbed[each.group], *(at - self._began for at in self.store.steps[each.tag])]

    def _program(self, group: str) -> Issuer:
        ids = self._made.connect(**GROUPS[group][0])
        ids.observe(self._saw)
        return ids

    def _saw(self, event: events.Event) -> None:
        self.events[type(event)] += 1

    def restart(self, group: str, *, crash: bool = False) -> None:
        """Let the oldest program of a group end, and another one begin. `crash`: it returns nothing."""
        if group == "direct":
            for each in self.series:
                self._catch_up(each)
        ids = self._programs[group].pop(0)
        if crash:
            ids.engine.scheduler.stop()
        else:
            ids.close()
        self._programs[group].append(self._program(group))
        if group == "direct":
            self.disturbed[group].append(self.now)

    def _catch_up(self, each: Series) -> None:
        """Draw what is wanted by now from the programs without Redis, before one of them ends.

        A planned draw stands for the many small ones up to its time. A new program must not get those of the one that
        has ended: its first segment is smaller.
        """
        while (
            each.group == "direct"
            and (n := min(int(each.traffic.wanted(self.now)) - each.issued, self._most(each))) > 0
        ):
            self._draw(each, n)

    def lose(self) -> None:
        """Let Redis lose all its data."""
        self._made.wire.server.wipe()
        self.disturbed["redis"].append(self.now)

    def run(self, until: float, incidents: Iterable[Incident] = (), look: Callable[[Series], object] = id) -> None:
        """Draw what is wanted until this time. `look` is called after each draw."""
        places = count()
        queue: list[tuple[float, int, Series | None, Any]] = [(at, next(places), None, do) for at, do in incidents]
        for each in self.series:
            self._programs[each.group][0].create(each.tag, exist_ok=True, **each.settings)
            queue += [(*due, each, n) for due, n in self._next(each, places)]
        queue.sort()
        while queue and queue[0][0] < until:
            at, _, drawn, what = heappop(queue)
            self._made.turns.sleep(max(0.0, at - self.now))
            if drawn is None:
                what(self)
                continue
            if drawn.group == "direct":  # a part of it may have been drawn before a program ended
                what = max(1, min(what, int(drawn.traffic.wanted(self.now)) - drawn.issued))
            self._draw(drawn, what)
            look(drawn)
            for due, n in self._next(drawn, places):
                heappush(queue, (*due, drawn, n))
        self._made.turns.sleep(max(0.0, until - self.now))

    def _next(self, each: Series, places: Iterator[int]) -> Iterator[tuple[tuple[float, int], int]]:
        """Yield when the next draw of a tag is due, and of how many numbers. Nothing if no more numbers are wanted."""
        soon = self.now + (OFTEN if each.strict else OFTEN / len(self._programs[each.group]))
        wanted = int(each.traffic.wanted(soon)) - each.issued
        n = max(1, min(wanted, self._most(each)))
        at = each.traffic.wanted_at(each.issued + n)
        if at is not None:
            yield (at, next(places)), n

    def _most(self, each: Series) -> int:
        """Return how many numbers are drawn at once."""
        newest, step = self.store.newest(each.tag), self.store.record(each.tag).step
        if newest is None:
            return 1
        if each.group == "direct":
            return min(step // MORE_PARTS, self._left(self._program_of(each), each) // 2)
        if not each.strict or "survive" in each.settings:
            return step // MORE_PARTS
        left = threshold(newest.low, newest.high) - each.ranges[-1].stop + 1
        return min(step // PARTS, left) if left > 0 else step // PARTS

    def _program_of(self, each: Series) -> Issuer:
        """Return the program that makes the next draw."""
        programs = self._programs[each.group]
        return programs[each.draws // (STAYS if each.strict else 1) % len(programs)]

    def _left(self, ids: Issuer, each: Series) -> int:
        """Return how many numbers of a tag this program has."""
        combiner = ids.engine.registry.combiners.get(each.tag)
        return 0 if combiner is None or combiner.supply.state.buffer is None else combiner.supply.state.buffer.left

    def _draw(self, each: Series, n: int) -> None:
        ids = self._program_of(each)
        combiner, deadline = ids.engine.registry.combiner(each.tag), ids.engine.deadline(None)
        # The first segment of a program of its own, or of a new hash, is nobody's delay.
        first = not each.issued or (each.group == "direct" and not combiner.supply.state.issued)
        losses, waits, began = self._losses, self.events[events.ExtensionLate], self.now
        each.draws += 1
        while n:
            numbers = combiner.draw(n, deadline)
            assert isinstance(numbers, range)
            each.got(numbers)
            n -= len(numbers)
        waited = self.now - began > QUICK or self.events[events.ExtensionLate] > waits
        if waited and not first and self._losses == losses:
            self.late.append((each.tag, began))

    @property
    def _losses(self) -> int:
        """Return how many losses of Redis programs have found."""
        return self.events[events.FenceTripped] + self.events[events.LeaseDropped]

    def in_hand(self, each: Series) -> int:
        """Return how many numbers are left in Redis and in programs, which can still be issued."""
        left = sum(self._left(ids, each) for ids in self._programs[each.group])
        key = redis_key("issuer", each.tag)
        with self._made.wire.server.client() as client:
            found: list[Any] = client.hmget(key, "cur", "max", "next_cur", "next_max")
        cur, most, next_cur, next_most = (int(number or 0) for number in found)
        return left + most - cur + next_most - next_cur

    def wasted(self, each: Series) -> int:
        """Return how many reserved numbers are never issued."""
        return self.store.record(each.tag).max - each.issued - self.in_hand(each)

    def end(self) -> None:
        for programs in self._programs.values():
            for ids in programs:
                ids.close()


@contextmanager
def started(series: Sequence[Series], seed: int) -> Iterator[Fleet]:
    """Make programs for these tags, in a virtual time of their own."""
    with pytest.MonkeyPatch.context() as patched, world("blocking", seed) as made:
        patched.setattr("issuer.engine.scheduler.SWEEP_EVERY", SWEEP_EVERY)
        found = Fleet(made, series)
        yield found
        found.end()
