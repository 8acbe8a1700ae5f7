"""Real Redis and Valkey servers of our own, to be killed, rolled back, cut off and promoted.

    with RedisServer("/usr/bin/redis-server") as server:
        server.client().set("a", 1)
        before = server.snapshot()
        server.client().set("a", 2)
        server.restore(before)          # kill -9, older dump in place, started again: "a" is 1

Every server is bound to loopback, lives in a directory of its own and is ended by its process id.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.cli.chaos.ports import LOOPBACK, free_port
from issuer.cli.chaos.waiting import until

_START_ATTEMPTS = 5
_NOT_YET = (redis.ConnectionError, redis.TimeoutError)
_SNAPSHOTS = count(1)


class RedisServer:
    """One server process. `args` are added to its command line, so they win over the defaults below.

    `password` is asked of every client, and shown to the master that this server replicates.

    By default nothing is persisted: a killed or restarted server comes back empty, unless a dump of an earlier
    `snapshot()` or replication still lies in its directory. `appendonly=True` keeps an AOF, fsynced every second.
    """

    def __init__(
        self,
        binary: Path | str,
        *args: str,
        directory: Path | None = None,
        unix_socket: bool = False,
        appendonly: bool = False,
        password: str = "",
        start_timeout: float = 10.0,
    ) -> None:
        self.binary = Path(binary)
        self.args = args
        self.appendonly = appendonly
        self.password = password
        self._start_timeout = start_timeout
        self._made_directory = directory is None
        # Short, because a unix socket's path may have 107 characters at most.
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-")) if directory is None else directory
        self.host = LOOPBACK
        self.socket_path = self.directory / "redis.sock" if unix_socket else None
        self.port = 0 if unix_socket else self._free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._clients: weakref.WeakSet[redis.Redis] = weakref.WeakSet()
        self._owner = os.getpid()
        _unended.add(self)

    def __repr__(self) -> str:
        return f"<RedisServer {self.binary.name} {self.url} pid={self.pid}>"

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.end()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    # ---------------------------------------------------------------------------------------------------- reaching it

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @property
    def url(self) -> str:
        """What a client needs to get in, the password too."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        if self.socket_path:
            return f"unix://{login}{self.socket_path}"
        return f"redis://{login}{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The process id, None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        """Whether the process is there, stopped or not."""
        return self.pid is not None

    @property
    def paused(self) -> bool:
        """Whether it was stopped by `pause`."""
        return self.running and self._paused

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that sends everything once; it is closed together with the server."""
        settings: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 5, "socket_connect_timeout": 5}
        # Else redis-py reads its own version out of its metadata at each connection, for a CLIENT SETINFO.
        settings["driver_info"] = None
        client = redis.Redis.from_url(self.url, **{**settings, **options})
        self._clients.add(client)
        return client

    def replication(self) -> dict[str, Any]:
        """Return what INFO replication says, read over a connection of its own."""
        with self.client(decode_responses=True) as client:
            return dict(client.info("replication"))

    # ------------------------------------------------------------------------------------------------ life and death

    def start(self) -> Self:
        """Start the process, unless it runs, and return when it answers PING and has loaded its data."""
        if self.running:
            return self
        first = self._process is None
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._process = self._launch()
            self._paused = False
            try:
                until(self._answers, self._start_timeout, f"{self!r} is ready", ignoring=_NOT_YET)
            except _DiedError:
                # Between free_port() and the bind another process may have taken the port. Later starts keep theirs,
                # because clients know it.
                if self.socket_path or not first or "in use" not in self.log() or attempt == _START_ATTEMPTS:
                    raise
                self.port = self._free_port()
            except AssertionError as late:
                self.kill()
                raise AssertionError(f"{late}\n{self.log()}") from late
            else:
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Killing a dead or stopped server is fine."""
        if self._process and os.getpid() == self._owner:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout: float = 10.0) -> None:
        """SIGTERM: an orderly shutdown, which writes the AOF out."""
        if self._process is None or not self.running:
            return
        self.resume()
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self!r} did not stop within {timeout} s\n{self.log()}") from None

    def restart(self) -> Self:
        """Stop in order and start again, on the same port."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and are even accepted by the kernel, but nothing answers."""
        if pid := self.pid:
            os.kill(pid, signal.SIGSTOP)
            os.waitpid(pid, os.WUNTRACED)  # the signal is asynchronous: one more command could slip through
            self._paused = True

    def resume(self) -> None:
        """SIGCONT; harmless when it was not paused."""
        if pid := self.pid:
            os.kill(pid, signal.SIGCONT)
            self._paused = False

    def revive(self) -> Self:
        """Whatever a test left behind: make it a running, empty master."""
        self.resume()
        self.start()
        with self.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
            # Nobody waits any more for what a connection that was given up has sent: it must not come after the flush.
            client.client_kill_filter(_type="normal", skipme=True)
            client.flushall()
        return self

    def end(self) -> None:
        """Kill the process, close the clients and remove the directory that the constructor made."""
        if os.getpid() != self._owner:
            return  # a forked child that exits must not end its parent's server
        for client in list(self._clients):
            client.close()
        self.kill()
        _unended.discard(self)
        if self._made_directory:
            shutil.rmtree(self.directory, ignore_errors=True)

    # ------------------------------------------------------------------------------------------------ back in time

    def snapshot(self) -> Path:
        """SAVE, and return a copy of the dump for `restore`; the dump itself stays in place as well."""
        with self.client() as client:
            client.save()
        copy = self.directory / f"snapshot-{next(_SNAPSHOTS)}.rdb"
        shutil.copyfile(self.directory / "dump.rdb", copy)
        return copy

    def restore(self, snapshot: Path) -> Self:
        """Kill -9, put the older dump in place and start again: everything since the snapshot is forgotten."""
        if self.appendonly:
            raise ValueError("with an AOF the dump is not read at start: use cut_aof()")
        self.kill()
        shutil.copyfile(snapshot, self.directory / "dump.rdb")
        return self.start()

    def wipe(self) -> Self:
        """Kill -9, remove the data and start again, empty."""
        self.kill()
        (self.directory / "dump.rdb").unlink(missing_ok=True)
        for path in self.directory.glob("appendonly*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.start()

    def aof_size(self) -> int:
        """Return the size of the AOF's newest part; the difference of two sizes is what `cut_aof` takes away."""
        return self._aof().stat().st_size

    def cut_aof(self, count: int) -> Self:
        """Kill -9, lose the last `count` bytes of the AOF as a crash of the machine does, and start again."""
        self.kill()
        path = self._aof()
        size = path.stat().st_size
        if not 0 < count <= size:
            raise ValueError(f"cannot cut {count} of {size} bytes")
        os.truncate(path, size - count)
        return self.start()

    # ------------------------------------------------------------------------------------------------ replication

    def replicaof(self, other: RedisServer, timeout: float = 20.0) -> None:
        """Become a replica of `other`, and return when the link is up and the first copy is here."""
        if not other.port:
            raise ValueError("a replica reaches its master over TCP, and this one has only a unix socket")
        with self.client() as client:
            client.execute_command("REPLICAOF", LOOPBACK, other.port)
        until(lambda: self.replication().get("master_link_status") == "up", timeout, f"{self!r} follows {other!r}")

    def cut_off(self, *replicas: RedisServer) -> None:
        """Pause these replicas and close every replica's link: what is written from now on, they will lack."""
        for replica in replicas:
            replica.pause()
        with self.client() as client:
            # Else the kernel would keep what the master sent, for them to read when they are resumed.
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def promote(self) -> None:
        """REPLICAOF NO ONE: become a master with a new replication id."""
        with self.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        until(lambda: self.replication()["role"] == "master", message=f"{self!r} is master")

    # ------------------------------------------------------------------------------------------------ inside

    def log(self, lines: int = 15) -> str:
        """Return the last lines that the server wrote."""
        path = self.directory / "server.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _free_port(self) -> int:
        return free_port()

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.directory / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C in the terminal must reach the test, which then ends the server.
            return subprocess.Popen(  # noqa: S603 - the program that we were given, no shell
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env=self._environment(),
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        command = [str(self.binary), "--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.directory)]
        if self.socket_path:
            command += ["--unixsocket", str(self.socket_path)]
        if self.password:
            command += ["--requirepass", self.password, "--masterauth", self.password]
        command += ["--save", "", "--appendonly", "yes" if self.appendonly else "no", "--appendfsync", "everysec"]
        # By default a master waits five seconds for more replicas before it sends the first copy.
        return [*command, "--repl-diskless-sync-delay", "0", *self.args]

    def _environment(self) -> dict[str, str] | None:
        """Return what the process finds in its environment; None: what this one does."""
        return None

    def _answers(self) -> bool:
        if not self.running:
            raise _DiedError(f"{self.binary} ended at once:\n{self.log()}")
        # A loading server answers -LOADING, which redis-py raises as a ConnectionError: not yet.
        with self.client(socket_timeout=1, socket_connect_timeout=1) as client:
            # Somebody else's server may have been quicker on our port: only our own process counts.
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid

    def _aof(self) -> Path:
        """Redis 7 and Valkey keep numbered parts in a directory, Redis 6 one file."""
        parts = sorted(self.directory.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))
        return parts[-1] if parts else self.directory / "appendonly.aof"


class _DiedError(Exception):
    """The process ended while it was expected to become ready."""


_unended: set[RedisServer] = set()


@atexit.register
def _end_all() -> None:
    for server in list(_unended):
        server.end()
