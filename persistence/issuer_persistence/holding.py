"""Acquires locks so that the exception of a signal handler cannot leave them held."""

from __future__ import annotations

from itertools import compress, tee
from operator import methodcaller
from typing import Any


def acquired(lock: Any, seconds: float, held: list[Any], entry: object = None) -> bool:
    """Acquire the lock within `seconds` seconds, and append it to `held`. Return False if it was not free in time.

    `entry`: what to append instead of the lock. The caller releases what is in `held`.

    Without `with`, a signal handler can raise an exception between `acquire` and the next line, and nobody would
    release the lock. Here C code does both: it acquires the lock, and appends it.
    """
    first, again = tee(map(methodcaller("acquire", timeout=seconds), (lock,)))
    held.extend(compress((entry or lock,), first))
    return bool(next(again))
