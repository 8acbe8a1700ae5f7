"""Surroundings of the servers that `issuer demo` and `issuer chaos` start."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
