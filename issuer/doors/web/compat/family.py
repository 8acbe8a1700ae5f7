"""Finds the compatible calls among all requests, and has what their families share: the calls of one other server."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from importlib import import_module
from math import ceil
from typing import Final
from urllib.parse import parse_qsl

from issuer.clock import monotonic
from issuer.doors.access import Caller
from issuer.doors.tokens import Scope
from issuer.doors.web.calls import Request, bytes_of, raw_path
from issuer.doors.web.guard import HeaderGuard
from issuer.doors.web.replies import JSON, PLAIN, Headers, Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument, Unavailable, UnknownTag
from issuer_persistence.records import now_ms

JSON_UTF8: Final = b"application/json;charset=UTF-8"

#: Maximum number of paths whose call is cached. There is a limit because clients can send any path.
_KEPT: Final = 10_000
#: Longest path that is cached. A tag has at most 200 bytes, each of which takes up to 3 characters.
_LONGEST: Final = 1000

#: The module and the class of each family, by its name in the setting `compat`.
_FAMILIES: Final = {
    "leaf": ("leaf", "Leaf"),
    "leaf:exact": ("leaf", "ExactLeaf"),
    "tinyid": ("tinyid", "Tinyid"),
    "leaf-go": ("leaf_go", "LeafGo"),
}

#: A handler can return the digits of a number in place of a reply with them as text/plain, which takes 4 us more.
Handler = Callable[[Request], Awaitable[Reply | bytes]]
#: A call: its name in the metrics, and its handler.
Call = tuple[str, Handler]


class Family(ABC):
    """The calls of one other server.

    Attributes:
        roots: Beginnings of all paths of this family.
        verbs: Methods that are answered. If it is empty, the family itself answers all methods.
        reads: Names of the calls that draw no numbers, so that browsers may show them.
        merges: Whether several slashes in the path count as one, as in Tomcat.
    """

    roots: tuple[str, ...]
    verbs: tuple[str, ...] = ("GET", "POST")
    reads: tuple[str, ...] = ()
    merges = True

    def __init__(self, service: Service) -> None:
        self.service, self.timeout = service, service.settings.compat_timeout

    @abstractmethod
    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to this family."""

    def identify(self, request: Request, scope: Scope, tag: str | None = None) -> Caller:
        """Return the caller, which must have the scope for the tag. Raises as `Request.known` and `Caller.need`."""
        caller = request.known()
        request.tag = tag or ""
        caller.need(scope, tag)
        return caller

    async def check(self, request: Request) -> None:
        """Raise UnknownTag if the tag does not exist, and InvalidArgument if its bare numbers could be ambiguous.

        Numbers with periods repeat, and those of shards and series have no single counter. A tag with a format is
        rejected too, because its callers need texts.
        """
        service, tag = self.service, request.tag
        if service.plain.get(tag, 0.0) > monotonic():
            return
        try:
            await service.look_ups.look_up(tag, request.owner, self.timeout)
        except InvalidArgument as error:  # there is no tag with such a name
            raise UnknownTag(tag) from error
        if await service.composed(tag, self.timeout):
            problem = f"tag {tag!r} has a format, periods, shards or series, and these calls return plain numbers"
            raise InvalidArgument(problem, tag=tag, value=tag)


async def parameters(request: Request) -> dict[str, list[str]]:
    """Return the values of each parameter of the query, and of the body of a POST if it is a form. Raises Problem."""
    encoded = [request.scope["query_string"]]
    media = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if request.scope["method"] == "POST" and media == b"application/x-www-form-urlencoded":
        encoded.append(await bytes_of(request))
    found: dict[str, list[str]] = {}
    for each in encoded:
        try:
            pairs = parse_qsl(
                each.decode(errors="replace"), keep_blank_values=True, errors="replace", max_num_fields=100
            )
        except ValueError as error:
            raise Problem(400, "malformed", "there are more than 100 parameters") from error
        for name, value in pairs:
            found.setdefault(name, []).append(value)
    return found


