"""The document of the API in OpenAPI 3.1, made of the table of routes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import issuer
from issuer.http.fields import Field
from issuer.http.routes import ROUTES, Route
from issuer.http.schemas import SCHEMAS

#: What else a status means here.
_TOLD: Final[Mapping[int, str]] = {
    400: "malformed, or an argument out of its range",
    401: "no token, or none that the server knows",
    403: "the token may not do this, a plugin refuses it, or it comes from a page of another site",
    404: "no such tag",
    409: "the tag is there already, or has no number left",
    408: "the body didn't come in time",
    413: "the body is larger than 64 KB",
    415: "the body is no application/json",
    422: "a member that isn't known or of another type, or settings that contradict each other",
    429: "the token's requests of this second are used up",
    500: "a person has to look",
    503: "Redis or the store is away, or the tag is halted; again after Retry-After",
}

_ABOUT: Final = """Unique, increasing 64-bit numbers per tag. Nothing that draws is a GET.

Tags are percent-encoded: `a/b` is `a%2Fb`. Numbers are JSON integers, up to 2^63-1; with `?as=string` they are strings.
Errors are problems of RFC 9457: `code` says which, and stays the same for ever."""


def document() -> dict[str, Any]:
    """Return the document."""
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
                "token": {"type": "http", "scheme": "bearer", "description": "where the server has tokens"}
            },
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.told,
        "parameters": _parameters(route),
        "responses": _responses(route),
        "security": [{"token": []}, {}] if route.scope else [{}],
    }
    if route.scope:
        operation["description"] = f"Scope of the token: {' or '.join(route.scope)}."
    if route.body is not None:
        schema = _members(route.members)
        needed = any(field.required for field in route.members)
        operation["requestBody"] = {"required": needed, "content": {"application/json": {"schema": schema}}}
    return operation


def _members(fields: Sequence[Field]) -> dict[str, Any]:
    properties = {field.name: field.described | {"description": field.about} for field in fields}
    required = [field.name for field in fields if field.required]
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | {"required": required} if required else schema


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    if route.of_tag:
        tag = {"type": "string", "minLength": 1, "maxLength": 200}
        found.append(_parameter("tag", "path", tag, "the tag, of 1 to 200 bytes"))
    if "{shown}" in route.path:
        found.append(_parameter("shown", "path", {"type": "string", "minLength": 1}, "a number or a text of the tag"))
    if "{number}" in route.path:
        found.append(_parameter("number", "path", {"type": "string", "pattern": "^[0-9]{1,100}$"}, "a number"))
    found += [_parameter(each.name, "query", each.described, each.about) for each in route.parameters]
    if route.key:
        about = "a key of the caller's: asked again, it has the same number"
        found.append(
            _parameter("Idempotency-Key", "header", {"type": "string", "minLength": 1, "maxLength": 200}, about)
        )
    return found


def _parameter(name: str, place: str, schema: Mapping[str, Any], about: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": dict(schema), "description": about}


def _responses(route: Route) -> dict[str, Any]:
    good = {str(status): _good(route, status) for status in route.statuses}
    return good | {str(status): _bad(status) for status in statuses(route)}


def statuses(route: Route) -> list[int]:
    """Return the statuses of its problems."""
    found = {400, 403, 500}
    if route.scope:
        found |= {401, 404, 409, 422, 429, 503}
    if route.body is not None:
        found |= {408, 413, 415}
    if route.name == "readyz":
        found |= {503}
    return sorted(found)


def _good(route: Route, status: int) -> dict[str, Any]:
    response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if route.reply in SCHEMAS:
        response["content"] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.reply}"}}}
        if route.plain:
            response["content"]["text/plain"] = {"schema": {"type": "string"}}
    elif route.reply:
        response["content"] = {route.reply: {"schema": {"type": "object" if "json" in route.reply else "string"}}}
    if route.name == "create":
        response["headers"] = {"Location": {"schema": {"type": "string"}, "description": "the tag's path"}}
    return response


def _bad(status: int) -> dict[str, Any]:
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    response: dict[str, Any] = {"description": _TOLD[status], "content": content}
    if status in (429, 503):
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}, "description": "seconds"}}
    if status == 401:  # noqa: PLR2004 - Unauthorized
        response["headers"] = {"WWW-Authenticate": {"schema": {"type": "string"}}}
    return response
