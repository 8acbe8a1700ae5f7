"""Resources: a path with its methods. Each takes a request apart, asks whether the caller may, calls the handler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from issuer.clock import monotonic
from issuer.doors.access import Access, Caller
from issuer.doors.web import audit, calls
from issuer.doors.web.audit import Asked
from issuer.doors.web.calls import RequestCall
from issuer.doors.web.fields import read_body, read_query
from issuer.doors.web.guard import identified
from issuer.doors.web.problems import Problem, answer
from issuer.doors.web.replies import LINES, Reply
from issuer.doors.web.routes import Route
from issuer.doors.web.service import Service
from issuer.errors import Unauthenticated

#: What metrics call requests that no route is for.
OTHER: Final = "other"

#: A caller of a route that asks for no token.
_NOBODY: Final = Caller("", (), ())


class Resource:
    """The routes of a path, as an ASGI application."""

    def __init__(self, routes: Sequence[Route], service: Service, access: Access) -> None:
        self._routes = {route.method: route for route in routes}
        if "GET" in self._routes:
            self._routes["HEAD"] = self._routes["GET"]
        self._allowed = ", ".join(sorted(self._routes))
        self._service, self._access = service, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        began, asked = monotonic(), Asked()
        route = self._routes.get(scope["method"])
        reply: Reply
        as_string = b"as=string" in scope["query_string"]
        if route is None:
            reply = answer(self._not_allowed(), "")
        else:
            try:
                reply = await self._answered(route, scope, receive, asked)
            except Exception as error:  # noqa: BLE001 - a client sees a problem, and never what failed
                name = f"{route.method} {route.path}"
                reply = answer(error, name, as_string=as_string, closed=self._service.ids.closed)
                if isinstance(error, Unauthenticated):
                    reply = audit.unauthenticated(scope, self._access, error, reply)
            if "admin" in route.scope and (asked.token or self._access.is_open):
                reply = audit.administered(scope, route.name, asked, reply)
        await reply(scope, receive, send)
        name = OTHER if route is None else route.name
        self._access.tally.answered(name, reply.status, asked.token, monotonic() - began)

    def _not_allowed(self) -> Problem:
        allow = (b"allow", self._allowed.encode())
        return Problem(405, "method_not_allowed", f"this path allows {self._allowed}", headers=[allow])

    async def _answered(self, route: Route, scope: Scope, receive: Receive, asked: Asked) -> Reply:
        headers = calls.headers_of(scope)
        caller = self._caller(route, headers)
        asked.token = caller.name
        query = calls.queried(scope)
        if not route.scope:
            return await route.handler(self._service, RequestCall(caller))
        path: dict[str, str] = {name: calls.decoded(each) for name, each in scope["path_params"].items()}
        tag = asked.tag = _tag(path, query)
        if route.of_tag:
            caller.need(route.scope, tag)
        said = read_query(query, route.parameters)
        body: Mapping[str, Any] = {}
        if route.body is not None:
            found = await calls.body_of(headers, receive)
            body = read_body(found, route.members)
            caller.spend(body.get("n", 1), tag)
        if not route.of_tag and not route.checked:
            tag = asked.tag = str(body.get("tag", said.get("tag", "")))
            caller.need(route.scope, tag or None)
        call = RequestCall(
            caller=caller,
            as_string="as" in said,
            as_text=route.plain and calls.wants(headers.get(b"accept"), b"text/plain", b"text/*"),
            as_lines=bool(route.line) and calls.wants(headers.get(b"accept"), LINES, b"application/*"),
            tag=tag,
            key=calls.key_of(headers) if route.key else None,
            timeout=self._timeout(body.get("timeout", said.get("timeout"))),
            path=path,
            query=said,
            body=body,
        )
        if route.of_numbers:
            await self._service.look_ups.look_up(tag, call.timeout, draws=route.draws)
        return await route.handler(self._service, call)

    def _caller(self, route: Route, headers: Mapping[bytes, bytes]) -> Caller:
        try:
            return identified(self._access, headers.get(b"authorization"))
        except Unauthenticated:
            if route.scope:
                raise
            return _NOBODY

    def _timeout(self, asked: Any) -> float | None:
        """Return the seconds that a call may wait: no more than the server has for it. None: the issuer's."""
        if isinstance(asked, bool) or not isinstance(asked, int | float):
            return None
        return min(self._service.longest, asked)


def _tag(path: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the tag that a path names, "" if none. The query names those that clients take for steps in the path."""
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
