"""A MariaDB of our own, where its programs are found."""

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from tests.servers.ports import LOOPBACK, free_port
from tests.waiting import until

#: Debian keeps the server out of a user's PATH.
_SERVERS = ("/usr/sbin/mariadbd", "/usr/sbin/mysqld")


def find_mariadb() -> Path | None:
    """Return the server's program; None if it, or the one that makes its tables, is missing."""
    found = [each for each in map(shutil.which, ("mariadbd", *_SERVERS)) if each]
    return Path(found[0]) if found and shutil.which("mariadb-install-db") else None


class MariaDBServer:
    """One server process on loopback, with a directory of its own, and a database `issuer` of the user `tester`."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._directory = Path(tempfile.mkdtemp(prefix="issuer-mariadb-"))
        self._user = "mysql" if os.geteuid() == 0 and "mysql" in {each.pw_name for each in pwd.getpwall()} else None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"mariadb://tester@{LOOPBACK}:{self.port}/issuer"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self._directory, self._user)
        data = self._directory / "data"
        line = ["mariadb-install-db", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        try:
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=self._user)
            self._first = self._directory / "first.sql"
            self._first.write_text(
                "CREATE DATABASE IF NOT EXISTS issuer;\n"
                "CREATE USER IF NOT EXISTS tester@'%';\n"
                "GRANT ALL ON *.* TO tester@'%' WITH GRANT OPTION;\n"
            )
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self) -> None:
        line = [
            str(self._program), "--no-defaults", f"--datadir={self._directory / 'data'}", f"--port={self.port}",
            f"--bind-address={LOOPBACK}", f"--socket={self._directory / 'socket'}", "--skip-name-resolve",
            f"--init-file={self._first}", "--innodb-buffer-pool-size=32M", "--max-connections=500",
            f"--pid-file={self._directory / 'pid'}",
        ]  # fmt: skip
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(line, stdout=log, stderr=log, cwd=self._directory, user=self._user)
        until(lambda: b"ready for connections" in (self._directory / "log").read_bytes(), 60, "MariaDB is up")

    def kill(self) -> None:
        """Stop it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self._directory / "log").unlink(missing_ok=True)

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
