"""The HTTP calls of the port of Leaf's segments to Go."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from issuer.doors.access import Access
from issuer.doors.web.calls import bytes_of, parsed, raw_path
from issuer.doors.web.compat.family import Call, CompatRequest, Family, later, parameters
from issuer.doors.web.replies import Headers, Problem, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import (
    InvalidArgument,
    IssuerError,
    StoreUnavailable,
    TagExists,
    TooManyRequests,
    UnknownTag,
)

#: Step of a tag that is created without one.
STEP: Final = 2000
#: Highest step of a new tag.
STEP_MOST: Final = 10_000_000

_PLAIN: Final = b"text/plain"
_JSON: Final = b"application/json; charset=utf-8"
_SUCCESS: Final = b'{"code":0,"data":null,"msg":"success"}'
_MALFORMED: Final = Reply(b'{"code":1000,"msg":"param Invalid"}', _JSON)
#: Errors that the port reports as errors of its database.
_AWAY: Final = (UnknownTag, StoreUnavailable)

#: Members of the bodies, with the range of whole numbers. None means a text.
_MEMBERS: Final[Mapping[str, range | None]] = {
    "biz_tag": None,
    "description": None,
    "max_id": range(2**64),
    "step": range(-(2**31), 2**31),
}


class LeafGo(Family):
    """The calls of the port to Go. Its replies have the status 200, also for errors."""

    roots = ("/api/leaf",)
    verbs = ()
    merges = False

    def __init__(self, service: Service, access: Access) -> None:
        super().__init__(service, access)
        self._calls: dict[tuple[str, str], Call] = {
            ("GET", "/api/leaf"): ("leaf_go_get", self._get),
            ("POST", "/api/leaf"): ("leaf_go_create", self._create),
            ("PUT", "/api/leaf/init/cache"): ("leaf_go_init", self._init),
            ("PUT", "/api/leaf/step"): ("leaf_go_step", self._step),
        }

    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to the port."""
        return ("leaf_go", self._answer) if path == "/api/leaf" or path.startswith("/api/leaf/") else None

    async def _answer(self, request: CompatRequest) -> Reply | bytes:
        method, path = request.scope["method"], request.path
        found = self._calls.get((method, path))
        if found is not None:
            request.call, call = found
            try:
                return await call(request)
            except _MalformedBodyError:
                return _MALFORMED
            except TooManyRequests as error:
                return _failed(error, "")
        if (method, path.removesuffix("/")) in self._calls:
            query = request.scope["query_string"]
            place = raw_path(request.scope).removesuffix("/").encode() + (b"?" + query if query else b"")
            # After 301, a client would send a GET, which draws.
            return Reply(media=_PLAIN, status=301 if method == "GET" else 307, headers=[(b"location", place)])
        return Reply(b"404 page not found", _PLAIN, 404)

    async def _get(self, request: CompatRequest) -> Reply:
        """Draw a number."""
        tag = parameters(request.scope["query_string"]).get("biz_tag", [""])[0]
        self.identify(request, "issue", tag)
        try:
            await self.check(request)
            number = await self.service.ids.next(tag, timeout=self.timeout)
        except IssuerError as error:
            return _failed(error, "db error" if isinstance(error, _AWAY) else "get id failed")
        return Reply(b'{"code":0,"data":{"ID":%d},"msg":"success"}' % number, _JSON)

    async def _create(self, request: CompatRequest) -> Reply:
        """Create a tag. `max_id` is its first number."""
        said = await _said(request)
        tag, step = said["biz_tag"], said["step"] or STEP
        request.administers = True
        self.identify(request, "admin", tag)
        if not tag or step < 1:
            return _refusal("param invalid")
        if step > STEP_MOST:
            return _refusal("step limit exceeded")
        start, description = said["max_id"] or 1, said["description"] or tag
        try:
            await self.service.ids.create(tag, start=start, step=step, description=description, timeout=self.timeout)
        except TagExists:
            return _refusal(f"Error 1062: Duplicate entry '{tag}' for key 'biz_tag'")
        except IssuerError as error:
            return _failed(error, "param invalid" if isinstance(error, InvalidArgument) else "db error")
        return Reply(_SUCCESS, _JSON)

    async def _step(self, request: CompatRequest) -> Reply:
        """Change the step of a tag."""
        said = await _said(request)
        tag, step = said["biz_tag"], said["step"]
        request.administers = True
        self.identify(request, "admin", tag)
        if not tag or step < 1:
            return _refusal("param invalid")
        try:
            await self.service.ids.configure(tag, step=step, timeout=self.timeout)
        except UnknownTag as error:
            return _failed(error, "no update")
        except IssuerError as error:
            return _failed(error, "param invalid" if isinstance(error, InvalidArgument) else "db error")
        return Reply(_SUCCESS, _JSON)

    async def _init(self, request: CompatRequest) -> Reply:
        """Load numbers of a tag, and show its segment. Unlike in the port, no numbers are dropped."""
        tag = (await _said(request))["biz_tag"]
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


class _MalformedBodyError(Exception):
    """The body is not a JSON object, or a member has the wrong type."""


async def _said(request: CompatRequest) -> dict[str, Any]:
    """Return the members of the body. As in Go, a missing member is "" or 0. Raises _MalformedBodyError."""
    body = bytes(await bytes_of(request.headers, request.receive))
    try:
        given = parsed(body)
    except (Problem, InvalidArgument) as error:
        raise _MalformedBodyError from error
    said: dict[str, Any] = {}
    for name, numbers in _MEMBERS.items():
        value = given.get(name)
        if value is None:
            value = "" if numbers is None else 0
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (isinstance(value, str) if numbers is None else whole and value in numbers):
            raise _MalformedBodyError
        said[name] = value
    return said


def _refusal(text: str, headers: Headers = ()) -> Reply:
    return Reply(dumped({"code": 1001, "msg": text}), _JSON, headers=headers)


def _failed(error: IssuerError, text: str) -> Reply:
    return _refusal("too many requests" if isinstance(error, TooManyRequests) else text, later(error))
