"""Eight processes on one Redis: together, beside redis-benchmark with the same script, batch and connections."""

from __future__ import annotations

import csv
import multiprocessing
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from tests.benchmarks.crew import Shape, serve
from tests.benchmarks.figures import Bound, Figure, missing, ratio
from tests.benchmarks.inside import evalsha
from tests.benchmarks.rounds import Effort
from tests.benchmarks.servers import Wire, draw_command, drawing, redis_server
from tests.servers.redis import RedisServer

PROCESSES = 8
SHAPES = (Shape("threads", 1), Shape("threads", 2), Shape("threads", 4), Shape("tasks", 50), Shape("tasks", 200))
#: So many times fewer rounds than elsewhere: each takes the processes, redis-benchmark and the callers alone.
LESS = 2

_START = 60.0


def processes(effort: Effort) -> Iterator[Figure]:
    """8 processes, strict, whose callers share draws, in several shapes."""
    for shape in SHAPES:
        yield from _shape(shape, effort)


def _shape(shape: Shape, effort: Effort) -> Iterator[Figure]:
    ours, theirs, alone, batches, connections = [], [], [], [], []
    client = find_redis_benchmark()
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="issuer-bench-")))
        store = f"sqlite:///{folder / 'ids.db'}"
        server = ends.enter_context(redis_server())
        ends.enter_context(drawing(server, store=store))
        wire = ends.enter_context(Wire(server))
        crew = ends.enter_context(_crew(shape, server.url, store))
        _order(crew, "draw", effort.seconds / 4)
        for _ in range(max(1, effort.rounds // LESS)):
            wire.command("CONFIG", "RESETSTAT")
            before = _drawn(wire)
            ours.append(_order(crew, "draw", effort.seconds))
            calls, _usec = evalsha(wire.command("INFO", "commandstats").decode())
            batches.append((_drawn(wire) - before) / calls)
            connections.append(_connections(wire))
            if client is not None:
                rate = _redis_benchmark(client, server, int(connections[-1]), round(batches[-1]), effort.seconds)
                # It can't draw 3.7 numbers; 4 take the server as long, and counted as 4 they would be 8 % too many.
                theirs.append(rate * batches[-1])
            alone.append(_order(crew, "alone", effort.seconds))
    name = f"8 x {shape}"
    yield Figure(name, tuple(ours), "/s")
    yield Figure(f"{name}: numbers a draw", tuple(batches), "")
    yield Figure(f"{name}: connections", tuple(connections), "")
    yield Figure(f"{name}: without Redis", tuple(alone), "/s")
    if theirs:
        yield Figure(f"{name}: redis-benchmark", tuple(theirs), "/s")
        yield ratio(f"{name} / redis-benchmark", ours, theirs, Bound(0.8, 0.95, least=True))
    else:
        yield missing(f"{name}: redis-benchmark", "not on this machine")
    yield ratio(f"{name} / without Redis", ours, alone)


def find_redis_benchmark() -> str | None:
    """Return the redis-benchmark of this machine."""
    return shutil.which("redis-benchmark")


@contextmanager
def _crew(shape: Shape, redis: str, store: str) -> Iterator[list[Connection]]:
    """Start the processes, and end them when done."""
    spawn = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    crew = []
    for _ in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(shape, redis, store, theirs), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        crew.append(process)
    try:
        for pipe in pipes:
            if not pipe.poll(_START):
                raise RuntimeError("a process of the crew did not start")
            pipe.recv()
        yield pipes
        for pipe in pipes:
            pipe.send(None)
        for process in crew:
            process.join(_START)
    finally:
        for process in crew:
            if process.is_alive():
                process.kill()
            process.join()


def _order(crew: Sequence[Connection], what: str, seconds: float) -> float:
    """Let all of them do it at once, and return the numbers a second of all together."""
    for pipe in crew:
        pipe.send((what, seconds))
    return sum(float(pipe.recv()) for pipe in crew)


def _drawn(wire: Wire) -> int:
    """Return the number that the tag stands at."""
    return int(wire.command("HGET", draw_command(1)[3], "cur"))


def _connections(wire: Wire) -> float:
    """Return how many connections there are but for our own: this one, and that of the issuer that made the tag."""
    info = wire.command("INFO", "clients").decode()
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    return float(max(1, int(fields["connected_clients"]) - 2))


def _redis_benchmark(client: str, server: RedisServer, connections: int, batch: int, seconds: float) -> float:
    """Return the draws a second of redis-benchmark, as many connections, as long as the processes drew."""
    words = draw_command(batch)

    def draws(requests: int) -> float:
        done = subprocess.run(
            [
                client,
                "-h",
                server.host,
                "-p",
                str(server.port),
                "-c",
                str(connections),
                "-n",
                str(requests),
                "--csv",
                *words,
            ],
            check=True,
            capture_output=True,
            text=True,
            timeout=60 + 20 * seconds,
        )
        return float(list(csv.reader(done.stdout.splitlines()))[-1][1])

    return draws(max(1000, int(draws(2000) * seconds)))
