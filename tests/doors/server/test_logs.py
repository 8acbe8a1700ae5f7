"""A record is one line, in words or in JSON, without a traceback; and what happens while nobody reads the log."""

import asyncio
import gc
import json
import logging
import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from issuer.doors.server import logs
from issuer.errors import UnknownTag
from issuer.gateway.commands import script
from tests import programs
from tests.cli.conftest import Cli
from tests.doors.server.conftest import lives
from tests.servers.ports import free_port
from tests.waiting import run, until


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A completion ends with its process, and so leaves it otherwise.
    monkeypatch.setattr(logging.getLogger("issuer"), "propagate", True)
    names = ("", "issuer", "issuer.extension")
    loggers = [logging.getLogger(name) for name in names]
    before = [(each, list(each.handlers), each.level) for each in loggers]
    hook, unraisable, warned = threading.excepthook, sys.unraisablehook, warnings.showwarning
    yield
    threading.excepthook, sys.unraisablehook = hook, unraisable
    logging.captureWarnings(False)
    warnings.showwarning = warned
    for each, handlers, level in before:
        each.handlers[:] = handlers
        each.setLevel(level)


def written(capfd: pytest.CaptureFixture[str]) -> str:
    """Return the log so far."""
    for each in logging.getLogger().handlers:
        each.flush()
    return capfd.readouterr().err


def test_an_error_is_told_in_the_words_of_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    logs.begin("text", verbose=False)
    logging.getLogger("issuer.doors.server").warning("it is so: %s", UnknownTag("orders"))
    line = written(capfd)
    assert line.endswith("Z warning it is so: unknown tag 'orders'; create it with `issuer create orders`\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_an_exception_is_one_line_with_the_place_where_it_was_raised(
    capfd: pytest.CaptureFixture[str], log_format: str
) -> None:
    def fail() -> None:
        raise ValueError("first\nsecond")

    logs.begin(log_format, verbose=True)
    try:
        fail()
    except ValueError:
        logging.getLogger("asyncio").exception("a task\nfailed")
    (line,) = written(capfd).splitlines()
    assert "Traceback" not in line
    message = json.loads(line)["message"] if log_format == "json" else line.partition("error   ")[2]
    place = message.removeprefix("a task failed: ValueError: first second in test_logs.py, line ")
    assert place.isdecimal()


def test_a_thread_that_fails_is_logged_too(capfd: pytest.CaptureFixture[str]) -> None:
    logs.begin("json", verbose=False)
    thread = threading.Thread(target=lambda: json.loads("{"))
    thread.start()
    thread.join()
    (line,) = written(capfd).splitlines()
    content = json.loads(line)
    assert content["level"] == "error"
    assert content["message"].startswith("a thread failed: JSONDecodeError: ")


def test_warnings_of_python_and_errors_that_nobody_could_be_given_are_lines_too(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Failing:
        def __del__(self) -> None:
            raise ValueError("it failed")

    logs.begin("json", verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn("it is old", UserWarning, stacklevel=1)
    Failing()
    gc.collect()
    found = [json.loads(line) for line in written(capfd).splitlines()]
    assert [line["level"] for line in found] == ["warning", "error"]
    assert "it is old" in found[0]["message"]
    assert "ValueError: it failed" in found[1]["message"]


def test_lines_that_tell_issued_numbers_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    logs.begin("text", verbose=True)
    logging.getLogger("issuer.extension").info("tag %r: segment %s loaded at number %s", "orders", "1..100", 30)
    assert written(capfd) == ""


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/tags/orders/next", "/v1/tags/orders/next"),
        ("/v1/tags/orders/decode/123", "/v1/tags/orders/decode/..."),
        ("/v1/tags/orders/who/123", "/v1/tags/orders/who/..."),
        ("/v1/tags/a%2Fb/decode/A-1\n2", "/v1/tags/a%2Fb/decode/..."),
        ("/v1/tags/a\nb/next", "'/v1/tags/a\\nb/next'"),
    ],
)
def test_a_line_for_a_request_has_no_number_that_was_asked_about(
    capfd: pytest.CaptureFixture[str], path: str, shown: str
) -> None:
    logs.begin("text", verbose=True)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async def ignored(_message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)

    async def nothing() -> MutableMapping[str, Any]:
        return {}

    async def ask() -> None:
        await logs.logged(app)({"type": "http", "method": "GET", "path": path}, nothing, ignored)

    run(ask())
    (line,) = written(capfd).splitlines()
    assert f"debug   GET {shown} 200 " in line


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


@pytest.mark.live
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


@pytest.mark.live
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


@pytest.mark.live
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
