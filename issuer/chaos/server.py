"""Redis and Valkey servers that a run starts, kills, rolls back and promotes.

    with RedisServer("/usr/bin/redis-server") as server:
        server.client().set("a", 1)
        before = server.snapshot()
        server.client().set("a", 2)
        server.restore(before)          # kill -9, restart from the older dump: "a" is 1

Each server listens on loopback only, has its own directory, and is killed by its process id.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import weakref
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.chaos.ports import LOOPBACK, free_port
from issuer.chaos.proxy import FaultProxy
from issuer.chaos.waiting import until
from issuer.errors import IssuerError

_START_ATTEMPTS = 5
_START_TIMEOUT = 30.0
_NOT_YET = (redis.ConnectionError, redis.TimeoutError)
_SNAPSHOTS = count(1)


class RedisServer:
    """One server process.

    By default, data is not persisted: a restarted server is empty, unless its directory contains a dump from `snapshot`
    or from replication. If `appendonly` is True, the next start writes an AOF, with an fsync every second.
    """

    def __init__(self, binary: Path | str) -> None:
        self.binary = Path(binary)
        self.appendonly = False
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-"))
        self.port = self._free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: weakref.WeakSet[redis.Redis] = weakref.WeakSet()
        #: Process id of the process that ends the server. A forked child must not end it.
        self.owner = os.getpid()
        atexit.register(self.end)

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

    @property
    def address(self) -> tuple[str, int]:
        return LOOPBACK, self.port

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        """True if the process exists. A signal may have paused it."""
        return self.pid is not None

    def client(self, **options: Any) -> redis.Redis:
        """Return a client that does not retry. The client is closed together with the server."""
        settings: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 5, "socket_connect_timeout": 5}
        # Without this setting, redis-py reads its package metadata at each connection, to send its version.
        settings["driver_info"] = None
        client = redis.Redis.from_url(self.url, **{**settings, **options})
        self._clients.add(client)
        return client

    def product(self) -> str:
        with self.client() as client:
            info = client.info("server")
        known = {"Valkey": info.get("valkey_version"), "Redis": info.get("redis_version")}
        return next(f"{name} {version}" for name, version in known.items() if version)

    def replication(self) -> dict[str, Any]:
        with self.client(decode_responses=True) as client:
            return dict(client.info("replication"))

    def start(self) -> Self:
        """If the process does not run, start it, and wait until it has loaded its data and answers PING.

        Raises IssuerError if the process ends at once or does not answer.
        """
        if self.running:
            return self
        first = self._process is None
        for attempt in range(1, _START_ATTEMPTS + 1):
            self._process = self._launch()
            try:
                until(self._answers, _START_TIMEOUT, f"{self!r} is ready", ignoring=_NOT_YET)
            except _DiedError:
                # Another process may have taken the port since _free_port() found it. Only the first start may choose
                # another port, because clients use the port after that.
                if not first or "in use" not in self.log() or attempt == _START_ATTEMPTS:
                    raise
                self.port = self._free_port()
            except AssertionError as late:
                self.kill()
                raise IssuerError(f"{late}\n{self.log()}") from late
            else:
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def kill(self) -> None:
        if self._process and os.getpid() == self.owner:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        if os.getpid() != self.owner:
            return  # in a forked child: the server belongs to the parent
        for client in list(self._clients):
            client.close()
        self.kill()
        atexit.unregister(self.end)
        shutil.rmtree(self.directory, ignore_errors=True)

    def snapshot(self) -> Path:
        """Let the server write a dump. Return the path of a copy, for `restore`."""
        with self.client() as client:
            client.save()
        copy = self.directory / f"snapshot-{next(_SNAPSHOTS)}.rdb"
        shutil.copyfile(self.directory / "dump.rdb", copy)
        return copy

    def restore(self, snapshot: Path) -> Self:
        """Send SIGKILL, and restart from the older dump: all later writes are lost."""
        if self.appendonly:
            raise ValueError("with an AOF, Redis does not read the dump at start: use cut_aof()")
        self.kill()
        shutil.copyfile(snapshot, self.directory / "dump.rdb")
        return self.start()

    def wipe(self) -> Self:
        self.kill()
        (self.directory / "dump.rdb").unlink(missing_ok=True)
        for path in self.directory.glob("appendonly*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return self.start()

    def aof_size(self) -> int:
        return self._aof().stat().st_size

    def cut_aof(self, count: int) -> Self:
        """Send SIGKILL, cut the last `count` bytes of the AOF, as a crash of the machine does, and restart."""
        self.kill()
        path = self._aof()
        size = path.stat().st_size
        if not 0 < count <= size:
            raise ValueError(f"cannot cut {count} of {size} bytes")
        os.truncate(path, size - count)
        return self.start()

    def replicaof(self, other: RedisServer | FaultProxy, timeout: float = 20.0) -> None:
        """Make the server a replica of `other`, and wait until the first copy of the data has arrived."""
        with self.client() as client:
            client.execute_command("REPLICAOF", *other.address)
        until(lambda: self.replication().get("master_link_status") == "up", timeout, f"{self!r} follows {other!r}")

    def promote(self) -> None:
        with self.client() as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        until(lambda: self.replication()["role"] == "master", message=f"{self!r} is master")

    def log(self, lines: int = 15) -> str:
        path = self.directory / "server.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _free_port(self) -> int:
        return free_port()

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.directory / "server.log").open("ab") as log:
            # The server has its own session. So Ctrl-C reaches only the run, and the run then ends the server.
            return subprocess.Popen(  # noqa: S603 - the program that we were given, no shell
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )

    def _command(self) -> list[str]:
        command = [str(self.binary), "--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.directory)]
        command += ["--save", "", "--appendonly", "yes" if self.appendonly else "no", "--appendfsync", "everysec"]
        # By default, a master waits 5 s for more replicas before it sends the first copy.
        return [*command, "--repl-diskless-sync-delay", "0"]

    def _answers(self) -> bool:
        if not self.running:
            raise _DiedError(f"{self.binary} ended at once:\n{self.log()}")
        # A loading server replies -LOADING, which redis-py raises as a ConnectionError.
        with self.client(socket_timeout=1, socket_connect_timeout=1) as client:
            # Compare the process id, because another program's server may listen on this port.
            return bool(client.ping()) and client.info("server")["process_id"] == self.pid

    def _aof(self) -> Path:
        """Return the newest AOF file. Redis 7 and Valkey number the files in a directory. Redis 6 has one file."""
        parts = sorted(self.directory.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))
        return parts[-1] if parts else self.directory / "appendonly.aof"


class _DiedError(IssuerError):
    """The server process ended during its start."""
