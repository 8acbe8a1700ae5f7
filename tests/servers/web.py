"""The HTTP application behind a socket of this process: a client meets what `issuer serve` is, without its start."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import issuer
from issuer.doors.access import Access
from issuer.doors.web.app import application
from tests.servers.ports import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from issuer_persistence.contract import Store

#: Seconds that a test waits for the loop.
PATIENCE = 120.0


class WebServer:
    """An issuer over this store, and the application. Requests run in one event loop, in a thread."""

    def __init__(
        self,
        store: str | Store,
        tokens: Path | None = None,
        *,
        redis: str = "none",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        **options: Any,
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self._begin(store, tokens, {"redis": redis, "timeout": 60, "store_timeout": 60, **options}))
        server = self
        self._open: set[socket.socket] = set()
        #: Connections and requests so far.
        self.connections = self.requests = 0
        #: Called with the body of a request before it is answered, and after: if true, the connection ends there.
        self.before: Any = None
        self.after: Any = None
        #: The addresses of the clients, one for each request.
        self.clients: list[Any] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(self) -> None:
                server.connections += 1
                server._open.add(self.request)
                super().setup()

            def finish(self) -> None:
                server._open.discard(self.request)
                super().finish()

            def do_POST(self) -> None:
                server.requests += 1
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                server.clients.append(self.client_address)
                if server.before is not None and server.before(body):
                    self.close_connection = True
                    return
                status, headers, answer = server.run(server.answer(self, body))
                if server.after is not None and server.after(body):
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name.decode(), value.decode())
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST  # noqa: N815 - the name is http.server's

            def log_message(self, *_: Any) -> None:
                """Tell nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, *_: Any) -> None:
                """A client may leave as it likes."""

        self._server = Server((LOOPBACK, port), Handler)
        self.port = self._server.server_port
        self._scheme = "http" if tls is None else "https"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._serving = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._serving.start()

    def url(self, token: str = "") -> str:
        return f"issuer+{self._scheme}://{token}{token and '@'}{LOOPBACK}:{self.port}"

    @property
    def address(self) -> str:
        """The address for `issuer.connect`."""
        return f"{self._scheme}://{LOOPBACK}:{self.port}"

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _begin(self, store: str | Store, tokens: Path | None, options: dict[str, Any]) -> None:
        self.ids = issuer.aconnect(store=store, scheduler=None, **options)
        self._app = application(self.ids, Access(tokens), longest=60)

    async def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, list[Any], bytes]:
        path, _, query = request.path.partition("?")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.command,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in request.headers.items()],
            "client": request.client_address,
        }
        told: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            told.append(message)

        await self._app(scope, receive, send)
        return told[0]["status"], told[0]["headers"], b"".join(each.get("body", b"") for each in told[1:])

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._server.shutdown()
        self._server.server_close()
        for each in [*self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with suppress(issuer.IssuerError):
            self.run(self.ids.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()
