"""python -m tests.load [--seconds 600] [--json FILE]: 200 clients, one Redis, a MongoDB server 50 ms away.

The exit code is 1 if a number came twice or from above the store's `max`, if a call failed, if a process grew by 5 % or
more after the warm-up, or if it leaked. Leaked is what goes beyond what its pools may hold, which the code's own limits
say, and what keeps growing after the warm-up, be it within those limits: tests/load/leaks.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.load.leaks import FIXED, POOLED
from tests.load.run import STORE_DELAY, Report, load
from tests.servers.binaries import primary_server
from tests.servers.mongo import MongoServer, find_command
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer

PROCESSES, THREADS = 8, 25
#: Seconds until caches and pools have their size.
WARM = 30


def main() -> None:
    """Run it and say what came; exit 1 if anything repeated, failed, grew or leaked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    binary, command = primary_server(), find_command()
    if binary is None or command is None:
        parser.error("needs a redis-server and a MongoDB server: `make ready` gets them")
    with RedisServer(binary) as redis, MongoServer(command) as mongo, tempfile.TemporaryDirectory() as folder:
        address = mongo.url.removeprefix("mongodb://").partition("/")[0].rpartition(":")
        with FaultProxy((address[0], int(address[2]))) as far:
            far.delay_replies(STORE_DELAY)
            host, port = far.address
            report = load(
                redis.url,
                f"{mongo.url}/load",
                f"mongodb://{host}:{port}/load",
                Path(folder),
                processes=PROCESSES,
                threads=THREADS,
                seconds=given.seconds,
                warm=min(WARM, given.seconds // 4),
                tell=lambda line: print(line, flush=True),
            )
    print(told(report))
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(asdict(report), indent=2), encoding="utf-8")
    raise SystemExit(0 if report.sound else 1)


def told(report: Report) -> str:
    """Return the report as text."""
    lines = {
        "clients": f"{report.clients}, {report.seconds:g} s",
        "numbers": f"{report.numbers:,}: {report.numbers / report.seconds:,.0f} a second",
        "repeats": report.repeats,
        "above max": report.above_max,
        "errors": "; ".join(report.errors) or "none",
        "slowest call": f"{report.slowest * 1000:.0f} ms",
        "memory": f"{report.memory:+.1%} in the process that grew most",
        "leaked": "; ".join(report.leaked) or "nothing",
        "most a process": ", ".join(f"{report.peaks[kind]} {name}" for kind, name in {**POOLED, **FIXED}.items()),
    }
    return "\n".join(f"{name:14} {value}" for name, value in lines.items())


if __name__ == "__main__":
    main()