def joined(values: Sequence[str]) -> str:
    """Return a parameter that is a text, as Spring reads it: all its values, with commas between."""
    return ",".join(values)


def media_of(request: Request) -> bytes:
    """Return the media type of a text: JSON if the client names this type first, as Spring decides it."""
    first = request.headers.get(b"accept", b"").partition(b",")[0].partition(b";")[0]
    return JSON_UTF8 if first.strip().lower() == JSON else PLAIN


def without_extras(path: str) -> str:
    """Return the path without `;name=value` parts, as Spring reads it."""
    return re.sub(r";[^/]*", "", path) if ";" in path else path


def later(error: Exception) -> Headers:
    """Return the header Retry-After if a retry after this error helps."""
    if isinstance(error, Unavailable):
        return ((b"retry-after", b"%d" % max(1, ceil(error.retry_after))),)
    return ()


def boot_error(
    request: Request, status: int, message: str, *, exception: str = "", code: str = "", headers: Headers = ()
) -> Reply:
    """Return an error in the form of Spring Boot 1.5. `exception`: Java class. `code`: our code of the error."""
    content: dict[str, object] = {"timestamp": now_ms(), "status": status, "error": HTTPStatus(status).phrase}
    content |= {"exception": exception} if exception else {}
    content |= {"message": message, "path": raw_path(request.scope)} | ({"code": code} if code else {})
    return Reply(dumped(content), JSON_UTF8, status, headers)


async def not_found(request: Request) -> Reply:
    """Return Spring Boot's reply for an unknown path."""
    return boot_error(request, 404, "No message available")


class CompatCalls:
    """The calls of the families that are on."""

    def __init__(self, service: Service, guard: HeaderGuard) -> None:
        settings = service.settings
        self._guard, self._prefix = guard, settings.compat_prefix
        #: Whether a page of another site could draw: it knows no token.
        self._by_pages = service.access.is_open and not settings.compat_any_page
        self._families: list[Family] = []
        for name in settings.compat:
            module, kind = _FAMILIES[name]
            self._families.append(getattr(import_module(f"issuer.doors.web.compat.{module}"), kind)(service))
        self._reads = frozenset(name for each in self._families for name in each.reads)
        self._roots = tuple(f"{self._prefix}{root}" for each in self._families for root in each.roots)
        self._known = lru_cache(_KEPT)(self._find)

    def find(self, path: str) -> Call | None:
        """Return the call with this path, or None."""
        find = self._known if len(path) <= _LONGEST else self._find
        return find(path) if path.startswith(self._roots) or "//" in path else None

    def _find(self, path: str) -> Call | None:
        merged = re.sub("//+", "/", path)
        for family in self._families:
            place = merged if family.merges else path
            call = family.find(place[len(self._prefix) :]) if place.startswith(self._prefix) else None
            if call is not None:
                name, handler = call
                return name, partial(self._answered, family.verbs, handler)
        return None

    async def _answered(self, verbs: Sequence[str], handler: Handler, request: Request) -> Reply | bytes:
        headers = request.headers
        if self._by_pages and request.name not in self._reads:
            self._guard.check_draw(headers)
        if b"prefetch" in headers.get(b"sec-purpose", headers.get(b"purpose", b"")):
            raise Problem(403, "cross_origin", "a GET draws a number here, so prefetching is rejected")
        method = request.scope["method"]
        if not verbs or method in verbs:
            return await handler(request)
        allow = [(b"allow", ",".join((*verbs, "HEAD", "OPTIONS")).encode())]
        if method in ("HEAD", "OPTIONS"):  # a probe must not use up numbers
            return Reply(media=PLAIN, headers=allow if method == "OPTIONS" else ())
        raise Problem(405, "method_not_allowed", f"this path allows {', '.join(verbs)}", headers=allow)
