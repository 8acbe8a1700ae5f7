"""The ASGI application: finds the route of a request, checks the caller, and calls the handler."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from issuer.api.aio import AsyncIssuer
from issuer.clock import monotonic
from issuer.doors.access import Access, Caller
from issuer.doors.lookups import LookUps
from issuer.doors.web import calls
from issuer.doors.web.calls import RequestCall
from issuer.doors.web.guard import HeaderGuard, address_of, administered, identified, unauthenticated
from issuer.doors.web.numbers import NUMBER_BODY, before_number
from issuer.doors.web.openapi import document
from issuer.doors.web.page import page
from issuer.doors.web.replies import (
    ALWAYS,
    BODY,
    JSON,
    LINES,
    START,
    Message,
    Problem,
    Receive,
    Reply,
    Send,
    answer,
    dumped,
)
from issuer.doors.web.routes import Route, route_of
from issuer.doors.web.service import Exposition, Service
from issuer.errors import Unauthenticated
from issuer.settings import Settings, seconds
from issuer.tally import WITHIN

if TYPE_CHECKING:
    from issuer.doors.web.compat.dispatch import CompatApplication

#: Maximum number of cached paths of draws. There is a limit because clients can send any path.
_KEPT: Final = 10_000

_PREFIX: Final = b"/v1/tags/"
_SUFFIX: Final = b"/next"
_SLASHES: Final = _PREFIX.count(b"/") + _SUFFIX.count(b"/")

_NEVER: Final = frozenset({b"\0"})
#: Headers that can change the effect of a draw, each with the values that are allowed on the short way (see
#: `Application`). An empty set allows any value.
_USUAL: Final[dict[bytes, frozenset[bytes]]] = {
    b"host": frozenset(),
    b"authorization": frozenset(),
    # Defaults of curl, of clients in Python and Go, and of axios.
    b"accept": frozenset((b"*/*", b"application/json", b"application/json, text/plain, */*")),
    b"content-length": frozenset({b"0"}),
    b"idempotency-key": _NEVER,
    b"content-type": _NEVER,
    b"transfer-encoding": _NEVER,
    b"origin": _NEVER,
    b"sec-fetch-site": _NEVER,
    b"expect": _NEVER,
}
#: Paths that accept any Host header, because a page of another site cannot misuse their replies.
_PROBES: Final = frozenset((b"/livez", b"/readyz"))
_QUERIES: Final = frozenset((b"", b"as=string"))
_VERSIONS: Final = frozenset(("1.0", "1.1"))

#: More bytes than any reply to a draw. A tag has up to 200 bytes, JSON needs up to 6 bytes for each byte of the tag,
#: and a number has up to 19 digits.
_BODY_MOST: Final = 1500

#: Name in the metrics for requests that match no route.
_OTHER: Final = "other"

#: Caller without a valid token, on a route that needs no token.
_NOBODY: Final = Caller("", (), ())


class _Path(NamedTuple):
    """The path of a draw. `tag`: the tag in the path. `before`: the beginning of the reply's body, up to the number."""

    tag: str
    before: bytes


@dataclass(slots=True)
class _Asked:
    """The parts of a request that the log and the metrics need.

    Attributes:
        route: Route of the request. None if no route fits, or if the request was rejected before the route was known.
        token: Name of the caller's token. "" if the caller has none.
        tag: Name of the tag. "" if the request has none.
    """

    route: Route | None = None
    token: str = ""
    tag: str = ""


