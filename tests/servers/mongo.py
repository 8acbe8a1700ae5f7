"""A MongoDB for tests: the one that ISSUER_TEST_MONGO_URL names, else mongod, else a server of its wire protocol.

The last is mongoeco, in an environment of its own because it needs Python 3.13: `<repo>/.wire`, or the interpreter that
ISSUER_TEST_WIRE_PYTHON names.
"""

import atexit
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pymongo
from pymongo.errors import PyMongoError

from tests.servers.absent import absent
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.watchdog import launch
from tests.waiting import until

URL = "ISSUER_TEST_MONGO_URL"
WIRE_PYTHON = "ISSUER_TEST_WIRE_PYTHON"

_REPOSITORY = Path(__file__).resolve().parents[2]
_START_ATTEMPTS = 5


def given_url() -> str | None:
    """Return the URL of a server that somebody else runs; tests that must kill theirs can't use it."""
    return os.environ.get(URL) or None


def find_command() -> list[str] | None:
    """Return the start of the command line of a server that can be run here: mongod, or the wire server."""
    if mongod := shutil.which("mongod"):
        return [mongod]
    python = Path(os.environ.get(WIRE_PYTHON) or _REPOSITORY / ".wire" / "bin" / "python")
    if python.exists():
        return [str(python), str(Path(__file__).with_name("wire_server.py"))]
    return None


def needed_command() -> list[str]:
    """Return the same; without it the test is skipped, and fails where CI is set."""
    return find_command() or absent("a MongoDB server (mongod, or Python >= 3.13, on which `make wire` sets one up)")


class MongoServer:
    """One server process with a directory of its own, which a restart finds again. Ended by its process id."""

    def __init__(self, command: list[str], start_timeout: float = 60.0) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-mongo-"))
        self.port = free_port()
        self._command = command
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        atexit.register(self.end)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def url(self) -> str:
        return f"mongodb://{LOOPBACK}:{self.port}"

    @property
    def is_mongod(self) -> bool:
        return len(self._command) == 1

    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> Self:
        """Start the process, unless it runs, and return when it answers. Later starts keep the port."""
        if self._running():
            return self
        attempts = _START_ATTEMPTS if self._process is None else 1
        for attempt in range(1, attempts + 1):
            with (self.directory / "log").open("ab") as log:
                self._process = launch(self._arguments(), self.directory, log)
            if until(lambda: self._answers() or not self._running(), self._start_timeout, "mongo") and self._running():
                return self
            if attempt == attempts:
                break
            self.port = free_port()
        raise AssertionError(f"the server didn't start:\n{self.log()}")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process and os.getpid() == self._owner:
            self._process.kill()
            self._process.wait()

    def clean(self) -> None:
        self.start()
        with pymongo.MongoClient[dict[str, Any]](self.url) as client:
            for name in client.list_database_names():
                if name not in {"admin", "config", "local"}:
                    client.drop_database(name)

    def end(self) -> None:
        """Kill it and remove its directory. Twice is harmless; a forked child does nothing."""
        if os.getpid() == self._owner:
            self.kill()
            shutil.rmtree(self.directory, ignore_errors=True)
            atexit.unregister(self.end)

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _arguments(self) -> list[str]:
        if self.is_mongod:
            data = self.directory / "data"
            data.mkdir(exist_ok=True)
            return [*self._command, "--dbpath", str(data), "--port", str(self.port), "--bind_ip", LOOPBACK, "--quiet"]
        return [*self._command, str(self.directory / "data.db"), str(self.port)]

    def _answers(self) -> bool:
        client = pymongo.MongoClient[dict[str, Any]](self.url, serverSelectionTimeoutMS=500)
        with client, suppress(PyMongoError):
            return bool(client.admin.command("ping")["ok"])
        return False
