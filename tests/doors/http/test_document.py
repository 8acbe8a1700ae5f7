"""The document of the API and the reference say what the routes do, replies are as they say; and the probes."""

import ast
import asyncio
import base64
import gc
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast, get_type_hints
from unittest.mock import ANY

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

import issuer
from issuer.care.care import Care
from issuer.contrib.fastapi import readyz
from issuer.core.requests import TAKE_MOST
from issuer.doors.access import Access
from issuer.doors.web.app import application
from issuer.doors.web.openapi import document
from issuer.doors.web.page import POLICY
from issuer.doors.web.replies import STATUSES, Message, Receive, Send
from issuer.doors.web.routes import ROUTES, Route, route_of
from issuer.doors.web.schemas import SCHEMAS
from issuer.errors import IssuerError
from issuer.operations.tag_options import CreateOptions
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST
from tests.doors.http.doors import Door, open_door
from tests.doors.http.routes_page import SECTION, common, rows_of
from tests.doors.http.test_access import call
from tests.seeds import seeded
from tests.waiting import run

#: Not `not_a_server_error`: a time-out of 0 s is a 503. That there is no 500 is looked at beside them.
CHECKS = [
    status_code_conformance, content_type_conformance, response_schema_conformance, response_headers_conformance,
    negative_data_rejection, unsupported_method,
]  # fmt: skip


async def test_the_document_has_each_route_and_each_is_found_by_its_path() -> None:
    async with open_door() as door:
        shown = await door.good("GET", "/openapi.json")
        assert shown == json.loads(json.dumps(document()))
        documented = {(method.upper(), path) for path, each in shown["paths"].items() for method in each}
        assert documented == {(route.method, route.path) for route in ROUTES}
        for route in ROUTES:
            path = route.path.replace("{", "").replace("}", "")
            assert route_of(route.method, path) == (route, dict.fromkeys(re.findall(r"{(\w+)}", route.path), ANY))
        names = [each["operationId"] for methods in shown["paths"].values() for each in methods.values()]
        assert max(Counter(names).values()) == 1


