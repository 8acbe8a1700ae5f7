"""How long the processors of this machine were somebody else's: what a virtual machine can't do anything about."""

import os
import time
from pathlib import Path
from typing import Self

_TICK = 1 / os.sysconf("SC_CLK_TCK")
_STEAL = 8


def _stolen() -> list[float]:
    """Return the seconds that were stolen from each processor since the start; nothing where nobody counts them."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return []
    lines = (line.split() for line in stat.read_text().splitlines())
    return [int(words[_STEAL]) * _TICK for words in lines if words[0].startswith("cpu") and words[0] != "cpu"]


class Stopwatch:
    """`stolen`: what the processor that lost most lost while a block ran. `seconds`: how long that took without it."""

    seconds: float
    stolen: float

    def __enter__(self) -> Self:
        self._before = _stolen()
        self._began = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        lost = (after - before for before, after in zip(self._before, _stolen(), strict=True))
        self.stolen = max(lost, default=0.0)
        self.seconds = max(0.0, took - self.stolen)
