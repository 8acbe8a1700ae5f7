"""What counts as a leak in a process that draws for a long time.

A pool opens what it needs when it first needs it, which may be late. So more of it is a leak only beyond the pool's
ceiling (a thread has one connection to Redis and one to the store at a time, and idle ones are used again), or if
there are more in each quarter of the run than in the one before, which less than `LONG` can't tell. All else is made
once: one more is a leak when it is seen twice in a row, as a connection that is being made leads nowhere yet.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from issuer.engine.scheduler import WORKERS

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
    return {"pool": WORKERS, "redis": threads + WORKERS, "store": threads + WORKERS + MONITORS}


def leaks(told: Sequence[Told], warm: int, threads: int) -> list[str]:
    """Say what leaked. `told`: by the process, once a second; `warm`: seconds; `threads`: how many draw in it."""
    found = []
    for kind, most in ceilings(threads).items():
        peak = max(each[kind] for each in told)
        if peak > most:
            found.append(f"{POOLED[kind]}: {peak}, and {most} at most are right")
    since = told[warm:]
    for kind, name in POOLED.items() if len(since) >= LONG else ():
        ends = [len(since) * at // QUARTERS for at in range(QUARTERS + 1)]
        peaks = [max(each[kind] for each in since[begin:end]) for begin, end in pairwise(ends)]
        if all(before < after for before, after in pairwise(peaks)):
            found.append(f"{name}: ever more, {', '.join(map(str, peaks))}")
    for kind, name in FIXED.items():
        first, *rest = [min(one[kind], other[kind]) for one, other in pairwise(since)]
        if max(rest, default=first) > first:
            found.append(f"{name}: {max(rest)}, and {first} when warm")
    return found
