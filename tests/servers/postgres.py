"""A PostgreSQL of our own, where its programs are found: benchmarks compare with its sequences."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.ports import LOOPBACK, free_port
from tests.waiting import until

#: Debian keeps them out of PATH.
_FOLDERS = "/usr/lib/postgresql/*/bin"
#: PostgreSQL refuses to run as root; the first of these that exists runs it then.
_USERS = ("postgres", "nobody")
_STOPPING = 10.0


def find_postgres() -> Path | None:
    """Return the folder that holds postgres and initdb; None if there is none."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/").glob(_FOLDERS.removeprefix("/")), reverse=True)
    return next((each for each in folders if all((each / name).exists() for name in ("postgres", "initdb"))), None)


class PostgresServer:
    """One server process on loopback, with default settings and a directory of its own. Ended by its process id."""

    def __init__(self, binaries: Path, start_timeout: float = 20.0) -> None:
        self._binaries = binaries
        self._start_timeout = start_timeout
        self._directory = Path(tempfile.mkdtemp(prefix="issuer-postgres-"))
        self._user = _unprivileged()
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Whom a client is to connect to."""
        return f"postgresql://tester@{LOOPBACK}:{self._port}/postgres"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        """Stop it and remove its directory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_STOPPING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> None:
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        data = str(self._directory / "data")
        making = ["-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(
            [str(self._binaries / "initdb"), *making],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self._directory,
            user=self._user,
        )
        running = ["-D", data, "-h", LOOPBACK, "-p", str(self._port), "-k", str(self._directory)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), *running],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                user=self._user,
                start_new_session=True,
            )
        until(self._ready, self._start_timeout, "PostgreSQL is ready")

    def _ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError((self._directory / "log").read_text(errors="replace"))
        # Its last line says so once it listens and has recovered.
        status = self._directory / "data" / "postmaster.pid"
        return status.exists() and status.read_text().rstrip().endswith("ready")


def _unprivileged() -> str | None:
    """Return whom to run it as: None for ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _USERS if name in known), None)
