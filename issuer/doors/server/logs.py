"""Logs of a server: text or JSON lines on stderr. They contain no issued number and no token."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb

from issuer.clock import monotonic
from issuer.doors.web.replies import Message, Receive, Send
from issuer.errors import IssuerError
from issuer.views import message_of, said

log = logging.getLogger("issuer.doors.server.requests")

_App = Callable[[Message, Receive, Send], Awaitable[None]]

_NUMBER = re.compile(r"/(decode|who)/.*", re.DOTALL)


class _Line(logging.Formatter):
    """Formats each record of the log as one line. Of an exception, it shows class, message and place, no traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line."""
        message = message_of(record)
        if record.exc_info and record.exc_info[1] is not None:
            message += f": {_raised(record.exc_info[1])}"
        # A message may contain line breaks, for example from an error of another library.
        return self.line(record, " ".join(message.splitlines()))

    def line(self, record: logging.LogRecord, message: str) -> str:
        """Return the line for a record and its message."""
        return f"{_time(record)} {record.levelname.lower():7} {message}"


class _JsonLine(_Line):
    """Formats each record of the log as one JSON object."""

    def line(self, record: logging.LogRecord, message: str) -> str:
        """Return the JSON object for a record and its message."""
        content = {"time": _time(record), "level": record.levelname.lower(), "message": message}
        return json.dumps(content | {"logger": record.name, "process": record.process})


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _raised(error: BaseException) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {said(error)}{where}"


def begin(log_format: str, *, verbose: bool) -> None:
    """Write the log of this process to stderr.

    Args:
        log_format: "json" writes JSON lines; any other value writes text.
        verbose: Whether to write also records of level DEBUG. The lowest level is INFO otherwise.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonLine() if log_format == "json" else _Line())
    root, ours = logging.getLogger(), logging.getLogger("issuer")
    for logger in (root, ours):
        for old in list(logger.handlers):
            logger.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    ours.setLevel(logging.DEBUG if verbose else logging.INFO)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable
    logging.captureWarnings(True)  # noqa: FBT003 - the library's signature
    # The INFO records of this logger contain the last issued number, which must not be in the log.
    logging.getLogger("issuer.extension").setLevel(logging.WARNING)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_value is not None:
        log.error("a thread failed", exc_info=failure.exc_value)


def _unraisable(failure: sys.UnraisableHookArgs) -> None:
    log.error("%s in %r", failure.err_msg or "an error that could not be raised", failure.object,
              exc_info=failure.exc_value)  # fmt: skip


def fail(error: BaseException) -> None:
    """Log the error that ends the server."""
    if isinstance(error, IssuerError):
        log.error("%s", error)
    else:
        log.error("the server failed", exc_info=error)


def logged(app: _App) -> _App:
    """Return an ASGI application that calls `app`, and logs a line for each request."""

    async def logging_app(scope: Message, receive: Receive, send: Send) -> None:
        began, status = monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await app(scope, receive, sending)
        finally:
            took = (monotonic() - began) * 1000
            log.debug("%s %s %s %.1f ms", scope.get("method", "-"), _path(scope.get("path", "")), status, took)

    return logging_app


def _path(path: str) -> str:
    """Return a request's path in the form for the log: on one line, and with `...` in place of an issued number."""
    shown = _NUMBER.sub(r"/\1/...", path)
    return shown if shown.isprintable() else ascii(shown)
