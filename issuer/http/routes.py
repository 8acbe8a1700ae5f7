"""The table of routes: Starlette's, and the document, are both made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, get_args

from issuer.core.requests import TAKE_MOST
from issuer.http import numbers, tags, upkeep
from issuer.http.calls import Call
from issuer.http.fields import (
    FLAG,
    LIMIT,
    NUMBER,
    OPTIONS,
    SCRAMBLE,
    SECONDS,
    SHARDS,
    STEP,
    TEXT,
    WHOLE,
    Field,
    words,
)
from issuer.http.replies import Reply
from issuer.http.service import Service
from issuer.numbers.given import Restart
from issuer.persistence.records import AHEAD_MOST, HIGHEST, LEASE_MOST, Order
from issuer.tokens import Scope

Handler = Callable[[Service, Call], Awaitable[Reply]]


def _to(lowest: int, highest: int) -> dict[str, int]:
    return {"minimum": lowest, "maximum": highest}


_TIMEOUT: Final = Field("timeout", SECONDS, "Longest time the call may wait, in seconds; the server allows 30 at most")
_AS: Final = Field(
    "as", words("string"), "Return numbers as JSON strings, for languages that round integers above 2^53"
)
_TAG: Final = Field("tag", TEXT, "The tag, if the path has `-` instead: for the tags `.` and `..`")
_SHARD_KEY: Final = Field("shard_key", TEXT, "Key that selects the shard; only for tags with shards")
_RESTART_KEY: Final = Field("restart_key", TEXT, "Key that selects the series; only for keyed tags")
_CURSOR: Final = Field("cursor", TEXT, "`next` of the previous page")
_LIMIT: Final = Field("limit", WHOLE, "Entries per page; default 100", schema=_to(1, tags.PAGE_MOST))

_CHANGEABLE: Final = (
    Field("step", STEP, 'Numbers per segment; "auto": 1000'),
    Field("limit", LIMIT, "Last number that may be issued"),
    Field("start", NUMBER, "First number; later it can only be raised, and the numbers below are skipped"),
    Field("above", NUMBER, "Alternative to `start`: the number just below the first one"),
    Field("lease", WHOLE, "Numbers that each process draws in advance; only for trend tags", schema=_to(0, LEASE_MOST)),
    Field("ahead", WHOLE, "Steps per segment; larger segments outlast longer store outages", schema=_to(1, AHEAD_MOST)),
    Field("description", TEXT, "Text for people, up to 1000 bytes"),
    Field("format", TEXT, "Template of the tag's texts, such as `B{date:%y}-{seq:06d}{check}`"),
    Field("restart", words(*get_args(Restart)), "How often numbers begin at 1 again"),
    Field("timezone", TEXT, "Time zone used for day boundaries, such as Europe/Vienna"),
    Field("keyed", FLAG, "true: each `restart_key` has a series of its own"),
    Field("scramble", SCRAMBLE, "Name of the server's scramble key, or a list of [first number, name of the key]"),
    Field("scramble_strict", FLAG, "true: allow scrambling for a strict tag"),
    Field("stride", WHOLE, "Issue every n-th number only, so that n sites share no number", schema={"minimum": 1}),
    Field("offset", WHOLE, "Position of this site among them, 1..stride", schema={"minimum": 1}),
    Field("stride_above", NUMBER, "Number above which the changed stride applies: above the numbers of all sites"),
    Field("shards", SHARDS, "Give each shard a sequence of its own: true, or the widths in bits"),
    Field("app", WHOLE, "Application number, a part of each number; only for tags with shards", schema={"minimum": 0}),
    Field("cycle", FLAG, "true: begin again after the limit; numbers are then issued twice"),
    Field("strategy", TEXT, "Algorithm that makes the numbers: segment, snowflake, or one installed on the server"),
    Field("options", OPTIONS, "Options of the strategy"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Route:
    """A method of a path. `name`: the operation's; `told`: what it does, for the document.

    `scope`: what a token needs, one of several; (): nothing, and no token. `of_all`: it is about all tags unless its
    query names one. `query`, `body`: what it takes; None: no body. `reply`: the schema of its reply; "": there is none.
    `plain`: it gives the bare number as text too. `checked`: whether its handler asks for the scope.
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
    key: bool = False
    checked: bool = False

    @property
    def of_tag(self) -> bool:
        """Whether its path names a tag."""
        return "{tag}" in self.path

    @property
    def draws(self) -> bool:
        """Whether it draws numbers of the tag, or has them drawn."""
        return self.scope == ISSUE

    @property
    def of_numbers(self) -> bool:
        """Whether it is for those who draw: they may make names up."""
        return self.of_tag and "issue" in self.scope

    @property
    def parameters(self) -> tuple[Field, ...]:
        """All that its query takes."""
        own = (_TAG, _AS, *self.query) if self.of_tag else (_AS, *self.query)
        if not self.scope:
            return self.query
        return own if self.body is not None else (*own, _TIMEOUT)

    @property
    def members(self) -> tuple[Field, ...]:
        """All that its body takes."""
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
            Field("ttl", SECONDS, "How long the key and its number are kept, in seconds, above 0; default one day"),
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
        "GET", f"{_OF}/decode/{{shown}}", "decode", "Decode a number or a text: its counter, period, shard and so on.",
        numbers.decode, EITHER, "Decoded",
        query=(
            Field("number", FLAG, "true: read `shown` as a number, even if it could be a text of the tag's format"),
            Field("holder", FLAG, "true: add the process that holds the machine number; only for snowflake tags"),
        ),
    ),
    Route(
        "GET", f"{_OF}/who/{{number}}", "who", "Show which process reserved the number, and when.",
        numbers.who, READ, "Provenance",
    ),
    Route(
        "GET", f"{_OF}/segments", "segments", "List the tag's ledger: its reserved segments, the highest first.",
        tags.segments, READ, "SegmentPage",
        query=(_LIMIT, _CURSOR, Field("upward", FLAG, "true: list the lowest first")),
    ),
    Route("GET", "/v1/tags", "tags", "List the tags that the token may read, by name.", tags.tags, READ, "TagPage",
          query=(_LIMIT, _CURSOR), checked=True),
    Route(
        "POST", "/v1/tags", "create", "Create a tag. A deleted tag, created again, continues above its old numbers.",
        tags.create, ADMIN, "Tag", statuses=(201, 200),
        body=(
            Field("tag", TEXT, "Name of the tag", required=True),
            *_CHANGEABLE,
            Field("order", words(*get_args(Order)), "strict: ordered over all processes; trend: within each process"),
            Field("exist_ok", FLAG, "true: return an existing tag if it makes the same numbers"),
        ),
    ),
    Route("GET", _OF, "show", "Show the tag's settings and its state in the store and Redis.", tags.show, READ,
          "Inspection"),
    Route("PATCH", _OF, "change", "Change settings of the tag while it is in use.", tags.change, ADMIN, "Tag",
          body=_CHANGEABLE),
    Route("DELETE", _OF, "delete", "Delete the tag and its parts.", tags.delete, ADMIN, statuses=(204,)),
    Route("POST", f"{_OF}/halt", "halt", "Stop all reservations of the tag until it is recovered.", upkeep.halt, ADMIN,
          body=(), statuses=(204,)),
    Route(
        "POST", f"{_OF}/recover", "recover",
        "Raise the tag above the highest recorded number. With `dry_run`, the default, only show what would change.",
        upkeep.recover, ADMIN, "Recoveries",
        body=(
            Field("dry_run", FLAG, "false: carry out the recovery; default true: change nothing"),
            Field("at_least", NUMBER, "Counter value to raise the tag to, even if no server has recorded it"),
        ),
    ),
    Route("GET", "/v1/verify", "verify", "Check the ledgers for numbers that were reserved twice.", upkeep.verify, READ,
          "Discrepancies", query=(Field("tag", TEXT, "Tag to check; default all tags"),)),
    Route("GET", "/v1/doctor", "doctor", "Check Redis, the store, the settings and the tags; list risks and remedies.",
          upkeep.doctor, READ, "Findings",
          query=(Field("most", WHOLE, "Tags to check in detail; default 1000", schema={"minimum": 0}),)),
    Route("GET", "/livez", "livez", "Liveness probe: 200 while this process runs.", upkeep.alive, (), "Health"),
    Route("GET", "/healthz", "healthz", "The same as /livez.", upkeep.alive, (), "Health"),
    Route("GET", "/readyz", "readyz",
          "Readiness probe: 503 once a stop has begun. Shows whether Redis and the store answer.",
          upkeep.readyz, (), "Readiness"),
    Route("GET", "/metrics", "metrics", "Metrics in the Prometheus text format.", upkeep.metrics, READ, "text/plain"),
    Route("GET", "/openapi.json", "openapi", "This API as an OpenAPI 3.1 document.", upkeep.document, (),
          "application/json"),
    Route("GET", "/docs", "docs", "This API as a page for people.", upkeep.page, (), "text/html"),
)  # fmt: skip
