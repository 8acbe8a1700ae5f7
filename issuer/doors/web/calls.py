"""Reads the parts of a request: decodes path, query, headers and body, and checks the rules of HTTP and JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from issuer.doors.access import Caller
from issuer.doors.budget import PROGRESS, Budget
from issuer.doors.web.replies import JSON, LAST, Message, Problem, Receive
from issuer.errors import InvalidArgument, Unauthenticated, brief

#: Maximum size of a body in bytes.
BODY_MOST: Final = 65_536
#: Bytes that the server holds for each byte of a body: a character of a text takes up to 4.
_PER_BYTE: Final = 4
#: Memory that a request takes while it waits for the rest of its body, in bytes. With 4000 such requests, 27 KB each
#: were measured.
_WAITING: Final = 28_672

#: If the tag is in the query, the path contains this text in place of the tag.
ELSEWHERE: Final = "-"

#: Headers that must not be repeated. If a header occurred twice, a proxy might check one value and this server use the
#: other.
_ONCE: Final = frozenset(
    (b"host", b"origin", b"authorization", b"idempotency-key", b"content-type", b"content-length", b"sec-fetch-site")
)
_BROKEN: Final = re.compile("%(?![0-9A-Fa-f]{2})")
#: Maximum number of digits of an integer in a body. Above 4300 digits, Python raises an error with an unsuitable text.
_DIGITS_MOST: Final = 4000


_JSON: Final = (JSON, b"application/*")

#: Caller without a valid token.
_NOBODY: Final = Caller("", (), ())


@dataclass(slots=True)
class Request:
    """A request. Its parts are set as soon as they are known.

    Attributes:
        stranger: Whether the caller still has to show a valid token.
        refusal: Why the caller has no valid token. None if it has one.
        name: Name of the route or compatible call in the metrics. It contains nothing from the request.
        token: Name of the caller's token in the metrics and the audit log. "" if the caller has none.
        administers: Whether the call belongs into the audit log.
        tag: Name of the tag. "" if the request has none.
        timeout: Longest wait in seconds. None means the timeout of the issuer.
        path: Decoded segments of the path, by name.
        held: Bytes that the request makes the server hold.
    """

    scope: Message
    receive: Receive
    budget: Budget
    stranger: bool
    caller: Caller = _NOBODY
    refusal: Unauthenticated | None = None
    name: str = "other"
    token: str = ""
    administers: bool = False
    headers: Mapping[bytes, bytes] = field(default_factory=dict)
    tag: str = ""
    timeout: float | None = None
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    held: int = 0

    @property
    def as_string(self) -> bool:
        """Whether the reply contains numbers of a tag as JSON strings."""
        return "as" in self.query

    @property
    def as_text(self) -> bool:
        """Whether the reply is the bare number as text."""
        return self.prefers(b"text/plain", b"text/*")

    @property
    def owner(self) -> str:
        """Name of the caller's token, or the caller's address if it has no token."""
        return self.caller.name or self.address

    @property
    def address(self) -> str:
        """Address of the client."""
        client = self.scope.get("client")
        return client[0] if client else "an unknown address"

    def prefers(self, *names: bytes) -> bool:
        """Return whether the client prefers a media type to JSON.

        `names`: the media type, and the patterns that include it; for example text/plain and text/*.
        """
        said: dict[bytes, float] = {}
        for each in self.headers.get(b"accept", b"").lower().split(b","):
            name, *parameters = (part.strip() for part in each.split(b";"))
            weight = next((part[2:] for part in parameters if part.startswith(b"q=")), b"1")
            said[name] = float(weight) if re.fullmatch(rb"[01](\.[0-9]{0,3})?", weight) else 1.0
        other = said.get(b"*/*", 0.0)
        best, json = (next((said[name] for name in each if name in said), other) for each in (names, _JSON))
        return best > json

    def known(self) -> Caller:
        """Return the caller, and note its name for the metrics and the log. Raises Unauthenticated."""
        if self.refusal is not None:
            raise self.refusal
        self.token = self.caller.name
        return self.caller

    def hold(self, more: int) -> None:
        """Count bytes that this request makes the server hold until it is answered. A negative number releases some.

        Raises Problem if the clients make the server hold too many.
        """
        if not (self.budget.strangers if self.stranger else self.budget).hold(more):
            problem = "the clients of this server make it hold too many bytes"
            raise Problem(503, "busy", problem, headers=(*LAST, (b"retry-after", b"1")))
        self.held += more

    def admit(self, caller: Caller) -> None:
        """Note who the caller is. What it makes the server hold no longer counts as that of strangers."""
        held = self.held
        self.hold(-held)
        self.caller, self.stranger = caller, False
        self.hold(held)


