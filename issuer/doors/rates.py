"""Rate limits per name, shared by all processes of a server."""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from math import floor, inf
from tempfile import TemporaryFile
from typing import Final
from weakref import finalize

from issuer.clock import monotonic
from issuer.errors import ConfigurationError

#: The most names of which a server counts.
NAMES_MOST: Final = 16_384
#: How often a process tries to get a lock that another one holds for a microsecond. Then it goes on without: a process
#: that was stopped just there must not stop the others, and all that is lost is the count of a few calls.
_TRIES: Final = 200

#: What a second brings may come to a little less than it is, in floats.
_ROUNDING: Final = 1e-6

_WORD: Final = 8


def nameless(owner: object) -> int:
    """Return the descriptor of a file for a process and those that are forked from it; open as long as the owner lives.

    Nobody else can open it. So nobody else holds its locks; and none gets lost, as a lock does when a second descriptor
    of its file is closed.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("issuer")  # needs no folder that can be written
    else:
        with TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    finalize(owner, os.close, descriptor)
    return descriptor


class RateBuckets:
    """The rates of names, as far as they are used up: in memory that a process shares with those forked from it.

    For each name it holds one moment: when its rate would have begun to fill an empty bucket. A name has a place in a
    table for as long as the server runs. A lock of the system's guards a place, and ends with the process that has it.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: seconds that never go back, the same in all processes."""
        self.clock = clock
        self._names = memoryview(mmap.mmap(-1, NAMES_MOST * _WORD)).cast("Q")
        self._began = memoryview(mmap.mmap(-1, NAMES_MOST * _WORD)).cast("d")
        self._began[:] = memoryview(array("d", [-inf]) * NAMES_MOST)
        self._locks = nameless(self)

    def bucket(self, name: str, rate: float) -> Bucket:
        """Return the bucket of the name, which the same name has in every process. Raises ConfigurationError."""
        return Bucket(self, self._place(name), rate)

    def _place(self, name: str) -> int:
        key = int.from_bytes(sha256(name.encode()).digest()[:_WORD], "big") or 1
        with self._locked(NAMES_MOST):
            for step in range(NAMES_MOST):
                place = (key + step) % NAMES_MOST
                if self._names[place] in (0, key):
                    self._names[place] = key
                    return place
        raise ConfigurationError(
            f"the server can limit the rate of at most {NAMES_MOST} names (of tokens and callers), and all places are "
            "taken. A name keeps its place until the server is restarted: restart the server"
        )

    def take(self, place: int, rate: float, n: int, *, some: bool = False) -> tuple[int, float]:
        """Take n of a place's bucket, all or none; `some`: as many as there are. Below 0: give back.

        Return how many were taken, and the seconds until there will be one (`some`) or n of them.
        """
        full = max(1.0, rate)
        with self._locked(place):
            now = self.clock()
            began = max(self._began[place], now - full / rate)
            left = min(full, (now - began) * rate)
            there = floor(left + _ROUNDING)
            taken = min(n, there) if some or there >= n else 0
            self._began[place] = began + taken / rate
        return taken, max(0.0, ((1 if some else n) - (left - taken)) / rate)

    @contextmanager
    def _locked(self, place: int) -> Iterator[None]:
        for _ in range(_TRIES):
            with suppress(BlockingIOError, PermissionError):  # which of the two says "held" depends on the system
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                break
            os.sched_yield()
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)


class Bucket:
    """The token bucket of a name. It fills at `rate` per second, and holds one second's amount, at least 1."""

    __slots__ = ("_place", "_rates", "most", "rate")

    def __init__(self, rates: RateBuckets, place: int, rate: float) -> None:
        self._rates, self._place = rates, place
        self.rate, self.most = rate, max(1, floor(rate))

    def take(self, n: int = 1) -> float:
        """Take n; return 0.0, or if there aren't as many the seconds until there will be."""
        taken, wait = self._rates.take(self._place, self.rate, n)
        return 0.0 if taken else wait

    def give_back(self) -> None:
        """Give one back."""
        self._rates.take(self._place, self.rate, -1)

    def take_some(self, n: int) -> tuple[int, float]:
        """Take up to n; return how many, and the seconds until there will be another one."""
        return self._rates.take(self._place, self.rate, n, some=True)
