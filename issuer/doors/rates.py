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

#: Largest number of names with a rate.
NAMES_MOST: Final = 16_384
#: Number of attempts to get a lock. Other processes usually hold a lock for a microsecond. After these attempts, a
#: process continues without the lock: a suspended process that holds the lock must not stop the others. The count of
#: tokens may then be wrong by a few calls.
_TRIES: Final = 200

#: Tolerance for rounding of floats.
_ROUNDING: Final = 1e-6

_WORD: Final = 8


def nameless(owner: object) -> int:
    """Return the descriptor of a file without a name. This process and its forks share the file.

    The descriptor is closed when `owner` is freed. Other processes cannot open the file, so they cannot hold its locks.
    This process cannot open the file a second time either. This protects its locks: if a process closes any descriptor
    of a file, the system releases all locks of the process on the file.
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("issuer")  # works also without a writable directory
    else:
        with TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    finalize(owner, os.close, descriptor)
    return descriptor


class RateBuckets:
    """Token buckets, one per name, in memory that a process shares with its forks. A token bucket limits a rate.

    For each name, a table holds the time at which the name's bucket was empty: `began`. The number of tokens in the
    bucket follows from the time since then. A name keeps its place in the table until the server ends. A file lock
    protects each place: if a process dies while it holds a lock, the system releases the lock.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        """`clock`: monotonic time in seconds, the same in all processes."""
        self.clock = clock
        self._names = memoryview(mmap.mmap(-1, NAMES_MOST * _WORD)).cast("Q")
        self.began = memoryview(mmap.mmap(-1, NAMES_MOST * _WORD)).cast("d")
        self.began[:] = memoryview(array("d", [-inf]) * NAMES_MOST)
        self._locks = nameless(self)

    def bucket(self, name: str, rate: float, full: float | None = None) -> Bucket:
        """Return the bucket of a name, which all processes share. Raises ConfigurationError if the table is full.

        `rate`: tokens per second, above 0. `full`: most tokens in the bucket, at least 1; None means those of 1 s.
        """
        return Bucket(self, self._place(name), rate, max(1.0, rate if full is None else full))

    def _place(self, name: str) -> int:
        key = int.from_bytes(sha256(name.encode()).digest()[:_WORD], "big") or 1
        with self.locked(NAMES_MOST):
            for step in range(NAMES_MOST):
                place = (key + step) % NAMES_MOST
                if self._names[place] in (0, key):
                    self._names[place] = key
                    return place
        raise ConfigurationError(
            f"the server can limit the rate of at most {NAMES_MOST} names (of tokens and callers), and all places are "
            "taken. A name keeps its place until the server is restarted: restart the server"
        )

    @contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """Lock a place of the table during a `with` block."""
        for _ in range(_TRIES):
            with suppress(BlockingIOError, PermissionError):  # which of the two is raised depends on the system
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
                break
            os.sched_yield()
        try:
            yield
        finally:
            fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, place)


class Bucket:
    """The token bucket of a name. It gets `rate` tokens per second, until it has `full` ones.

    `most`: the largest number of tokens that can be taken at once.
    """

    __slots__ = ("_full", "_place", "_rates", "most", "rate")

    def __init__(self, rates: RateBuckets, place: int, rate: float, full: float) -> None:
        self._rates, self._place, self._full = rates, place, full
        self.rate, self.most = rate, floor(full)

    def take(self, n: int = 1) -> float:
        """Take n tokens and return 0.0. If the bucket has fewer, take none and return the seconds until it has n."""
        taken, wait = self._take(n, all_or_none=True)
        return 0.0 if taken else wait

    def give_back(self, n: int = 1) -> None:
        """Return n tokens to the bucket."""
        self._take(-n, all_or_none=True)

    def take_some(self, n: int) -> tuple[int, float]:
        """Take up to n tokens. Return their number, and the seconds until the next token."""
        return self._take(n, all_or_none=False)

    def _take(self, n: int, *, all_or_none: bool) -> tuple[int, float]:
        rates, place, rate, full = self._rates, self._place, self.rate, self._full
        with rates.locked(place):
            now = rates.clock()
            began = max(rates.began[place], now - full / rate)
            left = min(full, (now - began) * rate)
            there = floor(left + _ROUNDING)
            taken = 0 if all_or_none and there < n else min(n, there)
            rates.began[place] = began + taken / rate
        return taken, max(0.0, ((n if all_or_none else 1) - (left - taken)) / rate)
