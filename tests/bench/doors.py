"""`issuer serve`: what it costs that a number comes over HTTP, or Redis's protocol, beside the servers beneath it."""

import csv
import http.client
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from tests.bench.figures import Bound, Figure, missing, ratio
from tests.bench.rounds import Effort, alternate
from tests.bench.servers import ENDLESS, PREFIX, TAG, drawing, redis_server
from tests.servers.ports import LOOPBACK
from tests.servers.redis import RedisServer
from tests.waiting import until

HTTP_CONNECTIONS, RESP_CONNECTIONS = 64, 50
PIPELINES = {1: Bound(0.5, 0.7, least=True), 16: Bound(0.4, 0.6, least=True)}

#: What wrk sends, and what it prints at its end: requests, duration, median, p99, errors. Times are in us.
_SCRIPT = """
wrk.method = "POST"
done = function(summary, latency, requests)
  local e = summary.errors
  print(string.format("told %d %d %d %d %d", summary.requests, summary.duration, latency:percentile(50),
    latency:percentile(99), e.connect + e.read + e.write + e.status + e.timeout))
end
"""

#: A trend tag, whose numbers come from memory, as those of a Leaf server do.
IN_MEMORY = "in-memory"

#: A row's seconds from start to first number are of so many starts.
STARTS = 5


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server, and the process id of its supervisor."""

    http: int
    resp: int
    process: int


@contextmanager
def serving(folder: str, redis: str, *more: str) -> Iterator[Ports]:
    """Start `issuer serve` with one worker, both doors and `more` options; it is serving then."""
    log = Path(folder, "log")
    store = f"sqlite:///{folder}/ids.db"
    words = ["--redis", redis, "--store", store, "--prefix", PREFIX, "serve", "--http", f"{LOOPBACK}:0"]
    words += ["--compat", "leaf", *more]
    with log.open("wb") as stderr:
        line = [sys.executable, "-m", "issuer", *words, "--resp", f"{LOOPBACK}:0"]
        process = subprocess.Popen(line, stderr=stderr, stdin=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or "serving" in log.read_text(), 30, "it serves")
        found = re.search(r"serving http://\S+?:(\d+) and redis://\S+?:(\d+)", log.read_text())
        if found is None:
            raise RuntimeError(log.read_text())
        yield Ports(int(found[1]), int(found[2]), process.pid)
    finally:
        process.terminate()
        process.wait()


@contextmanager
def both(what: str) -> Iterator[tuple[RedisServer, Ports]]:
    """Start a Redis and an `issuer serve` with TAG and IN_MEMORY, whose numbers don't end; `what`: of this row."""
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix=f"issuer-bench-{what}-"))
        redis = ends.enter_context(redis_server())
        with drawing(redis, store=f"sqlite:///{folder}/ids.db") as ids:
            ids.create(IN_MEMORY, step=ENDLESS, order="trend", lease=1_000_000)
        yield redis, ends.enter_context(serving(folder, redis.url))


# ------------------------------------------------------------------ HTTP


@contextmanager
def _bare() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-m", "tests.bench.bare"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class _Wrk:
    """wrk, against one port; each round's median and p99, in microseconds, are kept."""

    program: str
    script: Path
    port: int
    seconds: int
    halves: list[float]
    slow: list[float]
    path: str = f"/v1/tags/{TAG}/next"

    def __call__(self) -> float:
        """Return the requests a second."""
        url = f"http://{LOOPBACK}:{self.port}{self.path}"
        options = ["-t1", f"-c{HTTP_CONNECTIONS}", f"-d{self.seconds}", "-s", str(self.script), url]
        done = subprocess.run([self.program, *options], check=True, capture_output=True, text=True)
        requests, duration, half, slow, errors = map(int, done.stdout.rpartition("told ")[2].split())
        if errors:
            raise RuntimeError(f"wrk counted {errors} errors")
        self.halves.append(half)
        self.slow.append(slow)
        return requests / duration * 1e6


