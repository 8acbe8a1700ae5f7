"""Days of many tags: their settings, what happens to their programs, and the figures that come of it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

from tests.proofs.simulation.fleet import GROUPS, Fleet, Incident, Series, started
from tests.proofs.simulation.traffic import DAY, HOUR, mixed

#: Of twenty tags, so many are drawn in leases, and from programs without Redis. All others are strict. Of them, so many
#: have a longer target, or must survive an outage of the store.
LEASED, DIRECT, LONGER, SURVIVING = 3, 2, 2, 2

#: A tag is at rest in an hour if its traffic is calm, and its step stays the same, in this hour and so many before it.
SETTLED = 2


def tags(chance: Random, many: int, seconds: int) -> list[Series]:
    """Return so many tags with automatic steps."""
    kinds = ["leased"] * LEASED + ["direct"] * DIRECT + ["longer"] * LONGER + ["surviving"] * SURVIVING
    made = []
    for place, traffic in enumerate(mixed(chance, many, seconds)):
        series = Series(f"tag-{place}", traffic, {"step": "auto"})
        match dict(enumerate(kinds)).get(place % 20):
            case "leased":
                # A user sets a lease for a tag that is in much use.
                series.settings.update(order="trend", lease=100 if max(traffic.rates) > 1 else 0)
            case "direct":
                series.settings.update(order="trend")
                series.group = "direct"
            case "longer":
                series.settings.update(target=1800)
            case "surviving":
                series.settings.update(survive=600)
        made.append(series)
    return made


def incidents(seconds: int, *, loss: bool = False) -> Iterator[Incident]:
    """Yield a new release each morning, and a crash on most days. Programs without Redis have one release a week.

    `loss`: Redis loses its data once.
    """
    for day in range(0, seconds, DAY):
        weekday = day // DAY % 7
        for group, due in (("redis", True), ("direct", weekday == 2)):
            for place in range(GROUPS[group][1] if due else 0):
                yield day + 9 * HOUR + place * 300, partial(Fleet.restart, group=group)
        if weekday % 2 == 0:
            yield day + 15 * HOUR, partial(Fleet.restart, group="redis", crash=True)
    if loss:
        yield seconds * 0.6, Fleet.lose


#: Waste and numbers in hand are shares of the issued ones. Writes of the store are those of a tag in an hour: the mean
#: of all hours, and for tags at rest the mean and the most.
HEAD = f"{'tags':10}{'':>6}{'issued':>16}{'waste':>10}{'in hand':>10}{'late':>6}{'writes':>8}{'at rest':>8}{'most':>6}"


@dataclass(slots=True)
class Figures:
    """Figures of some tags."""

    tags: int = 0
    issued: int = 0
    wasted: int = 0
    in_hand: int = 0
    late: int = 0
    writes: int = 0
    #: Hours of tags at rest, by the count of writes in the hour.
    at_rest: Counter[int] = field(default_factory=Counter)

    def add(self, fleet: Fleet, each: Series, seconds: int) -> None:
        """Add the figures of a tag."""
        writes = Counter(int(at // HOUR) for at in fleet.writes(each))
        self.tags += 1
        self.issued += each.issued
        self.wasted += fleet.wasted(each)
        self.in_hand += fleet.in_hand(each)
        self.late += sum(tag == each.tag for tag, _ in fleet.late)
        self.writes += writes.total()
        self.at_rest.update(writes[hour] for hour in range(SETTLED, seconds // HOUR) if _rests(fleet, each, hour))

    @property
    def waste(self) -> float:
        """Waste as a share of the issued numbers."""
        return self.wasted / max(1, self.issued)

    def line(self, name: str, hours: float) -> str:
        """Return a line of a table with the heading HEAD."""
        rest = sum(writes * many for writes, many in self.at_rest.items()) / max(1, self.at_rest.total())
        return (
            f"{name:10}{self.tags:6}{self.issued:16,}{self.waste:10.3%}{self.in_hand / max(1, self.issued):10.2%}"
            f"{self.late:6}{self.writes / self.tags / hours:8.2f}{rest:8.2f}{max(self.at_rest, default=0):6}"
        ).replace(",", " ")


@contextmanager
def simulated(many: int, days: int, seed: int, *, loss: bool = False) -> Iterator[tuple[Fleet, dict[str, Figures]]]:
    """Run so many tags for so many days. Yield the fleet, and the figures by kind of traffic, by group, and of all."""
    seconds = days * DAY
    with started(tags(Random(seed), many, seconds), seed) as fleet:
        fleet.run(seconds, incidents(seconds, loss=loss))
        found: dict[str, Figures] = defaultdict(Figures)
        for each in fleet.series:
            for name in (each.traffic.kind, each.group, "all"):
                found[name].add(fleet, each, seconds)
        yield fleet, found


def _rests(fleet: Fleet, each: Series, hour: int) -> bool:
    begin, end = (hour - SETTLED) * HOUR, (hour + 1) * HOUR
    return each.traffic.calm(begin, end) and not any(begin <= at < end for at in fleet.disturbances(each))
