"""Whether the numbers that callers got, the metrics, the ledger, Redis and the store agree, for each tag.

What was reserved is issued, or still in Redis, or counted as wasted, or in a segment that came too late for Redis. For
a tag whose processes all ended in order, this is exact. A killed process takes with it what it held, what it was about
to return, and a segment that it had reserved: `HELD` numbers at most, and a segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import redis
from prometheus_client.multiprocess import MultiProcessCollector

from issuer.gateway.keys import redis_key
from issuer.metrics import definitions as of
from issuer.metrics.definitions import Definition
from issuer_persistence.contract import Store
from issuer_persistence.ledger import LedgerEntry
from tests.proofs.soak.plan import LEASE, TAGS, TAKE_MOST, Group, Numbers, tag_at

#: What a killed process held at most: two leases, one that was under way, and a call of each of its four callers.
HELD = 3 * LEASE + 4 * TAKE_MOST

#: The share of the numbers of tags that come and go that the metrics may lack.
UNCOUNTED = 0.01

TIMEOUT = 60.0
PAGE = 1000


class Counted:
    """The counters of all processes of a run, killed ones too, summed over processes."""

    def __init__(self, folder: Path) -> None:
        self._values: Counter[tuple[str, str, str]] = Counter()
        for metric in MultiProcessCollector.merge([str(each) for each in folder.glob("counter_*.db")]):  # type: ignore[no-untyped-call]  # prometheus_client's
            for sample in metric.samples:
                labels = sample.labels
                more = labels.get("reason", "") + labels.get("result", "")
                self._values[sample.name, labels.get("tag", ""), more] += round(sample.value)

    def of(self, which: Definition, tag: str, *labels: str) -> int:
        return self._values[which.shown, tag, "".join(labels)]

    def tags(self, which: Definition) -> dict[str, int]:
        """Return the counter's value by tag, of all that have one."""
        found: Counter[str] = Counter()
        for (name, tag, _), value in self._values.items():
            if name == which.shown and value:
                found[tag] += value
        return dict(found)


@dataclass(slots=True)
class Sums:
    """The sums of one tag, in numbers. `late`: reserved for Redis, and in no buffer of it. `kills`: processes."""

    tag: str
    group: Group
    moved: int = 0
    ledger: int = 0
    issued: int = 0
    redis: int = 0
    late: int = 0
    wasted: int = 0
    counted: int = 0
    segments: int = 0
    late_segments: int = 0
    late_counted: int = 0
    step: int = 0
    kills: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def unexplained(self) -> int:
        """What was reserved, and is neither issued, nor in Redis, nor known to be a gap."""
        return self.moved - self.issued - self.redis - self.late - self.wasted

    def harms(self) -> Iterator[str]:
        """Yield what does not agree."""
        name = self.tag
        yield from (f"{name}: {each}" for each in self.wrong)
        if self.moved < self.ledger:
            yield f"{name}: the store has moved by {self.moved}, the ledger has {self.ledger}"
        if self.group in ("churn", "new"):
            # Deleting a tag drops what Redis had of it.
            if self.unexplained < 0:
                yield f"{name}: {-self.unexplained} more numbers than were reserved"
            return
        spare = self.kills * (HELD + self.step)
        if not 0 <= self.unexplained <= spare:
            yield f"{name}: {self.unexplained} reserved numbers are nowhere, 0 to {spare} are right"
        if self.group == "raw":
            return
        if not self.counted <= self.issued + self.kills * HELD or (not self.kills and self.counted != self.issued):
            yield f"{name}: {self.issued} numbers were issued, the metrics have {self.counted}"
        if not self.kills and self.late_segments != self.late_counted:
            yield f"{name}: {self.late_segments} segments came late for Redis, the metrics have {self.late_counted}"


def entries(store: Store, tag: str) -> Iterator[LedgerEntry]:
    """Yield the ledger of a tag, the lowest numbers first."""
    beyond = None
    while True:
        page = store.segments(tag, beyond=beyond, upward=True, count=PAGE, timeout=TIMEOUT)
        yield from page.entries
        if page.last is None:
            return
        beyond = page.last


def sums(store: Store, client: redis.Redis, counted: Counted, issued: Mapping[int, Numbers], kills: int) -> list[Sums]:
    """Return the sums of each tag that was ever made. `kills`: how many processes were killed."""
    found = []
    for index in sorted({*range(len(TAGS)), *issued}):
        tag = tag_at(index)
        record = store.get(tag.name, timeout=TIMEOUT)
        if record is None:
            continue
        numbers = issued.get(index) or Numbers()
        each = Sums(tag.name, tag.group, moved=record.max, issued=numbers.issued, step=record.segment)
        each.kills = kills if tag.group == "harsh" else 0
        each.counted = counted.of(of.ISSUED, tag.name)
        each.wasted = counted.of(of.WASTED, tag.name)
        each.late_counted = counted.of(of.RESERVATIONS, tag.name, "load", "done") - counted.of(of.SEGMENTS, tag.name)
        if numbers.repeats:
            each.wrong.append(f"{len(numbers.repeats)} numbers came twice, such as {numbers.repeats[:5]}")
        held = client.hmget(redis_key("issuer", tag.name), "cur", "max", "next_cur", "next_max")
        cur, top, next_cur, next_top = (int(value or 0) for value in held)
        each.redis = top - cur + next_top - next_cur
        end, within = 0, 0
        for entry in entries(store, tag.name):
            size = entry.high - entry.low
            if entry.low < end:
                each.wrong.append(f"the entry ({entry.low}, {entry.high}] overlaps with one that ends at {end}")
            end = max(end, entry.high)
            each.ledger += size
            used = numbers.within(entry.low, entry.high)
            within += used
            in_redis = entry.low <= cur <= entry.high or entry.low == next_cur < next_top
            if entry.reason == "load" and not used and not in_redis and size and tag.group not in ("churn", "new"):
                each.late += size
                each.late_segments += 1
            each.segments += entry.reason == "load"
        if end > record.max:
            each.wrong.append(f"the ledger ends at {end}, above the store's max {record.max}")
        if within != numbers.issued - len(numbers.repeats):
            each.wrong.append(f"{numbers.issued - within} of {numbers.issued} numbers are in no entry of the ledger")
        found.append(each)
    return found


def totals(counted: Counted, found: list[Sums]) -> Iterator[str]:
    """Yield what does not agree over all tags: tags that came late share the label "other" in the metrics.

    A process reads its counts every 5 s. If a tag is deleted or forgotten within 5 s of a process's first draw, the
    metrics lack these numbers.
    """
    named = {each.tag for each in found if each.group not in ("churn", "new", "harsh", "raw")}
    issued = sum(each.issued for each in found if each.group in ("churn", "new"))
    harsh = {each.tag for each in found if each.group == "harsh"}
    metrics = sum(value for tag, value in counted.tags(of.ISSUED).items() if tag not in named | harsh)
    if not issued * (1 - UNCOUNTED) - TAKE_MOST <= metrics <= issued:
        yield f"tags that come and go: {issued} numbers were issued, the metrics have {metrics}"
