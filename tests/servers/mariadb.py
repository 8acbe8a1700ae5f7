"""A MariaDB of our own, where its programs are found."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any, Self

from tests.servers.ports import LOOPBACK, free_port
from tests.waiting import until

#: Debian keeps the server out of a user's PATH.
_SERVERS = ("/usr/sbin/mariadbd", "/usr/sbin/mysqld")


def find_mariadb() -> Path | None:
    """Return the server's program; None if it, or the one that makes its tables, is missing."""
    found = [each for each in map(shutil.which, ("mariadbd", *_SERVERS)) if each]
    return Path(found[0]) if found and shutil.which("mariadb-install-db") else None


#: No fsync, unless a test asks for SYNCED. The tests kill servers, not the machine, so nothing is lost. New tables take
#: 0.6 of the time, and no test waits for a busy disk.
_QUICK: Mapping[str, object] = {"innodb-flush-method": "nosync", "sync-frm": 0}

#: Settings of a server that writes as in production.
SYNCED: Mapping[str, object] = {"innodb-flush-method": "O_DIRECT", "sync-frm": 1}


class MariaDBServer:
    """One server process on loopback, with a directory of its own, and a database `issuer` of the user `tester`."""

    def __init__(self, program: Path, **settings: object) -> None:
        self._program = program
        self.settings = {**_QUICK, **settings}
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-mariadb-"))
        self._user = "mysql" if os.geteuid() == 0 and "mysql" in {each.pw_name for each in pwd.getpwall()} else None
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"mariadb://tester@{LOOPBACK}:{self.port}/issuer"

    def __enter__(self) -> Self:
        if self._user is not None:
            shutil.chown(self.directory, self._user)
        data = self.directory / "data"
        line = ["mariadb-install-db", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        # The user may not write into the TMPDIR of whoever starts it.
        self._environment = {**os.environ, "TMPDIR": str(self.directory)}
        try:
            subprocess.run(line, check=True, capture_output=True, user=self._user, env=self._environment)
            self._first = self.directory / "first.sql"
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
            str(self._program), "--no-defaults", f"--datadir={self.directory / 'data'}", f"--port={self.port}",
            f"--bind-address={LOOPBACK}", f"--socket={self.directory / 'socket'}", "--skip-name-resolve",
            f"--init-file={self._first}", "--innodb-buffer-pool-size=32M", "--max-connections=500",
            f"--pid-file={self.directory / 'pid'}", *(f"--{name}={value}" for name, value in self.settings.items()),
        ]  # fmt: skip
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                line, stdout=log, stderr=log, cwd=self.directory, user=self._user, env=self._environment
            )
        until(lambda: b"ready for connections" in (self.directory / "log").read_bytes(), 60, "MariaDB is up")

    def kill(self) -> None:
        """Stop it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            (self.directory / "log").unlink(missing_ok=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop it while the block lasts: it accepts connections, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(SIGSTOP)
        try:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until each of its threads has stopped
            yield
        finally:
            self._process.send_signal(SIGCONT)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, and return its rows."""
        import pymysql  # here, as not each environment with this module has it

        connection = pymysql.connect(host=LOOPBACK, port=self.port, user="tester", database="issuer", autocommit=True)
        with closing(connection), connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @contextmanager
    def configured(self, name: str, value: str) -> Iterator[None]:
        """Change a setting for new sessions while the block lasts."""
        [(before,)] = self.execute(f"SELECT @@GLOBAL.{name}")
        self.execute(f"SET GLOBAL {name} = '{value}'" if value[:1].isalpha() else f"SET GLOBAL {name} = {value}")
        try:
            yield
        finally:
            self.execute(f"SET GLOBAL {name} = " + (f"'{before}'" if isinstance(before, str) else str(before)))

    def end_sessions(self) -> None:
        """End the sessions of all clients."""
        for (session,) in self.execute(
            "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND user = 'tester'"
        ):
            try:
                self.execute(f"KILL {session}")
            except Exception as error:
                if error.args[:1] != (1094,):  # it has ended meanwhile
                    raise

    def waiting(self) -> bool:
        """Whether a statement waits for a lock."""
        return bool(self.execute("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"))

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def follow(self, primary: "MariaDBServer") -> None:
        """Become a replica of that server, and read what it has logged."""
        self.execute(
            f"CHANGE MASTER TO MASTER_HOST='{LOOPBACK}', MASTER_PORT={primary.port}, MASTER_USER='tester', "
            "MASTER_USE_GTID=slave_pos"
        )
        self.execute("START SLAVE")
