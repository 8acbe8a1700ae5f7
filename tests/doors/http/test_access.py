"""Who may do what over HTTP: tokens by scope and tag on each route; hosts and origins, so that no page can draw."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

import issuer
from issuer.doors.access import Access
from issuer.doors.tokens import Scope
from issuer.doors.web.guard import HeaderGuard
from issuer.doors.web.replies import Problem
from issuer.doors.web.routes import ROUTES, Route
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag
from tests.doors.http.doors import Door, open_door, tokens

#: The scopes of each route, as they were promised.
SCOPES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("next", "take", "reserve", "warm"), frozenset({"issue"})),
    **dict.fromkeys(("peek", "decode"), frozenset({"issue", "read"})),
    **dict.fromkeys(
        ("who", "segments", "tags", "inspect", "verify", "doctor", "metrics", "redis"), frozenset({"read"})
    ),
    **dict.fromkeys(("create", "configure", "delete", "halt", "recover"), frozenset({"admin"})),
    "store": frozenset({"read", "reserve"}),
    **dict.fromkeys(("livez", "readyz", "openapi", "docs"), frozenset()),
}
BODIES: Mapping[str, Any] = {
    "redis": {"step": {"kind": "pipeline", "commands": [
        {"words": ["HMGET", ":{a}", "cur"], "key": ":{a}", "script": "", "repeatable": True},
    ]}},
    "store": {"call": "get", "tag": "a"},
    "take": {"n": 2}, "reserve": {"n": 2}, "create": {"tag": "made"}, "configure": {"step": 7}, "next": None,
}  # fmt: skip


def call(route: Route, tag: str = "a") -> tuple[str, str, Any]:
    """Return a request that goes well, if the caller may."""
    path = route.path.format(tag=tag, shown="1", number="1")
    body = BODIES.get(route.name, None if route.body is None else {})
    return route.method, path, body


async def seen(door: Door) -> Any:
    """Return all that could have been changed."""
    return await door.ids.tags(), [await door.ids.peek(tag.tag) for tag in await door.ids.tags()]


def test_each_route_has_its_scopes() -> None:
    assert {route.name: {*route.scope} for route in ROUTES} == SCOPES


@pytest.mark.parametrize("scope", get_args(Scope))
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
async def test_a_token_does_what_its_scope_allows_and_nothing_else(route: Route, scope: Scope, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=([scope], ["*"]))
    allowed = not route.scope or scope == "admin" or scope in SCOPES[route.name]
    async with open_door("a", access=access, metrics=lambda: ("text/plain", b"x 1\n")) as door:
        await door.ids.next("a")
        before = await seen(door)
        found = await door.ask(*call(route), token=made["it"])
        if allowed:
            # This server has no Redis.
            assert 200 <= found.status < 300 or (route.name, found.code) == ("redis", "configuration")
        else:
            assert (found.status, found.code) == (403, "forbidden")
            assert await seen(door) == before


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scope], ids=lambda route: route.name)
async def test_without_a_token_that_is_known_nothing_is_done(route: Route, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["admin"], ["*"]))
    token = made["it"]
    async with open_door("a", access=access) as door:
        before = await seen(door)
        bearer = (f"Bearer {token}x", f"Bearer {token[:-1]}", "Bearer", "Bearer ")
        for said in (None, "", *bearer, f"Basic {token}", token, "\xff"):
            headers = [] if said is None else [("Authorization", said)]
            found = await door.ask(*call(route), headers=headers)
            assert (found.status, found.code, found.headers["www-authenticate"]) == (401, "unauthenticated", "Bearer")
            assert token[:20] not in found.body.decode()
        assert await seen(door) == before


async def test_a_token_for_some_tags_sees_and_draws_from_these_alone(tmp_path: Path) -> None:
    some = ["orders", "eu-*"]
    access, made = tokens(
        tmp_path, it=(["issue", "read"], some), drawing=(["issue"], some), other=(["read"], ["none-*"])
    )
    async with open_door("orders", "eu-1", "eu-2", "us-1", "orders2", access=access) as door:
        door.token = made["it"]
        assert [each["tag"] for each in (await door.good("GET", "/v1/tags"))["tags"]] == ["eu-1", "eu-2", "orders"]
        page = await door.good("GET", "/v1/tags?count=2")
        rest = await door.good("GET", f"/v1/tags?cursor={page['next']}")
        assert [each["tag"] for each in page["tags"] + rest["tags"]] == ["eu-1", "eu-2", "orders"]
        for token in (made["it"], made["drawing"]):
            for _ in range(3):  # also the short way
                for tag in ("orders", "eu-1"):
                    await door.good("POST", f"/v1/tags/{tag}/next", token=token)
                for tag in ("us-1", "orders2", "nope", "eu"):
                    refused = await door.refused("POST", f"/v1/tags/{tag}/next", token=token)
                    assert refused == (403, "forbidden"), "nor does it hear which tags there are"
        assert await door.refused("POST", "/v1/tags/-/next?tag=us-1") == (403, "forbidden")
        assert await door.refused("GET", "/v1/verify") == (403, "forbidden")
        assert await door.good("GET", "/v1/verify?tag=orders") == {"discrepancies": []}
        for path in ("/v1/doctor", "/v1/verify?tag=us-1", "/metrics", "/v1/tags/us-1/segments"):
            assert await door.refused("GET", path) == (403, "forbidden")
        for token in (made["drawing"], made["other"]):
            assert await door.refused("GET", "/v1/tags", token=token) == (403, "forbidden")
        assert (await door.ids.peek("us-1")).value == 1


async def test_a_token_makes_only_tags_that_are_its_own(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["admin"], ["eu-*"]))
    async with open_door(access=access) as door:
        door.token = made["it"]
        assert await door.refused("POST", "/v1/tags", {"tag": "us-1"}) == (403, "forbidden")
        assert await door.refused("POST", "/v1/tags", {"tag": ""}) == (403, "forbidden")
        for body in ({"tags": [{"tag": "us-1"}]}, {"tags": [{"tag": "us-1"}], "tag": "eu-1"}):
            assert await door.refused("POST", "/v1/tags", body) == (403, "forbidden")
        await door.good("POST", "/v1/tags", {"tag": "eu-1"})
        assert [each.tag for each in await door.ids.tags()] == ["eu-1"]


async def test_a_revoked_token_ends_and_one_beyond_its_rate_waits(tmp_path: Path) -> None:
    time = [0.0]
    _, made = tokens(tmp_path, it=(["issue"], ["*"], 2), other=(["issue"], ["*"]))
    file = tmp_path / "tokens.toml"
    access = Access(file, clock=lambda: time[0])
    async with open_door("a", access=access) as door:
        for _ in range(5):
            await door.good("POST", "/v1/tags/a/next", token=made["other"])
        for _ in range(2):
            await door.good("POST", "/v1/tags/a/next", token=made["it"])
        late = await door.ask("POST", "/v1/tags/a/next", token=made["it"])
        assert (late.status, late.code, late.headers["retry-after"]) == (429, "too_many_requests", "1")
        time[0] += 1.0
        assert (await door.good("POST", "/v1/tags/a/next", token=made["it"]))["number"] == 8
        # Numbers count as requests do.
        time[0] += 1.0
        assert (await door.good("POST", "/v1/tags/a/take", {"n": 2}, token=made["it"]))["numbers"] == [9, 10]
        assert await door.refused("POST", "/v1/tags/a/next", token=made["it"]) == (429, "too_many_requests")
        for path in ("take", "reserve"):
            time[0] += 1.0
            assert await door.refused("POST", f"/v1/tags/a/{path}", {"n": 3}, token=made["it"]) == (
                400,
                "invalid_argument",
            )
        file.write_text(file.read_text().partition("\n")[2])
        for _ in range(2):
            access.look()
        assert await door.refused("POST", "/v1/tags/a/next", token=made["it"]) == (401, "unauthenticated")
        await door.good("POST", "/v1/tags/a/next", token=made["other"])


@pytest.mark.covers("U.19")
async def test_a_page_of_the_list_costs_a_page_of_the_store_whatever_the_token_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access, made = tokens(tmp_path, it=(["read"], ["b*", "h"]), other=(["read"], ["none-*"]), all=(["read"], ["*"]))
    monkeypatch.setattr("issuer.doors.web.tags.PAGE_MOST", 3)
    asked: list[int] = []
    real = MemoryStore.tags

    def tags(self: MemoryStore, *, count: int, **page: Any) -> list[Tag]:
        asked.append(count)
        return real(self, count=count, **page)

    async def pages(door: Door, token: str, count: int) -> list[list[str]]:
        found, path = [], f"/v1/tags?count={count}"
        asked.clear()
        while True:
            page = await door.good("GET", path, token=token)
            found.append([each["tag"] for each in page["tags"]])
            if page["next"] is None:
                assert len(asked) == len(found)
                assert max(asked) <= 4
                return found
            path = f"/v1/tags?count={count}&cursor={page['next']}"

    async with open_door("a", "b1", "b2", "c", "d", "e", "f", "g", "h", access=access) as door:
        monkeypatch.setattr(MemoryStore, "tags", tags)
        assert await pages(door, made["it"], 3) == [["b1", "b2"], [], ["h"]]
        assert await pages(door, made["it"], 1) == [["b1"], ["b2"], [], ["h"]]
        assert await pages(door, made["other"], 3) == [[], [], []]
        assert await pages(door, made["all"], 3) == [["a", "b1", "b2"], ["c", "d", "e"], ["f", "g", "h"]]
        assert await pages(door, made["all"], 2) == [["a", "b1"], ["b2", "c"], ["d", "e"], ["f", "g"], ["h"]]


async def test_readiness_names_halted_tags_to_those_who_may_read_them(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["read"], ["eu-*"]), drawing=(["issue"], ["*"]))
    async with open_door(access=access) as door:
        for tag in ("eu-1", "us-1"):
            await door.ids.create(tag)
            await door.ids.halt(tag)
        for token, named in ((None, []), ("wrong", []), (made["drawing"], []), (made["it"], ["eu-1"])):
            found = await door.ask("GET", "/readyz", token=token)
            assert (found.status, found.json["ready"]) == (200, True)
            assert (found.json["halted"], found.json["halted_tags"]) == (2, named)


# ---------------------------------------------------------------------- browsers


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("localhost", True), ("localhost:8000", True), ("LOCALHOST", True), ("app.localhost:5", True),
        ("127.0.0.1:8000", True), ("[::1]:8000", True), ("10.1.2.3", True), (None, True),
        ("issuer.example.com", True), ("issuer.example.com:8000", True), ("a.pods.example.org", True),
        ("b.a.pods.example.org.", True), ("pods.example.org", False), ("xpods.example.org", False),
        ("evil.example", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("", True),
        ("example.com", False), ("issuer.example.com.evil.example", False), ("[::1", True), ("[evil]", False),
        ("localhost@evil.example", False), ("1.2.3", False), ("\xff", False),
    ],
)  # fmt: skip
async def test_only_names_of_this_server_are_served(host: str | None, served: bool) -> None:
    async with open_door("a", allowed_hosts=["issuer.example.com", "*.pods.example.org"]) as door:
        for number in (1, 2):
            found = await door.ask(
                "POST", "/v1/tags/a/next", host=None, headers=[("Host", host)] if host is not None else []
            )
            if served:
                assert found.json["number"] == number
            else:
                assert (found.status, found.code) == (403, "wrong_host")
        for path in ("/livez", "/readyz", "/docs", "/nothing"):
            found = await door.ask("GET", path, host=None, headers=[("Host", host)] if host is not None else [])
            assert (found.status == 403) is not (served or path.endswith("z"))
        assert (await door.ids.peek("a")).value == (3 if served else 1)


async def test_every_name_is_served_if_the_operator_says_so() -> None:
    async with open_door(allowed_hosts=["*"]) as door:
        assert (await door.ask("GET", "/docs", host="any.example")).status == 200


async def test_where_callers_need_a_token_every_name_is_served(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["a"]))
    async with open_door("a", access=access) as door:
        for number in (1, 2):  # the long way, and the short one
            found = await door.ask("POST", "/v1/tags/a/next", host="any.example", token=made["it"])
            assert found.json["number"] == number
        assert await door.refused("POST", "/v1/tags/a/next", host="any.example") == (401, "unauthenticated")


@pytest.mark.parametrize("hosts", ["issuer.example.com", [5], [""], [None]])
def test_hosts_are_a_list_of_names(hosts: Any) -> None:
    with pytest.raises(issuer.ConfigurationError, match="allowed_hosts is a list of names"):
        HeaderGuard(hosts)


def test_names_that_clients_make_up_are_not_kept_for_ever() -> None:
    guard = HeaderGuard([])
    for at in range(5000):
        assert not guard.serves(f"evil{at}.example".encode())
    assert guard._known.cache_info().currsize <= 1000


@pytest.mark.parametrize(
    ("headers", "served"),
    [
        ({"Origin": "http://localhost:8000"}, True),
        ({"Origin": "https://LOCALHOST:8000", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "http://localhost:3000"}, False),
        ({"Origin": "http://localhost"}, False),
        ({"Origin": "http://localhost:80000"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "localhost:8000"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Origin": "http://localhost:8000", "Sec-Fetch-Site": "cross-site"}, False),
    ],
)
async def test_no_page_of_another_site_can_draw_or_look(headers: dict[str, str], served: bool) -> None:
    async with open_door("a") as door:
        await door.good("POST", "/v1/tags/a/next")
        for method, path in (("POST", "/v1/tags/a/next"), ("GET", "/v1/tags"), ("OPTIONS", "/v1/tags/a/next")):
            found = await door.ask(method, path, headers=list(headers.items()))
            assert "access-control-allow-origin" not in found.headers
            if not served:
                assert (found.status, found.code) == (403, "cross_origin")
        assert (await door.ids.peek("a")).value == (3 if served else 2)


def test_a_host_that_isn_t_there_belongs_to_no_origin() -> None:
    with pytest.raises(Problem):
        HeaderGuard([]).check({b"origin": b"http://"})
