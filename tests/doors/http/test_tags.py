"""Tags over HTTP: made, listed, changed, retired, halted, recovered; pages of ledgers; a segment per step."""

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

import issuer
from issuer.care.discrepancies import Discrepancy
from issuer.care.verification import Audit
from issuer.core.steps import Steps
from issuer.doors.web.schemas import SCHEMAS
from issuer.doors.web.tags import cursor
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import DEFAULT_STEP
from tests.doors.http.doors import Door, open_door

LINES = [("Accept", "application/x-ndjson")]


async def paged(door: Door, path: str, member: str) -> list[Any]:
    """Return what all pages have, each of them no longer than it was asked for."""
    found: list[Any] = []
    more = ""
    while True:
        page = await door.good("GET", f"{path}{'&' if '?' in path else '?'}count=3{more}")
        assert len(page[member]) <= 3
        found += page[member]
        if page["next"] is None:
            return found
        more = f"&cursor={page['next']}"


async def test_a_tag_is_made_shown_changed_and_retired() -> None:
    async with open_door() as door:
        said = {"tag": "a", "start": 5, "step": 10, "limit": "js", "order": "trend", "description": "é", "ahead": 2}
        made = await door.ask("POST", "/v1/tags", said)
        assert made.status == 201
        assert {**made.json, "created": 0, "timestamp": 0, "version": ""} == {
            "tag": "a", "max": 4, "step": 10, "step_mode": "fixed", "target": 600, "min_step": 1000,
            "max_step": 1_000_000, "limit": 2**53 - 1, "order": "trend", "lease": None,
            "lease_mode": "auto", "ahead": 2, "refill_at": 0.2,
            "survive": 0, "drain": True, "description": "é", "created": 0, "timestamp": 0, "version": "",
            "halted": False, "deleted": False, "scheme": {},
        }  # fmt: skip
        assert await door.refused("POST", "/v1/tags", {"tag": "a"}) == (409, "tag_exists")
        again = await door.ask("POST", "/v1/tags", {**said, "exist_ok": True})
        assert again.status == 200
        differs = await door.ask("POST", "/v1/tags", {**said, "limit": 11, "exist_ok": True})
        assert (differs.status, differs.code) == (409, "tag_differs")
        assert differs.json["differences"] == {"limit": [11, 2**53 - 1]}
        assert (await door.good("PATCH", "/v1/tags/a", {"step": "auto", "description": "b"}))["step"] == 1000
        assert (await door.good("PATCH", "/v1/tags/a", {"drain": False}))["drain"] is False
        shown = await door.good("GET", "/v1/tags/a")
        assert (shown["description"], shown["store"]["step_mode"]) == ("b", "auto")
        assert await door.refused("PATCH", "/v1/tags/a", {}) == (400, "invalid_argument")
        assert await door.refused("PATCH", "/v1/tags/a", {"restart": "daily"}) == (422, "scheme")
        assert (await door.ask("DELETE", "/v1/tags/a")).status == 204
        assert await door.refused("POST", "/v1/tags/a/next") == (404, "unknown_tag")
        assert await door.refused("DELETE", "/v1/tags/a") == (404, "unknown_tag")


@pytest.mark.covers("U.20")
async def test_many_tags_are_created_by_one_request_or_none() -> None:
    async with open_door() as door:
        said: list[dict[str, Any]] = [
            {"tag": "b", "start": "9007199254740993", "order": "trend"},
            {"tag": "a"},
            {"tag": "s", "shards": {"shard_bits": 1, "app_bits": 1}, "order": "trend"},
        ]
        made = await door.ask("POST", "/v1/tags?as=string", {"tags": said})
        assert (made.status, [each["tag"] for each in made.json["tags"]]) == (201, ["b", "a", "s"])
        assert made.json["tags"][0]["max"] == "9007199254740992"
        names = ["a", "b", "s", "s#0", "s#1"]
        assert [each.tag for each in await door.ids.tags()] == names
        assert (await door.ask("POST", "/v1/tags", {"tags": said, "exist_ok": True})).status == 200
        for wrong, answer in (
            ({"tags": [{"tag": "x"}, {"tag": "a"}]}, (409, "tag_exists")),
            ({"tags": [{"tag": "x"}, {"tag": "a", "limit": 5}], "exist_ok": True}, (409, "tag_differs")),
            ({"tags": [{"tag": "x"}, {"tag": "y", "step": 0}]}, (400, "invalid_argument")),
            ({"tags": [{"tag": "x"}, {"tag": "x"}]}, (400, "invalid_argument")),
            ({"tags": [{"tag": "x"}, {"step": 5}]}, (422, "missing_member")),
            ({"tags": [{"tag": "x"}, {"tag": "y", "colour": "red"}]}, (422, "unknown_member")),
            ({"tags": [{"tag": "x"}, {"tag": "y", "step": "5"}]}, (422, "wrong_type")),
            ({"tags": [{"tag": "x"}], "tag": "y"}, (422, "unknown_member")),
            ({"tags": [{"tag": "x"}], "step": 5}, (422, "unknown_member")),
            ({"tags": []}, (422, "wrong_type")),
            ({"tags": {"tag": "x"}}, (422, "wrong_type")),
            ({}, (422, "missing_member")),
        ):
            refused = await door.ask("POST", "/v1/tags", wrong)
            assert (refused.status, refused.code) == answer, wrong
        assert [each.tag for each in await door.ids.tags()] == names
        which = await door.ask("POST", "/v1/tags", {"tags": [{"tag": "x"}, {"tag": "y", "step": 0}]})
        assert which.json["tag"] == "y"


