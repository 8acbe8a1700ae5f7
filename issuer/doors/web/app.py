"""The ASGI application: finds the route of a request, checks the caller, and calls the handler."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from issuer.acting import acting
from issuer.api.aio import AsyncIssuer
from issuer.clock import monotonic
from issuer.doors.access import Access
from issuer.doors.budget import Budget
from issuer.doors.lookups import LookUps
from issuer.doors.web import calls
from issuer.doors.web.calls import Request
from issuer.doors.web.guard import HeaderGuard, administered, identified, unauthenticated
from issuer.doors.web.numbers import NUMBER_BODY, before_number
from issuer.doors.web.openapi import pages
from issuer.doors.web.replies import (
    ALWAYS,
    BODY,
    JSON,
    PIECE,
    PLAIN,
    START,
    Message,
    Problem,
    Receive,
    Reply,
    Send,
    answer,
)
from issuer.doors.web.routes import Route, route_of
from issuer.doors.web.service import CONSOLE, Exposition, Service
from issuer.errors import Unauthenticated
from issuer.settings import Settings, seconds
from issuer.tally import WITHIN

if TYPE_CHECKING:
    from issuer.doors.web.compat.family import Call

#: Name of the console's requests in the metrics. Acts have a longer name.
_CONSOLE: Final = "console"
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

#: Headers of a reply with only a number, by its count of digits.
_DIGITS: Final = [
    [*ALWAYS, (b"content-type", PLAIN), (b"content-length", b"%d" % digits)] for digits in range(len(str(2**63)) + 1)
]


class ConsoleRoutes(Protocol):
    """The console, as the application uses it."""

    @property
    def alone(self) -> bool:
        """Whether the server serves only the console."""

    async def answer(self, request: Request, path: str) -> Reply:
        """Answer a request whose path is below CONSOLE."""

    def failed(self, error: Exception, request: Request) -> Reply:
        """Return the page for an error."""


class _Path(NamedTuple):
    """The path of a draw."""

    tag: str
    #: The beginning of the reply's body, up to the number.
    before: bytes


class Application:
    """The ASGI application.

    Most draws take the short way: code that skips most checks, and halves the cost of a draw. Such a draw has no body,
    no parameter except `as`, and only usual headers. Its tag has plain numbers, without texts, periods and shards. All
    other requests, also invalid ones, take the long way. Both ways use the same functions to identify callers, to draw,
    and to write replies.
    """

    def __init__(self, service: Service, guard: HeaderGuard) -> None:
        self.service, self._access, self._guard = service, service.access, guard
        self._tally, self._draws = service.access.tally, service.access.tally.draws
        self._next, self._plain = service.ids.next, service.plain
        self._paths: dict[bytes, _Path] = {}
        #: The headers of a reply on the short way, by the length of its body.
        self._headers = {
            size: [*ALWAYS, (b"content-type", JSON), (b"content-length", b"%d" % size)] for size in range(_BODY_MOST)
        }
        #: The console. None if the server has none.
        self.console: ConsoleRoutes | None = None
        self._compatible: Callable[[str], Call | None] = lambda _: None
        if service.settings.compat:
            from issuer.doors.web.compat.family import CompatCalls

            self._compatible = CompatCalls(service, guard).find

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
                    await self._draw(path, headers.get(b"authorization"), scope, receive, send, began=began)
                    return
        request = Request(scope, receive, self.service.budget, not self._access.is_open)
        try:
            reply: Reply | bytes
            try:
                reply = await self._answered(request)
            except Exception as error:  # noqa: BLE001 - the client gets a problem without details
                reply = self._failed(error, request)
            await self._finish(reply, request, send, began)
        finally:
            request.hold(-request.held)

    def drain(self) -> None:
        """Begin a stop: close each connection after its next reply, and answer /readyz with 503."""
        self.service.stopping = True
        # From now on all requests take the long way, because only the long way closes connections.
        self._plain = {}

    def _failed(self, error: Exception, request: Request) -> Reply:
        if self.console is not None and request.name.startswith(_CONSOLE):
            return self.console.failed(error, request)
        as_string = b"as=string" in request.scope["query_string"]
        reply = answer(error, request.name, as_string=as_string, closed=self.service.ids.closed)
        return unauthenticated(request, self._access, error, reply) if isinstance(error, Unauthenticated) else reply

    async def _finish(self, reply: Reply | bytes, request: Request, send: Send, began: float) -> None:
        """Send the reply, and count the request.

        The reply to a stranger is the last one on its connection: a stranger could send many requests and read nothing,
        and each connection that waits for it costs 20 KB.
        """
        status, stopping = 200, self.service.stopping
        if isinstance(reply, bytes) and not stopping:
            await send({"type": START, "status": status, "headers": _DIGITS[len(reply)]})
            await send({"type": BODY, "body": reply})
        else:
            if isinstance(reply, bytes):
                reply = Reply(reply, PLAIN)
            if request.administers and (request.token or self._access.is_open):
                reply = administered(request, reply)
            await reply.send(request.scope["method"], send, last=stopping or request.stranger)
            status = reply.status
        self._tally.answered(request.name, status, request.token, monotonic() - began)

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
        """Return the headers that can change a draw (those in _USUAL). None: the request must take the long way."""
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

    async def _draw(
        self, path: _Path, authorization: bytes | None, scope: Message, receive: Receive, send: Send, *, began: float
    ) -> None:
        name = ""
        try:
            caller = identified(self._access, authorization)
            name = caller.name
            caller.need("issue", path.tag)
            number = await self._next(path.tag)
        except Exception as error:  # noqa: BLE001 - the client gets a problem without details
            stranger = not (name or self._access.is_open)
            request = Request(scope, receive, self.service.budget, stranger, name="next", token=name)
            await self._finish(self._failed(error, request), request, send, began)
            return
        body = NUMBER_BODY[scope["query_string"] != b""] % (path.before, number)
        await send({"type": START, "status": 200, "headers": self._headers[len(body)]})
        await send({"type": BODY, "body": body})
        # A copy of the code of `Times.add`: a call of the method would double the cost of counting.
        took, times = monotonic() - began, self._draws[name]
        times.counts[bisect_left(WITHIN, took)] += 1
        times.seconds += took

    # ------------------------------------------------------------------ the long way

    async def _answered(self, request: Request) -> Reply | bytes:
        scope, path = request.scope, calls.raw_path(request.scope)
        compatible = self._compatible(path)
        if compatible is not None:
            request.name = compatible[0]
        console = self.console if f"{path}/".startswith(f"{CONSOLE}/") else None
        if console is not None:
            request.name = _CONSOLE
        request.headers = headers = calls.headers_of(scope)
        if scope.get("raw_path") not in _PROBES:
            self._guard.check(headers, page=console is not None and scope["method"] == "GET")
        try:
            request.admit(identified(self._access, headers.get(b"authorization")))
        except Unauthenticated as error:
            request.refusal = error
        if console is not None:
            return await console.answer(request, path)
        return await (self._routed(request, path) if compatible is None else compatible[1](request))

    async def _routed(self, request: Request, place: str) -> Reply:
        route, segments = route_of(request.scope["method"], place)
        request.name, request.administers = route.name, "admin" in route.scope
        if route.scope and self.console is not None and self.console.alone:
            raise Problem(404, "not_found", f"this server has only the console: {CONSOLE}")
        request.token = (request.known() if route.scope else request.caller).name
        request.query = calls.queried(request.scope)
        if route.scope:
            request.path = {name: calls.decoded(each) for name, each in segments.items()}
            await self._check(request, route)
        with acting(request.token, request.address):
            reply = await route.handler(self.service, request)
        if route.method == "GET" and len(reply.body) > PIECE:  # nothing is lost if such a reply is refused
            request.hold(len(reply.body))
        return reply

    async def _check(self, request: Request, route: Route) -> None:
        service, caller = self.service, request.caller
        tag = request.tag = _tag(request.path, request.query)
        if route.of_tag:
            caller.need(route.scope, tag)
        said = request.query = route.parameters.of_query(request.query)
        if route.body is not None:
            request.body = route.body.of_body(await calls.body_of(request))
            caller.spend(request.body.get("n", 1), tag)
        body = request.body
        if not route.of_tag and not route.checked:
            tag = request.tag = str(body.get("tag", said.get("tag", "")))
            caller.need(route.scope, None if "tags" in body else tag or None)
            if "tags" in body:
                request.tag = ", ".join(each["tag"] for each in body["tags"])
        timeout = body.get("timeout", said.get("timeout"))
        request.timeout = None if timeout is None else min(service.longest, timeout)
        if route.of_tag and "issue" in route.scope:  # such callers can send any name
            draws = "read" not in route.scope
            await service.look_ups.look_up(tag, request.owner, request.timeout, draws=draws)


def _tag(path: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the tag of a request, or "" if the request has no tag.

    HTTP clients resolve `.` and `..` in paths. So a client sends a tag with such a name in the query, and sends `-` in
    the path instead.
    """
    tag = path.get("tag", "")
    if tag == calls.ELSEWHERE and "tag" in query:
        return query["tag"]
    if tag and "tag" in query:
        problem = f"`tag` is allowed in the query only if the path has {calls.ELSEWHERE} in its place"
        raise Problem(422, "unknown_parameter", problem)
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
    budget: Budget | None = None,
) -> Application:
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
        budget: What clients make the server hold, if another server in this process shares it. None creates one.

    Raises:
        ConfigurationError: `allowed_hosts` is not a list of names.
        InvalidArgument: `longest` is not a number of seconds above 0.
    """
    longest = seconds(longest, "longest", zero=False)
    look_ups = look_ups or LookUps(ids.engine, access.rates)
    service = Service(ids, access, metrics, longest, look_ups, budget or Budget(), settings or Settings(), *pages())
    return Application(service, HeaderGuard(allowed_hosts, any_host=not access.is_open))
