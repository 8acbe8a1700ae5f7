"""What crowds of clients make a worker hold, and what the callers beside them wait."""

import http.client
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, sleep

from issuer.doors.tokens import line_for, new_token
from tests.bench.crowd import KINDS
from tests.bench.doors import Ports, serving
from tests.bench.figures import Bound, Figure, missing, percentile
from tests.bench.rounds import FULL, Effort
from tests.bench.servers import TAG, drawing, redis_server
from tests.servers.ports import LOOPBACK

#: Clients of a crowd, and in a quick run.
CLIENTS, FEW = 8000, 500
#: Seconds from the last connection until the callers are timed, and for which they are timed. In the first, what has a
#: deadline of ten seconds is still held.
BEFORE, TIMED = 4, 8
#: Seconds between two calls of a caller.
PAUSE = 0.01
#: Open files of a driver, beside its clients.
OWN = 100


def _worker(ports: Ports) -> int:
    """Return the process id of the only worker."""
    (worker,) = Path(f"/proc/{ports.process}/task/{ports.process}/children").read_text().split()[:1]
    return int(worker)


def _memory(process: int) -> float:
    """Return the memory of a process in MB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class _Caller:
    """A caller with a token, who draws on one connection. `slow`: seconds of each call."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.slow: list[float] = []
        self._call, self._ended = call, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(PAUSE):
            began = perf_counter()
            self._call()
            self.slow.append(perf_counter() - began)

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()


def _over_http(port: int, token: str) -> Callable[[], object]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    headers = {"Authorization": f"Bearer {token}"}

    def call() -> object:
        connection.request("POST", f"/v1/tags/{TAG}/next", headers=headers)
        reply = connection.getresponse()
        body = reply.read()
        if reply.status != http.client.OK:
            raise RuntimeError(f"{reply.status} {body!r}")
        return body

    return call


def _livez(port: int) -> Callable[[], object]:
    def call() -> object:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
        connection.request("GET", "/livez")
        status = connection.getresponse().status
        connection.close()
        if status != http.client.OK:
            raise RuntimeError(f"/livez: {status}")
        return status

    return call


def _over_resp(port: int, token: str) -> Callable[[], object]:
    connection = socket.create_connection((LOOPBACK, port), timeout=60)

    def ask(line: str) -> bytes:
        connection.sendall(line.encode() + b"\r\n")
        reply = connection.recv(200)
        if reply[:1] not in b":+" or not reply:
            raise RuntimeError(f"{line}: {reply!r}")
        return reply

    ask(f"AUTH {token}")
    return lambda: ask(f"INCR {TAG}")


@contextmanager
def _served() -> Iterator[tuple[Ports, str]]:
    with ExitStack() as ends:
        folder = ends.enter_context(TemporaryDirectory(prefix="issuer-bench-crowds-"))
        redis = ends.enter_context(redis_server())
        with drawing(redis, store=f"sqlite:///{folder}/ids.db") as ids:
            ids.create("crowd", step=10**12)
        token, tokens = new_token(), Path(folder, "tokens.toml")
        tokens.write_text(line_for(token, "caller", ["issue"], ["*"]) + "\n")
        tokens.chmod(0o600)
        yield ends.enter_context(serving(folder, redis.url, "--tokens", str(tokens))), token


def _measured(name: str, clients: int, seconds: float) -> tuple[float, float, float]:
    """Return by how many MB the worker grew, and the p99 of a caller with a token and the longest /livez in seconds."""
    kind = KINDS[name]
    with _served() as (ports, token):
        over = _over_http(ports.http, token) if kind.http else _over_resp(ports.resp, token)
        livez = _livez(ports.http)
        for _ in range(100):
            over(), livez()
        worker = _worker(ports)
        before = top = _memory(worker)
        port = ports.http if kind.http else ports.resp
        words = [sys.executable, "-m", "tests.bench.crowd", str(port), name, str(clients), token]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as driver:
            try:
                assert driver.stdout is not None
                driver.stdout.readline()
                sleep(BEFORE)
                callers = [_Caller(over), _Caller(livez)]
                end = monotonic() + seconds
                while monotonic() < end:
                    sleep(0.1)
                    top = max(top, _memory(worker))
                for each in callers:
                    each.stop()
            finally:
                driver.kill()
    drawn, alive = (sorted(each.slow) for each in callers)
    return top - before, percentile(drawn, 0.99), alive[-1]


def crowds(effort: Effort) -> Iterator[Figure]:
    """8000 clients of each kind on one worker, 1 KB a second each: its memory, and what a caller with a token waits."""
    clients, seconds = (CLIENTS, TIMED) if effort.rounds >= FULL.rounds else (FEW, 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if sys.platform != "linux" or hard < 2 * clients + 4 * OWN:
        yield missing(f"{clients} clients", f"needs Linux and {2 * clients + 4 * OWN} open files (ulimit -Hn)")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    usual = {True: 0.0, False: 0.0}
    for name, kind in KINDS.items():
        more, p99, livez = _measured(name, clients, seconds)
        yield Figure(f"{name}: memory", (more,), "MB", Bound(120))
        if name.endswith("idle"):
            usual[kind.http] = p99
            yield Figure(f"{name}: p99", (p99 * 1000,), "ms")
        else:
            yield Figure(f"{name}: p99 / idle", (p99 / usual[kind.http],), "x", Bound(3))
        yield Figure(f"{name}: longest /livez", (livez,), "s", Bound(1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
