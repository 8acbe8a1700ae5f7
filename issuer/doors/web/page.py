"""The page /docs: shows the OpenAPI document as HTML, without scripts and without other files."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from hashlib import sha256
from html import escape
from typing import Any, Final

from issuer_persistence.records import HIGHEST

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem 1rem 4rem; }
nav ul { columns: 22rem; padding: 0; list-style: none; }
section { border-top: 1px solid var(--line); margin-top: 2rem; }
h2, code, pre, td:first-child { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; }
h3 { font-size: 1rem; margin-bottom: 0.2rem; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: 0.2rem 0.8rem 0.2rem 0; border-bottom: 1px solid var(--soft); }
a { color: inherit; }
"""

#: Content-Security-Policy of the page: the page may use its own style, and nothing else. It loads, sends and runs
#: nothing.
POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)


def page(document: Mapping[str, Any]) -> str:
    """Return the page for an OpenAPI document."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><header><h1>{title}</h1>",
        *(f"<p>{_inline(each)}</p>" for each in info["description"].split("\n\n")),
        '<p>OpenAPI document: <a href="/openapi.json">/openapi.json</a></p></header><nav><ul>',
    ]
    each_operation = [(path, method, each) for path, each in document["paths"].items() for method, each in each.items()]
    for path, method, operation in each_operation:
        parts.append(f'<li><a href="#{operation["operationId"]}"><code>{method.upper()} {escape(path)}</code></a></li>')
    parts.append('<li><a href="#schemas">Schemas</a></li></ul></nav><main>')
    for path, method, operation in each_operation:
        parts += _operation(path, method, operation)
    parts.append('<section id="schemas"><h2>Schemas</h2>')
    for name, schema in document["components"]["schemas"].items():
        parts.append(f'<h3 id="schema-{escape(name)}"><code>{escape(name)}</code></h3>')
        parts += _properties(schema)
    return "".join([*parts, "</section></main></body></html>\n"])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'<section id="{operation["operationId"]}"><h2>{method.upper()} {escape(path)}</h2>'
    yield f"<p>{_inline(operation['summary'])} {_inline(operation.get('description', ''))}</p>"
    rows = [(each["name"], each["in"], each["schema"], each["description"]) for each in operation["parameters"]]
    if rows:
        yield "<h3>Parameters</h3><table><tr><th>name</th><th>in</th><th>type</th><th>meaning</th></tr>"
        for name, place, schema, about in rows:
            yield f"<tr><td>{escape(name)}</td><td>{place}</td><td>{_kind(schema)}</td><td>{_inline(about)}</td></tr>"
        yield "</table>"
    if "requestBody" in operation:
        yield "<h3>Body</h3>"
        yield from _properties(operation["requestBody"]["content"]["application/json"]["schema"])
    yield "<h3>Responses</h3><table><tr><th>status</th><th>content</th><th>meaning</th></tr>"
    for status, response in operation["responses"].items():
        content = "<br>".join(
            f"{escape(media)}: {_kind(each['schema'])}" for media, each in response.get("content", {}).items()
        )
        yield f"<tr><td>{status}</td><td>{content}</td><td>{_inline(response['description'])}</td></tr>"
    yield "</table></section>"


def _properties(schema: Mapping[str, Any]) -> Iterator[str]:
    if "description" in schema:
        yield f"<p>{_inline(schema['description'])}</p>"
    yield "<table><tr><th>member</th><th>type</th><th>meaning</th></tr>"
    for name, each in schema["properties"].items():
        needed = "" if name in schema.get("required", ()) else "Optional. "
        about = _inline(f"{needed}{each.get('description', '')}".rstrip())
        yield f"<tr><td>{escape(name)}</td><td>{_kind(each)}</td><td>{about}</td></tr>"
    yield "</table>"


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " or ".join(f"<code>{escape(str(each))}</code>" for each in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    named = escape(" or ".join(kind) if isinstance(kind, list) else kind)
    if kind == "array":
        return f"list of {_kind(schema.get('items') or {})}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None:
        return named
    return f"{named}, {low} or more" if high is None else f"{named} {low}..{'2^63-1' if high == HIGHEST else high}"


def _inline(text: str) -> str:
    """Return a text as HTML. Words between backquotes become code."""
    pieces = escape(text, quote=False).split("`")
    return "".join(f"<code>{each}</code>" if at % 2 else each for at, each in enumerate(pieces))
