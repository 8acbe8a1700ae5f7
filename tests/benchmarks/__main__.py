"""python -m tests.benchmarks [row ...] [--quick] [--json FILE] [--picture FILE] [--list]."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.awaited import awaited
from tests.benchmarks.border import border
from tests.benchmarks.direct import direct
from tests.benchmarks.figures import Figure
from tests.benchmarks.inside import inside
from tests.benchmarks.local import leased, stream
from tests.benchmarks.machine import describe
from tests.benchmarks.people import people
from tests.benchmarks.processes import processes
from tests.benchmarks.rounds import FULL, QUICK, Effort
from tests.benchmarks.strict import many, one, take

Row = Callable[[Effort], Iterator[Figure]]

BUILD = Path("build")


def rows(picture: Path) -> Mapping[str, tuple[str, Row]]:
    """Return every row by name, with what it measures."""
    found: dict[str, Callable[..., Iterator[Figure]]] = {
        "strict": one,
        "threads": many,
        "asyncio": awaited,
        "leased": leased,
        "stream": stream,
        "people": people,
        "take": take,
        "direct": direct,
        "processes": processes,
        "border": partial(border, picture=picture),
        "server": inside,
    }
    told = {name: row.func if isinstance(row, partial) else row for name, row in found.items()}
    return {name: ((told[name].__doc__ or "").partition("\n")[0].rstrip("."), row) for name, row in found.items()}


def main() -> int:
    """Run the rows that were chosen; 1 if one of them broke. A figure that is short breaks nothing."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="What the issuer costs, side by side."
    )
    known = rows(Path())
    parser.add_argument("rows", nargs="*", metavar="row", help=f"all by default, of: {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="a rough look, in less than a minute")
    parser.add_argument("--json", metavar="FILE", type=Path, default=BUILD / "bench.json", help="build/bench.json")
    parser.add_argument("--picture", metavar="FILE", type=Path, default=BUILD / "border.svg", help="build/border.svg")
    parser.add_argument("--list", action="store_true", help="name the rows and what they measure")
    given = parser.parse_args()
    if unknown := [name for name in given.rows if name not in known]:
        parser.error(f"there is no row {', '.join(unknown)}; there are {', '.join(known)}")
    if given.list:
        for name, (told, _row) in known.items():
            print(f"{name:10} {told}")
        return 0
    chosen = {name: row for name, row in rows(given.picture).items() if name in (given.rows or known)}
    return _run(chosen, given.json, quick=given.quick)


def _run(chosen: Mapping[str, tuple[str, Row]], target: Path, *, quick: bool) -> int:
    machine = {**describe(), "effort": "quick" if quick else "full", "began": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    for name, value in machine.items():
        print(f"{name:14}{value}")
    measured: dict[str, list[Figure]] = {}
    broken: dict[str, str] = {}
    print(f"\n{report.heading()}")
    for name, (told, row) in chosen.items():
        print(f"{name}: {told}", flush=True)
        figures = measured[name] = []
        try:
            for figure in row(QUICK if quick else FULL):
                figures.append(figure)
                print(report.line(figure), flush=True)
        except Exception as error:  # noqa: BLE001 - the other rows are worth having
            broken[name] = f"{type(error).__name__}: {error}"
            print(f"  broke: {broken[name]}", flush=True)
            traceback.print_exc()
        # What was measured so far is not lost if the run is ended.
        report.write(target, machine, measured, broken)
    print(f"\n{report.summary(measured, broken)}\n{target}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
