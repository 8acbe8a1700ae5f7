"""Starts programs that reserve, and collects the segments that they were given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tests.programs import PIPE, REPOSITORY, Program
from tests.stores.benches import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOADER = Path(__file__).with_name("loader.py")
#: Seconds that a program may take which reserves some hundred times, beside others.
_LONGEST = 4 * TIMEOUT


def run_python(arguments: Sequence[str]) -> Program:
    """Start Python on a program of the tests, in the checkout."""
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    return Program(*arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment, cwd=REPOSITORY)


def start_loaders(
    url: str, how_many: int, count: int, *, tag: str = "orders", size: str = "-", journal: str = ""
) -> list[Program]:
    """Start loaders, see loader.py; all are ready and wait for a line when this returns."""
    arguments = [str(_LOADER), url, tag, str(count), size, journal]
    started = [run_python(arguments) for _ in range(how_many)]
    for each in started:
        assert lines(each, 1) == "ready\n"
    return started


def let_go(started: Sequence[Program]) -> None:
    """Send them off, all at once."""
    for each in started:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()


def lines(program: Program, count: int) -> str:
    """Wait until it has printed so many lines."""
    assert program.stdout is not None
    return "".join(program.stdout.readline() for _ in range(count))


def finish(program: Program, line: str = "") -> str:
    """Send a last line, wait for an orderly end, and return what was printed."""
    with program:
        printed, errors = program.communicate(line, _LONGEST)
        assert program.wait() == 0, errors
        return printed


def kill(program: Program) -> list[tuple[int, int]]:
    """Kill it, and return the segments that it had printed whole and that were not read yet."""
    with program:
        program.kill()
        printed, _ = program.communicate(timeout=_LONGEST)
        return segments(printed[: printed.rfind("\n") + 1])


def segments(printed: str) -> list[tuple[int, int]]:
    """Read what a loader printed."""
    pairs = [line.split() for line in printed.splitlines() if line != "ready"]
    return [(int(low), int(high)) for low, high in pairs]
