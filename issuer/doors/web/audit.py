"""Audit: a line in the log for each call of an operator, and for requests without a token that is known."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Final

from starlette.types import Scope

from issuer.doors.access import Access
from issuer.doors.web.replies import Reply
from issuer.errors import Unauthenticated

log = logging.getLogger("issuer.audit")

#: Ids that clients give their requests, and that are taken: nothing that could be taken for another line.
_SENT: Final = re.compile(rb"[A-Za-z0-9._:-]{1,100}")


@dataclass(slots=True)
class Asked:
    """A request, as far as it was understood when it was answered. `token`: the name of the caller's."""

    token: str = ""
    tag: str = ""


def administered(scope: Scope, name: str, asked: Asked, reply: Reply) -> Reply:
    """Log a call of an operator; return the reply with the request's id."""
    request = _id(scope)
    who = f"token {asked.token!r}" if asked.token else "a caller without a token"
    log.info("%s of tag %r: %s, by %s from %s, request %s", name, asked.tag, reply.status, who, _from(scope), request)
    return _named(reply, request)


def unauthenticated(scope: Scope, access: Access, error: Unauthenticated, reply: Reply) -> Reply:
    """Count and log a request of a caller that isn't known; return the reply with the request's id."""
    request = _id(scope)
    access.failed("http", _from(scope), f"request {request}", error)
    return _named(reply, request)


def _named(reply: Reply, request: str) -> Reply:
    return replace(reply, headers=[*reply.headers, (b"x-request-id", request.encode())])


def _id(scope: Scope) -> str:
    """Return the id that the client, or a proxy, has given the request; else a new one."""
    sent = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return sent.decode() if _SENT.fullmatch(sent) else token_hex(8)


def _from(scope: Scope) -> str:
    client = scope.get("client")
    return client[0] if client else "an unknown address"