async def test_what_makes_numbers_is_said_as_python_says_it() -> None:
    async with open_door(settings={"keys": {"k1": "0123456789abcdef", "k2": "fedcba9876543210"}}) as door:
        made: list[dict[str, Any]] = [
            {"tag": "strided", "stride": 3, "offset": 2, "start": "1"},
            {"tag": "shards", "shards": {"shard_bits": 2, "app_bits": 4, "app": 3}},
            {"tag": "scrambled", "scramble": [[1, "k1"], ["1000", "k2"]], "order": "trend"},
        ]
        for each in made:
            await door.good("POST", "/v1/tags", each)
        schemes = {each.tag: dict(each.scheme) for each in await door.ids.tags()}
        assert schemes["strided"]["stride"][0]["stride"] == 3
        assert schemes["shards"]["shards"]["app"] == 3
        assert [(piece["from"], piece["key"]) for piece in schemes["scrambled"]["scramble"]] == [
            (1, "k1"),
            (1000, "k2"),
        ]
        for wrong in ([[1]], [["x", "k1"]], [[1.5, "k1"]], [1], 5, [[True, "k1"]]):
            refused = await door.refused("POST", "/v1/tags", {"tag": "x", "scramble": wrong})
            assert refused == (422, "wrong_type")


async def test_tags_are_listed_by_name_in_pages_each_once() -> None:
    async with open_door() as door:
        names = ["é", "a", "b", "B", "a#1", "zz", "~", "0", "a/b", "数"]
        for name in names:
            await door.ids.create(name)
        assert [each["tag"] for each in await paged(door, "/v1/tags", "tags")] == sorted(names)
        assert len((await door.good("GET", "/v1/tags"))["tags"]) == 10
        page = await door.good("GET", "/v1/tags?count=3")
        await door.ids.delete(page["tags"][-1]["tag"])  # where the next page begins need not be there any more
        rest = await door.good("GET", f"/v1/tags?cursor={page['next']}")
        assert [each["tag"] for each in rest["tags"]] == sorted(names)[3:]


async def test_the_ledger_is_shown_in_pages_each_segment_once_from_either_end() -> None:
    async with open_door() as door:
        await door.ids.create("a", step=1)
        for _ in range(10):
            await door.ids.next("a")
        entries = await paged(door, "/v1/tags/a/segments", "segments")
        assert [(each["low"], each["high"]) for each in entries] == [(at, at + 1) for at in range(9, -1, -1)]
        upward = await paged(door, "/v1/tags/a/segments?upward=true", "segments")
        assert upward == entries[::-1]
        assert await door.refused("GET", "/v1/tags/b/segments") == (404, "unknown_tag")


@pytest.mark.parametrize("path", ["/v1/tags", "/v1/tags/a/segments"])
@pytest.mark.parametrize(
    "query",
    [
        "count=0", "count=1001", "count=x", "count=1.5", "count=", "count=" + "9" * 5000, "cursor=x", "cursor=",
        "cursor=%00", "cursor=é", f"cursor={cursor(5)}", f"cursor={cursor([1, 2])}", f"cursor={cursor([1, 2, 3])}",
        f"cursor={cursor([True, 2, 'x'])}", f"cursor={cursor([-5, 2, 'x'])}", f"cursor={cursor([2**70, 2, 'x'])}",
        f"cursor={cursor({'a': 1})}", f"cursor={cursor(chr(0xD800))}", "cursor=" + "WW" * 5000,
        f"cursor={cursor([5, 2, chr(0xD800)])}",
    ],
)  # fmt: skip
async def test_a_page_that_there_can_t_be_is_refused(path: str, query: str) -> None:
    async with open_door("a") as door:
        assert await door.refused("GET", f"{path}?{query}") == (400, "invalid_argument")


async def test_halt_stops_a_tag_and_recover_says_first_what_it_would_do() -> None:
    async with open_door() as door:
        await door.ids.create("a", step=10)
        await door.ids.take("a", 10)
        assert (await door.ask("POST", "/v1/tags/a/halt")).status == 204
        halted = await door.ask("POST", "/v1/tags/a/next")
        assert (halted.status, halted.code) == (503, "store_behind")
        assert halted.headers["retry-after"] == "10"
        assert 'POST /v1/tags/a/recover {"dry_run": false}' in halted.json["detail"]
        for body in (None, {}, {"dry_run": True}, {"at_least": 50}):
            shown = await door.good("POST", "/v1/tags/a/recover", body)
            assert shown["dry_run"] is True
            assert shown["recoveries"][0]["new"] == (50 if body and "at_least" in body else 10)
        assert (await door.ask("POST", "/v1/tags/a/next")).status == 503, "nothing was changed"
        done = await door.good("POST", "/v1/tags/a/recover", {"dry_run": False, "at_least": 50})
        assert done == {"dry_run": False, "recoveries": [{"tag": "a", "old": 10, "new": 50, "gap": 40}]}
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == 51
        for wrong in (0, "false", None):
            assert await door.refused("POST", "/v1/tags/a/recover", {"dry_run": wrong}) == (422, "wrong_type")


