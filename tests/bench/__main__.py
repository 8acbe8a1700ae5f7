"""python -m tests.bench [row ...] [--quick] [--json FILE] [--picture FILE] [--list]."""

import os
import platform
import re
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import click

from tests.bench.awaited import awaited
from tests.bench.border import border
from tests.bench.crowds import crowds
from tests.bench.delayed import delayed
from tests.bench.direct import direct
from tests.bench.doors import http_, resp
from tests.bench.failover import failover
from tests.bench.figures import Figure, heading, line, summary, write
from tests.bench.local import leased, stream
from tests.bench.mongo import mongo
from tests.bench.observed import observed
from tests.bench.people import people
from tests.bench.persistence import persistence
from tests.bench.processes import processes
from tests.bench.pruning import prune
from tests.bench.rounds import FULL, QUICK, Effort
from tests.bench.sizing import sizing
from tests.bench.sql import sql
from tests.bench.start import start
from tests.bench.strict import inside, many, one, take
from tests.bench.tags import tags
from tests.servers.binaries import primary_server, version

#: The distributions whose speed is in the figures.
LIBRARIES = (
    "granian",
    "uvloop",
    "redis",
    "hiredis",
    "pymongo",
    "uuid-utils",
    "python-ulid",
    "snowflake-id",
    "psycopg",
    "pymysql",
)


def describe() -> dict[str, str]:
    """Return processor, operating system, Python, servers and libraries, by name."""
    found = {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
    }
    if server := primary_server():
        found["redis-server"] = version(server).partition(" sha=")[0]
    installed = {each.name: each.version for each in metadata.distributions()}
    return found | {library: installed.get(library, "not installed") for library in LIBRARIES}


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    text = information.read_text(encoding="utf-8") if information.exists() else ""
    named = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return named[1] if named else platform.processor() or "unknown processor"


BUILD = Path("build")


ROWS: Mapping[str, Callable[[Effort], Iterator[Figure]]] = {
    "start": start,
    "strict": one,
    "threads": many,
    "asyncio": awaited,
    "leased": leased,
    "stream": stream,
    "people": people,
    "take": take,
    "direct": direct,
    "sql": sql,
    "mongo": mongo,
    "prune": prune,
    "processes": processes,
    "border": border,
    "server": inside,
    "http": http_,
    "resp": resp,
    "crowds": crowds,
    "metrics": observed,
    "failover": failover,
    "tags": tags,
    "delayed": delayed,
    "persistence": persistence,
    "sizing": sizing,
}


def told(name: str) -> str:
    """Return what a row measures."""
    return (ROWS[name].__doc__ or "").partition("\n")[0].rstrip(".")


@click.command()
@click.argument("rows", nargs=-1, type=click.Choice(list(ROWS)))
@click.option("--quick", is_flag=True, help="A rough look, in less than a minute.")
@click.option("--json", "target", type=Path, default=BUILD / "bench.json", show_default=True)
@click.option("--picture", type=Path, default=BUILD / "border.svg", show_default=True)
@click.option("--list", "listed", is_flag=True, help="Name the rows and what they measure.")
def main(rows: Sequence[str], target: Path, picture: Path, *, quick: bool, listed: bool) -> None:
    """Tell what the issuer costs, side by side; the exit code is 1 if a row broke, and no figure that is short does."""
    if listed:
        for name in ROWS:
            click.echo(f"{name:10} {told(name)}")
    else:
        sys.exit(_run(rows or list(ROWS), target, replace(QUICK if quick else FULL, picture=picture)))


def _run(rows: Sequence[str], target: Path, effort: Effort) -> int:
    machine = {**describe(), "rounds": str(effort.rounds), "began": time.strftime("%Y-%m-%d %H:%M:%S %z")}
    for name, value in machine.items():
        print(f"{name:14}{value}")
    measured: dict[str, list[Figure]] = {}
    broken: dict[str, str] = {}
    print(f"\n{heading()}")
    for name in rows:
        print(f"{name}: {told(name)}", flush=True)
        figures = measured[name] = []
        try:
            for figure in ROWS[name](effort):
                figures.append(figure)
                print(line(figure), flush=True)
        except Exception as error:  # noqa: BLE001 - the other rows are worth having
            broken[name] = f"{type(error).__name__}: {error}"
            print(f"  broke: {broken[name]}", flush=True)
            traceback.print_exc()
        # What was measured so far is not lost if the run is ended.
        write(target, machine, measured, broken)
    print(f"\n{summary(measured, broken)}\n{target}")
    return 1 if broken else 0


if __name__ == "__main__":
    main()
