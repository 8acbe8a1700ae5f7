"""Sends requests to a server of another issuer, over HTTP/1.1 or HTTPS, on connections that are kept.

It uses `http.client`: of a request it takes 0.1 ms. urllib3 takes 60 ms more to import, and httpx 150 ms; neither
limits the whole time of a request.
"""

from __future__ import annotations

import io
import json
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import unquote, urlsplit

from issuer_persistence.clock import monotonic
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Misconfigured, NotAllowed, StoreError, Unconfirmed, tls_fails
from issuer_persistence.urls import flaw, mask, parameters

#: A connection that was idle for longer, in seconds, is not used again: proxies close theirs after 60 to 75 s.
IDLE_TIME = 30.0
#: At most this many idle connections are kept: as many as calls to a store run at the same time.
IDLE_MOST = 16

#: Longest reply in bytes. The largest has 1000 records, each with a scheme of 16 KiB.
_REPLY_MOST = 32 * 1024 * 1024

#: Statuses after which a retry can succeed. All others need an operator.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
#: Statuses of a proxy that has no reply of the server.
_PROXIED = frozenset({502, 503, 504})

_OK, _NOTHING = 200, 204

#: Characters that a header and the first line of a request can have. Another one would be an error with the token.
_SENDABLE = re.compile("[!-~]*")


class Lost(Unconfirmed):
    """The connection has ended before the reply came."""