async def test_verify_shows_each_tag_in_a_line_as_soon_as_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door("a", "b", "c") as door:
        store_away = issuer.StoreUnavailable("away", tag="b")

        def check(audit: Audit) -> Steps[list[Discrepancy]]:
            if audit._tag == "b":
                raise store_away
            return (yield from whole(audit))

        whole = Audit.whole
        monkeypatch.setattr(Audit, "whole", check)
        answer = await door.ask("GET", "/v1/verify?as=string", headers=LINES)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
        lines = [json.loads(line) for line in answer.body.splitlines()]
        assert [(each["tag"], each["done"], each["of"]) for each in lines] == [("a", 1, 3), ("b", 2, 3), ("c", 3, 3)]
        assert [each["discrepancies"] for each in lines] == [[], [], []]
        assert [each["error"] and each["error"]["code"] for each in lines] == [None, "store_unavailable", None]
        assert all(set(each) == set(SCHEMAS["CheckedTag"]["properties"]) for each in lines)
        for tag in ("a", "b", "c"):
            await door.ids.delete(tag)
        assert (await door.ask("GET", "/v1/verify", headers=LINES)).body == b""


async def test_verify_and_doctor_show_what_python_finds() -> None:
    async with open_door("a") as door:
        await door.ids.next("a")
        assert await door.good("GET", "/v1/verify") == {"discrepancies": []}
        assert await door.good("GET", "/v1/verify?tag=a") == {"discrepancies": []}
        assert await door.refused("GET", "/v1/verify?tag=b") == (404, "unknown_tag")
        assert await door.refused("GET", "/v1/verify?tag=b", headers=LINES) == (404, "unknown_tag")
        found = (await door.good("GET", "/v1/doctor"))["findings"]
        assert [each["check"] for each in found] == [each.check for each in await door.ids.doctor()]
        await door.ids.halt("a")
        (halted,) = [
            each for each in (await door.good("GET", "/v1/doctor"))["findings"] if each["check"] == "tag-halted"
        ]
        assert halted["remedy"] == 'Run POST /v1/tags/a/recover {"dry_run": false}.'


def place(tag: str) -> str:
    return f"/v1/tags/{tag}"


async def taken(service: Door, tag: str, n: int) -> list[int]:
    found: list[int] = (await service.good("POST", f"{place(tag)}/take", {"n": n}))["numbers"]
    return found


@pytest.mark.covers("1.15")
async def test_three_services_fetch_a_segment_per_step_and_keep_tags_apart() -> None:
    """The ranges are those of the articles' example: 1..1000 of the first service, and 3001..4000 after them."""
    store = MemoryStore()
    async with AsyncExitStack() as ends:
        services = [await ends.enter_async_context(open_door(store=store)) for _ in range(3)]
        for tag, step in (("orders", 1000), ("users", 10)):
            await services[0].good("POST", "/v1/tags", {"tag": tag, "step": step})
        for node, service in enumerate(services):
            assert await taken(service, "orders", 1) == [1000 * node + 1]
        assert store.snapshot().tags["orders"].max == 3000
        for node, service in enumerate(services):
            assert await taken(service, "orders", 999) == [*range(1000 * node + 2, 1000 * node + 1001)]
            assert await taken(service, "users", 10) == [*range(10 * node + 1, 10 * node + 11)]
        assert len(store.snapshot().ledger) == 6, "a reservation for each segment, none for a number"
        assert await taken(services[0], "orders", 1) == [3001]
        maxima = {tag: record.max for tag, record in store.snapshot().tags.items()}
        assert maxima == {"orders": 4000, "users": 30}


@pytest.mark.covers("1.15")
async def test_a_step_of_a_service_grows_with_the_use_of_its_tag_alone() -> None:
    """To 600 times the rate: tests/proofs/simulation looks at this for days, in programs of the same mode."""
    store = MemoryStore()
    async with open_door(store=store) as service:
        for tag in ("busy", "quiet"):
            made = await service.good("POST", "/v1/tags", {"tag": tag, "step": "auto"})
            assert made["step"] == DEFAULT_STEP
        await taken(service, "quiet", 1)
        for _ in range(8):
            await taken(service, "busy", DEFAULT_STEP)
        steps = {tag: record.step for tag, record in store.snapshot().tags.items()}
        assert steps["busy"] > DEFAULT_STEP
        assert steps["quiet"] == DEFAULT_STEP
        shown = await service.good("GET", place("busy"))
        assert shown["store"]["step_mode"] == "auto"
        assert shown["store"]["step"] == steps["busy"]
