"""Real Redis and Valkey servers: those of `issuer chaos`, and what tests ask of them besides."""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import redis

from issuer.chaos import proxy, server
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.tls import Certificates
from tests.servers.watchdog import launch
from tests.waiting import until

#: Seconds for one answer to a test: a machine that stands still for two or three is no fault of the server.
TIMEOUT = 20


class RedisServer(server.RedisServer):
    """`args` are added to its command line, so they win over what stands there.

    `password` is asked of every client, and shown to the master that this server replicates. With `tls` it listens for
    TLS alone, and asks its clients for a certificate if `client_certificates` is true.
    """

    def __init__(
        self,
        binary: Path | str,
        *args: str,
        unix_socket: bool = False,
        appendonly: bool = False,
        password: str = "",
        tls: Certificates | None = None,
        client_certificates: bool = False,
    ) -> None:
        self._over_tcp = not unix_socket
        super().__init__(binary)
        self.args = args
        self.host = LOOPBACK
        self.socket_path = self.directory / "redis.sock" if unix_socket else None
        self.appendonly = appendonly
        self.password = password
        self.tls = tls
        self.client_certificates = client_certificates
        self._paused = False

    @property
    def url(self) -> str:
        """What a client needs to get in: the password too, with TLS the paths of the certificates."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        if self.socket_path:
            return f"unix://{login}{self.socket_path}"
        if self.tls:
            return f"rediss://{login}{LOOPBACK}:{self.port}/0?{self.tls.query(client=self.client_certificates)}"
        return f"redis://{login}{LOOPBACK}:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        return super().client(**{"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT, **options})

    @property
    def paused(self) -> bool:
        return self.running and self._paused

    def start(self) -> Self:
        if not self.running:
            self._paused = False
        return super().start()

    def stop(self, timeout: float = 60.0) -> None:
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

    def snapshot(self) -> Path:
        """SAVE, and return a copy of the dump for `restore`, as soon as no copy for a replica is under way."""
        return until(super().snapshot, message=f"{self!r} saves", ignoring=(redis.ResponseError,))

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

    def replicaof(self, other: server.RedisServer | proxy.FaultProxy, timeout: float = 60.0) -> None:
        """Become a replica of `other`, and return when the link is up and the first copy is here."""
        if not other.port:
            raise ValueError("a replica reaches its master over TCP, and this one has only a unix socket")
        super().replicaof(other, timeout)

    def cut_off(self, *replicas: "RedisServer") -> None:
        """Pause these replicas and close every replica's link: what is written from now on, they will lack."""
        for replica in replicas:
            replica.pause()
        with self.client() as client:
            # Else the kernel would keep what the master sent, for them to read when they are resumed.
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")

    def _free_port(self) -> int:
        return free_port() if self._over_tcp else 0

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.directory / "server.log").open("ab") as log:
            return launch(self._command(), self.directory, log)

    def _command(self) -> list[str]:
        command = super()._command()
        if self.socket_path:
            command += ["--unixsocket", str(self.socket_path)]
        if self.password:
            command += ["--requirepass", self.password, "--masterauth", self.password]
        if self.tls:
            command[command.index("--port") + 1] = "0"
            command += ["--tls-port", str(self.port), "--tls-auth-clients", "yes" if self.client_certificates else "no"]
            command += self.tls.server_options()
        return [*command, *self.args]
