"""Reading of what a process knows of its tags: counts and gauges, from positions and records, without any I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf

from issuer.clock import monotonic
from issuer.core import arithmetic
from issuer.core.periods import PERIOD_BITS
from issuer.core.scheme_record import countable
from issuer.core.supply.mode import Mode
from issuer.core.supply.supply import Supply
from issuer.errors import StoreUnavailable
from issuer.metrics import definitions as of
from issuer.metrics.definitions import Definition
from issuer.operations.registry import IDLE_AFTER, AnyCombiner
from issuer.strategies.snowflake.strategy import Snowflake

#: The rate is that of the numbers issued in this many seconds.
WINDOW = 60.0

#: And two looks that tell a rate are this many seconds apart at least.
APART = 1.0

#: What was read of a hash this many seconds ago says nothing of it now. A sweep reads those in use every second.
STALE = 60.0

#: Several tags that share a label show the sum; of these gauges the lowest or highest of them.
_LOWEST = {of.REMAINING.name, of.RUNWAY.name}
_HIGHEST = {of.LIMIT.name}


@dataclass(slots=True)
class Readings:
    """Values of gauges by their labels, as they are now."""

    values: dict[Definition, dict[tuple[str, ...], float]] = field(default_factory=dict)

    def add(self, which: Definition, value: float, *labels: str) -> None:
        """Take a tag's value in."""
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
    """A tag's line, with what was counted of it and the pace at which its numbers go."""

    def __init__(self, combiner: AnyCombiner) -> None:
        self.combiner = combiner
        self._issued = 0
        self._draws = 0
        #: When the highest number was looked at, on the monotonic clock, and what it was; oldest first.
        self._positions: deque[tuple[float, int]] = deque()
        self._direct = False

    @property
    def known(self) -> bool:
        """Whether the tag is there, as far as this process knows: a made-up name shall not become a label."""
        state = self.combiner.supply.state
        return state.record is not None or state.seen > 0

    def counted(self) -> tuple[int, int]:
        """Return how many numbers were issued, and drawn for how often, since this was called last."""
        state = self.combiner.supply.state
        draws, issued = state.alone + state.draws, state.issued
        # While a buffer is dropped it may count for less for a moment.
        more = max(0, issued - self._issued), draws - self._draws
        self._issued, self._draws = max(issued, self._issued), draws
        return more

    def read(self, into: Readings, label: str, *, redis: bool) -> None:
        """Read the gauges. `redis`: whether there is one."""
        combiner = self.combiner
        supply, state = combiner.supply, combiner.supply.state
        into.add(of.WAITING, combiner.waiting, label)
        if combiner.serving is not None:
            strategy = combiner.serving.strategy
            if isinstance(strategy, Snowflake):
                into.add(of.MACHINES, strategy.machine is not None, label)
            return
        hand, record = state.hand, state.record
        direct = supply.origin.mode is Mode.DIRECT
        if redis:
            into.add(of.DIRECT, direct, label)
        held = 0 if hand is None else hand.left
        into.add(of.HELD, held, label)
        hash = state.hash
        if record is not None and countable(record.scheme):
            cur = 0 if hash is None or direct else hash.cur or 0
            used, last = state.used(record, cur)
            into.add(of.LIMIT, used / last if last else 1.0, label)
        remaining = held if direct else self._remaining()
        if remaining is None:
            return
        if not direct:
            into.add(of.REMAINING, remaining, label)
        if (rate := self._rate(direct=direct)) is not None:
            into.add(of.RUNWAY, inf if not rate else arithmetic.runway(remaining, rate) or 0.0, label)

    def _remaining(self) -> int | None:
        """Return how many numbers are left in Redis, as this process saw last; None if that was long ago."""
        state = self.combiner.supply.state
        hash = state.hash
        if hash is None or hash.corrupt or monotonic() - state.looked_at > STALE:
            return None
        return max(0, (hash.max or 0) - (hash.cur or 0) + (hash.next_max or 0) - (hash.next_cur or 0))

    def _rate(self, *, direct: bool) -> float | None:
        """Return how many numbers a second were issued: by all processes from Redis, by this one if it is direct."""
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
        """Whether the tag is drawn from, or kept: what is idle learns of no server that is back."""
        supply = self.combiner.supply
        return supply.kept or supply.used_at > monotonic() - IDLE_AFTER


def _another(before: int, at: int, *, direct: bool) -> bool:
    """Whether it went back, or into another period."""
    return at < before or (not direct and at >> PERIOD_BITS != before >> PERIOD_BITS)


def redis_silent(supply: Supply) -> bool:
    """Whether Redis gives no answer for the tag, as far as its callers and sweeps know."""
    shortage = supply.shortage
    return bool(shortage.redis_trouble) and supply.state.looked_at <= shortage.redis_silent_since


def store_silent(supply: Supply) -> bool:
    """Whether the store gives no answer for the tag."""
    return isinstance(supply.refill.segments.flights.trouble, StoreUnavailable)


class Lines:
    """All lines of an issuer; one that it has dropped is counted once more."""

    def __init__(self) -> None:
        self._gauged: dict[AnyCombiner, Gauged] = {}

    def read(
        self,
        lines: Iterable[AnyCombiner],
        into: Readings | None,
        label: Callable[[str, bool], str],
        count: Callable[[Definition, str, int], None],
        *,
        redis: bool,
    ) -> None:
        """Count, and read the gauges. `lines`: those that there are; `into`: None for an issuer that was closed.

        `label`: of a tag, and whether it is known; `count`: raises a counter.
        """
        now = list(lines)
        self._gauged = {
            **self._gauged,
            **{combiner: Gauged(combiner) for combiner in now if combiner not in self._gauged},
        }
        for each in self._gauged.values():
            issued, draws = each.counted()
            if issued or draws:
                named = label(each.combiner.tag, each.known)
                count(of.ISSUED, named, issued)
                count(of.DRAWS, named, draws)
        self._gauged = {combiner: self._gauged[combiner] for combiner in now}
        if into is None:
            return
        for each in self._gauged.values():
            supply = each.combiner.supply
            if each.known:
                each.read(into, label(each.combiner.tag, True), redis=redis)  # noqa: FBT003 - it is known
            if each.in_use:
                into.add(of.REDIS_SILENT, redis and redis_silent(supply))
                into.add(of.STORE_SILENT, store_silent(supply))
        into.add(of.TAGS, len(now))
        into.add(of.KEPT, sum(each.supply.kept for each in now))
