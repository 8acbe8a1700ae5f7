"""For FastAPI: a lifespan, a dependency, health routes, and HTTP replies for errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse

import issuer
from issuer import AsyncIssuer
from issuer.doors.web.probe import Probe
from issuer.doors.web.replies import answer
from issuer.errors import ConfigurationError, InvalidArgument, IssuerError


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:  # noqa: ARG001 - FastAPI passes the application
    """Create the AsyncIssuer of the event loop when the application starts, and close it when the application ends.

    `close` returns unused numbers. In a lifespan of your own, write `async with lifespan(app):`. The issuer is
    `issuer.adefault()`. Redis and the store need not be available at the start.

    Args:
        app: The application.

    Raises:
        ConfigurationError: A setting of the issuer is invalid.
    """
    async with issuer.adefault():
        yield


async def get_ids() -> AsyncIssuer:
    """Return the AsyncIssuer of the event loop. It is the dependency of `Ids`, for `app.dependency_overrides`."""
    return issuer.adefault()


#: Type of a parameter that FastAPI fills with the AsyncIssuer.
Ids = Annotated[AsyncIssuer, Depends(get_ids)]

#: Router with the health routes of `issuer serve`: `/livez` and `/readyz`.
health = APIRouter()
_probes: WeakKeyDictionary[AsyncIssuer, Probe] = WeakKeyDictionary()


@health.get("/livez")
async def livez() -> dict[str, str]:
    """Reply that the event loop runs."""
    return {"status": "ok"}


@health.get("/readyz")
async def readyz(ids: Ids) -> dict[str, Any]:
    """Reply that this process serves requests, and show whether the store and Redis answer.

    The status is 200 also while they do not answer. All processes share them: if an outage made the processes not
    ready, a load balancer would remove all of them at once.
    """
    found = await _probes.setdefault(ids, Probe()).readiness(ids)
    return found | {"halted": len(found["halted"])}


async def error_reply(request: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - FastAPI passes the request
    """Return the HTTP reply to a request that failed with an IssuerError, with the status that `issuer serve` uses.

    It is for `app.add_exception_handler(IssuerError, error_reply)`, and also for SQLAlchemy's StatementError, which
    contains the error of a column default. If the caller cannot do anything about the error, it is raised again, and
    the reply is 500. The reply has the error's code, but not its message, which can contain addresses of servers.

    Args:
        request: The request that failed.
        error: An IssuerError, or an exception that has it in its attribute `orig`.
    """
    cause = getattr(error, "orig", error)
    # The arguments of a column default are those of the program, not of the client.
    own = ConfigurationError if cause is error else (ConfigurationError, InvalidArgument)
    if not isinstance(cause, IssuerError) or isinstance(cause, own):
        raise error
    reply = answer(cause, "")
    if reply.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise error
    headers = {name.decode(): value.decode() for name, value in reply.headers}
    return JSONResponse({"detail": HTTPStatus(reply.status).phrase, "code": cause.code}, reply.status, headers)
