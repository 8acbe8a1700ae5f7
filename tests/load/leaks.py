"""What counts as a leak in a process that draws for a long time.

Pools open what they need when they first need it, which may be late: a second thread, when two extensions fall due at
once. So growth alone is no leak where there is a pool. One is a leak

- beyond the pool's ceiling, at any moment: the scheduler has `WORKERS` threads at most, and no thread that draws or is
  the scheduler's has more than one connection to Redis and one to the store at a time, while idle ones are used again
  before another is made;
- below it, if there are more in each quarter of the run, after the warm-up, than in the one before: a pool that fills
  stands still once it has met its busiest moment. In less than `LONG` that can't be told.

All else, threads that are of no pool and files that are no connection to either, is made once, at the beginning: one
more than at the end of the warm-up is a leak. It counts when it is seen twice in a row: a connection that is just being
made leads nowhere yet.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from issuer.scheduler import WORKERS

Told = Mapping[str, int]

#: pymongo watches each server over two connections of its own: for its state, and for the time of a round trip.
MONITORS = 2

#: What is made once, by what a process tells of it.
FIXED = {"threads": "threads of no pool", "files": "other files"}
#: What pools make, likewise.
POOLED = {"pool": "threads of the scheduler", "redis": "connections to Redis", "store": "connections to the store"}

QUARTERS = 4
#: Seconds.
LONG = 40


def ceilings(threads: int) -> dict[str, int]:
    """Return how many there may be of each at most, in a process in which so many threads draw."""
    talking = threads + WORKERS
    return {"pool": WORKERS, "redis": talking, "store": talking + MONITORS}


def leaks(told: Sequence[Told], warm: int, threads: int) -> list[str]:
    """Say what leaked. `told`: by the process, once a second; `warm`: seconds; `threads`: how many draw in it."""
    found = []
    for kind, most in ceilings(threads).items():
        peak = max(each[kind] for each in told)
        if peak > most:
            found.append(f"{POOLED[kind]}: {peak}, and {most} at most are right")
    since = told[warm:]
    for kind, name in POOLED.items() if len(since) >= LONG else ():
        peaks = [max(each[kind] for each in part) for part in _quarters(since)]
        if all(before < after for before, after in pairwise(peaks)):
            found.append(f"{name}: ever more, {', '.join(map(str, peaks))}")
    for kind, name in FIXED.items():
        first, *rest = [min(one[kind], other[kind]) for one, other in pairwise(since)]
        if max(rest, default=first) > first:
            found.append(f"{name}: {max(rest)}, and {first} when warm")
    return found


def _quarters(told: Sequence[Told]) -> list[Sequence[Told]]:
    ends = [len(told) * at // QUARTERS for at in range(QUARTERS + 1)]
    return [told[begin:end] for begin, end in pairwise(ends)]
