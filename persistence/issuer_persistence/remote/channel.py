"""Sends requests to a server of another issuer, over HTTP/1.1 or HTTPS, on connections that are kept.

It uses `http.client`: of a request it takes 0.1 ms. urllib3 takes 60 ms more to import, and httpx 150 ms; neither
limits the whole time of a request.
"""

from __future__ import annotations

import json
import select
import ssl
from collections import deque
from http.client import HTTPConnection, HTTPException, HTTPSConnection
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


class Lost(Unconfirmed):
    """The connection has ended before the reply came."""


class Channel:
    """The address of a server, the token, and the connections."""

    def __init__(self, url: str) -> None:
        """Parse `issuer+https://TOKEN@host:port/prefix?ssl_ca=path`. Raises Misconfigured if the URL is wrong."""
        address, options = parameters(url)
        scheme, _, rest = address.partition("://")
        if wrong := flaw(url):
            raise Misconfigured(f"{mask(url)}: {wrong}")
        if unknown := options.keys() - {"ssl_ca"}:
            raise Misconfigured(f"{mask(url)}: unknown parameter {min(unknown)!r}; the only one is ssl_ca")
        parts = urlsplit(f"//{rest}")
        self._secure = scheme == "issuer+https"
        try:
            self._host, self._port = parts.hostname or "", parts.port or (443 if self._secure else 80)
        except ValueError as error:
            raise Misconfigured(f"{mask(url)}: the port must be 0..65535") from error
        if not self._host or parts.password is not None:
            raise Misconfigured(f"{mask(url)}: the form is {scheme}://TOKEN@host:port")
        self.url = f"{scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._path = parts.path.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if parts.username:
            self._headers["authorization"] = f"Bearer {unquote(parts.username)}"
        self._tls = _context(options.get("ssl_ca"), self.url) if self._secure else None
        self._closed = False
        self._idle: deque[tuple[HTTPConnection, float]] = deque(maxlen=IDLE_MOST)

    def post(self, path: str, content: dict[str, Any], timeout: float) -> Any:
        """Send a JSON object, and return the JSON of the reply.

        Raises Lost if the connection ends, Unconfirmed if the server does not answer in time or cannot serve the call
        now, NotAllowed if the token does not allow the call, Misconfigured if a retry is in vain.
        """
        if self._closed:
            raise Misconfigured(f"{self.url} is closed")
        deadline = CallDeadline(timeout)
        connection = self._connection()
        connection.timeout = timeout
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            connection.request("POST", self._path + path, json.dumps(content).encode(), self._headers)
            connection.sock.settimeout(deadline.left())
            reply = connection.getresponse()
            body = reply.read(_REPLY_MOST)
        except (OSError, HTTPException) as error:
            connection.close()
            if isinstance(error, ssl.SSLError) and tls_fails(str(error)):
                raise Misconfigured(f"{self.url}: {error}") from error
            kind = Unconfirmed if isinstance(error, TimeoutError) else Lost
            raise kind(f"{self.url}: {str(error) or type(error).__name__}") from error
        except BaseException:
            connection.close()
            raise
        if reply.will_close or not reply.isclosed():
            connection.close()
        else:
            self._idle.append((connection, monotonic()))
        try:
            found = json.loads(body)
        except ValueError:
            found = {}
        if reply.status != 200:  # noqa: PLR2004 - OK
            raise self._refused(reply.status, found if isinstance(found, dict) else {})
        return found

    def _refused(self, status: int, problem: dict[str, Any]) -> StoreError:
        said, code = f"{self.url}: {problem.get('detail') or f'status {status}'}", problem.get("code")
        if code == "forbidden":
            return NotAllowed(said, str(problem.get("caller")), str(problem.get("scope")))
        if status in _PASSING:
            return Unconfirmed(said)
        if code in (None, "not_found"):
            said += "; this must be the address of `issuer serve` of this version or a newer one"
        return Misconfigured(said)

    def _connection(self) -> HTTPConnection:
        """Return an idle connection that the server has not closed, or a new one."""
        while self._idle:
            try:
                connection, since = self._idle.pop()
            except IndexError:  # another thread has taken the last one
                break
            if monotonic() - since < IDLE_TIME and not _readable(connection):
                return connection
            connection.close()
        if self._tls is not None:
            return HTTPSConnection(self._host, self._port, context=self._tls)
        return HTTPConnection(self._host, self._port)

    def forget(self) -> None:
        """Forget the connections in a forked child: they are the parent's."""
        self._idle = deque(maxlen=IDLE_MOST)

    def close(self) -> None:
        """Close the idle connections. Later calls raise Misconfigured."""
        self._closed = True
        while self._idle:
            self._idle.pop()[0].close()


def _readable(connection: HTTPConnection) -> bool:
    """Whether there is something to read on an idle connection: its end, which the server has sent."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _context(ca: str | None, url: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"{url}: ssl_ca {ca!r}: {error}") from error
