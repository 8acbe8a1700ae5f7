"""What `issuer demo` and `issuer chaos` need around servers of their own."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

BINARIES = ("redis-server", "valkey-server")


def binary() -> Path | None:
    """Return the first server on PATH; None if there is none."""
    found = next((path for path in map(shutil.which, BINARIES) if path), None)
    return Path(found) if found else None


@contextmanager
def without_settings() -> Iterator[None]:
    """Hide the user's ISSUER_ variables, which are about other servers."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("ISSUER_")}
    try:
        yield
    finally:
        os.environ.update(hidden)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program like Ctrl-C does, and nothing disturb the cleaning up."""

    def ended(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, ended) for number in (signal.SIGTERM, signal.SIGHUP)}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
