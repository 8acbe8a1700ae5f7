"""A PostgreSQL of our own, where its programs are found: benchmarks compare with its sequences."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.servers.ports import LOOPBACK, free_port

#: Debian keeps them out of PATH.
_FOLDERS = "/usr/lib/postgresql/*/bin"
#: PostgreSQL refuses to run as root; the first of these that exists runs it then.
_USERS = ("postgres", "nobody")


def find_postgres() -> Path | None:
    """Return the folder that holds postgres and initdb; None if there is none."""
    on_path = shutil.which("postgres")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/").glob(_FOLDERS.removeprefix("/")), reverse=True)
    return next(
        (each for each in folders if all(shutil.which(each / name) for name in ("postgres", "initdb", "pg_ctl"))), None
    )


class PostgresServer:
    """One server process on loopback, with default settings and a directory of its own."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._directory = Path(tempfile.mkdtemp(prefix="issuer-postgres-"))
        self._user = _unprivileged()
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://tester@{LOOPBACK}:{self._port}/postgres"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        try:
            self._make()
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        options = f"-h {LOOPBACK} -p {self._port} -k {self._directory} -c max_connections=500"
        self._run("pg_ctl", "start", "-w", "-t", "60", "-l", str(self._directory / "log"), "-o", options)

    def stop(self) -> None:
        """Stop it as a crash does: without a checkpoint, and without a last word to a standby."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-m", "immediate")

    def end(self) -> None:
        if (self._directory / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def standby(self) -> "Standby":
        """Return a server that follows this one asynchronously, which is the default."""
        return Standby(self._binaries, self.url)

    def _make(self) -> None:
        self._run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        line = [str(self._binaries / program), "-D", str(self._directory / "data"), *arguments]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=self._directory, user=self._user)


class Standby(PostgresServer):
    """A standby of the server at `primary`."""

    def __init__(self, binaries: Path, primary: str) -> None:
        super().__init__(binaries)
        self._primary = primary

    def promote(self) -> None:
        """Start it without its primary, and make it one."""
        self.start()
        self._run("pg_ctl", "promote", "-w", "-t", "60")

    def _make(self) -> None:
        self._run("pg_basebackup", "-d", self._primary, "-R", "-c", "fast", "--no-sync")


def _unprivileged() -> str | None:
    """Return whom to run it as: None for ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _USERS if name in known), None)
