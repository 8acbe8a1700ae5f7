"""`issuer serve` as real processes, in an empty home."""

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import programs
from tests.cli.conftest import cli, home, store
from tests.waiting import until

__all__ = ["cli", "home", "store"]

#: Starts `issuer` with constants of its modules set: "issuer.doors.server.worker.DRAINING=60"; and a limit of files.
WITH_CONSTANTS = """
import importlib, resource, sys
if {files}:
    resource.setrlimit(resource.RLIMIT_NOFILE, ({files} // 2, {files}))
for said in {constants!r}:
    name, _, value = said.partition("=")
    module, _, constant = name.rpartition(".")
    setattr(importlib.import_module(module), constant, float(value))
from issuer.cli import main
main(prog_name="issuer")
"""

#: A machine that others keep busy ends nothing early.
PATIENT = ("issuer.doors.server.supervisor.STOPPING=300", "issuer.doors.server.worker.DRAINING=60")


class Served:
    """A running `issuer serve`; what it logs is in `talk`."""

    def __init__(self, process: programs.Program, talk: Path, client: Callable[[str], httpx.Client]) -> None:
        self.process, self._talk, self._client = process, talk, client
        self._clients: dict[str, httpx.Client] = {}

    @property
    def log(self) -> str:
        return self._talk.read_text()

    def told(self, text: str, times: int = 1) -> str:
        """Wait until it has logged that, so often, and return its log."""
        until(lambda: self.log.count(text) >= times or self._dead(), message=text)
        assert self.log.count(text) >= times, self.log
        return self.log

    def _dead(self) -> bool:
        return self.process.poll() is not None

    def port(self, scheme: str = "http") -> int:
        log = self.told("serving ")
        found = re.search(rf"serving .*?{scheme}://\S+?:(\d+)", log)
        assert found is not None, log
        return int(found[1])

    @property
    def http(self) -> httpx.Client:
        url = f"http://127.0.0.1:{self.port()}"
        if url not in self._clients:
            self._clients[url] = self._client(url)
        return self._clients[url]

    def fresh(self) -> httpx.Client:
        """A client with connections of its own."""
        return self._client(f"http://127.0.0.1:{self.port()}")

    def next(self, tag: str, client: httpx.Client | None = None) -> int:
        answer = (client or self.http).post(f"/v1/tags/{tag}/next")
        assert answer.status_code == 200, answer.text
        return int(answer.json()["number"])

    def children(self) -> list[int]:
        """Its processes: workers first, in the order in which they were started."""
        return programs.children(self.process.pid)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(120)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


Serve = Callable[..., Served]


@pytest.fixture
def serve(home: Path) -> Iterator[Serve]:
    """Start `issuer ... serve ...` as a process: `serve("--workers", "2", before=("--store", url))`."""
    with ExitStack() as ends:

        def client(url: str) -> httpx.Client:
            made = httpx.Client(base_url=url, timeout=120, trust_env=False)
            ends.callback(made.close)
            return made

        def begin(
            *arguments: str,
            before: tuple[str, ...] = (),
            env: Mapping[str, str] | None = None,
            constants: tuple[str, ...] = PATIENT,
            http: str | None = "127.0.0.1:0",
            files: int = 0,
        ) -> Served:
            at = () if http is None else ("--http", http)
            talk = home / f"talk{len(list(home.glob('talk*')))}"
            with talk.open("w") as stderr:
                process = programs.Program(
                    *(
                        "-c",
                        WITH_CONSTANTS.format(constants=constants, files=files),
                        *before,
                        "serve",
                        *at,
                        *arguments,
                    ),
                    stdin=programs.DEVNULL,
                    stdout=programs.DEVNULL,
                    stderr=stderr,
                    # One that is killed leaves its folder of metrics there.
                    env={**os.environ, "TMPDIR": str(home), "ISSUER_DRAIN_DELAY": "0", **(env or {})},
                )
            ends.enter_context(process)
            # Its children end with it.
            return Served(process, talk, client)

        yield begin


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket of another program's."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken


def lines(log: str) -> list[dict[str, Any]]:
    """Return the lines of a log in JSON."""
    return [json.loads(line) for line in log.splitlines()]
