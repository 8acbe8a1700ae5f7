"""fakeredis behind a TCP port on loopback, for machines without a redis-server; no evidence, only a demonstration."""

from __future__ import annotations

import secrets
import threading
from importlib.util import find_spec
from typing import Any

import redis
from fakeredis import FakeRedisConnection, FakeServer, TcpFakeServer
from fakeredis._clients._tcp_server import TCPFakeRequestHandler
from fakeredis._commands import Signature
from fakeredis._socket import FakeSocket

from issuer.gateway.scripts import NAMES, script

if find_spec("lupa") is None:
    raise ImportError("fakeredis runs scripts only with lupa")

_REPLID = secrets.token_hex(20)
#: What the fence and the check of the server's version read. There is one reign: this process.
_INFO = f"redis_version:7.0.0\r\nrole:master\r\nmaster_replid:{_REPLID}\r\n"


class _Socket(FakeSocket):
    """A fake connection that knows INFO, which fakeredis lacks and the fence needs."""

    def _name_to_func(self, cmd_name: str) -> Any:
        if cmd_name == "info":
            return self._info, Signature("info", "_info", (), (bytes,))  # type: ignore[arg-type]  # annotated as a 1-tuple
        return super()._name_to_func(cmd_name)

    def _info(self, *_sections: bytes) -> bytes:
        return f"# Replication\r\n{_INFO}".encode()


class _Connection(FakeRedisConnection):
    def _connect(self) -> FakeSocket:
        server: Any = self._server
        return _Socket(
            server,
            client_class=self._client_class,
            db=self.db,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )


class _Handler(TCPFakeRequestHandler):
    """Serves the connection that it finds under the client's address: puts ours there."""

    def setup(self) -> None:
        self.server.clients[self.client_address] = _Connection(
            server=self.server.fake_server,
            client_info={
                "laddr": self.request.getsockname(),
                "addr": self.request.getpeername(),
                "fd": self.request.fileno(),
            },
            protocol=2,  # as a real server begins, until the client says HELLO
        )
        super().setup()


class FakeRedis(TcpFakeServer):
    """Listens from the start until `close`, in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0))
        self.fake_server = FakeServer(version=(7, 0))
        self.RequestHandlerClass = _Handler
        self.daemon_threads = True
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        # It hangs up after any error reply, so a client that met NOSCRIPT could not load what is missing.
        with redis.Redis.from_url(self.url) as client:
            for name in NAMES:
                client.script_load(script(name).text)

    @property
    def url(self) -> str:
        """Where clients find it."""
        return f"redis://127.0.0.1:{self.server_address[1]}/0"

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
