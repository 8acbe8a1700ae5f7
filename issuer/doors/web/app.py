"""The ASGI application over an AsyncIssuer, with a fast path for plain draws."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableMapping, Sequence
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import Receive, Scope, Send

from issuer.api.aio import AsyncIssuer
from issuer.clock import monotonic
from issuer.doors.access import Access
from issuer.doors.lookups import LookUps
from issuer.doors.web import calls
from issuer.doors.web.audit import unauthenticated
from issuer.doors.web.guard import HeaderGuard, identified
from issuer.doors.web.openapi import document
from issuer.doors.web.page import POLICY, page
from issuer.doors.web.problems import Problem, answer
from issuer.doors.web.replies import ALWAYS, JSON, dumped
from issuer.doors.web.resources import OTHER, Resource
from issuer.doors.web.routes import ROUTES, Route
from issuer.doors.web.service import Exposition, Service
from issuer.errors import Unauthenticated
from issuer.settings import Settings, seconds
from issuer.tally import WITHIN

#: Paths whose tag is kept decoded: a client can send any.
_KEPT: Final = 10_000

_PREFIX: Final = b"/v1/tags/"
_SUFFIX: Final = b"/next"
_SLASHES: Final = _PREFIX.count(b"/") + _SUFFIX.count(b"/")

_NEVER: Final = frozenset({b"\0"})
#: Headers that say what is wanted, or from where, each with what it says in a usual request; empty: anything.
_USUAL: Final[dict[bytes, frozenset[bytes]]] = {
    b"host": frozenset(),
    b"authorization": frozenset(),
    # Of clients without a wish of their own: curl, Python's and Go's; axios.
    b"accept": frozenset((b"*/*", b"application/json", b"application/json, text/plain, */*")),
    b"content-length": frozenset({b"0"}),
    b"idempotency-key": _NEVER,
    b"content-type": _NEVER,
    b"transfer-encoding": _NEVER,
    b"origin": _NEVER,
    b"sec-fetch-site": _NEVER,
    b"expect": _NEVER,
}
#: Routes for whatever watches this server, under any name: they show nothing that a page of another site could use.
_PROBES: Final = frozenset((b"/livez", b"/readyz"))
_QUERIES: Final = frozenset((b"", b"as=string"))
_VERSIONS: Final = frozenset(("1.0", "1.1"))

#: Longer than each reply of a draw: a tag has 200 bytes, of which JSON makes six apiece at most, a number 19 digits.
_BODY_MOST: Final = 1500

_START: Final = "http.response.start"
_BODY: Final = "http.response.body"


class _Path:
    """The path of a draw: its tag, and its reply up to the number."""

    __slots__ = ("before", "tag")

    def __init__(self, raw: bytes) -> None:
        """`raw`: the path as it was sent. Raises Problem."""
        self.tag = calls.decoded(raw[len(_PREFIX) : -len(_SUFFIX)].decode("latin-1"))
        self.before = b'{"tag":' + dumped(self.tag) + b',"number":'


class Application(Starlette):
    """Starlette, which looks at each request's host and origin first.

    A draw without a body or any wish, of a tag without texts, is answered without Starlette: that halves what a request
    costs. All that is unusual about one, also what is wrong with it, is for the long way to find out.
    """

    def __init__(self, service: Service, access: Access, guard: HeaderGuard) -> None:
        by_path: dict[str, list[Route]] = {}
        for route in ROUTES:
            by_path.setdefault(route.path, []).append(route)
        super().__init__(
            routes=[
                StarletteRoute(path, Resource(routes, service, access), name=routes[0].name)
                for path, routes in by_path.items()
            ],
            exception_handlers={HTTPException: self._not_found},
        )
        self.router.redirect_slashes = False
        self._service, self._access, self._guard = service, access, guard
        self._tally, self._draws = access.tally, access.tally.draws
        self._next, self._plain = service.ids.next, service.plain
        self._paths: dict[bytes, _Path] = {}
        #: Headers of a reply by the length of its body.
        self._headers = {
            size: [*ALWAYS, (b"content-type", JSON), (b"content-length", b"%d" % size)] for size in range(_BODY_MOST)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        raw = scope.get("raw_path")
        if raw is not None and raw.endswith(_SUFFIX) and scope["method"] == "POST":
            path = self._paths.get(raw) or self._path(raw)
            if path is not None and self._plain.get(path.tag, 0.0) > (began := monotonic()):
                headers = self._usual(scope)
                if headers is not None:
                    await self._draw(path, headers.get(b"authorization"), scope, receive, send, began=began)
                    return
        if self._service.stopping:
            send = _last(send)
        try:
            if raw not in _PROBES:
                self._guard.check(calls.headers_of(scope))
        except Problem as problem:
            reply = answer(problem, "")
            self._tally.requests[OTHER, reply.status, ""] += 1
            await reply(scope, receive, send)
            return
        # Each segment is decoded by itself, once it is known where it ends.
        await super().__call__({**scope, "path": calls.raw_path(scope)}, receive, send)

    def drain(self) -> None:
        """End each connection with its next reply from now on, and answer /readyz with 503: a stop has begun."""
        self._service.stopping = True
        # The long way answers everything, and each of its replies ends its connection.
        self._plain = {}

    def _path(self, raw: bytes) -> _Path | None:
        """Return the path of a draw; None if the long way has to look at it."""
        if not raw.startswith(_PREFIX) or raw.count(b"/") != _SLASHES or raw[len(_PREFIX) :] == b"-" + _SUFFIX:
            return None
        try:
            path = _Path(raw)
        except Problem:
            return None
        if path.tag in self._plain:  # else clients could have any name kept
            if len(self._paths) >= _KEPT:
                self._paths.clear()
            self._paths[raw] = path
        return path

    def _usual(self, scope: Scope) -> dict[bytes, bytes] | None:
        """Return the headers in question if the request says only which tag it draws from, and who asks; else None."""
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            usual = _USUAL.get(name)
            if usual is not None:
                if name in found or (usual and value not in usual):
                    return None
                found[name] = value
        # Of HTTP/2 no header tells whether there is a body.
        plain = scope["query_string"] in _QUERIES and scope["http_version"] in _VERSIONS and not scope.get("root_path")
        return found if plain and self._guard.serves(found.get(b"host")) else None

    async def _draw(
        self, path: _Path, authorization: bytes | None, scope: Scope, receive: Receive, send: Send, *, began: float
    ) -> None:
        as_string, name = scope["query_string"] != b"", ""
        try:
            caller = identified(self._access, authorization)
            name = caller.name
            caller.need("issue", path.tag)
            number = await self._next(path.tag)
        except Exception as error:  # noqa: BLE001 - a client sees a problem, and never what failed
            reply = answer(error, "POST next", as_string=as_string, closed=self._service.ids.closed)
            if isinstance(error, Unauthenticated):
                reply = unauthenticated(scope, self._access, error, reply)
            await reply(scope, receive, send)
            self._tally.answered("next", reply.status, name, monotonic() - began)
            return
        body = b'%b"%d"}' % (path.before, number) if as_string else b"%b%d}" % (path.before, number)
        await send({"type": _START, "status": 200, "headers": self._headers[len(body)]})
        await send({"type": _BODY, "body": body})
        # As Times.add does, whose call would cost as much again.
        took, times = monotonic() - began, self._draws[name]
        times.counts[bisect_left(WITHIN, took)] += 1
        times.seconds += took

    async def _not_found(self, request: Request, error: Exception) -> Response:
        del request, error  # the only one that Starlette raises here
        self._tally.requests[OTHER, 404, ""] += 1
        return answer(Problem(404, "not_found", "no route has this path; /docs lists all routes"), "")  # type: ignore[return-value]  # any ASGI application will do


def _last(send: Send) -> Send:
    """Return what sends replies that end their connections."""

    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == _START:
            others = [each for each in message["headers"] if each[0] != b"connection"]
            message = {**message, "headers": [*others, (b"connection", b"close")]}
        await send(message)

    return sending


def application(
    ids: AsyncIssuer,
    access: Access,
    *,
    metrics: Exposition | None = None,
    allowed_hosts: Sequence[str] = (),
    longest: float = 30.0,
    settings: Settings | None = None,
    look_ups: LookUps | None = None,
) -> Application:
    """Return the ASGI application over an issuer.

    Args:
        ids: The issuer. The caller opens it in the event loop that serves, and closes it.
        access: Authentication of the callers.
        metrics: Function that returns the content type and the body of /metrics. None means no metrics.
        allowed_hosts: Accepted `Host` headers besides localhost and IP addresses. "*.example.com" accepts all
            subdomains, "*" accepts every name.
        longest: Largest `timeout` of a call in seconds, above 0. Larger ones are reduced to it.
        settings: Settings, of which `longest_ttl`, `keys_per_second` and `series_per_tag` are used. None means their
            defaults.
        look_ups: Look-ups of unknown tags, shared with another server over the same issuer. None if not shared.

    Raises:
        ConfigurationError: `allowed_hosts` is wrong.
        InvalidArgument: `longest` is wrong.
    """
    longest = seconds(longest, "longest", zero=False)
    look_ups = look_ups or LookUps(ids.engine, access.rates)
    service = Service(ids, metrics, longest, access.rates, look_ups, settings or Settings())
    described = document()
    service.document, service.page, service.policy = dumped(described), page(described).encode(), POLICY.encode()
    return Application(service, access, HeaderGuard(allowed_hosts, any_host=not access.is_open))
