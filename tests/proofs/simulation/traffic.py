"""Traffic of a tag: how many numbers its callers want, and when, over a day or a week."""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from math import cos, pi
from random import Random

#: Seconds of an hour, of a day, and of a slot, in which the rate stays the same.
HOUR, DAY, SLOT = 3600, 86400, 300

#: The highest rate of each tag is between these, in numbers a second. Each power of ten has as many tags.
SLOWEST, FASTEST = 0.001, 300.0

#: How many of 100 tags have each kind of traffic.
KINDS = {"steady": 25, "diurnal": 35, "bursty": 15, "growing": 10, "dying": 10, "absent": 5}

#: Within a calm time, the highest rate is at most so many times the lowest one.
CALM = 1.2

#: The rate of a slot, by the time of its beginning.
Shape = Callable[[int], float]


class Traffic:
    """The rate of one tag in each slot."""

    def __init__(self, kind: str, shape: Shape, seconds: int) -> None:
        self.kind = kind
        #: Numbers a second.
        self.rates = [shape(at) for at in range(0, seconds, SLOT)]
        #: How many numbers are wanted before each slot.
        self._before = [0.0, *accumulate(rate * SLOT for rate in self.rates)]

    def rate(self, at: float) -> float:
        return self.rates[self._slot(at)]

    def wanted(self, at: float) -> float:
        """Return how many numbers are wanted until this time."""
        slot = self._slot(at)
        return self._before[slot] + (at - slot * SLOT) * self.rates[slot]

    def wanted_at(self, numbers: int) -> float | None:
        """Return when the last of the first `numbers` numbers is wanted. None if it never is."""
        slot = bisect_right(self._before, numbers) - 1
        if slot >= len(self.rates):
            return None
        return slot * SLOT + (numbers - self._before[slot]) / self.rates[slot]

    def calm(self, begin: float, end: float) -> bool:
        """Whether the rate stays nearly the same between these times."""
        rates = self.rates[self._slot(begin) : self._slot(end - 1) + 1]
        return max(rates) <= CALM * min(rates)

    def _slot(self, at: float) -> int:
        return min(len(self.rates) - 1, max(0, int(at // SLOT)))


def mixed(chance: Random, tags: int, seconds: int) -> list[Traffic]:
    """Return the traffic of so many tags, of all kinds."""
    kinds = [kind for kind, share in KINDS.items() for _ in range(share)]
    chance.shuffle(kinds)
    return [traffic(chance, kinds[each % len(kinds)], seconds) for each in range(tags)]


def traffic(chance: Random, kind: str, seconds: int, peak: float | None = None) -> Traffic:
    """Return traffic of this kind. `peak`: its highest rate, in numbers a second; None: any."""
    if peak is None:
        peak = SLOWEST * (FASTEST / SLOWEST) ** chance.random()
    return Traffic(kind, _SHAPES[kind](chance, peak, seconds), seconds)


def _steady(chance: Random, peak: float, _: int) -> Shape:
    return lambda _: peak * chance.uniform(0.9, 1.0)


def _diurnal(chance: Random, peak: float, _: int) -> Shape:
    """A twentieth of the day's rate at night, somewhere on earth, and half of it on two days of the week."""
    noon = chance.uniform(0, DAY)

    def rate(at: int) -> float:
        sun = (1 + cos((at - noon) / DAY * 2 * pi)) / 2
        return peak * (0.05 + 0.95 * sun) * (0.5 if at // DAY % 7 > 4 else 1) * chance.uniform(0.9, 1.0)

    return rate


def _bursty(chance: Random, peak: float, seconds: int) -> Shape:
    """Twenty times as much at once, three times a day, for 5 to 60 minutes."""
    begins = [chance.uniform(0, seconds) for _ in range(3 * seconds // DAY)]
    bursts = [(begin, begin + chance.uniform(SLOT, HOUR)) for begin in begins]
    return lambda at: peak * (1.0 if any(begin <= at < end for begin, end in bursts) else 0.05)


def _growing(chance: Random, peak: float, seconds: int) -> Shape:
    """Nothing, then a hundredth of the peak, and more and more until the end."""
    begin = chance.uniform(0, seconds / 3)
    return lambda at: 0.0 if at < begin else peak * 0.01 ** (1 - (at - begin) / (seconds - begin))


def _dying(chance: Random, peak: float, seconds: int) -> Shape:
    """Steady, then half as much every two hours, or nothing at once."""
    begin, half = chance.uniform(seconds / 10, seconds / 2), chance.choice([1, 2 * HOUR])
    return lambda at: peak * (1.0 if at < begin else 0.5 ** ((at - begin) / half) if at < begin + 12 * half else 0.0)


def _absent(chance: Random, _: float, seconds: int) -> Shape:
    """A number every twenty to sixty minutes for a while, then none."""
    end = chance.uniform(0.1, 0.5) * seconds
    return lambda at: 1 / chance.uniform(1200, HOUR) if at < end else 0.0


_SHAPES: dict[str, Callable[[Random, float, int], Shape]] = {
    "steady": _steady,
    "diurnal": _diurnal,
    "bursty": _bursty,
    "growing": _growing,
    "dying": _dying,
    "absent": _absent,
}
