"""A record is one line, in words or in JSON, without a traceback."""

import asyncio
import gc
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest

from issuer.doors.server import logs
from issuer.errors import UnknownTag
from tests.waiting import run


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
