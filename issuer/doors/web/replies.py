"""Replies of the HTTP API: results as JSON, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Any, Final

from issuer import errors
from issuer.advice import http
from issuer.doors.outside import outside
from issuer.errors import IssuerError
from issuer.views import view

log = logging.getLogger("issuer.doors.web")

#: The types of ASGI.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
LINES: Final = b"application/x-ndjson"
TEXT: Final = b"text/plain; charset=utf-8"
#: The same, as Spring and Tomcat write it.
PLAIN: Final = b"text/plain;charset=UTF-8"
PROBLEM: Final = b"application/problem+json"

#: Headers of every reply. The first forbids caching, because a cache could return a number twice. The second forbids
#: browsers to show JSON as a page.
ALWAYS: Final[Headers] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
#: Header of the last reply on a connection.
LAST: Final[Headers] = ((b"connection", b"close"),)

#: Bytes of a large body that are sent at once. While a client does not read them, granian has a copy of them.
PIECE: Final = 8192

START: Final = "http.response.start"
BODY: Final = "http.response.body"

#: Members of replies that are numbers of a tag. With `as=string` they are JSON strings.
NUMBERS: Final = frozenset(
    (
        *("number", "numbers", "first", "last", "value", "counter", "drawn"),
        *("low", "high", "max", "limit", "above", "start", "at_least", "taken", "remaining"),
        *("cur", "mark", "next_cur", "next_max", "old", "new", "gap"),
    )
)
#: Members of replies that contain counts and settings. Inside these members, `as=string` changes nothing.
_OTHERS: Final = frozenset({"scheme", "waste", "layout"})

#: HTTP status by class of the error. The first line that fits an error applies. An error that fits no line has the
#: status 500, because an operator must act.
STATUSES: Final[tuple[tuple[type[IssuerError], int], ...]] = (
    (errors.Unauthenticated, 401),
    (errors.Forbidden, 403),
    (errors.Refused, 403),
    (errors.UnknownTag, 404),
    (errors.TagExists, 409),
    (errors.LimitReached, 409),
    (errors.FormatOverflow, 409),
    (errors.NotDecodable, 422),
    (errors.InvalidArgument, 400),
    (errors.ForeignHash, 500),
    (errors.ConfigurationError, 422),
    (errors.TooManyRequests, 429),
    (errors.Unavailable, 503),
    (errors.FenceError, 503),
    (errors.StoreBehind, 503),
)

#: Retry-After, in seconds, for an error without `retry_after`. After such an error, an operator must act before a retry
#: can succeed.
LATER: Final = 10.0


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply to an HTTP request. `rest`: pieces that are sent after `body`, or None if `body` is the whole body."""

    body: bytes = b""
    media: bytes = JSON
    status: int = 200
    headers: Headers = ()
    rest: AsyncIterable[bytes] | None = None

    async def send(self, method: str, send: Send, *, last: bool = False) -> None:
        """Send the reply. Omit its body if the method is HEAD. `last`: close the connection after this reply."""
        headers = [*ALWAYS, *self.headers]
        if last:
            headers = [*(each for each in headers if each not in LAST), *LAST]
        if self.status != HTTPStatus.NO_CONTENT:
            headers.append((b"content-type", self.media))
            if self.rest is None:
                headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": START, "status": self.status, "headers": headers})
        body, rest = (b"", None) if method == "HEAD" else (self.body, self.rest)
        for at in range(0, len(body) or 1, PIECE):
            more = rest is not None or at + PIECE < len(body)
            await send({"type": BODY, "body": body[at : at + PIECE], "more_body": more})
        if rest is not None:
            async for piece in rest:
                await send({"type": BODY, "body": piece, "more_body": True})
            await send({"type": BODY, "body": b""})


def dumped(content: object) -> bytes:
    """Return JSON in UTF-8, without blanks. Lone surrogates, which UTF-8 cannot encode, are escaped."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def shown(content: Mapping[str, Any], *, as_string: bool, status: int = 200, headers: Headers = ()) -> Reply:
    """Return a reply with the content as JSON. `as_string`: whether numbers of a tag become strings."""
    return Reply(dumped(as_strings(content) if as_string else content), status=status, headers=headers)


def as_strings(content: Any, name: str = "") -> Any:
    """Return the content with numbers of a tag as strings. `name`: name of the member that contains the content."""
    if isinstance(content, Mapping):
        return {key: each if key in _OTHERS else as_strings(each, key) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [as_strings(each, name) for each in content]
    whole = isinstance(content, int) and not isinstance(content, bool)
    return str(content) if whole and name in NUMBERS else content


# ------------------------------------------------------------------ problems


class Problem(Exception):
    """A request is rejected before its operation begins, so it has changed nothing."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Headers = (), **values: object) -> None:
        """Create a problem. `code` is for programs, `detail` for people, `values` are further members of the reply."""
        super().__init__(detail)
        self.status, self.code, self.headers, self.values = status, code, headers, values


def status_of(error: IssuerError) -> int:
    """Return the HTTP status for an error of the issuer."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def answer(error: Exception, route: str, *, as_string: bool = False, closed: bool = False) -> Reply:
    """Return the reply to a request that failed. Only the log has the details of an unexpected exception.

    `route`: name of the route for the log, without values from the request. `closed`: whether the issuer is closed. If
    it is, the reply lets the client retry at another server.
    """
    if isinstance(error, Problem):
        return _reply(error.status, error.code, str(error), error.values, error.headers)
    if isinstance(error, IssuerError):
        return _of_library(outside(error), as_string=as_string, closed=closed)
    # Neither the message nor the full traceback is logged: both may contain secrets of a client or an operator.
    log.error("%s: %s in %s", route, type(error).__name__, _place(error))
    return _reply(500, "internal", "internal error: the server's log has the details", {})


def _of_library(error: IssuerError, *, as_string: bool, closed: bool) -> Reply:
    status = 503 if closed and type(error) is IssuerError else status_of(error)
    values = {name: value for name, value in view(error).items() if name not in ("error", "message", "code")}
    if error.drawn:
        values["drawn"] = list(error.drawn)
    headers: list[tuple[bytes, bytes]] = []
    if status in (429, 503):
        later = error.retry_after if isinstance(error, errors.Unavailable) else 1.0 if closed else LATER
        headers.append((b"retry-after", b"%d" % max(1, ceil(later))))
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    return _reply(status, error.code, error.told(http), as_strings(values) if as_string else values, headers)


def _reply(status: int, code: str, detail: str, values: Mapping[str, Any], headers: Headers = ()) -> Reply:
    title = HTTPStatus(status).phrase  # RFC 9457 requires this title for the type about:blank
    content = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, **values}
    return Reply(dumped(content), PROBLEM, status, headers)


def _place(error: Exception) -> str:
    """Return the names and lines of the last four calls before the failure, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in reversed(frames))
