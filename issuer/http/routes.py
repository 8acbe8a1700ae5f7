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


_TIMEOUT: Final = Field("timeout", SECONDS, "how long the call may wait, in seconds; the server caps it")
_AS: Final = Field(
    "as", words("string"), '"string": a tag\'s numbers as JSON strings, for clients whose integers end at 2^53'
)
_TAG: Final = Field("tag", TEXT, "the tag, where the path has - for it: for the tags . and .., which clients resolve")
_SHARD_KEY: Final = Field("shard_key", TEXT, "its key, for a tag with shards")
_RESTART_KEY: Final = Field("restart_key", TEXT, "the key whose series it is, for a tag with a series for each key")
_CURSOR: Final = Field("cursor", TEXT, "the `next` of the page before")
_LIMIT: Final = Field("limit", WHOLE, "entries of the page; 100 if not given", schema=_to(1, tags.PAGE_MOST))

_CHANGEABLE: Final = (
    Field("step", STEP, 'how many numbers a segment has; "auto": the server chooses'),
    Field("limit", LIMIT, "the last number there is"),
    Field("start", NUMBER, "the first number; of a tag that is there, skips those below it"),
    Field("above", NUMBER, "the number below the first one, in place of start"),
    Field("lease", WHOLE, "how many numbers each process draws ahead, of a trend tag", schema=_to(0, LEASE_MOST)),
    Field("ahead", WHOLE, "how many segments are reserved at once", schema=_to(1, AHEAD_MOST)),
    Field("description", TEXT, "a text for people, of 1000 bytes at most"),
    Field("format", TEXT, "the look of texts, as in B{date:%y}-{seq:06d}{check}"),
    Field("restart", words(*get_args(Restart)), "when numbers begin at 1 again"),
    Field("timezone", TEXT, "the time zone of days, as Europe/Vienna"),
    Field("keyed", FLAG, "a series of its own for each restart_key"),
    Field("scramble", SCRAMBLE, "the name of the server's key to scramble with, or [from number, name] of several"),
    Field("scramble_strict", FLAG, "scramble though the order is strict"),
    Field("stride", WHOLE, "every n-th number, for n sites", schema={"minimum": 1}),
    Field("offset", WHOLE, "which of these sites, 1..stride", schema={"minimum": 1}),
    Field("stride_above", NUMBER, "change the stride above this number, which no site has reached"),
    Field("shards", SHARDS, "a sequence for each shard"),
    Field("app", WHOLE, "the application of a tag with shards", schema={"minimum": 0}),
    Field("cycle", FLAG, "begin again after the limit"),
    Field("strategy", TEXT, "segment, snowflake, or the server's own"),
    Field("options", OPTIONS, "options of the strategy"),
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
        "POST", f"{_OF}/next", "next", "Draw the next number. The same one again under the same Idempotency-Key.",
        numbers.next_number, ISSUE, "Number", plain=True, key=True,
        body=(
            _SHARD_KEY, _RESTART_KEY,
            Field("ttl", SECONDS, "for how long the number of an Idempotency-Key is kept, in seconds; a day"),
        ),
    ),
    Route(
        "POST", f"{_OF}/take", "take", "Draw n numbers, all or an error.", numbers.take, ISSUE, "Numbers", plain=True,
        body=(Field("n", WHOLE, "how many", required=True, schema=_to(1, TAKE_MOST)),),
    ),
    Route(
        "POST", f"{_OF}/reserve", "reserve", "Reserve n contiguous numbers of a trend tag straight from the store.",
        numbers.reserve, ISSUE, "Range",
        body=(Field("n", WHOLE, "how many", required=True, schema=_to(1, HIGHEST)),),
    ),
    Route(
        "POST", f"{_OF}/warm", "warm", "Have numbers in hand, so that the first draw needs no store.",
        numbers.warm, ISSUE, body=(), statuses=(204,),
    ),
    Route(
        "GET", f"{_OF}/peek", "peek", "Show the number that comes next if no other caller draws before.",
        numbers.peek, EITHER, "Number", plain=True, query=(_SHARD_KEY, _RESTART_KEY),
    ),
    Route(
        "GET", f"{_OF}/decode/{{shown}}", "decode", "Take a number, or its text, apart.",
        numbers.decode, EITHER, "Decoded",
        query=(
            Field("number", FLAG, "true: it is a number, though it may look like a text of the tag's format"),
            Field("holder", FLAG, "true: tell the process that holds the machine number of a snowflake number"),
        ),
    ),
    Route(
        "GET", f"{_OF}/who/{{number}}", "who", "Show which process reserved a number, and when.",
        numbers.who, READ, "Provenance",
    ),
    Route(
        "GET", f"{_OF}/segments", "segments", "Show the ledger: the reserved segments, the highest first.",
        tags.segments, READ, "SegmentPage",
        query=(_LIMIT, _CURSOR, Field("upward", FLAG, "true: the lowest first")),
    ),
    Route("GET", "/v1/tags", "tags", "List the tags that the caller may read, by name.", tags.tags, READ, "TagPage",
          query=(_LIMIT, _CURSOR), checked=True),
    Route(
        "POST", "/v1/tags", "create", "Make a tag. A deleted one, made again, goes on above its numbers.",
        tags.create, ADMIN, "Tag", statuses=(201, 200),
        body=(
            Field("tag", TEXT, "its name", required=True),
            *_CHANGEABLE,
            Field("order", words(*get_args(Order)), "strict: by time, over all processes; trend: per process"),
            Field("exist_ok", FLAG, "true: take one that is there and makes these numbers"),
        ),
    ),
    Route("GET", _OF, "show", "Show all that the store and Redis know of the tag.", tags.show, READ, "Inspection"),
    Route("PATCH", _OF, "change", "Change the tag while it is in use.", tags.change, ADMIN, "Tag", body=_CHANGEABLE),
    Route("DELETE", _OF, "delete", "Retire the tag and its parts.", tags.delete, ADMIN, statuses=(204,)),
    Route("POST", f"{_OF}/halt", "halt", "Stop the tag's reservations at once, until recover.", upkeep.halt, ADMIN,
          body=(), statuses=(204,)),
    Route(
        "POST", f"{_OF}/recover", "recover",
        "Show what it takes that no number known anywhere is issued again; do it if dry_run is false.",
        upkeep.recover, ADMIN, "Recoveries",
        body=(
            Field("dry_run", FLAG, "false: do it; else nothing is changed"),
            Field("at_least", NUMBER, "counter N is taken, even if no server knows it"),
        ),
    ),
    Route("GET", "/v1/verify", "verify", "Prove that no number was reserved twice.", upkeep.verify, READ,
          "Discrepancies", query=(Field("tag", TEXT, "the tag; all of them if not given"),)),
    Route("GET", "/v1/doctor", "doctor", "Say what weakens the promise, and what to do.", upkeep.doctor, READ,
          "Findings", query=(Field("most", WHOLE, "how many tags to look at closely", schema={"minimum": 0}),)),
    Route("GET", "/livez", "livez", "Say that this process runs; nothing is asked.", upkeep.alive, (), "Health"),
    Route("GET", "/healthz", "healthz", "The same as /livez.", upkeep.alive, (), "Health"),
    Route("GET", "/readyz", "readyz", "Say whether this process serves, and what is seen of Redis and the store.",
          upkeep.readyz, (), "Readiness"),
    Route("GET", "/metrics", "metrics", "Show the metrics, for Prometheus.", upkeep.metrics, READ, "text/plain"),
    Route("GET", "/openapi.json", "openapi", "Show this document.", upkeep.document, (), "application/json"),
    Route("GET", "/docs", "docs", "Show this document to people.", upkeep.page, (), "text/html"),
)  # fmt: skip
