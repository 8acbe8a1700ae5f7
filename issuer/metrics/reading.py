"""Reads the counters and gauges of this process: of its tags, and of `issuer serve`. All are in memory: no I/O."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import inf

from issuer.api.aio import AsyncIssuer
from issuer.api.blocking import Issuer
from issuer.clock import monotonic
from issuer.core import arithmetic
from issuer.core.periods import PERIOD_BITS
from issuer.core.scheme_record import countable
from issuer.core.supply.mode import Mode
from issuer.core.supply.supply import Supply
from issuer.errors import StoreUnavailable
from issuer.metrics import definitions as of
from issuer.metrics.definitions import Definition
from issuer.metrics.families import BUCKETS, Families
from issuer.operations.registry import AnyCombiner
from issuer.tally import Tally

#: The rate is measured over this many seconds.
WINDOW = 60.0

#: Shortest time between two measurements for a rate, in seconds.
APART = 1.0

#: A tag counts as in use for this many seconds after its last use.
IN_USE = 900.0

#: If a tag's Redis hash was last read longer ago than this, in seconds, the values are not used. The background work
#: reads the hashes of tags in use every second.
STALE = 60.0

#: Several tags can share a label. Their values of a gauge are then summed up, with three exceptions: the gauges in
#: _LOWEST use the lowest value, those in _HIGHEST and gauges without labels use the highest value.
_LOWEST = {of.REMAINING.name, of.RUNWAY.name}
_HIGHEST = {of.LIMIT.name, of.STEP.name}


@dataclass(slots=True)
class Readings:
    """Current values of gauges. `values`: for each definition of a gauge, its value for each combination of labels."""

    values: dict[Definition, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, which: Definition, value: float, *labels: str) -> None:
        """Add a value to a gauge. If these labels already have a value, merge both.

        The comment at _LOWEST explains which gauges use the sum, the minimum or the maximum.
        """
        found = self.values.setdefault(which, {})
        if labels not in found:
            found[labels] = value
        elif which.name in _LOWEST:
            found[labels] = min(found[labels], value)
        elif which.name in _HIGHEST or not labels:
            found[labels] = max(found[labels], value)
        else:
            found[labels] += value


class Gauged:
    """The metrics of one tag: the counts at the last update of the metrics, and measurements for the tag's rate."""

    def __init__(self, combiner: AnyCombiner) -> None:
        self.combiner = combiner
        self._issued = 0
        self._draws = 0
        #: Measurements for the rate, the oldest first. Each has the time of `monotonic`, and the highest counter value
        #: that was issued by this time. If the tag is served without Redis, it has the count of the numbers that this
        #: process has issued instead.
        self._positions: deque[tuple[float, int]] = deque()
        self._direct = False

    def counted(self) -> tuple[int, int]:
        """Return two increases since the last call of this method: of issued numbers, and of draws."""
        state = self.combiner.supply.state
        draws, issued = state.alone + state.draws, state.issued
        # While this process discards its buffer, `issued` can be too low for a moment. The increase is then 0, because
        # a counter cannot be lowered.
        more = max(0, issued - self._issued), draws - self._draws
        self._issued, self._draws = max(issued, self._issued), draws
        return more

    def read(self, into: Readings, label: str, *, redis: bool) -> None:
        """Add the tag's gauges to `into`. `redis` is True if the issuer uses Redis."""
        combiner = self.combiner
        supply, state = combiner.supply, combiner.supply.state
        into.add(of.WAITING, combiner.waiting, label)
        if state.source is not None:
            if (equipped := state.source.equipped) is not None:
                into.add(of.MACHINES, equipped, label)
            return
        buffer, record = state.buffer, state.record
        direct = supply.origin.mode is Mode.DIRECT
        if redis:
            into.add(of.DIRECT, direct, label)
        held = 0 if buffer is None else buffer.left
        into.add(of.HELD, held, label)
        hash = state.hash
        if record is not None and countable(record.scheme):
            cur = 0 if hash is None or direct else hash.cur or 0
            used, last = state.used(record, cur)
            into.add(of.LIMIT, used / last if last else 1.0, label)
            into.add(of.STEP, record.step, label)
        remaining = held if direct else self._remaining()
        if remaining is None:
            return
        if not direct:
            into.add(of.REMAINING, remaining, label)
        if (rate := self._rate(direct=direct)) is not None:
            into.add(of.RUNWAY, inf if not rate else arithmetic.runway(remaining, rate) or 0.0, label)

    def _remaining(self) -> int | None:
        """Return None if the tag's hash was not read within STALE seconds, or is corrupt."""
        state = self.combiner.supply.state
        hash = state.hash
        if hash is None or hash.corrupt or monotonic() - state.looked_at > STALE:
            return None
        return max(0, hash.remaining)

    def _rate(self, *, direct: bool) -> float | None:
        """Per second, of all processes; if `direct` (no Redis), of this process. None: not enough measurements yet."""
        state = self.combiner.supply.state
        now, positions = monotonic(), self._positions
        looked = 0 if state.hash is None else state.hash.cur or 0
        at = state.issued if direct else max(state.seen, looked)
        if direct != self._direct or (positions and _another(positions[-1][1], at, direct=direct)):
            positions.clear()
        self._direct = direct
        while len(positions) > 1 and now - positions[1][0] >= WINDOW:
            positions.popleft()
        rate = None
        if positions and now - positions[0][0] >= APART:
            rate = (at - positions[0][1]) / (now - positions[0][0])
        if not positions or now - positions[-1][0] >= APART:
            positions.append((now, at))
        return rate

    @property
    def in_use(self) -> bool:
        """True if the tag was used in the last 15 minutes, so that it has background work.

        Only such a tag may report that Redis or the store does not answer. A tag without background work would not
        notice the end of the outage, and would report it for ever.
        """
        supply = self.combiner.supply
        return supply.used_at > monotonic() - IN_USE


