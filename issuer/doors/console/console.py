"""The routes of the console: who may see a page, and the replies with their headers."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from issuer.acting import acting
from issuer.board.file import BoardFile
from issuer.doors.console import acts, pages, words
from issuer.doors.console.logins import Login, Logins, set_cookie
from issuer.doors.console.options import ConsoleOptions
from issuer.doors.outside import outside
from issuer.doors.web import calls
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import JSON, Headers, Problem, Reply, answer, dumped, status_of
from issuer.doors.web.service import CONSOLE, Service
from issuer.errors import IssuerError, TooManyRequests, Unauthenticated
from issuer.threads import in_thread
from issuer.views import said

log = logging.getLogger("issuer.doors.console")

#: Headers of every page. A page may load the style, the script and values of this server, and nothing else. The
#: referrer stays within the server: with `no-referrer`, browsers would send forms without their origin.
HEADERS: Final[Headers] = (
    (
        b"content-security-policy",
        (
            b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
            b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    (b"referrer-policy", b"same-origin"),
)
HTML: Final = b"text/html; charset=utf-8"

_STATIC: Final = {
    "style.css": b"text/css; charset=utf-8",
    "script.js": b"text/javascript; charset=utf-8",
    "icon.svg": b"image/svg+xml",
}
#: Scopes that may see the pages.
_SEE: Final = ("read", "admin")
#: A path with a query, which cannot lead to another site or add a header.
_INSIDE: Final = re.compile(r"(?:/[\w.~%-]+)*/?(?:\?[\x21-\x7e]*)?", re.ASCII)
_FORM: Final = b"application/x-www-form-urlencoded"


@dataclass(slots=True)
class PageRequest:
    """A request to the console, of a caller that is logged in.

    Attributes:
        values: The fields of the query, or of a form.
        changes: Whether the caller may change tags.
    """

    request: Request
    session: Login
    values: Mapping[str, str]
    changes: bool


class Console:
    """The console of one worker."""

    def __init__(self, service: Service, options: ConsoleOptions) -> None:
        self._service, self._options = service, options
        self._file = BoardFile(options.file)
        self._sessions = Logins(service.access, self._secret)
        self._pages = pages.Pages(service.ids, self._file)
        self._templates = Environment(
            loader=PackageLoader("issuer.doors.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True,
        )  # fmt: skip
        self._templates.filters |= words.FILTERS
        for name in self._templates.list_templates(["html"]):  # compiled now, not while the first reader waits
            self._templates.get_template(name)
        static = files("issuer.doors.console") / "static"
        self._static = {
            name: Reply((static / name).read_bytes(), media, headers=HEADERS) for name, media in _STATIC.items()
        }
        self._routes: Mapping[str, Callable[[PageRequest], Awaitable[Reply]]] = {
            "": self._overview,
            "tag": self._tag,
            "tag.json": self._export,
            "act": self._act,
            "servers": self._servers,
            "history": self._history,
        }

    @property
    def alone(self) -> bool:
        """Whether the server serves only the console."""
        return self._options.alone

    def _secret(self) -> bytes:
        """Return the secret that the servers have agreed on, or that of this server."""
        agreed = self._file.fact("secret")
        return self._options.key if agreed is None else bytes.fromhex(agreed.content)

    async def answer(self, request: Request, path: str) -> Reply:
        """Answer a request. Errors become pages, too."""
        name = path.removeprefix(CONSOLE).strip("/")
        method = request.scope["method"]
        if name in self._static and method in ("GET", "HEAD"):
            return self._static[name]
        session = self._sessions.of(request.headers.get(b"cookie")) or self._bearer(request)
        try:
            values = await self._values(request, name, session, method)
            reply = await self._routed(request, path, name, session, values)
        except (Problem, IssuerError) as error:
            reply = self.failed(error, request, session)
        except sqlite3.Error as error:
            log.warning("the board cannot be read: %s", error)
            problem = Problem(503, "busy", "the file of the console cannot be read now: try again")
            reply = self.failed(problem, request, session)
        if method == "GET":
            request.hold(len(reply.body))
        return reply

    async def _routed(
        self, request: Request, path: str, name: str, session: Login | None, values: Mapping[str, str]
    ) -> Reply:
        posted = request.scope["method"] == "POST"
        if name == "login":
            return self._login(request, values, posted=posted)
        if session is None:
            return self._to_login(request, path)
        caller = session.caller
        request.admit(caller)
        request.token = caller.name
        if name == "logout" and posted:
            cookie = set_cookie("", self._root(request), secure=_is_secure(request), seconds=0)
            return self._redirect(f"{self._root(request)}/login", (b"set-cookie", cookie))
        if name not in self._routes or (posted and name != "act"):
            raise Problem(404, "not_found", "the console has no such page")
        caller.need(_SEE)
        self._file.wish("watched")
        changes = caller.may("admin") and (bool(caller.name) or self._options.changes)
        return await self._routes[name](PageRequest(request, session, values, changes))

    def _bearer(self, request: Request) -> Login | None:
        """Return the session of a program that sends its token in the header Authorization, as for the API."""
        return Login(request.caller, "") if request.refusal is None else None

    async def _values(self, request: Request, name: str, session: Login | None, method: str) -> Mapping[str, str]:
        """Return the fields of the query or the form. Raises Problem if a form may come from another page."""
        if method in ("GET", "HEAD"):
            return calls.queried(request.scope)
        if method != "POST":
            raise Problem(
                405, "method_not_allowed", "the console allows GET and POST", headers=[(b"allow", b"GET, POST")]
            )
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != _FORM:
            raise Problem(415, "unsupported_media_type", "the console accepts only forms")
        if b"origin" not in request.headers:  # the guard has rejected all origins but our own
            raise Problem(403, "no_origin", "the browser has sent no Origin header with the form, so it was rejected")
        try:
            pairs = parse_qsl((await calls.bytes_of(request)).decode(), keep_blank_values=True, max_num_fields=100)
        except ValueError as error:
            raise Problem(400, "malformed", "the form is not UTF-8, or has more than 100 fields") from error
        values = dict(pairs)
        if name != "login" and (session is None or not session.form_key or values.get("form_key") != session.form_key):
            raise Problem(403, "wrong_form", "the form was made for another login: open its page again")
        return values

    # ------------------------------------------------------------------ logins

    def _login(self, request: Request, values: Mapping[str, str], *, posted: bool) -> Reply:
        then = values.get("then", "")
        root = self._root(request)
        # Only paths of the console: a link to the login must not lead to another site.
        then = then if then.startswith(f"{root}/") and _INSIDE.fullmatch(then) else f"{root}/"
        problem, status = "", 200
        if posted:
            try:
                value = self._sessions.login(values.get("token", "").strip())
            except (Unauthenticated, TooManyRequests) as error:
                if isinstance(error, Unauthenticated):
                    self._service.access.failed("http", request.address, "login of the console", error)
                problem, status = said(error), status_of(error)
            else:
                cookie = set_cookie(value, root, secure=_is_secure(request))
                return self._redirect(then, (b"set-cookie", cookie))
        return self._page(request, None, "login.html", {"problem": problem, "then": then}, status)

    def _to_login(self, request: Request, path: str) -> Reply:
        root, query = self._root(request), request.scope["query_string"].decode("latin-1")
        then = root + path.removeprefix(CONSOLE) + (f"?{query}" if query else "")
        return self._redirect(f"{root}/login?{urlencode({'then': then})}")

    def _redirect(self, where: str, *headers: tuple[bytes, bytes]) -> Reply:
        return Reply(media=HTML, status=303, headers=[*HEADERS, (b"location", where.encode()), *headers])

    # ------------------------------------------------------------------ pages

    async def _overview(self, visit: PageRequest) -> Reply:
        return await self._shown(visit, "overview.html", await in_thread(self._pages.overview, visit.values))

    async def _tag(self, visit: PageRequest) -> Reply:
        return await self._shown(visit, "tag.html", await self._pages.tag(visit.values))

    async def _export(self, visit: PageRequest) -> Reply:
        content = await self._pages.export(visit.values)
        return Reply(
            dumped(content), JSON, headers=[*HEADERS, (b"content-disposition", b'attachment; filename="tag.json"')]
        )

    async def _servers(self, visit: PageRequest) -> Reply:
        return await self._shown(visit, "servers.html", await in_thread(self._pages.servers))

    async def _history(self, visit: PageRequest) -> Reply:
        return await self._shown(visit, "history.html", await in_thread(self._pages.history, visit.values))

    async def _act(self, visit: PageRequest) -> Reply:
        if not visit.changes:
            if not visit.session.caller.name:
                problem = "this console is read-only: start it with --console-changes, or with tokens"
                raise Problem(403, "read_only", problem)
            visit.session.caller.check("admin")
        request = visit.request
        form = acts.Form(self._service, visit.values)
        if request.scope["method"] == "POST" and "confirmed" in visit.values:
            request.administers, request.name, request.tag = True, f"console {form.what}", form.tag
            try:
                with acting(request.token, request.address):
                    await form.carry_out(request)
            except IssuerError as error:
                if form.what not in acts.WITH_FIELDS:
                    raise
                return await self._shown(visit, "act.html", await form.page(outside(error)), status_of(error))
            where = {"done": form.what} if form.what == "delete" else {"tag": form.tag, "done": form.what}
            place = "" if form.what == "delete" else "tag"
            return self._redirect(f"{self._root(request)}/{place}?{urlencode(where)}")
        if form.what != "create" and self._pages.health().health.store:  # the page would wait for the store in vain
            raise Problem(503, "store_unavailable", "the store does not answer, so no tag can be changed now")
        return await self._shown(visit, "act.html", await form.page())

    def failed(self, error: Exception, request: Request, login: Login | None = None) -> Reply:
        """Return the page for an error."""
        headers: Headers = ()
        if isinstance(error, Problem):
            status, code, text, headers = error.status, error.code, str(error), error.headers
        elif isinstance(error, IssuerError):
            error = outside(error)
            status, code, text = status_of(error), error.code, said(error)
        else:
            status, code, text = answer(error, request.name).status, "internal", "the log of the server has the details"
        content = {"status": status, "code": code, "text": text}
        reply = self._page(request, login, "failed.html", content, status)
        return Reply(reply.body, reply.media, status, [*reply.headers, *headers])

    async def _shown(self, visit: PageRequest, template: str, content: Mapping[str, Any], status: int = 200) -> Reply:
        content = {**content, "may_change": visit.changes}
        return await in_thread(self._page, visit.request, visit.session, template, content, status)

    def _page(
        self, request: Request, session: Login | None, template: str, content: Mapping[str, Any], status: int
    ) -> Reply:
        common = {
            "root": self._root(request),
            "health": self._pages.health() if session is not None and session.caller.may(_SEE) else None,
            "who": session.caller.name if session is not None else "",
            "form_key": session.form_key if session is not None else "",
            "may_change": False,
            "page": template.partition(".")[0],
            "done": "",
        }
        body = self._templates.get_template(template).render({**common, **content})
        return Reply(body.encode("utf-8", "replace"), HTML, status, HEADERS)

    def _root(self, request: Request) -> str:
        """Return the path of the console, as the browser sees it: a proxy may have put a path before it."""
        return str(request.scope.get("root_path", "")) + CONSOLE


def _is_secure(request: Request) -> bool:
    """Whether the browser uses https, as this server or the first proxy before it shows."""
    forwarded = request.headers.get(b"x-forwarded-proto", b"").lower()
    return request.scope["scheme"] == "https" or forwarded.startswith(b"https")
