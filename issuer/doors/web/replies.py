"""Replies: status, headers and body, as they are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.types import Receive, Scope, Send

Headers = Sequence[tuple[bytes, bytes]]

JSON: Final = b"application/json"
LINES: Final = b"application/x-ndjson"
TEXT: Final = b"text/plain; charset=utf-8"
PROBLEM: Final = b"application/problem+json"

#: Headers of every reply: a number must not come out of a cache, and no browser may take JSON for a page.
ALWAYS: Final[Headers] = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))

#: Members that hold a number of a tag, as JSON strings if the client asks for these.
NUMBERS: Final = frozenset(
    (
        *("number", "numbers", "first", "last", "value", "counter", "drawn"),
        *("low", "high", "max", "limit", "above", "start", "at_least", "taken", "remaining"),
        *("cur", "mark", "next_cur", "next_max", "old", "new", "gap"),
    )
)
#: Members with numbers within that are no tag's: what makes them, by the names that the store has, and counts.
_OTHERS: Final = frozenset({"scheme", "waste", "layout"})


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, which is an ASGI application that sends itself. `rest`: pieces of the body that are sent after it."""

    body: bytes = b""
    media: bytes = JSON
    status: int = 200
    headers: Headers = ()
    rest: Iterable[bytes] | AsyncIterable[bytes] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; to HEAD without its body."""
        del receive
        headers = [*ALWAYS, *self.headers]
        if self.status != 204:  # noqa: PLR2004 - No Content
            headers.append((b"content-type", self.media))
            if self.rest is None:
                headers.append((b"content-length", b"%d" % len(self.body)))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        if self.rest is not None:
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            async for piece in self.rest if isinstance(self.rest, AsyncIterable) else _with_pauses(self.rest):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.body", "body": self.body})


async def _with_pauses(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)  # a million numbers take 0.2 s: the other requests have their turn in between


def dumped(content: object) -> bytes:
    """Return JSON in UTF-8, without blanks. A lone surrogate, as of a plugin's words, stays escaped."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def shown(content: Mapping[str, Any], *, as_string: bool, status: int = 200, headers: Headers = ()) -> Reply:
    """Return a reply of JSON. `as_string`: a tag's numbers as strings, for clients whose integers end at 2^53."""
    return Reply(dumped(as_strings(content) if as_string else content), status=status, headers=headers)


def as_strings(content: Any, name: str = "") -> Any:
    """Return the content with a tag's numbers as strings. `name`: of the member that it is."""
    if isinstance(content, Mapping):
        return {key: each if key in _OTHERS else as_strings(each, key) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [as_strings(each, name) for each in content]
    whole = isinstance(content, int) and not isinstance(content, bool)
    return str(content) if whole and name in NUMBERS else content
