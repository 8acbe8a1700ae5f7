"""Eight processes on one Redis: together, beside redis-benchmark with the same script, batch and connections."""

import asyncio
import csv
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import issuer
from tests.bench.awaited import Futures
from tests.bench.figures import Bound, Figure, missing, ratio
from tests.bench.rounds import Effort, tasks, threads
from tests.bench.servers import TAG, Wire, draw_command, drawing, drawing_tasks, on_loop, redis_server
from tests.bench.strict import evalsha
from tests.servers.redis import RedisServer


@dataclass(frozen=True, slots=True)
class Shape:
    """How the callers of one process call: so many threads, or tasks."""

    kind: Literal["threads", "tasks"]
    callers: int

    def __str__(self) -> str:
        return "1 caller" if self.callers == 1 else f"{self.callers} {self.kind}"


def serve(shape: Shape, redis: str, store: str, orders: Connection) -> None:
    """Obey: ("draw" or "alone", seconds) is answered with numbers a second; None ends it."""
    with ExitStack() as ends:
        run = (_threads if shape.kind == "threads" else _tasks)(shape.callers, redis, store, ends)
        orders.send("ready")
        while (order := orders.recv()) is not None:
            what, seconds = order
            orders.send(run(what, seconds))


def _threads(callers: int, redis: str, store: str, ends: ExitStack) -> Callable[[str, float], float]:
    ids = ends.enter_context(issuer.connect(redis=redis, store=store))
    ids.next(TAG)
    lock, counter = threading.Lock(), count(1)

    def alone() -> int:
        with lock:
            return next(counter)

    calls: dict[str, Callable[[], object]] = {"draw": partial(ids.next, TAG), "alone": alone}
    return lambda what, seconds: threads(calls[what], callers, seconds)()


def _tasks(callers: int, redis: str, store: str, ends: ExitStack) -> Callable[[str, float], float]:
    runner = ends.enter_context(asyncio.Runner())
    ids = ends.enter_context(drawing_tasks(runner, redis=redis, store=store))
    alone = ends.enter_context(on_loop(runner, Futures))
    calls: dict[str, Callable[[], Awaitable[Any]]] = {"draw": partial(ids.next, TAG), "alone": alone.next}
    return lambda what, seconds: tasks(runner, calls[what], callers, seconds)()


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
    client = shutil.which("redis-benchmark")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="issuer-bench-")))
        store = f"sqlite:///{folder / 'ids.db'}"
        server = ends.enter_context(redis_server())
        ends.enter_context(drawing(server, store=store))
        wire = ends.enter_context(Wire(server))
        crew = ends.enter_context(crew_of(partial(serve, shape, server.url, store)))
        _order(crew, "draw", effort.seconds / 4)
        for _ in range(max(1, effort.rounds // LESS)):
            wire.command("CONFIG", "RESETSTAT")
            before = _drawn(wire)
            ours.append(_order(crew, "draw", effort.seconds))
            # But for our own: this one, and that of the issuer that made the tag.
            connections.append(max(1, wire.command("CLIENT", "LIST").count(b"\n") - 2))
            batches.append((_drawn(wire) - before) / evalsha(server)[0])
            if client is not None:
                rate = _redis_benchmark(client, server, connections[-1], round(batches[-1]), effort.seconds)
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


@contextmanager
def crew_of(serve: Callable[[Connection], None]) -> Iterator[list[Connection]]:
    """Start PROCESSES processes that run `serve`, and wait until each has sent that it is ready; None ends each."""
    spawn = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    crew = []
    for _ in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs,), daemon=True)
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
        for pipe, process in zip(pipes, crew, strict=True):
            pipe.send(None)
            process.join(_START)
    finally:
        for process in crew:
            process.kill()
            process.join()


def _order(crew: Sequence[Connection], what: str, seconds: float) -> float:
    """Let all of them do it at once, and return the numbers a second of all together."""
    for pipe in crew:
        pipe.send((what, seconds))
    return sum(float(pipe.recv()) for pipe in crew)


def _drawn(wire: Wire) -> int:
    return int(wire.command("HGET", draw_command(1)[3], "cur"))


def _redis_benchmark(client: str, server: RedisServer, connections: int, batch: int, seconds: float) -> float:
    """Return the draws a second of redis-benchmark, as many connections, as long as the processes drew."""

    def draws(requests: int) -> float:
        options = f"-h {server.host} -p {server.port} -c {connections} -n {requests} --csv".split()
        line, limit = [client, *options, *draw_command(batch)], 60 + 20 * seconds
        done = subprocess.run(line, check=True, capture_output=True, text=True, timeout=limit)
        return float(list(csv.reader(done.stdout.splitlines()))[-1][1])

    return draws(max(1000, int(draws(2000) * seconds)))