def _another(before: int, at: int, *, direct: bool) -> bool:
    """Return True if no rate can be computed from these two values of a tag, `before` and the later `at`.

    The reason is that `at` is lower, or that they are counter values of different periods. `direct`: the values are not
    counter values, but counts of the numbers that this process has issued.
    """
    return at < before or (not direct and at >> PERIOD_BITS != before >> PERIOD_BITS)


def redis_silent(supply: Supply) -> bool:
    """Return True if Redis has not answered the tag's last draws or its last background work."""
    shortage = supply.shortage
    return bool(shortage.redis_trouble) and supply.state.looked_at <= shortage.redis_silent_since


def store_silent(supply: Supply) -> bool:
    """Return True if the store has not answered the tag's last reservation."""
    return isinstance(supply.refill.segments.flights.trouble, StoreUnavailable)


def known(combiner: AnyCombiner | None) -> bool:
    """Return True if this process has seen that the tag exists. Only names of existing tags become labels."""
    return combiner is not None and (combiner.supply.state.record is not None or combiner.supply.state.seen > 0)


class Source:
    """An issuer as a source of metrics. The reference to the issuer is weak, so the issuer can be garbage-collected.

    When the issuer removes a tag, the next `read` adds the tag's last counts.
    """

    def __init__(self, ids: Issuer | AsyncIssuer) -> None:
        self.ids = weakref.ref(ids)
        self.gauged: dict[AnyCombiner, Gauged] = {}

    def knows(self, tag: str) -> bool:
        """Return True if this process has seen that the tag exists. Callers can also request tags that do not exist."""
        ids = self.ids()
        return ids is not None and known(ids.engine.registry.combiners.get(tag))

    def read(self, families: Families, into: Readings, label: Callable[[str, bool], str]) -> bool:
        """Raise the counters, and add the gauges to `into`. Return False if the issuer is closed.

        `label`: function that returns the label of a tag. Its second argument is True if the tag exists.
        """
        ids = self.ids()
        ended = ids is None or ids.closed
        combiners: list[AnyCombiner] = [] if ids is None else [*ids.engine.registry.combiners.values()]
        self.gauged |= {combiner: Gauged(combiner) for combiner in combiners if combiner not in self.gauged}
        for each in self.gauged.values():
            issued, draws = each.counted()
            if issued or draws:
                named = label(each.combiner.tag, known(each.combiner))
                families.count(of.ISSUED, named, by=issued)
                families.count(of.DRAWS, named, by=draws)
        self.gauged = {combiner: self.gauged[combiner] for combiner in combiners}
        if ids is None or ended:
            return False
        redis, keeper = ids.engine.config.redis is not None, ids.engine.upkeep.keeper
        for each in self.gauged.values():
            supply = each.combiner.supply
            if known(each.combiner):
                each.read(into, label(each.combiner.tag, True), redis=redis)  # noqa: FBT003 - the tag is known
            if each.in_use:
                into.add(of.REDIS_SILENT, redis and redis_silent(supply))
                into.add(of.STORE_SILENT, store_silent(supply))
        into.add(of.TAGS, len(combiners))
        into.add(of.KEPT, 0 if keeper is None else keeper.tags)
        return True


class Served:
    """The metrics of `issuer serve` in this process: HTTP requests, commands over the Redis protocol, and connections.

    `tally` has the current counts. This class also keeps the counts of the last update: a counter of prometheus_client
    cannot be set, so an update raises it by the increase since then.
    """

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._counted: dict[tuple[Definition, tuple[str, ...]], float] = {}

    def read(self, families: Families, into: Readings) -> None:
        """Raise the counters by the increase since the last call, and add the gauges to `into`."""
        totals: dict[tuple[Definition, tuple[str, ...]], float] = {}
        for which, labels, value in self._values():
            totals[which, labels] = totals.get((which, labels), 0) + value
        for (which, labels), total in totals.items():
            families.count(which, *labels, by=max(0.0, total - self._counted.get((which, labels), 0)))
        self._counted = totals
        for protocol, count in self.tally.connections.items():
            into.add(of.CONNECTIONS, count(), protocol)

    def _values(self) -> Iterator[tuple[Definition, tuple[str, ...], float]]:
        tally = self.tally
        for (route, status, token), count in list(tally.requests.items()):
            yield of.REQUESTS, (route, str(status), token), count
        draws = list(tally.draws.items())
        for token, times in draws:
            yield of.REQUESTS, ("next", "200", token), sum(times.counts)
        for route, times in chain(list(tally.times.items()), [("next", times) for _, times in draws]):
            yield of.REQUEST_SECONDS, (route, ""), times.seconds
            for le, count in zip(BUCKETS, times.counts, strict=True):
                yield of.REQUEST_SECONDS, (route, le), count
        for name, count in list(tally.commands.items()):
            yield of.COMMANDS, (name,), count
        for protocol, count in list(tally.failures.items()):
            yield of.AUTH_FAILURES, (protocol,), count
        yield of.LINES_DROPPED, (), tally.lines_dropped()
