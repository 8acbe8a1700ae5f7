"""Logs of a server: text or JSON lines on stderr. They contain no issued number and no token."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Awaitable, Callable
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from time import gmtime
from traceback import extract_tb
from typing import Any, Final

from issuer.clock import monotonic, sleep
from issuer.doors.web.replies import Message, Receive, Send
from issuer.forks import living
from issuer.views import message_of, said

log = logging.getLogger("issuer.doors.server.requests")

_App = Callable[[Message, Receive, Send], Awaitable[None]]

_NUMBER = re.compile(r"/(decode|who)/.*", re.DOTALL)

#: Maximum number of characters of the lines that wait until they are written.
WAITING_MOST: Final = 1_000_000
#: Seconds for which a process waits at its end until the last lines are written.
LEAVING: Final = 1.0


class _Lines(QueueHandler):
    """Puts each line into a queue. A thread writes the lines to stderr, so only this thread waits if nobody reads them.

    If too many lines wait, further lines are dropped. A SimpleQueue is used because a finalizer may log in the middle
    of `put`, and because a process may be forked at any time: no lock is held while `put` runs.

    Attributes:
        put: Number of characters of all lines that were put into the queue.
        written: Number of characters of all lines that were taken out.
        dropped: Number of lines that are missing, because the queue was full or the system did not write them.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__(SimpleQueue())
        self.setFormatter(formatter)
        _begun.add(self)
        self.begin()

    def begin(self) -> None:
        """Start to write, with an empty queue. A forked child calls it again, because it has no copy of the thread."""
        self.queue = SimpleQueue()
        self.put = self.written = self.dropped = 0
        threading.Thread(target=self._write_all, args=(self.queue,), daemon=True).start()

    def prepare(self, record: logging.LogRecord) -> Any:
        return self.format(record)

    def enqueue(self, line: Any) -> None:
        size = len(line)
        if self.put - self.written + size > WAITING_MOST:
            self.dropped += 1
        else:
            self.put += size
            self.queue.put_nowait(line)

    def flush(self) -> None:
        """Wait up to LEAVING seconds until all lines are written. `logging.shutdown` calls this method."""
        end = monotonic() + LEAVING
        while self.put > self.written and monotonic() < end:
            sleep(0.001)

    def _write_all(self, lines: SimpleQueue[str]) -> None:
        """Write the lines. When none is left after lines were dropped, write how many are missing."""
        told = 0
        while True:
            line = lines.get()
            self._write(line)
            if self.put - self.written == len(line) and (missing := self.dropped - told):
                told += missing
                text = f"{missing} lines of this log were dropped: they could not be written, or nobody read them"
                self._write(self.format(logging.LogRecord(log.name, logging.WARNING, __file__, 0, text, None, None)))
            self.written += len(line)

    def _write(self, line: str) -> None:
        # Not sys.stderr: at its end, the interpreter would wait for the lock of sys.stderr.
        rest = f"{line}\n".encode(errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(2, rest) :]
        except OSError:  # for example, the disk is full
            self.dropped += 1


_begun = living(_Lines.begin)


def dropped() -> int:
    """Return how many lines this process has dropped since its start."""
    return sum(each.dropped for each in _begun)


class _Line(logging.Formatter):
    """Formats each record as one line, of text or JSON. Of an exception, it shows class, message and place."""

    converter = staticmethod(gmtime)
    default_time_format, default_msec_format = "%Y-%m-%dT%H:%M:%S", "%s.%03dZ"

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        message = message_of(record)
        if record.exc_info and record.exc_info[1] is not None:
            message += f": {_raised(record.exc_info[1])}"
        # A message may contain line breaks, for example from an error of another library.
        message, time, level = " ".join(message.splitlines()), self.formatTime(record), record.levelname.lower()
        if not self._as_json:
            return f"{time} {level:7} {message}"
        content = {"time": time, "level": level, "message": message, "logger": record.name, "process": record.process}
        return json.dumps(content)


def _raised(error: BaseException) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {said(error)}{where}"


def begin(log_format: str, *, verbose: bool) -> None:
    """Write the log of this process to stderr, as JSON lines if `log_format` is "json".

    `verbose`: whether to write also records of level DEBUG. The lowest level is INFO otherwise.
    """
    root, ours = logging.getLogger(), logging.getLogger("issuer")
    for logger in (root, ours):
        for old in list(logger.handlers):
            old.flush()
            logger.removeHandler(old)
    root.addHandler(_Lines(_Line(as_json=log_format == "json")))
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
