"""The table of routes. The application, the OpenAPI document and /docs use it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from issuer.core.requests import TAKE_MOST
from issuer.doors.tokens import Scope
from issuer.doors.web import numbers, relay, store, tags, upkeep
from issuer.doors.web.calls import Request
from issuer.doors.web.fields import KINDS, NUMBER, Members, member
from issuer.doors.web.replies import Problem, Reply
from issuer.doors.web.service import Service
from issuer.operations.tag_options import TAG_OPTIONS
from issuer_persistence.records import HIGHEST

Handler = Callable[[Service, Request], Awaitable[Reply]]

_TIMEOUT: Final = member(
    float, "Longest time that the call may wait, in seconds. The server reduces values above 30 to 30", 0
)
_AS: Final = member(
    Literal["string"],
    "With `as=string` the reply has numbers as JSON strings, for languages that round integers above 2^53",
)
_TAG: Final = member(str, "Name of the tag, if it is `.` or `..`. The path then has `-` in its place")
_KEYS: Final = {
    "shard_key": member(str, "Key that selects the shard. Only for tags with shards"),
    "restart_key": member(str, "Key that selects the series. Only for keyed tags"),
}
_PAGE: Final = {
    "count": member(int, "Number of entries per page. Default: 100", 1, tags.PAGE_MOST),
    "cursor": member(str, "Value of `next` in the reply with the previous page"),
}

#: Additions to the help of settings that have more than one form in JSON.
_FORMS: Final = {"scramble": ". Or a list of pairs: a number, and the name of the key from this number on"}
_SETTINGS: Final = {
    name: member(
        KINDS.get(each.kind) or Literal[each.words], each.help + _FORMS.get(name, ""), each.lowest, each.highest
    )
    for name, each in TAG_OPTIONS.items()
}


def _body(types: Mapping[str, Any], required: Sequence[str] = (), **lists: Members) -> Members:
    return Members({**types, "timeout": _TIMEOUT}, required, **lists)


@dataclass(frozen=True)
class Route:
    """A route: a method of HTTP and a path, with the function that handles the requests.

    Attributes:
        told: Description of the operation, for the OpenAPI document.
        scope: The token needs one of these scopes. () means that no token is needed.
        reply: Schema or media type of the reply. With " or " between them: two schemas. "" means that the reply has no
            body.
        query: Parameters of the query that not all routes have.
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
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Members | None = None
    statuses: tuple[int, ...] = (200,)
    plain: bool = False
    line: str = ""
    key: bool = False
    checked: bool = False

    @property
    def of_tag(self) -> bool:
        """Whether the path has a tag."""
        return "{tag}" in self.path

    @cached_property
    def parameters(self) -> Members:
        """All parameters of the query."""
        if not self.scope:
            return Members(self.query)
        tag = {"tag": _TAG} if self.of_tag else {}
        return Members({**tag, "as": _AS, **self.query, **({"timeout": _TIMEOUT} if self.body is None else {})})


ISSUE: Final[tuple[Scope, ...]] = ("issue",)
READ: Final[tuple[Scope, ...]] = ("read",)
EITHER: Final[tuple[Scope, ...]] = ("issue", "read")
ADMIN: Final[tuple[Scope, ...]] = ("admin",)

_OF: Final = "/v1/tags/{tag}"

