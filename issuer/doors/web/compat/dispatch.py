"""Finds the compatible calls among all requests. Other requests go to the usual application."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Final

from issuer.clock import monotonic
from issuer.doors.access import Access
from issuer.doors.web import calls
from issuer.doors.web.compat.family import PLAIN, CompatRequest, Family, Handler
from issuer.doors.web.guard import HeaderGuard, administered, unauthenticated
from issuer.doors.web.replies import ALWAYS, BODY, START, Message, Problem, Receive, Reply, Send, answer
from issuer.doors.web.service import Service
from issuer.errors import Unauthenticated

#: Maximum number of paths whose call is cached. There is a limit because clients can send any path.
_KEPT: Final = 10_000
#: Longest path that is cached. A tag has at most 200 bytes, each of which takes up to 3 characters.
_LONGEST: Final = 1000

#: Headers of a reply with only a number, by its count of digits.
_HEADERS: Final = [
    [*ALWAYS, (b"content-type", PLAIN), (b"content-length", b"%d" % digits)] for digits in range(len(str(2**63)) + 1)
]

App = Callable[[Message, Receive, Send], Awaitable[None]]

#: The module and the class of each family, by its name in the setting `compat`.
_FAMILIES: Final = {
    "leaf": ("leaf", "Leaf"),
    "leaf:exact": ("leaf", "ExactLeaf"),
    "tinyid": ("tinyid", "Tinyid"),
    "leaf-go": ("leaf_go", "LeafGo"),
}


class CompatApplication:
    """An ASGI application that answers compatible calls, and passes other requests to the usual application."""

    def __init__(
        self, app: App, drain: Callable[[], None], service: Service, access: Access, guard: HeaderGuard
    ) -> None:
        self._app, self._service, self._access, self._guard = app, service, access, guard
        self.drain = drain
        self._prefix = service.settings.compat_prefix
        #: Whether a page of another site could draw: it knows no token.
        self._by_pages = access.is_open and not service.settings.compat_any_page
        self._families: list[Family] = []
        for name in service.settings.compat:
            module, kind = _FAMILIES[name]
            family = getattr(import_module(f"issuer.doors.web.compat.{module}"), kind)
            self._families.append(family(service, access))
        self._reads = frozenset(name for each in self._families for name in each.reads)
        self._roots = tuple(f"{self._prefix}{root}" for each in self._families for root in each.roots)
        self._known = lru_cache(_KEPT)(self._find)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = calls.raw_path(scope) if scope["type"] == "http" else ""
        find = self._known if len(path) <= _LONGEST else self._find
        found = find(path) if path.startswith(self._roots) or "//" in path else None
        if found is None:
            await self._app(scope, receive, send)
            return
        began = monotonic()
        verbs, name, call = found
        request = CompatRequest(scope, receive, {}, path[len(self._prefix) :], name)
        reply: Reply | bytes
        try:
            reply = await self._answered(request, verbs, call)
        except Exception as error:  # noqa: BLE001 - the client gets a problem without details
            reply = answer(error, request.call, closed=self._service.ids.closed)
            if isinstance(error, Unauthenticated):
                reply = unauthenticated(scope, self._access, error, reply)
        if isinstance(reply, bytes) and not self._service.stopping:
            await send({"type": START, "status": 200, "headers": _HEADERS[len(reply)]})
            await send({"type": BODY, "body": reply})
            self._access.tally.answered(request.call, 200, request.token, monotonic() - began)
            return
        if isinstance(reply, bytes):
            reply = Reply(reply, PLAIN)
        if request.administers and (request.token or self._access.is_open):
            reply = administered(scope, request.call, request.token, request.tag, reply)
        await reply.send(scope["method"], send, last=self._service.stopping)
        self._access.tally.answered(request.call, reply.status, request.token, monotonic() - began)

    def _find(self, path: str) -> tuple[Sequence[str], str, Handler] | None:
        """Return the allowed methods, the name and the handler of the call with this path, or None."""
        merged = re.sub("//+", "/", path)
        for family in self._families:
            place = merged if family.merges else path
            call = family.find(place[len(self._prefix) :]) if place.startswith(self._prefix) else None
            if call is not None:
                return family.verbs, *call
        return None

    async def _answered(self, request: CompatRequest, verbs: Sequence[str], call: Handler) -> Reply | bytes:
        request.headers = headers = calls.headers_of(request.scope)
        self._guard.check(headers)
        if self._by_pages and request.call not in self._reads:
            self._guard.check_draw(headers)
        if b"prefetch" in headers.get(b"sec-purpose", headers.get(b"purpose", b"")):
            raise Problem(403, "cross_origin", "a GET draws a number here, so prefetching is rejected")
        method = request.scope["method"]
        if not verbs or method in verbs:
            return await call(request)
        allow = [(b"allow", ",".join((*verbs, "HEAD", "OPTIONS")).encode())]
        if method in ("HEAD", "OPTIONS"):  # a probe must not use up numbers
            return Reply(media=PLAIN, headers=allow if method == "OPTIONS" else ())
        raise Problem(405, "method_not_allowed", f"this path allows {', '.join(verbs)}", headers=allow)
