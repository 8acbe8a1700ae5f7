"""The table of routes. The application, the OpenAPI document and /docs use it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from issuer.core.requests import TAKE_MOST
from issuer.doors.tokens import Scope
from issuer.doors.web import numbers, tags, upkeep
from issuer.doors.web.calls import RequestCall
from issuer.doors.web.fields import (
    DURATION,
    FLAG,
    LIMIT,
    NUMBER,
    OPTIONS,
    SCRAMBLE,
    SECONDS,
    SHARDS,
    SHARE,
    STEP,
    TEXT,
    WHOLE,
    Field,
    objects,
    words,
)
from issuer.doors.web.replies import Problem, Reply
from issuer.doors.web.service import Service
from issuer.operations.tag_options import TAG_OPTIONS
from issuer_persistence.records import HIGHEST

Handler = Callable[[Service, RequestCall], Awaitable[Reply]]


def _to(lowest: int, highest: int) -> dict[str, int]:
    return {"minimum": lowest, "maximum": highest}


_TIMEOUT: Final = Field(
    "timeout", SECONDS, "Longest time that the call may wait, in seconds. The server reduces values above 30 to 30"
)
_AS: Final = Field(
    "as",
    words("string"),
    "With `as=string` the reply has numbers as JSON strings, for languages that round integers above 2^53",
)
_TAG: Final = Field("tag", TEXT, "Name of the tag, if it is `.` or `..`. The path then has `-` in its place")
_SHARD_KEY: Final = Field("shard_key", TEXT, "Key that selects the shard. Only for tags with shards")
_RESTART_KEY: Final = Field("restart_key", TEXT, "Key that selects the series. Only for keyed tags")
_CURSOR: Final = Field("cursor", TEXT, "Value of `next` in the reply with the previous page")
_COUNT: Final = Field("count", WHOLE, "Number of entries per page. Default: 100", schema=_to(1, tags.PAGE_MOST))

_KINDS: Final = {
    "whole": WHOLE, "share": SHARE, "number": NUMBER, "text": TEXT, "flag": FLAG, "step": STEP, "limit": LIMIT,
    "duration": DURATION, "scramble": SCRAMBLE, "shards": SHARDS, "options": OPTIONS,
}  # fmt: skip
#: Additions to the help of settings that have more than one form in JSON.
_FORMS: Final = {
    "scramble": ". Or a list of pairs: a number, and the name of the key from this number on",
    "shards": ". An object also sets `shard_bits`, `app_bits` or `app`",
}


def _member(name: str) -> Field:
    """Return the field for a setting of a tag, as a member of a body."""
    option = TAG_OPTIONS[name]
    range = {"minimum": option.lowest, "maximum": option.highest}
    kind = _KINDS[option.kind] if option.kind in _KINDS else words(*option.words)
    about = f"{option.help}{_FORMS.get(name, '')}"
    return Field(name, kind, about, schema={side: end for side, end in range.items() if end is not None})


_CHANGEABLE: Final = tuple(_member(name) for name in TAG_OPTIONS if name != "order")
_SETTINGS: Final = (*_CHANGEABLE, _member("order"))


@dataclass(frozen=True, slots=True)
class Route:
    """A route: a method of HTTP and a path, with the function that handles the requests.

    Attributes:
        name: Name of the operation.
        told: Description of the operation, for the OpenAPI document.
        scope: The token needs one of these scopes. () means that no token is needed.
        reply: Schema or media type of the reply. "" means that the reply has no body.
        query: Parameters of the query.
        body: Members of the body. None means that the request has no body.
        statuses: HTTP statuses of successful replies.
        plain: Whether the reply can also be the bare number as text.
        line: Name of the schema of a line, if the reply can have one line for each tag. "" if it cannot.
        key: Whether the route accepts an Idempotency-Key.
        checked: Whether the handler checks the token's scope. If not, the application checks it before the handler.
    """

    method: str
    path: str
    name: str
    told: str
    handler: Handler
    scope: tuple[Scope, ...]
    reply: str = ""
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] | None = None
    statuses: tuple[int, ...] = (200,)
    plain: bool = False
    line: str = ""
    key: bool = False
    checked: bool = False

    @property
    def of_tag(self) -> bool:
        """Whether the path has a tag."""
        return "{tag}" in self.path

    @property
    def draws(self) -> bool:
        """Whether the route draws or loads numbers of the tag."""
        return self.scope == ISSUE

    @property
    def of_numbers(self) -> bool:
        """Whether the route is for a tag and for callers with the scope `issue`.

        Such callers can send any name, so the application looks up the tag first.
        """
        return self.of_tag and "issue" in self.scope

    @property
    def parameters(self) -> tuple[Field, ...]:
        """All parameters of the query."""
        own = (_TAG, _AS, *self.query) if self.of_tag else (_AS, *self.query)
        if not self.scope:
            return self.query
        return own if self.body is not None else (*own, _TIMEOUT)

    @property
    def members(self) -> tuple[Field, ...]:
        """All members of the body."""
        return (*(self.body or ()), _TIMEOUT)


ISSUE: Final[tuple[Scope, ...]] = ("issue",)
READ: Final[tuple[Scope, ...]] = ("read",)
EITHER: Final[tuple[Scope, ...]] = ("issue", "read")
ADMIN: Final[tuple[Scope, ...]] = ("admin",)

_OF: Final = "/v1/tags/{tag}"

ROUTES: Final = (
    Route(
        "POST", f"{_OF}/next", "next", "Draw the next number. A repeated Idempotency-Key returns the same number.",
        numbers.next_number, ISSUE, "Number", plain=True, key=True,
        body=(
            _SHARD_KEY, _RESTART_KEY,
            Field("ttl", SECONDS,
                "Time in seconds, above 0, for which the server keeps the Idempotency-Key and its number. Default: "
                "one day"),
        ),
    ),
    Route(
        "POST", f"{_OF}/take", "take", "Draw exactly n numbers.", numbers.take, ISSUE, "Numbers", plain=True,
        body=(Field("n", WHOLE, "Count of numbers", required=True, schema=_to(1, TAKE_MOST)),),
    ),
    Route(
        "POST", f"{_OF}/reserve", "reserve", "Reserve n contiguous numbers of a trend tag, directly from the store.",
        numbers.reserve, ISSUE, "Range",
        body=(Field("n", WHOLE, "Count of numbers", required=True, schema=_to(1, HIGHEST)),),
    ),
    Route(
        "POST", f"{_OF}/warm", "warm", "Load numbers now, so that the first draw does not wait for the store.",
        numbers.warm, ISSUE, body=(), statuses=(204,),
    ),
    Route(
        "GET", f"{_OF}/peek", "peek", "Show the number that the next draw will return. Nothing is drawn.",
        numbers.peek, EITHER, "Number", plain=True, query=(_SHARD_KEY, _RESTART_KEY),
    ),
    Route(
        "GET", f"{_OF}/decode/{{shown}}", "decode",
        "Show the parts of a number or a text, such as its counter, period or shard.",
        numbers.decode, EITHER, "Decoded",
        query=(
            Field("number", FLAG,
                "If true, `shown` is a number, even if it looks like a text in the format of the tag"),
            Field("holder", FLAG,
                "If true, the reply also has the process that holds the machine number. Only for snowflake tags"),
        ),
    ),
    Route(
        "GET", f"{_OF}/who/{{number}}", "who", "Show which process reserved the number, and when.",
        numbers.who, READ, "Provenance",
    ),
    Route(
        "GET", f"{_OF}/segments", "segments", "List the tag's ledger: its reserved segments, the highest first.",
        tags.segments, READ, "SegmentPage",
        query=(_COUNT, _CURSOR, Field("upward", FLAG, "If true, the lowest segment comes first")),
    ),
    Route("GET", "/v1/tags", "tags", "List the tags that the token may read, sorted by name.",
          tags.tags, READ, "TagPage", query=(_COUNT, _CURSOR), checked=True),
    Route(
        "POST", "/v1/tags", "create",
        "Create a tag, or several tags: all or none of them. A tag that was deleted continues above its old numbers.",
        tags.create, ADMIN, "Tag", statuses=(201, 200),
        body=(
            Field("tag", TEXT, "Name of the tag. Give `tag` or `tags`"),
            Field("tags", objects((Field("tag", TEXT, "Name of the tag", required=True), *_SETTINGS), tags.PAGE_MOST),
                "The tags to create, each with its settings. The token must be valid for all tags"),
            *_SETTINGS,
            Field("exist_ok", FLAG, "If true, and the tag exists and makes the same numbers, the request succeeds"),
        ),
    ),
    Route("GET", _OF, "inspect", "Show the tag's settings and its state in the store and Redis.", tags.inspect, READ,
          "Inspection"),
    Route("PATCH", _OF, "configure", "Change settings of the tag while it is in use.", tags.configure, ADMIN, "Tag",
          body=_CHANGEABLE),
    Route("DELETE", _OF, "delete", "Delete the tag and its parts.", tags.delete, ADMIN, statuses=(204,)),
    Route("POST", f"{_OF}/halt", "halt", "Stop all reservations of the tag until it is recovered.", upkeep.halt, ADMIN,
          body=(), statuses=(204,)),
    Route(
        "POST", f"{_OF}/recover", "recover",
        "Raise the tag above the highest recorded number. With `dry_run`, the default, only show what would change.",
        upkeep.recover, ADMIN, "Recoveries",
        body=(
            Field("dry_run", FLAG, "If true, the default, nothing is changed. If false, the server recovers the tag"),
            Field("at_least", NUMBER,
                "The tag also skips all numbers up to this value of its counter, even if no server has recorded them"),
        ),
    ),
    Route("GET", "/v1/verify", "verify", "Check the ledger for numbers that were reserved twice.", upkeep.verify, READ,
          "Discrepancies", line="CheckedTag",
          query=(Field("tag", TEXT, "Name of the tag to check. Default: all tags"),)),
    Route("GET", "/v1/doctor", "doctor", "Check Redis, the store, the settings and the tags; list risks and remedies.",
          upkeep.doctor, READ, "Findings",
          query=(Field("most", WHOLE, "Number of tags to check in detail. Default: 1000", schema={"minimum": 0}),)),
    Route("GET", "/livez", "livez", "Liveness probe: 200 while this process runs.", upkeep.alive, (), "Health"),
    Route("GET", "/readyz", "readyz",
          "Readiness probe: 200 until the server begins to stop, then 503. Shows whether Redis and the store answer.",
          upkeep.readyz, (), "Readiness"),
    Route("GET", "/metrics", "metrics", "Metrics in the Prometheus text format.", upkeep.metrics, READ, "text/plain"),
    Route("GET", "/openapi.json", "openapi", "This API as an OpenAPI 3.1 document.", upkeep.document, (),
          "application/json"),
    Route("GET", "/docs", "docs", "This API as a page for people.", upkeep.page, (), "text/html"),
)  # fmt: skip

_PATTERNS: Final = [
    (
        re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))),
        {route.method: route for route in ROUTES if route.path == path},
    )
    for path in dict.fromkeys(route.path for route in ROUTES)
]


def route_of(method: str, path: str) -> tuple[Route, dict[str, str]]:
    """Return the route of a path, and the named segments of the path. Raises Problem if no route fits.

    The path must not be decoded: a decoded slash in a tag would look like the end of a segment.
    """
    for pattern, methods in _PATTERNS:
        if found := pattern.fullmatch(path):
            route = methods.get("GET" if method == "HEAD" else method)
            if route is None:
                allowed = ", ".join(sorted({*methods} | ({"HEAD"} if "GET" in methods else set())))
                allow = [(b"allow", allowed.encode())]
                raise Problem(405, "method_not_allowed", f"this path allows {allowed}", headers=allow)
            return route, found.groupdict()
    raise Problem(404, "not_found", "no route has this path; /docs lists all routes")
