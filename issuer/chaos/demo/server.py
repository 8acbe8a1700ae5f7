"""A redis-server of the demo's own: on a unix socket in its folder, killed and rolled back as the story wants it."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.errors import IssuerError

#: Seconds that the server has to answer after its start.
STARTING = 5.0


class PrivateServer:
    """One server process after the other, on the data in `folder`.

    A new one listens at a path of its own until `admit` moves its socket to where the clients look, so that what it
    holds can be read before anybody draws from it.
    """

    def __init__(self, program: Path, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._snapshot = folder / "snapshot.rdb"
        self._dump = folder / "dump.rdb"
        self._public = folder / "redis.sock"
        self._private = folder / "next.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(unix_socket_path=str(self._private), retry=Retry(NoBackoff(), 0), socket_timeout=2)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"unix://{self._public}"

    @property
    def pid(self) -> int:
        """The process id of the server that runs."""
        return self._process.pid if self._process else 0

    @property
    def version(self) -> str:
        """What it calls itself."""
        info = self.client.info("server")
        known = {"Valkey": info.get("valkey_version"), "Redis": info.get("redis_version")}
        return next(f"{name} {version}" for name, version in known.items() if version)

    def start(self) -> None:
        """Start it on the dump in its folder; return when it answers, which nobody else can ask it yet."""
        self.client.connection_pool.disconnect()
        self._private.unlink(missing_ok=True)
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the program found on PATH, no shell
                [
                    *(self._program, "--port", "0", "--unixsocket", self._private, "--unixsocketperm", "700"),
                    *("--dir", self._folder, "--dbfilename", self._dump.name, "--save", "", "--appendonly", "no"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                # Ctrl-C is for the demo itself, which then ends it.
                start_new_session=True,
            )
        deadline = time.monotonic() + STARTING
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = (self._folder / "redis.log").read_text(errors="replace").strip().splitlines()
                raise IssuerError(f"{self._program} does not start: {said[-1] if said else 'it said nothing'}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def admit(self) -> None:
        """Let the clients in. The connection of `client` goes on."""
        self._private.rename(self._public)

    def save(self) -> None:
        """Take the snapshot that `roll_back` goes back to."""
        self.client.save()
        shutil.copyfile(self._dump, self._snapshot)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def roll_back(self) -> None:
        """Kill it and start it again from the snapshot; nobody is let in yet."""
        self.kill()
        shutil.copyfile(self._snapshot, self._dump)
        self.start()

    def close(self) -> None:
        """End it."""
        self.client.close()
        self.kill()