def raw_path(scope: Message) -> str:
    """Return the path as the client sent it. A decoded path does not show whether a slash belongs to a tag."""
    raw = scope.get("raw_path")
    # If the ASGI server passes no raw path, only the decoded path is known. Then a tag that contains a slash cannot be
    # served: the slash would look like the end of a segment.
    path = quote(scope["path"]) if raw is None else bytes(raw).partition(b"?")[0].decode("latin-1")
    return path.removeprefix(scope.get("root_path", ""))


def decoded(segment: str) -> str:
    """Return a segment of a path after percent-decoding. Raises Problem if the encoding is invalid."""
    try:
        return unquote_to_bytes(_unbroken(segment, "path").encode("latin-1")).decode()
    except UnicodeDecodeError as error:
        raise Problem(400, "malformed", "the path is not percent-encoded UTF-8") from error


def _unbroken(text: str, place: str) -> str:
    if _BROKEN.search(text):
        problem = f"the {place} has a % without two hexadecimal digits after it; write % itself as %25"
        raise Problem(400, "malformed", problem)
    return text


def queried(scope: Message) -> dict[str, str]:
    """Return the parameters of the query. Raises Problem if the query is malformed or repeats a parameter."""
    raw = _unbroken(scope["query_string"].decode("latin-1"), "query")
    if not raw:
        return {}
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        problem = "the query is not percent-encoded UTF-8, or has more than 100 parameters"
        raise Problem(400, "malformed", problem) from error
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Problem(400, "malformed", "the query repeats a parameter; send each one once")
    return found


def headers_of(scope: Message) -> dict[bytes, bytes]:
    """Return the headers by name. Raises Problem if a header that must occur once is repeated."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in found:
            if name in _ONCE:
                raise Problem(400, "malformed", f"the header {name.decode('latin-1')} is repeated; send it once")
            found[name] += b", " + value
        else:
            found[name] = value
    return found


async def body_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body, or {} if the body is empty. Raises as `bytes_of` and `parsed`."""
    body = await bytes_of(request)
    _check_type(request.headers.get(b"content-type"), body)
    return parsed(body) if body else {}


async def bytes_of(request: Request) -> bytes:
    """Return the body. Raises Problem if it is too large, incomplete or late, or if the server holds too much."""
    length = request.headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > len(str(BODY_MOST)) or int(length) > BODY_MOST:
        raise _too_large()
    body, more = bytearray(), True
    waiting = 0 if length == b"0" and b"transfer-encoding" not in request.headers else _WAITING
    request.hold(waiting)
    try:
        async with asyncio.timeout(PROGRESS):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    # The client has gone, or the chunks of the body are malformed. Granian expects a reply in any case.
                    raise Problem(400, "malformed", "the body is incomplete, or its chunks are malformed")
                piece, more = message.get("body", b""), message.get("more_body", False)
                if len(body) + len(piece) > BODY_MOST:
                    raise _too_large()
                request.hold(_PER_BYTE * len(piece))
                body += piece
    except TimeoutError:
        raise Problem(408, "body_late", f"the body did not arrive within {PROGRESS:g} s", headers=LAST) from None
    request.hold(-waiting)
    return bytes(body)


def _too_large() -> Problem:
    # LAST closes the connection after the reply. Otherwise the rest of the body would be read as the next request.
    return Problem(413, "too_large", f"the body is larger than {BODY_MOST} bytes", headers=LAST)


def _check_type(said: bytes | None, body: bytes) -> None:
    """Raise Problem if the Content-Type of a body is not JSON in UTF-8.

    Only JSON is safe: a browser lets pages of other sites send forms and texts, but not JSON. An empty body needs no
    type, or an empty one, which `http.Post(url, "", nil)` of Go sends.
    """
    media, _, parameters = (said or b"").lower().partition(b";")
    charset = parameters.strip().removeprefix(b"charset=").strip(b'"')
    if (not said and not body) or (media.strip() == JSON and charset in (b"", b"utf-8")):
        return
    raise Problem(415, "unsupported_media_type", "the body must be sent as Content-Type: application/json, in UTF-8")


def parsed(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body. Raises Problem, and InvalidArgument for an integer with too many digits."""
    try:
        text = body.decode()
        found = json.loads(text, object_pairs_hook=_named, parse_constant=_no_number, parse_int=_integer)
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # rejects lone surrogates
    except (UnicodeError, RecursionError) as error:
        raise Problem(400, "malformed", "the body is not valid JSON in UTF-8, or is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise Problem(400, "malformed", f"the body is not valid JSON: {error.msg} at character {error.pos}") from error
    if not isinstance(found, dict):
        raise Problem(400, "malformed", "the body must be a JSON object")
    return found


def _named(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Problem(400, "malformed", "the body repeats a member; send each one once")
    return found


def _no_number(text: str) -> float:
    raise Problem(400, "malformed", f"{text} is not valid JSON")


def _integer(text: str) -> int:
    if len(text) > _DIGITS_MOST:
        problem = f"an integer of {len(text)} digits is too long: numbers of a tag have up to 19"
        raise InvalidArgument(problem, value=brief(text))
    return int(text)