def test_the_document_is_openapi_3_1_and_each_reference_leads_somewhere() -> None:
    shown = document()
    assert shown["openapi"] == "3.1.0"
    references = set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(shown)))
    assert references | {"Problem"} == {*SCHEMAS} - ({*SCHEMAS} - references - {"Problem"})
    assert references >= {*SCHEMAS} - {"Problem"}, "and each schema is of something"
    for schema in SCHEMAS.values():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_bodies_have_the_names_of_python() -> None:
    of = {route.name: {*route.body.known} - {"timeout"} for route in ROUTES if route.body is not None}
    python = {*get_type_hints(CreateOptions)}
    assert of["create"] == python | {"tag", "tags", "exist_ok"}
    assert of["configure"] == python - {"order"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_each_route_answers_as_the_document_says(route: Any) -> None:
    """A reply of each, its integers as they are and as strings."""
    async with open_door(metrics=lambda: ("text/plain; version=0.0.4", b"x 1\n")) as door:
        await door.ids.create("a", format="A{seq}")
        await door.ids.next("a")
        method, path, body = call(route)
        if route.name == "decode":
            path = "/v1/tags/a/decode/A1"
        strings = ["", "?as=string"] if route.scope and route.name != "delete" else [""]
        for query in strings:
            found = await door.ask(
                method, path + query, body if not query or "tag" not in (body or {}) else {"tag": "b"}
            )
            described = document()["paths"][route.path][method.lower()]["responses"][str(found.status)]
            if found.status == 204:
                assert (found.body, "content" in described, "content-type" in found.headers) == (b"", False, False)
                continue
            schema = described["content"][found.headers["content-type"].partition(";")[0]]["schema"]
            if "json" in found.headers["content-type"]:
                whole = {**schema, "components": {"schemas": dict(SCHEMAS)}}
                jsonschema_rs.Draft202012Validator(whole).validate(found.json)


async def test_metrics_are_what_the_server_gives_and_nothing_where_it_has_none() -> None:
    async with open_door(metrics=lambda: ("text/plain; version=0.0.4", b"issued 1\n")) as door:
        found = await door.ask("GET", "/metrics")
        assert (found.headers["content-type"], found.body) == ("text/plain; version=0.0.4", b"issued 1\n")
    async with open_door() as door:
        assert await door.refused("GET", "/metrics") == (404, "not_found")


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.kinds: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.kinds.add(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        given = dict(attrs)
        assert {*given} <= {"id", "href", "lang", "charset", "name", "content"}, "no style, no handler, nothing loaded"
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


async def test_the_page_shows_each_route_and_loads_nothing() -> None:
    async with open_door() as door:
        found = await door.ask("GET", "/docs")
        text = found.body.decode()
        assert found.headers["content-type"] == "text/html; charset=utf-8"
        assert found.headers["content-security-policy"] == POLICY
        assert POLICY.startswith("default-src 'none';")
        (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"style-src 'sha256-{digest}'" in POLICY
        page = _Page()
        page.feed(text)
        page.close()
        assert page.open == []
        assert not page.kinds & {"script", "link", "img", "iframe", "form", "object", "base"}
        assert max(Counter(page.ids).values()) == 1
        assert {link[1:] for link in page.links if link.startswith("#")} <= {*page.ids}
        assert {link for link in page.links if not link.startswith("#")} == {"/openapi.json"}
        assert {route.name for route in ROUTES} <= {*page.ids}


# ---------------------------------------------------------------------- probes


def _looking(monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
    """Set how long the checks take: by default, a machine that stands still is no outage."""
    for name in ("FOR", "WITHIN", "WAITED_FOR"):
        monkeypatch.setattr(f"issuer.doors.web.probe.LOOK_{name}", seconds.get(name.lower(), 60.0))


async def test_liveness_asks_nobody_and_what_readiness_shows_is_looked_at_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []
    real = MemoryStore.tags

    def tags(self: MemoryStore, *, timeout: float, **page: Any) -> list[issuer.values.Tag]:
        asked.append(timeout)
        return real(self, timeout=timeout, **page)

    async with open_door() as door:
        monkeypatch.setattr(MemoryStore, "tags", tags)
        _looking(monkeypatch)
        assert await door.good("GET", "/livez") == {"status": "ok"}
        assert asked == []
        ready: Any = {"ready": True, "store": None, "redis": None, "halted": 0, "halted_tags": []}
        assert await asyncio.gather(*(door.good("GET", "/readyz") for _ in range(50))) == [ready] * 50
        assert len(asked) == 1
        assert asked[0] <= 30.0  # half of LOOK_WITHIN, and not the 45 s of the store


async def test_readiness_answers_before_probes_give_up_whatever_hangs_and_shows_what_was_seen_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Care.store_ready

    async def seen(door: Door, **constants: float) -> str | None:
        for name, seconds in constants.items():
            monkeypatch.setattr(f"issuer.doors.web.probe.LOOK_{name.upper()}", seconds)
        found = await door.good("GET", "/readyz")
        assert found["ready"] is True
        return cast("str | None", found["store"])

    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("issuer.doors.web.probe.LOOK_FOR", 0.0)
    async with open_door() as door:
        assert await seen(door, within=60.0, waited_for=60.0) is None
        monkeypatch.setattr(Care, "store_ready", hangs)
        assert await seen(door, waited_for=0.01) is None
        door.app.service.probe._looking.cancel()
        door.app.service.probe._looking = None
        assert await seen(door, within=0.0, waited_for=60.0) == "store_unavailable"
        monkeypatch.setattr(Care, "store_ready", real)
        assert await seen(door, within=60.0) is None


@pytest.mark.live
@pytest.mark.covers("U.19")
@pytest.mark.parametrize("of", ["server", "router"])
async def test_a_server_that_has_not_answered_yet_is_unknown_and_does_not_hide_the_other(
    start_redis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    server = start_redis()

    async def shown(opened: Door) -> tuple[str | None, str | None]:
        found = await (readyz(opened.ids) if of == "router" else opened.good("GET", "/readyz"))
        assert found["ready"] is True
        return found["store"], found["redis"]

    async with open_door(redis=server.url) as opened:
        server.pause()
        try:
            _looking(monkeypatch, waited_for=0.01, within=20.0)
            while (found := await shown(opened)) == ("unknown", "unknown"):
                pass
            assert found == (None, "unknown")
        finally:
            server.resume()
        _looking(monkeypatch)
        assert await shown(opened) == (None, None)


@pytest.mark.parametrize("of", ["server", "router"])
def test_a_store_that_has_not_answered_yet_is_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: str
) -> None:
    async def hangs(*_: Any) -> None:
        await asyncio.Event().wait()

    async def asks() -> None:
        async with open_door() as door:
            found = await (readyz(door.ids) if of == "router" else door.good("GET", "/readyz"))
            assert (found["ready"], found["store"], found["redis"]) == (True, "unknown", None)

    monkeypatch.setattr(Care, "store_ready", hangs)
    _looking(monkeypatch, waited_for=0.01)
    run(asks())
    gc.collect()
    assert not caplog.records  # the check ends with the loop, in silence


@pytest.mark.covers("U.19")
async def test_a_look_at_readiness_reads_one_page_and_finds_halted_tags_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("issuer.care.inspection.PAGE", 2)
    monkeypatch.setattr("issuer.doors.web.probe.LOOK_FOR", 0.0)
    asked: list[int] = []
    real = MemoryStore.tags

    def tags(self: MemoryStore, *, count: int, **page: Any) -> list[issuer.values.Tag]:
        asked.append(count)
        return real(self, count=count, **page)

    async def halted(door: Door) -> list[str]:
        found = await door.good("GET", "/readyz")
        assert (found["ready"], found["store"], found["halted"]) == (True, None, len(found["halted_tags"]))
        return list(found["halted_tags"])

    async with open_door() as door:
        for tag in "abcde":
            await door.ids.create(tag)
        for tag in "bde":
            await door.ids.halt(tag)
        monkeypatch.setattr(MemoryStore, "tags", tags)
        assert [await halted(door) for _ in range(4)] == [["b"], ["b", "d"], ["b", "d", "e"], ["b", "d", "e"]]
        assert asked == [2] * 4
        assert (await door.ids.ready()).halted == ["b", "d", "e"]
        await door.ids.recover("b")
        await door.ids.delete("e")
        await door.ids.halt("c")
        shown = [["b", "c", "d", "e"], ["b", "c", "d"], ["c", "d"], ["c", "d"]]
        assert [await halted(door) for _ in range(4)] == shown


@pytest.mark.live
async def test_a_redis_that_is_away_is_shown_by_its_code_alone_and_the_process_stays_ready(
    start_redis: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_redis()
    _looking(monkeypatch, **{"for": 0.0})
    async with open_door(redis=server.url) as opened:
        assert (await opened.good("GET", "/readyz"))["ready"] is True
        server.stop()
        found = await opened.ask("GET", "/readyz")
        assert (found.status, found.json["ready"]) == (200, True)
        assert (found.json["redis"], found.json["store"]) == ("redis_unavailable", None)
        assert server.url not in found.body.decode()


# ---------------------------------------------------------------------- any request


#: All operations but the one that schemathesis has fetched.
LABELS = {f"{route.method} {route.path}" for route in ROUTES} - {"GET /openapi.json"}


class Opened:
    """The application over an issuer that lives as long as its lifespan, in the loop of schemathesis."""

    def __init__(self) -> None:
        self.app: Any = None
        self.ids: Any = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        await receive()
        async with issuer.aconnect(redis="none", store="memory://", scheduler=None, timeout=0.5) as ids:
            self.ids = ids
            await ids.create("orders")
            await ids.create("bills", format="B{seq:06d}")
            self.app = application(ids, Access(None), allowed_hosts=["testserver"])
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def versions(self) -> dict[str, str]:
        """Return what is another one after every change of a tag."""
        return {tag.tag: tag.version for tag in self.ids.engine.runner.store.tags(count=1000, timeout=60)}


@pytest.fixture
def opened() -> Iterator[Opened]:
    yield Opened()
    from schemathesis.python.asgi import shutdown_lifespans

    shutdown_lifespans()


def any_requests(opened: Opened, cases: int, seed: int, *, path: str = "") -> Counter[int]:
    """Send that many requests to each route, as the document allows and forbids them; each is answered as it says.

    `path`: only to this one. Returns how many had which status.
    """
    schema = schemathesis.openapi.from_asgi("/openapi.json", opened)
    found: list[Any] = list(schema.get_all_operations())
    operations = [each.ok() for each in found]
    assert {operation.label for operation in operations} == LABELS
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    bounds = settings(max_examples=cases, suppress_health_check=checks, database=None, deadline=None)
    tried: Counter[int] = Counter()
    for at, operation in enumerate(each for each in operations if path in ("", each.label)):
        modes = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]
        cases_of = operation.as_strategy(modes[0]) | operation.as_strategy(modes[1])

        @hypothesis.seed(seeded(seed + at))
        @bounds
        @given(case=cases_of)
        def tries(case: Any) -> None:
            # An invalid value stays: the answer to it is checked.
            most = TAKE_MOST if case.operation.label.endswith("/take") else HIGHEST
            if isinstance(case.body, dict) and isinstance(case.body.get("n"), int) and 10 < case.body["n"] <= most:
                case.body["n"] = 1 + case.body["n"] % 10  # a million numbers take their time
            if isinstance(case.body, dict) and case.body.get("shards"):
                case.body["shards"] = {"shard_bits": 1}  # thousands of tags as well
            tag = case.path_parameters.get("tag")
            if isinstance(tag, str) and len(tag) % 3 and len(tag) <= 200:
                case.path_parameters["tag"] = ("orders", "bills")[len(tag) % 2]
            before = opened.versions()
            response = case.call()
            if 400 <= response.status_code < 500 and response.status_code != 409:
                assert opened.versions() == before, "nothing is changed by what is refused"
            tried[response.status_code] += 1
            assert response.status_code != 500, case.as_curl_command()
            case.validate_response(response, checks=CHECKS)

        tries()
    return tried


@pytest.mark.live
def test_any_request_is_answered_as_the_document_says(opened: Opened) -> None:
    tried = any_requests(opened, 12, 11)
    assert tried.total() >= 2 * len(LABELS)
    assert {200, 400, 404, 422} <= {*tried}


@pytest.mark.soak
@pytest.mark.parametrize("label", sorted(LABELS))
def test_ten_thousand_requests_are_answered_as_the_document_says(label: str, opened: Opened) -> None:
    """Of 22 routes 18 take parameters or a body, and so 600 different requests; to the others there is one."""
    tried = any_requests(opened, 600, 1000, path=label)
    assert tried.total() >= (600 if label.partition(" ")[2] not in ("/livez", "/readyz", "/docs") else 1)


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
