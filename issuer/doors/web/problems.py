"""Problems: errors as RFC 9457 has them, and the status of each error of the library."""

from __future__ import annotations

import logging
import traceback
from http import HTTPStatus
from math import ceil
from pathlib import Path
from typing import Any, Final

from issuer import errors
from issuer.advice import http
from issuer.doors.web.replies import PROBLEM, Headers, Reply, as_strings, dumped
from issuer.errors import IssuerError
from issuer.views import view

log = logging.getLogger("issuer.doors.web")

#: The status of each error: the first line that fits. All others are 500: a person has to look.
STATUSES: Final[tuple[tuple[type[IssuerError], int], ...]] = (
    (errors.Unauthenticated, 401),
    (errors.Forbidden, 403),
    (errors.Refused, 403),
    (errors.UnknownTag, 404),
    (errors.TagExists, 409),
    (errors.LimitReached, 409),
    (errors.FormatOverflow, 409),
    (errors.NotDecodable, 422),
    (errors.InvalidArgument, 400),
    (errors.ForeignHash, 500),
    (errors.ConfigurationError, 422),
    (errors.TooManyRequests, 429),
    (errors.Unavailable, 503),
    (errors.FenceError, 503),
    (errors.StoreBehind, 503),
)

#: Seconds after which a client may ask again where an error doesn't say it: somebody has to act before.
LATER: Final = 10.0

#: How many calls of a failure's way the log names.
_CALLS: Final = 4


class Problem(Exception):
    """A request that HTTP itself refuses, before any operation: nothing was done."""

    def __init__(self, status: int, code: str, detail: str, *, headers: Headers = (), **values: object) -> None:
        """`values`: further members, by name."""
        super().__init__(detail)
        self.status, self.code, self.headers, self.values = status, code, headers, values


def status_of(error: IssuerError) -> int:
    """Return the status that the error stands for."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def answer(error: Exception, route: str, *, as_string: bool = False, closed: bool = False) -> Reply:
    """Return the reply to a request that failed.

    `route`: for the log, without what was asked for. `closed`: the issuer is, so that its error will pass with the next
    server.
    """
    if isinstance(error, Problem):
        return _reply(error.status, error.code, str(error), error.values, error.headers)
    if isinstance(error, IssuerError):
        return _of_library(error, as_string=as_string, closed=closed)
    # Neither its message nor its traceback: both may hold what a client, or an operator, has to keep to itself.
    log.error("%s: %s in %s", route, type(error).__name__, _place(error))
    return _reply(500, "internal", "internal error: the server's log has the details", {})


def _of_library(error: IssuerError, *, as_string: bool, closed: bool) -> Reply:
    status = 503 if closed and type(error) is IssuerError else status_of(error)
    content = view(error)
    values = {name: value for name, value in content.items() if name not in ("error", "message", "code")}
    if error.drawn:
        values["drawn"] = list(error.drawn)
    headers: list[tuple[bytes, bytes]] = []
    if status in (429, 503):
        later = error.retry_after if isinstance(error, errors.Unavailable) else 1.0 if closed else LATER
        headers.append((b"retry-after", b"%d" % max(1, ceil(later))))
    if status == 401:  # noqa: PLR2004 - Unauthorized
        headers.append((b"www-authenticate", b"Bearer"))
    return _reply(status, error.code, error.told(http), as_strings(values) if as_string else values, headers)


def _reply(status: int, code: str, detail: str, values: dict[str, Any], headers: Headers = ()) -> Reply:
    """Return a problem. Its type is about:blank, so its title is the status's own; `code` says which it is."""
    title = HTTPStatus(status).phrase
    content = {"type": "about:blank", "title": title, "status": status, "code": code, "detail": detail, **values}
    return Reply(dumped(content), PROBLEM, status, headers)


def _place(error: Exception) -> str:
    """Return the last calls before the failure, the innermost first, without what they were called with."""
    frames = traceback.extract_tb(error.__traceback__)[-_CALLS:]
    return " < ".join(f"{each.name} ({Path(each.filename).name}:{each.lineno})" for each in reversed(frames))