class Application:
    """The ASGI application.

    Most draws take the short way: code that skips most checks, and halves the cost of a draw. Such a draw has no body,
    no parameter except `as`, and only usual headers. Its tag has plain numbers, without texts, periods and shards. All
    other requests, also invalid ones, take the long way. Both ways use the same functions to identify callers, to draw,
    and to write replies.
    """

    def __init__(self, service: Service, access: Access, guard: HeaderGuard) -> None:
        self._service, self._access, self._guard = service, access, guard
        self._tally, self._draws = access.tally, access.tally.draws
        self._next, self._plain = service.ids.next, service.plain
        self._paths: dict[bytes, _Path] = {}
        #: The headers of a reply on the short way, by the length of its body.
        self._headers = {
            size: [*ALWAYS, (b"content-type", JSON), (b"content-length", b"%d" % size)] for size in range(_BODY_MOST)
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            raise ValueError(f"the application serves HTTP, not {scope['type']}")
        began, raw = monotonic(), scope.get("raw_path")
        if raw is not None and raw.endswith(_SUFFIX) and scope["method"] == "POST":
            path = self._paths.get(raw) or self._path(raw)
            if path is not None and self._plain.get(path.tag, 0.0) > began:
                headers = self._usual(scope)
                if headers is not None:
                    await self._draw(path, headers.get(b"authorization"), scope, send, began)
                    return
        asked = _Asked()
        try:
            reply = await self._answered(scope, receive, asked)
        except Exception as error:  # noqa: BLE001 - the client gets a problem without details
            reply = self._failed(error, scope, asked.route)
        if asked.route is not None and "admin" in asked.route.scope and (asked.token or self._access.is_open):
            reply = administered(scope, asked.route.name, asked.token, asked.tag, reply)
        await reply.send(scope["method"], send, last=self._service.stopping)
        name = _OTHER if asked.route is None else asked.route.name
        self._tally.answered(name, reply.status, asked.token, monotonic() - began)

    def drain(self) -> None:
        """Begin a stop: close each connection after its next reply, and answer /readyz with 503."""
        self._service.stopping = True
        # From now on all requests take the long way, because only the long way closes connections.
        self._plain = {}

    def _failed(self, error: Exception, scope: Message, route: Route | None) -> Reply:
        name = "" if route is None else f"{route.method} {route.path}"
        as_string = b"as=string" in scope["query_string"]
        reply = answer(error, name, as_string=as_string, closed=self._service.ids.closed)
        return unauthenticated(scope, self._access, error, reply) if isinstance(error, Unauthenticated) else reply

    # ------------------------------------------------------------------ the short way

    def _path(self, raw: bytes) -> _Path | None:
        """Return the parsed path of a draw, or None if the request must take the long way."""
        if not raw.startswith(_PREFIX) or raw.count(b"/") != _SLASHES or raw[len(_PREFIX) :] == b"-" + _SUFFIX:
            return None
        try:
            tag = calls.decoded(raw[len(_PREFIX) : -len(_SUFFIX)].decode("latin-1"))
        except Problem:
            return None
        path = _Path(tag, before_number(tag))
        if path.tag in self._plain:  # without this check, clients could fill the cache with invented names
            if len(self._paths) >= _KEPT:
                self._paths.clear()
            self._paths[raw] = path
        return path

    def _usual(self, scope: Message) -> dict[bytes, bytes] | None:
        """Return the headers that can change the effect of a draw (those in _USUAL), by name.

        Return None if the request must take the long way, for example because of the value of such a header.
        """
        found: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            usual = _USUAL.get(name)
            if usual is not None:
                if name in found or (usual and value not in usual):
                    return None
                found[name] = value
        # HTTP/2 requests take the long way: none of their headers shows whether there is a body.
        plain = scope["query_string"] in _QUERIES and scope["http_version"] in _VERSIONS and not scope.get("root_path")
        return found if plain and self._guard.serves(found.get(b"host")) else None

    async def _draw(self, path: _Path, authorization: bytes | None, scope: Message, send: Send, began: float) -> None:
        name = ""
        try:
            caller = identified(self._access, authorization)
            name = caller.name
            caller.need("issue", path.tag)
            number = await self._next(path.tag)
        except Exception as error:  # noqa: BLE001 - the client gets a problem without details
            reply = self._failed(error, scope, _NEXT)
            await reply.send("POST", send, last=self._service.stopping)
            self._tally.answered("next", reply.status, name, monotonic() - began)
            return
        body = NUMBER_BODY[scope["query_string"] != b""] % (path.before, number)
        await send({"type": START, "status": 200, "headers": self._headers[len(body)]})
        await send({"type": BODY, "body": body})
        # A copy of the code of `Times.add`: a call of the method would double the cost of counting.
        took, times = monotonic() - began, self._draws[name]
        times.counts[bisect_left(WITHIN, took)] += 1
        times.seconds += took

    # ------------------------------------------------------------------ the long way

    async def _answered(self, scope: Message, receive: Receive, asked: _Asked) -> Reply:
        headers = calls.headers_of(scope)
        if scope.get("raw_path") not in _PROBES:
            self._guard.check(headers)
        route, segments = route_of(scope["method"], calls.raw_path(scope))
        asked.route = route
        caller = self._caller(route, headers)
        asked.token = caller.name
        query = calls.queried(scope)
        if not route.scope:
            return await route.handler(self._service, RequestCall(caller))
        path = {name: calls.decoded(each) for name, each in segments.items()}
        tag = asked.tag = _tag(path, query)
        if route.of_tag:
            caller.need(route.scope, tag)
        said = route.parameters.of_query(query)
        body: Mapping[str, Any] = {}
        if route.body is not None:
            found = await calls.body_of(headers, receive)
            body = route.body.of_body(found)
            caller.spend(body.get("n", 1), tag)
        if not route.of_tag and not route.checked:
            tag = asked.tag = str(body.get("tag", said.get("tag", "")))
            caller.need(route.scope, None if "tags" in body else tag or None)
            if "tags" in body:
                asked.tag = ", ".join(each["tag"] for each in body["tags"])
        accept, timeout = headers.get(b"accept"), body.get("timeout", said.get("timeout"))
        call = RequestCall(
            caller=caller,
            as_string="as" in said,
            as_text=route.plain and calls.wants(accept, b"text/plain", b"text/*"),
            as_lines=bool(route.line) and calls.wants(accept, LINES, b"application/*"),
            tag=tag,
            key=calls.key_of(headers) if route.key else None,
            timeout=None if timeout is None else min(self._service.longest, timeout),
            path=path,
            query=said,
            body=body,
        )
        if route.of_numbers:
            owner = caller.name or address_of(scope)
            await self._service.look_ups.look_up(tag, owner, call.timeout, draws=route.draws)
        return await route.handler(self._service, call)

    def _caller(self, route: Route, headers: Mapping[bytes, bytes]) -> Caller:
        try:
            return identified(self._access, headers.get(b"authorization"))
        except Unauthenticated:
            if route.scope:
                raise
            return _NOBODY


_NEXT: Final = route_of("POST", "/v1/tags/-/next")[0]


def _tag(path: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the tag of a request, or "" if the request has no tag.

    HTTP clients resolve `.` and `..` in paths. So a client sends a tag with such a name in the query, and sends `-` in
    the path instead.
    """
    tag = path.get("tag", "")
    if tag == calls.ELSEWHERE and "tag" in query:
        return query["tag"]
    if tag and "tag" in query:
        raise Problem(
            422,
            "unknown_parameter",
            f"`tag` is allowed in the query only if the path has {calls.ELSEWHERE} in its place",
        )
    return tag


def application(
    ids: AsyncIssuer,
    access: Access,
    *,
    metrics: Exposition | None = None,
    allowed_hosts: Sequence[str] = (),
    longest: float = 30.0,
    settings: Settings | None = None,
    look_ups: LookUps | None = None,
) -> Application | CompatApplication:
    """Return the ASGI application over an issuer.

    Args:
        ids: The issuer. The caller opens it in the event loop that serves, and closes it.
        access: Authentication of the callers.
        metrics: Function that returns the content type and the body of /metrics. None means no metrics.
        allowed_hosts: Accepted `Host` headers besides localhost and IP addresses. "*.example.com" accepts all
            subdomains, "*" accepts every name.
        longest: Largest `timeout` of a call in seconds, above 0. Larger timeouts are reduced to this value.
        settings: The settings `longest_ttl`, `keys_per_second`, `living_keys`, `series_per_tag` and `compat...` are
            used. None means their defaults.
        look_ups: Object that looks up unknown tags, if another server with the same issuer shares it. None creates one.

    Raises:
        ConfigurationError: `allowed_hosts` is not a list of names.
        InvalidArgument: `longest` is not a number of seconds above 0.
    """
    longest = seconds(longest, "longest", zero=False)
    look_ups = look_ups or LookUps(ids.engine, access.rates)
    service = Service(ids, metrics, longest, access.rates, look_ups, settings or Settings())
    described = document()
    service.document, service.page = dumped(described), page(described).encode()
    guard = HeaderGuard(allowed_hosts, any_host=not access.is_open)
    app = Application(service, access, guard)
    if not service.settings.compat:
        return app
    from issuer.doors.web.compat.dispatch import CompatApplication

    return CompatApplication(app, app.drain, service, access, guard)
