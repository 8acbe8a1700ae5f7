"""The OpenAPI 3.1 document, generated from the table of routes."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import issuer
from issuer.doors.web.page import page
from issuer.doors.web.replies import LINES, dumped
from issuer.doors.web.routes import ROUTES, Route
from issuer.doors.web.schemas import SCHEMAS

#: Descriptions of the HTTP statuses of errors.
_TOLD: Final[Mapping[int, str]] = {
    400: "The request is malformed, or an argument is out of range",
    401: "The token is missing or unknown",
    403: "The token lacks the scope, a plugin rejected the call, or the request is cross-origin",
    404: "The tag does not exist",
    409: "The tag exists already, or has no number left",
    408: "The body did not arrive in time",
    413: "The body is larger than 64 KB",
    415: "The body is not application/json",
    422: "A member is unknown or has the wrong type, or settings contradict each other",
    429: "The token's rate is used up; retry after Retry-After",
    500: "An operator must act",
    503: "Redis or the store does not answer, or the tag is halted; retry after Retry-After",
}

_ABOUT: Final = """Unique, increasing 64-bit numbers per tag. Every request that draws a number is a POST.

Percent-encode tags in paths: `a/b` is `a%2Fb`. Numbers are JSON integers up to 2^63-1. With `?as=string` they are
strings. Errors are problem details (RFC 9457): programs check `code`, which never changes."""


def pages() -> tuple[bytes, bytes]:
    """Return the contents of /openapi.json and /docs."""
    described = document()
    return dumped(described), page(described).encode()


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "segment-issuer", "version": issuer.__version__, "description": _ABOUT},
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "Required if the server has tokens"}
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.told,
        "parameters": _parameters(route),
        "responses": {
            **{str(status): _good(route, status) for status in route.statuses},
            **{str(status): _bad(status) for status in statuses(route)},
        },
        "security": [{"token": []}, {}] if route.scope else [{}],
    }
    if route.scope:
        operation["description"] = f"Required scope: {' or '.join(f'`{each}`' for each in route.scope)}."
    if route.body is not None:
        schema = dict(route.body.schema)
        if route.name == "create":
            schema["oneOf"] = [{"required": ["tag"]}, {"required": ["tags"]}]
        needed = "required" in schema or "oneOf" in schema
        operation["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    text = {"type": "string", "minLength": 1}
    name = {**text, "maxLength": 200}
    in_path = (
        _parameter("tag", "path", name, "Name of the tag, 1 to 200 bytes"),
        _parameter("shown", "path", text, "Number or text to decode"),
        _parameter("number", "path", {"type": "string", "pattern": "^[0-9]{1,100}$"}, "Number to look up"),
    )
    about = "Text that the caller chooses. A retry with the same text returns the same number"
    return [
        *(each for each in in_path if f"{{{each['name']}}}" in route.path),
        *(_parameter(name, "query", schema, schema["description"]) for name, schema in route.parameters.known.items()),
        *([_parameter("Idempotency-Key", "header", name, about)] if route.key else []),
    ]


def _parameter(name: str, place: str, schema: Mapping[str, Any], about: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": about} | {
        "schema": {key: each for key, each in schema.items() if key != "description"}
    }


def statuses(route: Route) -> list[int]:
    """Return the HTTP statuses of the errors that a route can return."""
    found = {400, 403, 500}
    if route.name != "livez":
        found |= {503}
    if route.scope:
        found |= {401, 404, 409, 422, 429}
    if route.body is not None:
        found |= {408, 413, 415}
    return sorted(found)


def _good(route: Route, status: int) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    shapes = [{"$ref": f"#/components/schemas/{name}"} for name in route.reply.split(" or ") if name in SCHEMAS]
    if shapes:
        schema: dict[str, Any] = shapes[0] if len(shapes) == 1 else {"anyOf": shapes}
        response["content"] = {"application/json": {"schema": schema}}
        if route.plain:
            response["content"]["text/plain"] = {"schema": {"type": "string"}}
        if route.line:
            response["content"][LINES.decode()] = {"schema": {"$ref": f"#/components/schemas/{route.line}"}}
    elif route.reply:
        response["content"] = {route.reply: {"schema": {"type": "object" if "json" in route.reply else "string"}}}
    if route.name == "create":
        response["headers"] = {"Location": {"schema": {"type": "string"}, "description": "Path of the tag"}}
    return response


def _bad(status: int) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    response: dict[str, Any] = {"description": _TOLD[status], "content": content}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds until a retry"}}
    if status == HTTPStatus.UNAUTHORIZED:
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