ROUTES: Final = (
    Route(
        "POST", f"{_OF}/next", "next", "Draw the next number. A repeated Idempotency-Key returns the same number.",
        numbers.next_number, ISSUE, "Number", plain=True, key=True,
        body=_body(_KEYS | {
            "ttl": member(float,
                "Time in seconds, above 0, for which the server keeps the Idempotency-Key and its number. Default: "
                "one day", lowest=0),
        }),
    ),
    Route(
        "POST", f"{_OF}/take", "take", "Draw exactly n numbers.", numbers.take, ISSUE, "Numbers", plain=True,
        body=_body({"n": member(int, "Count of numbers", 1, TAKE_MOST)}, ["n"]),
    ),
    Route(
        "POST", f"{_OF}/reserve", "reserve", "Reserve n contiguous numbers of a trend tag, directly from the store.",
        numbers.reserve, ISSUE, "Range",
        body=_body({"n": member(int, "Count of numbers", 1, HIGHEST)}, ["n"]),
    ),
    Route(
        "POST", f"{_OF}/warm", "warm", "Load numbers now, so that the first draw does not wait for the store.",
        numbers.warm, ISSUE, body=_body({}), statuses=(204,),
    ),
    Route(
        "GET", f"{_OF}/peek", "peek", "Show the number that the next draw will return. Nothing is drawn.",
        numbers.peek, EITHER, "Number", plain=True, query=_KEYS,
    ),
    Route(
        "GET", f"{_OF}/decode/{{shown}}", "decode",
        "Show the parts of a number or a text, such as its counter, period or shard.",
        numbers.decode, EITHER, "Decoded",
        query={
            "number": member(bool,
                "If true, `shown` is a number, even if it looks like a text in the format of the tag"),
            "holder": member(bool,
                "If true, the reply also has the process that holds the machine number. Only for snowflake tags"),
        },
    ),
    Route(
        "GET", f"{_OF}/who/{{number}}", "who", "Show which process reserved the number, and when.",
        numbers.who, READ, "Provenance",
    ),
    Route(
        "GET", f"{_OF}/segments", "segments", "List the tag's ledger: its reserved segments, the highest first.",
        tags.segments, READ, "SegmentPage",
        query=_PAGE | {"upward": member(bool, "If true, the lowest segment comes first")},
    ),
    Route("GET", "/v1/tags", "tags", "List the tags that the token may read, sorted by name.",
          tags.tags, READ, "TagPage", query=_PAGE, checked=True),
    Route(
        "POST", "/v1/tags", "create",
        "Create a tag, or several tags: all or none of them. A tag that was deleted continues above its old numbers.",
        tags.create, ADMIN, "Tag or Tags", statuses=(201, 200),
        body=_body({
            "tag": member(str, "Name of the tag. Give `tag` or `tags`"),
            "tags": member(Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=tags.PAGE_MOST)],
                "The tags to create, each with its settings. The token must be valid for all tags"),
            **_SETTINGS,
            "exist_ok": member(bool, "If true, and the tag exists and makes the same numbers, the request succeeds"),
        }, tags=Members({"tag": member(str, "Name of the tag"), **_SETTINGS}, ["tag"])),
    ),
    Route("GET", _OF, "inspect", "Show the tag's settings and its state in the store and Redis.", tags.inspect, READ,
          "Inspection"),
    Route("PATCH", _OF, "configure", "Change settings of the tag while it is in use.", tags.configure, ADMIN, "Tag",
          body=_body({name: each for name, each in _SETTINGS.items() if name != "order"})),
    Route("DELETE", _OF, "delete", "Delete the tag and its parts.", tags.delete, ADMIN, statuses=(204,)),
    Route("POST", f"{_OF}/halt", "halt", "Stop all reservations of the tag until it is recovered.", upkeep.halt, ADMIN,
          body=_body({}), statuses=(204,)),
    Route(
        "POST", f"{_OF}/recover", "recover",
        "Raise the tag above the highest recorded number. With `dry_run`, the default, only show what would change.",
        upkeep.recover, ADMIN, "Recoveries",
        body=_body({
            "dry_run": member(bool, "If true, the default, nothing is changed. If false, the server recovers the tag"),
            "at_least": member(NUMBER,
                "The tag also skips all numbers up to this value of its counter, even if no server has recorded them"),
        }),
    ),
    Route("GET", "/v1/verify", "verify", "Check the ledger for numbers that were reserved twice.", upkeep.verify, READ,
          "Discrepancies", line="CheckedTag",
          query={"tag": member(str, "Name of the tag to check. Default: all tags")}),
    Route("GET", "/v1/doctor", "doctor", "Check Redis, the store, the settings and the tags; list risks and remedies.",
          upkeep.doctor, READ, "Findings"),
    Route(
        "POST", "/v1/store", "store",
        "Use the store of this issuer: for another issuer whose `store` is the URL of this server.",
        store.store, store.READ, "Stored", checked=True,
        body=_body({
            "call": member(Literal[store.NAMES], "Name of the call: a method of `issuer.Store`"),
            "tag": member(str, "Name of the tag. Empty for calls that concern no tag"),
            "arguments": member(dict[str, Any], "Arguments of the call"),
        }, ["call"]),
    ),
    Route(
        "POST", "/v1/redis", "redis",
        "Use the Redis of this issuer: for a client that has neither Redis nor a store.",
        relay.redis, READ, "Relayed", checked=True,
        body=_body({"step": member(dict[str, Any], "Commands, each with its key without the prefix")}, ["step"]),
    ),
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
