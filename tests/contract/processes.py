"""Starts loaders and collects the segments that they were given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.contract.benches import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

REPOSITORY = Path(__file__).resolve().parents[2]
_LOADER = Path(__file__).with_name("loader.py")


def run_python(arguments: Sequence[str], **options: str) -> subprocess.Popen[str]:
    """Start Python on a program of the tests, with the checkout on its path."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONWARNINGS": "error", **options}
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=REPOSITORY,
    )


def finish(process: subprocess.Popen[str], line: str = "") -> str:
    """Send a last line, wait for an orderly end, and return what was printed."""
    try:
        printed, errors = process.communicate(line, timeout=3 * TIMEOUT)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, errors
    return printed


def start_loaders(url: str, how_many: int, count: int, *, tag: str = "orders") -> list[subprocess.Popen[str]]:
    """Start them; all are ready and wait for a line when this returns."""
    loaders = [run_python([str(_LOADER), url, tag, str(count)]) for _ in range(how_many)]
    for loader in loaders:
        assert loader.stdout is not None
        assert loader.stdout.readline() == "ready\n"
    return loaders


def let_go(loaders: Sequence[subprocess.Popen[str]]) -> None:
    """Send them off, all at once."""
    for loader in loaders:
        assert loader.stdin is not None
        loader.stdin.write("go\n")
        loader.stdin.flush()


def segments(printed: str) -> list[tuple[int, int]]:
    """Read what a loader printed."""
    pairs = [line.split() for line in printed.splitlines() if line != "ready"]
    return [(int(low), int(high)) for low, high in pairs]
