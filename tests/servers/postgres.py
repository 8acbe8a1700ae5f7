"""A PostgreSQL of our own, where its programs are found: benchmarks compare with its sequences."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tests.servers.ports import LOOPBACK, free_port
from tests.waiting import until

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
    """One server on loopback, with a directory of its own, and default settings but for the given ones."""

    def __init__(self, binaries: Path, **settings: object) -> None:
        self._binaries = binaries
        self.settings = settings
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-postgres-"))
        self._user = unprivileged()
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://tester@{LOOPBACK}:{self.port}/postgres"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self.directory, self._user)
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
        options = f"-h {LOOPBACK} -p {self.port} -k {self.directory} -c max_connections=500"
        options += "".join(f" -c {name}='{value}'" for name, value in self.settings.items())
        self._run("pg_ctl", "start", "-w", "-t", "60", "-l", str(self.directory / "log"), "-o", options)

    def stop(self) -> None:
        """Stop it as a crash does: without a checkpoint, and without a last word to a standby."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-m", "immediate")

    def kill(self) -> None:
        """Kill all of its processes."""
        os.kill(self._pids()[0], signal.SIGSTOP)  # so that it starts no further ones
        there = self._pids()
        for pid in there:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{pid}/root").exists() for pid in there), 60, "its processes are gone")
        # Where nobody reaps orphans, a killed process seems to be there, and to own these.
        for left in (self.directory / "data" / "postmaster.pid", *self.directory.glob(".s.PGSQL.*")):
            left.unlink()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop all of its processes while the block lasts: it accepts connections, and answers nothing."""
        os.kill(self._pids()[0], signal.SIGSTOP)
        there = self._pids()
        for pid in there:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in reversed(there):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, and return its rows."""
        import psycopg  # here, as not each environment with this module has it

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def configured(self, name: str, value: str) -> Iterator[None]:
        """Change a setting for all sessions while the block lasts."""
        self._set(name, f"SET {name} = '{value}'")
        try:
            yield
        finally:
            self._set(name, f"RESET {name}")

    def _set(self, name: str, change: str) -> None:
        # The reload is read by each session in its own time: the first new one shows that it has begun.
        before = self.execute(f"SHOW {name}")
        self.execute(f"ALTER SYSTEM {change}")
        self.execute("SELECT pg_reload_conf()")
        until(lambda: self.execute(f"SHOW {name}") != before, 60, "the settings are read again")

    def end_sessions(self) -> None:
        """End the sessions of all clients."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )

    def waiting(self) -> bool:
        """Whether a statement waits for a lock."""
        return bool(self.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    def end(self) -> None:
        if (self.directory / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def standby(self, name: str = "standby", **settings: object) -> "Standby":
        """Return a server that follows this one by that name, asynchronously unless this one names it."""
        return Standby(self._binaries, f"{self.url}?application_name={name}", **settings)

    def _pids(self) -> list[int]:
        """The process ids, that of the first process first."""
        first = int((self.directory / "data" / "postmaster.pid").read_text().split()[0])
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]

    def _make(self) -> None:
        self._run("initdb", "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        line = [str(self._binaries / program), "-D", str(self.directory / "data"), *arguments]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, cwd=self.directory, user=self._user)


class Standby(PostgresServer):
    """A standby of the server at `primary`."""

    def __init__(self, binaries: Path, primary: str, **settings: object) -> None:
        super().__init__(binaries, **settings)
        self._primary = primary

    def promote(self) -> None:
        """Make it a primary. If it was stopped, start it first."""
        if not (self.directory / "data" / "postmaster.pid").exists():
            self.start()
        self._run("pg_ctl", "promote", "-w", "-t", "60")

    def _make(self) -> None:
        self._run("pg_basebackup", "-d", self._primary, "-R", "-c", "fast", "--no-sync")


def unprivileged() -> str | None:
    """Return whom to run it as: None for ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in _USERS if name in known), None)