class HTTPChannel:
    """The address of a server, the token, and the connections."""

    def __init__(self, url: str, token: str = "") -> None:
        """Parse `issuer+https://TOKEN@host:port/prefix?ssl_ca=path`. Raises Misconfigured if the URL is wrong.

        `token`: the token, if it is not in the URL.
        """
        address, options = parameters(url)
        scheme, _, rest = address.partition("://")
        if wrong := flaw(url):
            raise Misconfigured(f"{mask(url)}: {wrong}")
        self._secure = scheme == "issuer+https"
        if options.keys() - ({"ssl_ca"} if self._secure else set()):
            raise Misconfigured(f"{mask(url)}: the only parameter is ssl_ca, with issuer+https")
        authority, _, path = rest.partition("/")
        login, _, place = authority.rpartition("@")
        path, token = f"/{path}".rstrip("/"), unquote(login) or token
        try:
            parts = urlsplit(f"//{place}")
            self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
            self._host.encode("idna")
        except ValueError as error:
            raise Misconfigured(f"{mask(url)}: the host is not one, or the port is not 0..65535") from error
        if not self._host or set(":,") & {*login, *self._host.partition(":")[0]} or "#" in path:
            raise Misconfigured(f"{mask(url)}: the form is {scheme}://TOKEN@host:port")
        if not _SENDABLE.fullmatch(token + place + path):
            raise Misconfigured(f"{mask(url)}: token, host and path must consist of ASCII without blanks")
        self.url = f"{scheme}://{place}{path}"
        self._path = path
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._tls = _context(options.get("ssl_ca"), self.url) if self._secure else None
        self._closed = False
        self._idle: deque[tuple[_Connection, float]] = deque()

    def post(
        self, path: str, content: Mapping[str, Any] | None, timeout: float, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Send a JSON object, or a GET without one, and return the JSON of the reply. `headers`: further ones.

        If the reply is an error, the exception has it as `reply`.

        Raises Lost if the connection ends, or if the reply is not that of the server. Raises Unconfirmed if the server
        does not answer in time or cannot serve the call now, NotAllowed if the token does not allow the call,
        Misconfigured if a retry is in vain.
        """
        if self._closed:
            raise Misconfigured(f"{self.url} is closed")
        connection = self._connection(CallDeadline(timeout))
        try:
            method, sent = ("GET", None) if content is None else ("POST", json.dumps(content).encode())
            connection.request(method, self._path + path, sent, {**self._headers, **(headers or {})})
            reply = connection.getresponse()
            body = reply.read(_REPLY_MOST)
        except (OSError, ValueError, HTTPException, Unconfirmed) as error:
            connection.close()
            if isinstance(error, ssl.SSLError) and tls_fails(str(error)):
                raise Misconfigured(f"{self.url}: {error}") from error
            kind = Unconfirmed if isinstance(error, (TimeoutError, Unconfirmed)) else Lost
            raise kind(f"{self.url}: {str(error) or type(error).__name__}") from error
        except BaseException:
            connection.close()
            raise
        # After a reply of 1xx, another one would come, and the next request would take it for its own.
        last = reply.will_close or not reply.isclosed() or reply.status < _OK or self._closed
        if last or len(self._idle) >= IDLE_MOST:
            connection.close()
        else:
            self._idle.append((connection, monotonic()))
        if reply.status == _NOTHING:
            return {}
        try:
            found = json.loads(body)
        except (ValueError, RecursionError):
            if reply.status == _OK:  # the reply of a proxy, or a part of one
                raise Lost(f"{self.url}: the reply is not one of an issuer") from None
            found = None
        if reply.status != _OK:
            raise self._refused(reply.status, found if isinstance(found, dict) else {})
        return found

    def _refused(self, status: int, problem: dict[str, Any]) -> StoreError:
        error = self._meaning(status, problem)
        error.reply = problem
        return error

    def _meaning(self, status: int, problem: dict[str, Any]) -> StoreError:
        said, code = f"{self.url}: {problem.get('detail') or f'status {status}'}", problem.get("code")
        if code == "forbidden":
            return NotAllowed(said, str(problem.get("caller")), str(problem.get("scope")))
        if status in _PROXIED and code in (None, "failed"):  # or the server stops
            return Lost(said)
        if status in _PASSING:
            return Unconfirmed(said)
        if code in (None, "not_found"):
            said += "; this must be the address of `issuer serve` of this version or a newer one"
        return Misconfigured(said)

    def _connection(self, deadline: CallDeadline) -> _Connection:
        """Return an idle connection that the server has not closed, or a new one."""
        with suppress(IndexError):
            while monotonic() - self._idle[0][1] > IDLE_TIME:  # the first one was not used for longest
                self._idle.popleft()[0].close()
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread has taken the last one
                break
            if monotonic() - since < IDLE_TIME and not _readable(connection):
                connection.deadline = deadline
                return connection
            connection.close()
        return _Connection(self._host, self._port, self._tls, deadline)

    def forget(self) -> None:
        """Forget the connections in a forked child: they are the parent's, which goes on to use them."""
        while self._idle:
            self._idle.pop()[0].close()  # closes the child's copy of the socket, and sends nothing

    def close(self) -> None:
        """Close the idle connections. Later calls raise Misconfigured."""
        self._closed = True
        self.forget()


class _Connection(HTTPConnection):
    """A connection to the server. Every wait of a call ends at its deadline, however few bytes the peer sends."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, deadline: CallDeadline) -> None:
        super().__init__(host, port)
        self._secured, self.deadline = tls, deadline

    def connect(self) -> None:
        addresses = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        for rest, (_, _, _, _, place) in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                sock = socket.create_connection(place[:2], self.deadline.left() / rest)  # type: ignore[arg-type]
            except OSError:
                if rest == 1:
                    raise
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secured is not None:
                sock.settimeout(self.deadline.left())
                sock = self._secured.wrap_socket(sock, server_hostname=self.host)
            self.sock = sock
            return

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        self.sock.settimeout(self.deadline.left())
        super().send(data)

    def response_class(self, sock: socket.socket, method: str) -> HTTPResponse:  # type: ignore[override]
        return HTTPResponse(_Reader(sock, self.deadline), method=method)  # type: ignore[arg-type]


class _Reader(io.RawIOBase):
    """Reads from a socket until a deadline. It stands for the socket of a response, which only calls `makefile`."""

    def __init__(self, sock: socket.socket, deadline: CallDeadline) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(self._deadline.left())
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _readable(connection: HTTPConnection) -> bool:
    """Whether there is something to read on an idle connection: its end, which the server has sent."""
    try:
        connection.sock.settimeout(0)
        socket.socket.recv(connection.sock, 1, socket.MSG_PEEK)  # the method of a socket with TLS has no flags
    except BlockingIOError:
        return False
    except OSError:  # it is broken
        return True
    return True


def _context(ca: str | None, url: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"{url}: ssl_ca {ca!r}: {error}") from error
