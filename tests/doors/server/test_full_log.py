"""Nobody reads the log, and its pipe is full: the server goes on, and says later how many lines are missing."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import redis

from issuer.gateway.commands import script
from tests import programs
from tests.cli.conftest import Cli
from tests.doors.server.conftest import lives
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def full() -> Iterator[tuple[int, int]]:
    """A pipe that is full: the end to read, and the end to write."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writing, True)
    yield reading, writing
    os.close(reading)
    os.close(writing)


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def server(home: Path, full: tuple[int, int], port: int) -> Iterator[programs.Program]:
    code = """
from issuer.doors.server import logs
logs.WAITING_MOST = 5_000
from issuer.cli import main
main(prog_name="issuer")
"""
    options = ("serve", "--http", f"127.0.0.1:{port}", "--verbose")
    env = {**os.environ, "TMPDIR": str(home), "ISSUER_DRAIN_DELAY": "0"}
    with programs.Program("-c", code, *options, stderr=full[1], env=env) as process:
        yield process


def dropped(client: httpx.Client) -> int:
    """Return how many lines the workers have dropped; each request of the client adds a line to their logs."""
    lines = client.get("/metrics").raise_for_status().text.splitlines()
    return int(sum(float(line.split()[1]) for line in lines if line.startswith("issuer_log_lines_dropped_total")))


@contextmanager
def client_of_a_full_log(port: int) -> Iterator[httpx.Client]:
    """A client that has drawn until lines of the log were dropped."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        until(lambda: client.get("/livez").status_code == 200, ignoring=(httpx.ConnectError,), message="it serves")
        assert [client.post("/v1/tags/orders/next").json()["number"] for _ in range(200)] == [*range(1, 201)]
        until(lambda: dropped(client), message="a line is dropped")
        yield client


def test_while_nobody_reads_the_log_everything_goes_on_and_a_signal_ends_it(
    server: programs.Program, port: int
) -> None:
    with client_of_a_full_log(port) as client:
        (worker,) = programs.children(server.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda: not lives(worker) and programs.children(server.pid), message="a new worker")
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
        assert client.get("/livez").status_code == 200
    server.terminate()
    assert server.wait(120) == 0


def test_when_the_log_is_read_again_it_says_how_many_lines_are_missing(
    server: programs.Program, port: int, full: tuple[int, int]
) -> None:
    with client_of_a_full_log(port):
        log = b""

        def says() -> bool:
            nonlocal log
            with suppress(BlockingIOError):  # there is nothing to read now
                log += os.read(full[0], 65_536)
            return re.search(rb" warning [1-9]\d* lines of this log were dropped", log) is not None

        until(says, message="it says what is missing")
    assert server.poll() is None


def test_a_keeper_whose_log_nobody_reads_loads_segments_and_ends(
    full: tuple[int, int], cli: Cli, redis_url: str, redis_client: redis.Redis, store: str
) -> None:
    servers = {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store}
    cli("create", "orders", "--step", "10", env=servers)
    draw = redis_client.register_script(script("next").text)
    with programs.Program("-m", "issuer", "keeper", stderr=full[1], env={**os.environ, **servers}) as keeper:
        until(lambda: draw(keys=["issuer:{orders}"], args=[1, -1])[-1] == b"100", message="a tenth segment is loaded")
        keeper.terminate()
        assert keeper.wait(120) == 0
