"""One of the demo's processes: draws until its stdin ends, and reports on stdout, a JSON object a line.

{"drawn": [number, time]}: when it had it, on the monotonic clock, which all processes of a machine share.
{"loaded": [low, high, cur]}: this process loaded (low, high] when `cur` was the last number issued.
{"error": text}: it gave up.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time

from issuer.core.supply.extend import Extension
from issuer.errors import IssuerError
from issuer.wiring import connect

#: Seconds between two draws: slow enough to be watched.
PACE = 0.005
#: Longer than the server needs to come back, since a strict tag waits for it.
PATIENCE = 15.0


class _Report(logging.Handler):
    """Writes lines, from the drawing thread and from the one that loads segments."""

    def line(self, **content: object) -> None:
        with self.lock or threading.Lock():
            sys.stdout.write(json.dumps(content) + "\n")
            sys.stdout.flush()

    def emit(self, record: logging.LogRecord) -> None:
        loaded: Extension | None = getattr(record, "extension", None)
        if loaded is not None:
            self.line(loaded=[loaded.low, loaded.high, loaded.cur])


def work(redis: str, store: str, config: str, tag: str) -> None:
    """Draw from the tag until stdin ends."""
    report = _Report()
    logger = logging.getLogger("issuer.extension")
    logger.setLevel(logging.INFO)
    logger.addHandler(report)
    stop = threading.Event()
    threading.Thread(target=_until_stdin_ends, args=(stop,), daemon=True).start()
    with connect(redis=redis, store=store, config=config, timeout=PATIENCE) as ids:
        try:
            while not stop.wait(PACE):
                number = ids.next(tag)
                report.line(drawn=[number, time.monotonic()])
        except IssuerError as error:
            report.line(error=str(error))


def _until_stdin_ends(stop: threading.Event) -> None:
    # The bare descriptor: a buffered read would hold a lock that the interpreter wants at its end.
    while os.read(0, 1):
        pass
    stop.set()


if __name__ == "__main__":
    work(*sys.argv[1:])
