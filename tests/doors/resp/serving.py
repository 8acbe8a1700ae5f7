"""A RESP server with an issuer and a loop of its own, and a client that sends what it is told to, byte by byte."""

import socket
from collections.abc import Mapping
from typing import Any, Self

import hiredis

import issuer
from issuer import AsyncIssuer
from issuer.doors.access import Access
from issuer.doors.resp.server import RespServer, start
from tests.colours import Looped

#: Far above what any answer takes, on a machine that others keep busy.
PATIENCE = 60.0


class Raw:
    """A client over a bare socket. Replies are those of hiredis: errors are values, not raised."""

    def __init__(self, port: int, connected: socket.socket | None = None) -> None:
        self.socket = connected or socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        self._reader = hiredis.Reader()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *requests: bytes) -> Self:
        self.socket.sendall(b"".join(requests))
        return self

    def reply(self) -> Any:
        """Return the next reply; ConnectionError if the server has closed the connection."""
        while True:
            reply = self._reader.gets()
            if reply is not False or self._reader.has_data() is None:
                return reply
            data = self.socket.recv(65_536)
            if not data:
                raise ConnectionError("closed by the server")
            self._reader.feed(data)

    def replies(self, n: int) -> list[Any]:
        return [self.reply() for _ in range(n)]

    def ask(self, *words: str | bytes | int) -> Any:
        return self.send(packed(*words)).reply()

    def rest(self) -> list[Any]:
        """Return all replies until the server closes the connection."""
        replies = []
        try:
            while True:
                replies.append(self.reply())
        except ConnectionError:  # or reset, as the server has not read all that was sent
            return replies


def packed(*words: str | bytes | int) -> bytes:
    """Return a request as programs send it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


class Served(Looped):
    """A server at a port of its own. `settings`: those of `aconnect`; `options`: those of `start`."""

    ids: AsyncIssuer
    server: RespServer

    def __init__(self, settings: Mapping[str, Any] | None = None, access: Access | None = None, **options: Any) -> None:
        self._begin_loop()
        try:
            self.wait(self._open(settings or {"redis": "none", "store": "memory://"}, access or Access(None), options))
        except BaseException:
            self._end_loop()
            raise

    async def _open(self, settings: Mapping[str, Any], access: Access, options: Mapping[str, Any]) -> None:
        self.ids = await issuer.aconnect(**settings).__aenter__()
        self.server = await start(self.ids, access, socket.create_server(("127.0.0.1", 0)), **options)

    @property
    def port(self) -> int:
        return self.server.shared.port

    @property
    def clients(self) -> int:
        return len(self.server.shared.connections)

    @property
    def waiting(self) -> int:
        """How many INCRs wait for their number."""
        connections = self.server.shared.connections
        return sum(each.n for one in connections for each in one._replies.demands() if not each.done())

    def client(self) -> Raw:
        return Raw(self.port)

    def create(self, tag: str, **settings: Any) -> None:
        self.wait(self.ids.create(tag, timeout=PATIENCE, **settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.wait(self.server.close(5.0))
            self.wait(self.ids.close())
        finally:
            self._end_loop()


def code(reply: object) -> str:
    """Return the first word of an error reply; "" if it is none."""
    return str(reply).partition(" ")[0] if isinstance(reply, hiredis.ReplyError) else ""
