"""Files in which drawing processes record their calls. The files are mapped memory, which survives a kill -9.

A file contains the calls of one caller: a thread or a task that draws numbers of one tag. A call is four 64-bit
integers: the first number, the last number, and the times when the call began and ended, in ns of the monotonic clock.
If the call failed, the first integer is minus the count of the requested numbers, and the second is minus the index of
the error in `ERRORS`. If the call had an idempotency key, the first integer is the key, and the second is the number.
After the last call, the file contains only zeros.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from issuer import errors

#: Names of the errors that a call may raise. A file contains the index of the error; 0 means any other error.
ERRORS = ("other", *(name for name, each in vars(errors).items() if isinstance(each, type) and name[0] != "_"))

_CALL = struct.Struct("=4q")
#: Calls per file. If a caller makes more calls, it starts another file. A file is 2 MB long, but only written pages use
#: memory.
PART = 1 << 16


class CallEntry(NamedTuple):
    """A recorded call. The beginning of this file explains the integers."""

    first: int
    last: int
    began: int
    ended: int


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return each run of consecutive numbers as (first, last), in the order of the numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


class CallFile:
    """Records the calls of one caller. Only one thread may use it."""

    def __init__(self, folder: Path, tag: int, worker: str, caller: int) -> None:
        """`tag`: index of the tag in the run. `worker`: name of the process. `caller`: number of its thread or task."""
        self._path = folder / f"{tag}.{worker}.{caller}"
        self._part = 0
        self._open()

    def _open(self) -> None:
        path = self._path.with_name(f"{self._path.name}.{self._part}")
        with path.open("w+b") as file:
            os.ftruncate(file.fileno(), PART * _CALL.size)
            self._memory = mmap.mmap(file.fileno(), PART * _CALL.size)
        self._at = 0

    def note(self, first: int, last: int, began: int, ended: int) -> None:
        if self._at == PART * _CALL.size:
            self._part += 1
            self._open()
        _CALL.pack_into(self._memory, self._at, first, last, began, ended)
        self._at += _CALL.size

    def failed(self, wanted: int, error: Exception, began: int, ended: int) -> None:
        """Record a call that requested `wanted` numbers and raised an error. Times are in ns of the monotonic clock."""
        name = type(error).__name__
        self.note(-wanted, -ERRORS.index(name) if name in ERRORS else 0, began, ended)


def _written(path: Path) -> memoryview[int]:
    """Return the integers in a file, four for each call. Calls that are not completely written yet are left out."""
    if not path.stat().st_size:  # the worker has just created the file
        return memoryview(b"").cast("q")
    with path.open("rb") as file:
        values = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast("q")
    # Find the first call without an end, and return all integers before it. The end of a call is written last, so a
    # call with an end has its other three integers too.
    return values[: bisect_left(range(3, len(values), 4), 1, key=lambda at: not values[at]) * 4]


class Calls:
    """All calls of one caller, in the order in which they were made."""

    def __init__(self, tag: int, worker: str, values: Iterable[int]) -> None:
        """`values`: four integers for each call, as in a file."""
        self.tag = tag
        self.worker = worker
        self._values = array("q", values)

    @classmethod
    def read(cls, tag: int, worker: str, paths: Sequence[Path]) -> Calls:
        return cls(tag, worker, chain.from_iterable(map(_written, paths)))

    def __iter__(self) -> Iterator[CallEntry]:
        return _entries(self._values)

    def granted(self) -> Iterator[CallEntry]:
        return (call for call in self if call.first > 0)


def _entries(values: Iterable[int]) -> Iterator[CallEntry]:
    each = iter(values)
    return map(CallEntry, each, each, each, each)


def all_calls(folder: Path) -> list[Calls]:
    parts: dict[tuple[int, str, int], list[tuple[int, Path]]] = {}
    for path in folder.iterdir():
        words = path.name.split(".")
        if len(words) == 4 and words[0].isdecimal():  # noqa: PLR2004 - tag, worker, caller, part
            tag, worker, caller, part = words
            parts.setdefault((int(tag), worker, int(caller)), []).append((int(part), path))
    return [
        Calls.read(tag, worker, [path for _, path in sorted(paths)])
        for (tag, worker, _), paths in sorted(parts.items())
    ]


class Follower:
    """Reads the call files of one worker while the worker writes them."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._folder = folder
        self._worker = worker
        #: For each file: how many integers of it `fresh` has read. A call has four integers.
        self._read: dict[Path, int] = {}

    def served(self, tag: int, since: int) -> bool:
        """Return whether a call that ended at or after `since` (time in ns) returned numbers of the tag."""
        return any(_served(path, since) for path in self._folder.glob(f"{tag}.{self._worker}.*"))

    def fresh(self, tag: int) -> list[CallEntry]:
        """Return the calls for the tag since the last call of `fresh`. The calls of one file are in order."""
        found: list[CallEntry] = []
        for path in self._folder.glob(f"{tag}.{self._worker}.*"):
            values = _written(path)
            found += _entries(values[self._read.get(path, 0) :])
            self._read[path] = len(values)
        return found


def _served(path: Path, since: int) -> bool:
    """Return whether a call in the file that ended at or after `since` (time in ns) returned numbers."""
    # The values of the calls in reverse order: end, begin, last number, first number.
    values = iter(_written(path)[::-1])
    calls = takewhile(lambda call: call[0] >= since, zip(values, values, values, values, strict=True))
    return any(first > 0 for _, _, _, first in calls)
