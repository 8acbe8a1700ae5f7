"""The HTTP calls of the port of Leaf's segments to Go."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Final

from msgspec import Meta, Struct, ValidationError, convert

from issuer.doors.web.calls import Request, bytes_of, parsed, raw_path
from issuer.doors.web.compat.family import Call, Family, later, parameters
from issuer.doors.web.replies import Headers, Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument, IssuerError, StoreUnavailable, TagExists, TooManyRequests, UnknownTag
from issuer_persistence.records import Tag

#: Step of a tag that is created without one.
STEP: Final = 2000
#: Highest step of a new tag.
STEP_MOST: Final = 10_000_000

_PLAIN: Final = b"text/plain"
_JSON: Final = b"application/json; charset=utf-8"
_SUCCESS: Final = b'{"code":0,"data":null,"msg":"success"}'
#: Errors that the port reports as errors of its database.
_AWAY: Final = (UnknownTag, StoreUnavailable)


class _Said(Struct):
    """The members of a body. As in Go, null is "" or 0."""

    biz_tag: str | None = ""
    description: str | None = ""
    max_id: Annotated[int, Meta(ge=0)] | None = 0
    step: Annotated[int, Meta(ge=-(2**31), lt=2**31)] | None = 0


class _MalformedBodyError(Exception):
    """The body is not a JSON object, or a member has the wrong type."""


class LeafGo(Family):
    """The calls of the port to Go. Its replies have the status 200, also for errors."""

    roots = ("/api/leaf",)
    verbs = ()
    merges = False

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._calls: dict[tuple[str, str], Call] = {
            ("GET", "/api/leaf"): ("leaf_go_get", self._get),
            ("POST", "/api/leaf"): ("leaf_go_create", self._create),
            ("PUT", "/api/leaf/init/cache"): ("leaf_go_init", self._init),
            ("PUT", "/api/leaf/step"): ("leaf_go_step", self._step),
        }

    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to the port."""
        here = path == "/api/leaf" or path.startswith("/api/leaf/")
        return ("leaf_go", partial(self._answer, path)) if here else None

    async def _answer(self, path: str, request: Request) -> Reply | bytes:
        method = request.scope["method"]
        found = self._calls.get((method, path))
        if found is not None:
            request.name, call = found
            try:
                return await call(request)
            except _MalformedBodyError:
                return Reply(b'{"code":1000,"msg":"param Invalid"}', _JSON)
            except TooManyRequests as error:
                return _failed(error, "")
        if (method, path.removesuffix("/")) in self._calls:
            query = request.scope["query_string"]
            place = raw_path(request.scope).removesuffix("/").encode() + (b"?" + query if query else b"")
            # After 301, a client would send a GET, which draws.
            return Reply(media=_PLAIN, status=301 if method == "GET" else 307, headers=[(b"location", place)])
        return Reply(b"404 page not found", _PLAIN, 404)

    async def _get(self, request: Request) -> Reply:
        tag = (await parameters(request)).get("biz_tag", [""])[0]
        self.identify(request, "issue", tag)
        try:
            await self.check(request)
            number = await self.service.ids.next(tag, timeout=self.timeout)
        except IssuerError as error:
            return _failed(error, "db error" if isinstance(error, _AWAY) else "get id failed")
        return Reply(b'{"code":0,"data":{"ID":%d},"msg":"success"}' % number, _JSON)

    async def _create(self, request: Request) -> Reply:
        """`max_id` is the tag's first number."""
        said = await _said(request)
        tag, step = said.biz_tag or "", said.step or STEP
        self._administer(request, tag)
        if not tag or step < 1:
            return _refusal("param invalid")
        if step > STEP_MOST:
            return _refusal("step limit exceeded")
        start, about = said.max_id or 1, said.description or tag
        create = self.service.ids.create(tag, start=start, step=step, description=about, timeout=self.timeout)
        return await _changed(create)

    async def _step(self, request: Request) -> Reply:
        said = await _said(request)
        tag, step = said.biz_tag or "", said.step or 0
        self._administer(request, tag)
        if not tag or step < 1:
            return _refusal("param invalid")
        return await _changed(self.service.ids.configure(tag, step=step, timeout=self.timeout))

    def _administer(self, request: Request, tag: str) -> None:
        request.administers = True
        self.identify(request, "admin", tag)

    async def _init(self, request: Request) -> Reply:
        """Load numbers of a tag, and show its segment. Unlike in the port, no numbers are dropped."""
        tag = (await _said(request)).biz_tag or ""
        self.identify(request, "issue", tag)
        ids, timeout = self.service.ids, self.timeout
        try:
            await self.check(request)
            await ids.warm(tag, timeout=timeout)
            following = (await ids.peek(tag, timeout=timeout)).value
            ledger = await ids.segments(tag, timeout=timeout)
            found = await ids.inspect(tag, timeout=timeout)
        except IssuerError as error:
            return _failed(error, "db error")
        ends = ((each.low + 1, each.high) for each in ledger.entries if each.holds(following))
        low, high = next(ends, (following, following))
        time = datetime.fromtimestamp(found.store.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
        allocator = {
            "Key": tag,
            "Step": found.store.step,
            "CurrentPos": 0,
            "Buffer": [{"Cursor": following - 1, "Max": high, "Min": low, "InitOk": True}],
            "UpdateTime": time.replace("+00:00", "Z"),
            "IsPreload": False,
            "Waiting": {},
        }
        return Reply(dumped({"code": 0, "data": allocator, "msg": "success"}), _JSON)


async def _said(request: Request) -> _Said:
    """Return the members of the body. Raises _MalformedBodyError, and Unauthenticated before it reads the body."""
    request.known()
    body = await bytes_of(request)
    try:
        said = convert(parsed(body), _Said)
    except (Problem, InvalidArgument, ValidationError) as error:
        raise _MalformedBodyError from error
    if (said.max_id or 0) >= 2**64:
        raise _MalformedBodyError
    return said


async def _changed(change: Awaitable[Tag]) -> Reply:
    try:
        await change
    except TagExists as error:
        return _refusal(f"Error 1062: Duplicate entry '{error.tag}' for key 'biz_tag'")
    except IssuerError as error:
        texts = {UnknownTag: "no update", InvalidArgument: "param invalid"}
        return _failed(error, next((text for kind, text in texts.items() if isinstance(error, kind)), "db error"))
    return Reply(_SUCCESS, _JSON)


def _refusal(text: str, headers: Headers = ()) -> Reply:
    return Reply(dumped({"code": 1001, "msg": text}), _JSON, headers=headers)


def _failed(error: IssuerError, text: str) -> Reply:
    return _refusal("too many requests" if isinstance(error, TooManyRequests) else text, later(error))
