"""docs/reference/http.md has each route with its scope and parameters, and each problem with its status: no more."""

import ast
import re
from pathlib import Path

import pytest

import issuer
from issuer.doors.web.replies import STATUSES
from issuer.doors.web.routes import ROUTES, Route
from issuer.errors import IssuerError
from tests.doors.http.routes_page import SECTION, common, rows_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (path|query|header|body|query or body) \| `(\S+)` \| (.*) \| (.*) \|$", re.MULTILINE)
PROBLEM = re.compile(r"^\| ([45]\d\d) \| `(\w+)` \| .+ \|$", re.MULTILINE)
COMMON = PAGE.partition("### Parameters of many routes")[2].partition("\n## ")[0]


def scopes(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"`(\w+)`", text))


def test_the_overview_has_each_route_with_its_scope_and_purpose() -> None:
    rows = re.findall(r"^\| \[`([A-Z]+) (\S+)`\]\(#\S+\) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    assert [(method, path, scopes(scope), purpose) for method, path, scope, purpose in rows] == [
        (route.method, route.path, route.scope, route.told) for route in ROUTES
    ]


def test_each_route_has_a_section_with_its_purpose_and_scope_and_none_has_another() -> None:
    sections = {(method, path): (scope, text) for method, path, scope, text in SECTION.findall(PAGE)}
    assert set(sections) == {(route.method, route.path) for route in ROUTES}
    for route in ROUTES:
        scope, text = sections[route.method, route.path]
        assert " ".join(text.split()).startswith(route.told), route.name
        assert scope.startswith("scope " if route.scope else "no scope"), route.name
        assert scopes(scope) == route.scope, route.name


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_a_route_has_the_parameters_that_it_takes_with_their_type_and_meaning(route: Route) -> None:
    """Those of many routes stand once, and are those that their rules say."""
    (text,) = [text for method, path, _, text in SECTION.findall(PAGE) if (method, path) == (route.method, route.path)]
    shown = {(place, name): (kind, about) for place, name, kind, about in ROW.findall(COMMON)}
    expected = list(ROW.findall(text))
    alike = re.search(r"same members as \[(.*?)\]\S*, except (.*?)\.", text)
    if alike:
        others = ROW.findall(PAGE.partition(f"\n### {alike[1]}\n")[2].partition("\n### ")[0])
        expected += [row for row in others if f"`{row[1]}`" not in alike[2]]
    for (place, name), holds in common(route).items():
        if holds:
            kind, about = shown["query or body" if name == "timeout" else place, name]
            expected.append((place, name, kind, about))
    assert sorted(expected) == sorted(rows_of(route))


def test_the_page_has_each_problem_with_its_status() -> None:
    errors = [each for each in vars(issuer).values() if isinstance(each, type) and issubclass(each, IssuerError)]
    expected = {
        each.code: next((status for kind, status in STATUSES if issubclass(each, kind)), 500) for each in errors
    }
    for file in (ROOT / "issuer" / "doors" / "web").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Problem", "_reply"):
                status, code, *_ = node.args
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    expected[str(code.value)] = int(str(status.value))
    rows = PROBLEM.findall(PAGE)
    assert len(rows) == len({code for _, code in rows})
    assert {code: int(status) for status, code in rows} == expected
