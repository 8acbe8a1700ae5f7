"""Checks of the host, the origin and the token of a request, and the audit log.

The audit log contains the calls of operators, and the requests without a valid token.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import ip_address
from secrets import token_hex
from typing import Any, Final

from issuer.core.sparing import Sparing
from issuer.doors.access import Access, Caller
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply
from issuer.errors import ConfigurationError, Unauthenticated, brief

audit = logging.getLogger("issuer.audit")
_sparing = Sparing()

#: Names that every resolver and every browser resolves to this machine.
_LOCAL: Final = ("localhost", "*.localhost")
#: Maximum number of Host headers for which the result of the check is cached: clients can send any text.
_KEPT: Final = 1000

#: Pattern of the request ids that are accepted from clients. Another id could contain a line break, and the text after
#: the line break would look like a line of the log.
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,100}")


class HeaderGuard:
    """Checks the headers Host and Origin, so that a page of another site cannot draw numbers through a browser."""

    def __init__(self, allowed: Sequence[str], *, any_host: bool = False) -> None:
        """Create a guard. Raises ConfigurationError if `allowed` is not a list of names.

        `allowed`: names of this server. "*.example.com" means all names below example.com, "*" means any name.
        `any_host`: accept every name. If callers need a token, this is safe: a page of another site has no token.
        """
        named: Any = allowed  # a settings file may contain another type
        if isinstance(named, str) or not all(isinstance(each, str) and each.strip() for each in named):
            raise ConfigurationError(f"allowed_hosts is a list of names, not {brief(allowed)}")
        self._allowed = {_name_of(each.strip().lower()) for each in (*_LOCAL, *allowed)}
        if any_host:
            self._allowed.add("*")
        self._known = lru_cache(_KEPT)(self._is_allowed)

    def serves(self, host: bytes | None) -> bool:
        """Return whether the Host header is a name of this server, or an IP address.

        A foreign site can make its own name resolve to this server (DNS rebinding). A browser that shows a page of the
        foreign site then sends the foreign name as Host. IP addresses are safe: a browser sends an IP address only for
        pages that were loaded from this address. A request of HTTP/1.0 has no Host header (granian passes an empty
        one). Such a request is accepted, because no browser uses HTTP/1.0.
        """
        return not host or self._known(host)

    def _is_allowed(self, host: bytes) -> bool:
        name = _name_of(host.decode("latin-1").lower())
        return _is_address(name) or any(fnmatchcase(name, each) for each in self._allowed)

    def check(self, headers: Mapping[bytes, bytes], *, page: bool = False) -> None:
        """Raise Problem if the host is not a name of this server, or if a page of another site sends the request.

        `page`: whether the request reads a page for people. If so, a link on a page of another site may lead to it:
        a link from a chat or an alert. The browser shows the page, and the other site cannot read it.
        """
        host = headers.get(b"host")
        if not self.serves(host):
            raise Problem(403, "wrong_host", "the Host header is not a name of this server; add it to `allowed_hosts`")
        origin = headers.get(b"origin")
        foreign = origin is not None and not _is_own(origin, host)
        linked = (
            page and headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
        )
        if foreign or (headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site") and not linked):
            problem = "cross-origin requests are rejected; a proxy before this server must pass on the Host header"
            raise Problem(403, "cross_origin", problem)

    def check_draw(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Problem if a GET that draws may come from a page of another site.

        Over plain HTTP, a browser that loads an image or a script for a page sends neither Origin nor Sec-Fetch-Site,
        and a page can suppress Referer. But every browser sends a User-Agent that begins with Mozilla/, and a page
        cannot change it. The usual HTTP clients of programs send another one.
        """
        if not headers.get(b"user-agent", b"").startswith(b"Mozilla/"):
            return
        own = _is_own(headers.get(b"referer", b""), headers.get(b"host"))
        if not own and headers.get(b"sec-fetch-site") not in (b"same-origin", b"none"):
            detail = "a GET draws a number here, and a page of any site can make a browser send it, so browsers are "
            raise Problem(403, "cross_origin", f"{detail}rejected (User-Agent: Mozilla/...); see compat_any_page")


def _is_own(url: bytes, host: bytes | None) -> bool:
    return host is not None and url.lower().partition(b"://")[2].partition(b"/")[0] == host.lower()


def _name_of(host: str) -> str:
    """Return the host without its port. An IPv6 address also loses its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") if host.count(":") <= 1 else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def identified(access: Access, authorization: bytes | None) -> Caller:
    """Return the caller that the Authorization header identifies. Raises Unauthenticated if it is not valid."""
    if authorization is None:
        return access.identify(None)
    if authorization[:7].lower() != b"bearer ":
        if access.is_open:
            return access.identify(None)
        raise Unauthenticated("the Authorization header must be `Bearer TOKEN`")
    return access.identify(authorization[7:].strip().decode("latin-1"))


# ------------------------------------------------------------------ audit


def administered(request: Request, reply: Reply) -> Reply:
    """Write an operator's call to the audit log, a rejected one at most once a minute. Return the reply with its id."""
    who = f"token {request.token!r}" if request.token else "a caller without a token"
    told = ("%s of tag %r: %s, by %s from %s, request %s", request.name, request.tag, reply.status, who)
    named = _id(request)
    if 400 <= reply.status < 500:  # noqa: PLR2004 - nothing was changed; anybody can repeat such a call without end
        subject, kind = f"{who} {request.address}", (request.name, reply.status)
        _sparing.say(audit.info, subject, kind, *told, request.address, named)
    else:
        audit.info(*told, request.address, named)
    return _named(reply, named)


def unauthenticated(request: Request, access: Access, error: Unauthenticated, reply: Reply) -> Reply:
    """Count and log a request without a valid token. Return the reply with the id of the request."""
    named = _id(request)
    access.failed("http", request.address, f"request {named}", error)
    return _named(reply, named)


def _named(reply: Reply, request: str) -> Reply:
    return replace(reply, headers=[*reply.headers, (b"x-request-id", request.encode())])


def _id(request: Request) -> str:
    """Return the id of a request: the header X-Request-Id of the client or a proxy, or a new id if it is not valid."""
    sent = next((value for name, value in request.scope["headers"] if name == b"x-request-id"), b"")
    return sent.decode() if _REQUEST_ID.fullmatch(sent) else token_hex(8)
