"""The parts that the families of compatible calls share. A family is the calls of one other server."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from math import ceil
from typing import Final
from urllib.parse import parse_qsl

from issuer.clock import monotonic
from issuer.doors.access import Access, Caller
from issuer.doors.tokens import Scope
from issuer.doors.web.calls import bytes_of, raw_path
from issuer.doors.web.guard import address_of, identified
from issuer.doors.web.replies import JSON, Headers, Message, Problem, Receive, Reply, dumped
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument, Unavailable, UnknownTag
from issuer_persistence.records import now_ms

JSON_UTF8: Final = b"application/json;charset=UTF-8"
PLAIN: Final = b"text/plain;charset=UTF-8"

#: Maximum number of parameters in a query or form.
_PARAMETERS_MOST: Final = 100


@dataclass(slots=True)
class CompatRequest:
    """A request of a compatible call.

    Attributes:
        path: Path as the client sent it, without the mount prefix.
        call: Name of the call in the metrics. It contains nothing from the request.
        token: Name of the caller's token. "" if the caller has none.
        tag: Name of the tag. "" if the request has none.
        administers: Whether the call changes a tag, so that it belongs into the audit log.
    """

    scope: Message
    receive: Receive
    headers: Mapping[bytes, bytes]
    path: str
    call: str
    token: str = ""
    tag: str = ""
    administers: bool = False

    @property
    def owner(self) -> str:
        """Name of the caller's token, or the caller's address if it has no token."""
        return self.token or address_of(self.scope)


#: A handler can return the digits of a number in place of a reply with them as text/plain, which takes 4 us more.
Handler = Callable[[CompatRequest], Awaitable[Reply | bytes]]
#: A call: its name in the metrics, and its handler.
Call = tuple[str, Handler]


class Family(ABC):
    """The calls of one other server.

    Attributes:
        roots: Beginnings of all paths of this family.
        verbs: Methods that are answered. If it is empty, the family itself answers all methods.
        reads: Names of the calls that draw no numbers, so that browsers may show them.
        merges: Whether several slashes in the path count as one, as in Tomcat.
        timeout: Longest wait of a call, in seconds.
    """

    roots: tuple[str, ...]
    verbs: tuple[str, ...] = ("GET", "POST")
    reads: tuple[str, ...] = ()
    merges = True

    def __init__(self, service: Service, access: Access) -> None:
        self.service, self.access = service, access
        self.timeout = service.settings.compat_timeout

    @abstractmethod
    def find(self, path: str) -> Call | None:
        """Return the call of a path, or None if the path does not belong to this family."""

    def identify(self, request: CompatRequest, scope: Scope | None = None, tag: str | None = None) -> Caller:
        """Return the caller, by its bearer token. Raises Unauthenticated.

        If `scope` is given, also check that the caller has it for the tag: raises Forbidden or TooManyRequests.
        """
        caller = identified(self.access, request.headers.get(b"authorization"))
        request.token = caller.name
        if scope is not None:
            request.tag = tag or ""
            caller.need(scope, tag)
        return caller

    async def check(self, request: CompatRequest) -> None:
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


def parameters(*encoded: bytes) -> dict[str, list[str]]:
    """Return the values of each parameter of queries and forms. Raises Problem."""
    found: dict[str, list[str]] = {}
    for each in encoded:
        try:
            pairs = parse_qsl(
                each.decode(errors="replace"), keep_blank_values=True, errors="replace", max_num_fields=_PARAMETERS_MOST
            )
        except ValueError as error:
            raise Problem(400, "malformed", f"there are more than {_PARAMETERS_MOST} parameters") from error
        for name, value in pairs:
            found.setdefault(name, []).append(value)
    return found


def joined(values: Sequence[str]) -> str:
    """Return a parameter that is a text, as Spring reads it: all its values, with commas between."""
    return ",".join(values)


async def form_of(request: CompatRequest) -> bytes:
    """Return the body of a POST that is a form, else b"". Raises Problem if it is too large, incomplete or late."""
    media = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if request.scope["method"] != "POST" or media != b"application/x-www-form-urlencoded":
        return b""
    return bytes(await bytes_of(request.headers, request.receive))


def media_of(request: CompatRequest) -> bytes:
    """Return the media type of a text: JSON if the client names this type first, as Spring decides it."""
    accept = request.headers.get(b"accept")
    if accept is None:
        return PLAIN
    return JSON_UTF8 if accept.partition(b",")[0].partition(b";")[0].strip().lower() == JSON else PLAIN


def without_extras(path: str) -> str:
    """Return the path without `;name=value` parts, as Spring reads it."""
    return re.sub(r";[^/]*", "", path) if ";" in path else path


def later(error: Exception) -> Headers:
    """Return the header Retry-After if a retry after this error helps."""
    if isinstance(error, Unavailable):
        return ((b"retry-after", b"%d" % max(1, ceil(error.retry_after))),)
    return ()


def boot_error(
    request: CompatRequest, status: int, message: str, *, exception: str = "", code: str = "", headers: Headers = ()
) -> Reply:
    """Return an error in the form of Spring Boot 1.5. `exception`: Java class. `code`: our code of the error."""
    content: dict[str, object] = {"timestamp": now_ms(), "status": status, "error": HTTPStatus(status).phrase}
    content |= {"exception": exception} if exception else {}
    content |= {"message": message, "path": raw_path(request.scope)} | ({"code": code} if code else {})
    return Reply(dumped(content), JSON_UTF8, status, headers)


async def not_found(request: CompatRequest) -> Reply:
    """Return Spring Boot's reply for an unknown path."""
    return boot_error(request, 404, "No message available")
