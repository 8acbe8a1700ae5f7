"""The HTTP calls of didi's tinyid."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from issuer.advice import http
from issuer.doors.access import Caller
from issuer.doors.outside import outside
from issuer.doors.web.calls import Request
from issuer.doors.web.compat.family import (
    JSON_UTF8,
    Call,
    Family,
    boot_error,
    joined,
    later,
    media_of,
    not_found,
    parameters,
    without_extras,
)
from issuer.doors.web.guard import unauthenticated
from issuer.doors.web.numbers import in_pieces, ranges
from issuer.doors.web.replies import LAST, Reply, dumped
from issuer.errors import Forbidden, IssuerError, TooManyRequests, Unauthenticated, UnknownTag

#: Reason of the reservations in the ledger.
REASON: Final = "tinyid"
#: Codes in tinyid's replies.
_TOKEN, _FAILED = 5, 6
#: Share of a segment in percent, after which a client of tinyid fetches the next one.
_PREFETCH: Final = 20

_CALLS: Final = re.compile(r"/tinyid/id/(next(?:Segment)?Id)(Simple)?(\.[^/]*|/)?")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_INTEGERS: Final = range(-(2**31), 2**31)
_MISMATCH: Final = "org.springframework.web.method.annotation.MethodArgumentTypeMismatchException"


class Tinyid(Family):
    """The calls of a tinyid server."""

    roots = ("/tinyid/",)

    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to tinyid."""
        if not path.startswith("/tinyid/"):
            return None
        found = _CALLS.fullmatch(without_extras(path))
        if found is None:
            return "tinyid", not_found
        call = self._next_id if found[1] == "nextId" else self._next_segment_id
        return f"tinyid_{found[1]}", partial(call, simple=found[2] is not None)

    async def _next_id(self, request: Request, *, simple: bool) -> Reply:
        """Draw `batchSize` numbers: none if it is 0 or negative."""
        given = await parameters(request)
        said = given.get("batchSize", [""])[0].strip() or "1"
        if not _INTEGER.fullmatch(said) or int(said) not in _INTEGERS:
            message = (
                "Failed to convert value of type 'java.lang.String' to required type 'java.lang.Integer'; nested "
                f'exception is java.lang.NumberFormatException: For input string: "{said}"'
            )
            return boot_error(request, 400, message, exception=_MISMATCH, headers=LAST)
        size = min(int(said), self.service.settings.compat_batch)

        async def draw(tag: str, caller: Caller) -> Reply:
            before, after = (b"", b"") if simple else (b'{"data":[', b'],"code":200,"message":""}')
            media = media_of(request) if simple else JSON_UTF8
            if size < 1:
                return Reply(before + after, media)
            caller.spend(size, tag)
            if size == 1:
                numbers: Sequence[Sequence[int]] = [[await self.service.ids.next(tag, timeout=self.timeout)]]
            else:
                numbers = await ranges(self.service, request, tag, size, self.timeout)
            return in_pieces(numbers, before, b",", after, media)

        return await self._answered(request, given, draw, simple=simple, before="error query segmentId: ")

    async def _next_segment_id(self, request: Request, *, simple: bool) -> Reply:
        """Reserve one step of a trend tag. The client issues its numbers.

        These are the numbers of (currentId, maxId] that leave the rest `remainder` when they are divided by `delta`.
        """

        async def reserve(tag: str, caller: Caller) -> Reply:
            numbers = await self.service.ids.engine.reserve_step(tag, REASON, caller.spend, self.timeout)
            low, high, delta = numbers[0] - 1, numbers[-1], numbers.step
            loading, rest = low + (high - low) * _PREFETCH // 100, high % delta
            if simple:
                return Reply(b"%d,%d,%d,%d,%d" % (low, loading, high, delta, rest), media_of(request))
            data = {"maxId": high, "loadingId": loading, "currentId": low, "delta": delta, "remainder": rest}
            return Reply(dumped({"data": data, "code": 200, "message": ""}), JSON_UTF8)

        return await self._answered(request, await parameters(request), reserve, simple=simple)

    async def _answered(
        self,
        request: Request,
        given: Mapping[str, Sequence[str]],
        call: Callable[[str, Caller], Awaitable[Reply]],
        *,
        simple: bool,
        before: str = "",
    ) -> Reply:
        """Check token and tag, and return the reply of `call`. `before`: beginning of the message of an error."""
        request.tag, token = (joined(given.get(name, ())) for name in ("bizType", "token"))
        refused = _failed(request, _TOKEN, "token is error", simple=simple)
        if not request.tag or not token:
            return refused
        try:
            caller = self.service.access.identify(token)
            request.admit(caller)
            request.token = caller.name
            caller.need("issue", request.tag)
            await self.check(request)
            return await call(request.tag, caller)
        except Unauthenticated as error:
            return unauthenticated(request, self.service.access, error, refused)
        except Forbidden:
            return refused
        except TooManyRequests as error:
            return _failed(request, _FAILED, "too many requests", error, simple=simple)
        except IssuerError as error:
            text = f"can not find biztype:{error.tag}" if isinstance(error, UnknownTag) else outside(error).told(http)
            return _failed(request, _FAILED, f"{before}{text}", error, simple=simple)


def _failed(request: Request, code: int, text: str, error: IssuerError | None = None, *, simple: bool) -> Reply:
    headers = () if error is None else later(error)
    if simple:
        return Reply(b"", media_of(request), headers=headers)
    return Reply(dumped({"data": None, "code": code, "message": text}), JSON_UTF8, headers=headers)