def http_(effort: Effort) -> Iterator[Figure]:
    """POST next, strict, and Leaf's call, 64 connections, beside a bare Starlette route on the same server; start."""
    program = shutil.which("wrk")
    if program is None:
        yield missing("wrk", "not on this machine")
        return
    with both("http") as (_, ports), _bare() as bare, tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "next.lua")
        script.write_text(_SCRIPT)
        seconds = max(1, round(effort.seconds))
        ours = _Wrk(program, script, ports.http, seconds, [], [])
        calls = {
            "next over HTTP": ours,
            "Leaf's call": _Wrk(program, script, ports.http, seconds, [], [], f"/api/segment/get/{IN_MEMORY}"),
            "Leaf's call, strict": _Wrk(program, script, ports.http, seconds, [], [], f"/api/segment/get/{TAG}"),
            "bare route": _Wrk(program, script, bare, seconds, [], []),
        }
        rounds = alternate(calls, effort.rounds, "/s")
    yield from rounds.figures()
    yield rounds.ratio("next over HTTP", "bare route", Bound(0.8, 0.95, least=True))
    yield rounds.ratio("Leaf's call", "bare route", Bound(0.8, 1.0, least=True))
    # Redis is a third busy process: on two cores it takes a third of their time.
    yield rounds.ratio("Leaf's call, strict", "bare route", Bound(0.6, 0.8, least=True))
    yield Figure("median call", tuple(ours.halves), "us")
    yield Figure("p99", tuple(ours.slow), "us")
    yield ratio("p99 / median", ours.slow, ours.halves, Bound(4, 2.5))
    yield Figure("from start to the first number", tuple(_first() for _ in range(STARTS)), "s", Bound(1.5, 0.7))


def _first() -> float:
    """Return the seconds from the start of a server to the first number."""
    with ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="issuer-bench-"))
        redis = ends.enter_context(redis_server())
        with drawing(redis, store=f"sqlite:///{folder}/ids.db"):
            pass
        began = perf_counter()
        ports = ends.enter_context(serving(folder, redis.url))
        connection = http.client.HTTPConnection(LOOPBACK, ports.http)
        connection.request("POST", f"/v1/tags/{TAG}/next")
        status = connection.getresponse().status
        took = perf_counter() - began
        connection.close()
    if status != http.client.OK:
        raise RuntimeError(f"the first number came with status {status}")
    return took


# ------------------------------------------------------------------ Redis's protocol


@dataclass(frozen=True, slots=True)
class _Incr:
    """INCR by redis-benchmark, so many requests in a pipeline of that depth."""

    program: str
    port: int
    requests: int
    depth: int

    def __call__(self) -> float:
        """Return the requests a second."""
        options = f"-p {self.port} -c {RESP_CONNECTIONS} -n {self.requests} -P {self.depth} --csv INCR {TAG}".split()
        done = subprocess.run([self.program, *options], check=True, capture_output=True, text=True)
        return float(list(csv.reader(done.stdout.splitlines()))[-1][1])


def resp(effort: Effort) -> Iterator[Figure]:
    """INCR, strict, 50 connections, beside INCR of the redis-server beneath, without a pipeline and with 16."""
    program = shutil.which("redis-benchmark")
    if program is None:
        yield missing("redis-benchmark", "not on this machine")
        return
    with both("resp") as (redis, ports):
        for depth, bound in PIPELINES.items():
            requests = int(50_000 * effort.seconds) * (4 if depth > 1 else 1)
            name = f"INCR, {depth} in a pipeline" if depth > 1 else "INCR"
            ours, theirs = _Incr(program, ports.resp, requests, depth), _Incr(program, redis.port, requests, depth)
            rounds = alternate({name: ours, f"{name}, redis-server": theirs}, effort.rounds, "/s")
            yield from rounds.figures()
            yield rounds.ratio(name, f"{name}, redis-server", bound, f"{name} / redis-server")
