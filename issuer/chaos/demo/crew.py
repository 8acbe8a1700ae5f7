"""The demo's processes, and what they report."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from issuer.errors import IssuerError

#: Seconds that the processes have to end once they are told to.
ENDING = 5.0


@dataclass(frozen=True, slots=True)
class Drawn:
    """A process was given this number, and had it at that time (monotonic seconds)."""

    number: int
    at: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The segment (low, high] came into Redis when `cur` was the last number issued."""

    low: int
    high: int
    cur: int


class Crew:
    """So many processes that draw from one tag."""

    def __init__(self, size: int, folder: Path, *arguments: str) -> None:
        """`arguments` are those of `worker.work`."""
        self._reports: queue.Queue[str | None] = queue.Queue()
        self._size = size
        self._log = folder / "workers.log"
        self._arguments = arguments
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        # The user's own settings are none of the demo's business.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")}
        with self._log.open("w", encoding="utf-8") as log:
            for _ in range(self._size):
                process = subprocess.Popen(  # noqa: S603 - our own module, no shell
                    [sys.executable, "-m", "issuer.chaos.demo.worker", *self._arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    encoding="utf-8",
                    env=environment,
                    # Ctrl-C is for the demo itself, which then ends them.
                    start_new_session=True,
                )
                self._processes.append(process)
                assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
                threading.Thread(target=self._listen, args=(process.stdout,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        for process in self._processes:
            try:
                process.wait(ENDING)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def dismiss(self) -> None:
        """Tell them to stop; their last reports are still to come."""
        for process in self._processes:
            if process.stdin is not None and not process.stdin.closed:
                process.stdin.close()

    def reports(self, every: float) -> Iterator[Drawn | Loaded | None]:
        """Yield each report as it comes, and None after `every` seconds without one; end when all processes have."""
        listening = self._size
        while listening:
            try:
                line = self._reports.get(timeout=every)
            except queue.Empty:
                yield None
                continue
            if line is None:
                listening -= 1
                continue
            yield self._understood(json.loads(line))
        wrong = [process.wait() for process in self._processes if process.wait()]
        if wrong:
            raise IssuerError(f"a process of the demo ended with code {wrong[0]}: {self._last_words()}")

    @staticmethod
    def _understood(report: dict[str, Any]) -> Drawn | Loaded:
        if "error" in report:
            raise IssuerError(f"a process of the demo gave up: {report['error']}")
        if "loaded" in report:
            return Loaded(*report["loaded"])
        return Drawn(*report["drawn"])

    def _listen(self, stdout: IO[str]) -> None:
        for line in stdout:
            self._reports.put(line)
        self._reports.put(None)

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"
