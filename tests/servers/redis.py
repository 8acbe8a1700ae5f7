"""Real Redis and Valkey servers of our own, which tests may kill, roll back, cut off and promote; with TLS too.

with RedisServer(primary_server()) as server:
    server.client().set("a", 1)
    before = server.snapshot()
    server.client().set("a", 2)
    server.restore(before)          # kill -9, older dump in place, started again: "a" is 1
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from issuer.cli.chaos.server import RedisServer as PlainServer
from tests.servers.binaries import find_servers, primary_server
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.tls import Certificates

__all__ = ["RedisServer", "find_servers", "free_port", "primary_server"]


class RedisServer(PlainServer):
    """With `tls` it listens for TLS alone, and asks its clients for a certificate if `client_certificates` is true."""

    def __init__(
        self,
        binary: Path | str,
        *args: str,
        tls: Certificates | None = None,
        client_certificates: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(binary, *args, **options)
        self.tls = tls
        self.client_certificates = client_certificates

    @property
    def url(self) -> str:
        """What a client needs to get in: with TLS the paths of the certificates too."""
        if not self.tls:
            return super().url
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        query = self.tls.query(client=self.client_certificates)
        return f"rediss://{login}{LOOPBACK}:{self.port}/0?{query}"

    def _command(self) -> list[str]:
        command = super()._command()
        if self.tls:
            command[command.index("--port") + 1] = "0"
            command += ["--tls-port", str(self.port), "--tls-auth-clients", "yes" if self.client_certificates else "no"]
            command += self.tls.server_options()
        return command
