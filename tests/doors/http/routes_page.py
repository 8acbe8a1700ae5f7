"""docs/reference/http.md beside the table of routes: missing sections are added, tables of parameters are rewritten."""

import re
from html import unescape
from itertools import pairwise

from issuer.doors.web.openapi import document
from issuer.doors.web.page import page
from issuer.doors.web.routes import ROUTES, Route

SECTION = re.compile(r"^### [^\n]+\n\n`([A-Z]+) (/\S*)` · (.+?)\n\n(.+?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)

_HEAD = "| in | name | type | meaning |\n|---|---|---|---|\n"
_ROWS = re.compile(rf"(?<={re.escape(_HEAD)})(?:\|.*\n)*")

Row = tuple[str, str, str, str]


def rows_of(route: Route) -> list[Row]:
    """Return where each parameter of a route is sent, its name, type and meaning, as /docs shows them."""
    (section,) = re.findall(rf'<section id="{route.name}">(.*?)</section>', page(document()), re.DOTALL)
    sent = re.findall(r"<tr><td>(\S+?)</td><td>(path|query|header)</td><td>(.*?)</td><td>(.*?)</td></tr>", section)
    found = [(place, name, kind, about) for name, place, kind, about in sent]
    body = section.partition("<h3>Body</h3>")[2].partition("<h3>")[0]
    for name, kind, about in re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td><td>(.*?)</td></tr>", body):
        found.append(
            ("body", name, kind, about.removeprefix("Optional. ") if "Optional. " in about else f"Required. {about}")
        )
    return [(place, name, as_markdown(kind), as_markdown(about)) for place, name, kind, about in found]


def as_markdown(html: str) -> str:
    return unescape(re.sub(r"</?code>", "`", html))


def common(route: Route) -> dict[tuple[str, str], bool]:
    """Return the parameters that many routes have, which the page describes once, and whether this route has them."""
    rules = {("path", "tag"): route.of_tag, ("query", "tag"): route.of_tag, ("query", "as"): bool(route.scope)}
    rules["query" if route.body is None else "body", "timeout"] = bool(route.scope)
    return rules


def _table(route: Route) -> str:
    """Return the rows of the parameters that only some routes have."""
    shared = {each for each, holds in common(route).items() if holds}
    rows = [each for each in rows_of(route) if each[:2] not in shared]
    return "".join(f"| {place} | `{name}` | {kind} | {about} |\n" for place, name, kind, about in rows)


def completed(text: str) -> str:
    """Return the page with the rows of each route, and with the routes that it lacks, in the order of the table."""
    for before, route in pairwise(ROUTES):
        if f"`{route.method} {route.path}` · " in text:
            continue
        scope = " or ".join(f"`{each}`" for each in route.scope)
        overview = re.compile(rf"^\| \[`{before.method} {re.escape(before.path)}`\].*\n", re.MULTILINE)
        row = f"| [`{route.method} {route.path}`](#{route.name}) | {scope or 'none'} | {route.told} |\n"
        text = overview.sub(lambda found, row=row: found[0] + row, text, count=1)  # type: ignore[misc]
        (place,) = [each for each in SECTION.finditer(text) if each.group(1, 2) == (before.method, before.path)]
        heading = f"### {route.name.capitalize()}\n\n`{route.method} {route.path}` · "
        table = f"\n{_HEAD}{rows}" if (rows := _table(route)) else ""
        section = f"{heading}{f'scope {scope}' if scope else 'no scope'}\n\n{route.told}\n{table}\n"
        text = text[: place.end()] + section + text[place.end() :]
    routes = {(route.method, route.path): route for route in ROUTES}

    def section_of(found: re.Match[str]) -> str:
        route = routes.get((found[1], found[2]))
        return _ROWS.sub(lambda _: _table(route), found[0], count=1) if route else found[0]

    return SECTION.sub(section_of, text)
