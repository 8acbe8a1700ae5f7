"""A pgbouncer of our own, in transaction mode: each transaction may run in another session of the server."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.servers.ports import LOOPBACK, free_port
from tests.servers.postgres import unprivileged
from tests.waiting import until


def find_pgbouncer() -> str | None:
    """Return its program; None if it is missing. Debian keeps it out of a user's PATH."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class PgBouncer:
    """A pgbouncer in front of a PostgreSQL server on that port, with so many sessions of the server for all clients."""

    def __init__(self, program: str, upstream: int, sessions: int = 3) -> None:
        self._program, self._upstream, self._sessions = program, upstream, sessions
        self._directory = Path(tempfile.mkdtemp(prefix="issuer-pgbouncer-"))
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://tester@{LOOPBACK}:{self.port}/postgres"

    def __enter__(self) -> Self:
        configuration = self._directory / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\npostgres = host={LOOPBACK} port={self._upstream} user=tester\n"
            f"[pgbouncer]\nlisten_addr = {LOOPBACK}\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = any\nmax_client_conn = 500\npool_mode = transaction\ndefault_pool_size = {self._sessions}\n"
        )
        if (user := unprivileged()) is not None:
            shutil.chown(self._directory, user)
        self._log = (self._directory / "log").open("wb")
        self._process = subprocess.Popen(
            [self._program, str(configuration)], stdout=self._log, stderr=self._log, cwd=self._directory, user=user
        )
        until(lambda: b"process up" in (self._directory / "log").read_bytes(), 60, "pgbouncer is up")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)
