"""The HTTP calls of Leaf's port to Go: each reply as the port gave it, and the faults of it that must not be copied."""

import json
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import IssuerError, RedisUnavailable, StoreUnavailable
from issuer.settings import Settings
from tests.doors.http.doors import Answer, Door, open_door, tokens

LEAF, INIT, STEP = "/api/leaf", "/api/leaf/init/cache", "/api/leaf/step"
SUCCESS = b'{"code":0,"data":null,"msg":"success"}'
MALFORMED = b'{"code":1000,"msg":"param Invalid"}'
INVALID = b'{"code":1001,"msg":"param invalid"}'
DB_ERROR = b'{"code":1001,"msg":"db error"}'
NO_UPDATE = b'{"code":1001,"msg":"no update"}'


def leaf_go(*tags: str, **options: Any) -> AbstractAsyncContextManager[Door]:
    return open_door(*tags, limits=Settings(compat=["leaf-go"], compat_timeout=60.0), **options)


def golden(answer: Answer, body: bytes) -> None:
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"


@pytest.mark.covers("U.17", "1.6", "1.7", "1.8", "1.9", "1.23")
async def test_the_four_calls_of_the_article_have_its_replies() -> None:
    async with leaf_go() as door:
        golden(await door.ask("POST", LEAF, {"biz_tag": "test_create_one", "descprition": "test api one"}), SUCCESS)
        golden(await door.ask("GET", f"{LEAF}?biz_tag=test_create_one"), b'{"code":0,"data":{"ID":1},"msg":"success"}')
        tag = {"biz_tag": "test_create", "max_id": 5, "step": 2000, "description": "of it"}
        golden(await door.ask("POST", LEAF, tag), SUCCESS)
        answer = await door.ask("PUT", INIT, {"biz_tag": "test_create"})
        data = answer.json["data"]
        datetime.fromisoformat(data["UpdateTime"])
        golden(
            answer,
            b'{"code":0,"data":{"Key":"test_create","Step":2000,"CurrentPos":0,"Buffer":[{"Cursor":4,"Max":2004,"Min":5,'
            b'"InitOk":true}],"UpdateTime":"%b","IsPreload":false,"Waiting":{}},"msg":"success"}'
            % data["UpdateTime"].encode(),
        )
        golden(await door.ask("GET", f"{LEAF}?biz_tag=test_create"), b'{"code":0,"data":{"ID":5},"msg":"success"}')
        golden(await door.ask("PUT", STEP, {"step": 10000, "biz_tag": "test_create"}), SUCCESS)
        golden(await door.ask("PUT", STEP, {"step": 10000, "biz_tag": "test_create"}), SUCCESS)
        one, other = await door.ids.tags()
        assert (one.step, one.description, one.step_mode) == (10000, "of it", "fixed")
        assert (other.step, other.description) == (2000, "test_create_one")


@pytest.mark.covers("U.17")
@pytest.mark.parametrize("layout", ["alone", "redis"])
async def test_a_second_init_drops_nothing_and_shows_the_segment_in_use(redis_url: str, layout: str) -> None:
    async with leaf_go(redis="none" if layout == "alone" else redis_url) as door:
        golden(await door.ask("POST", LEAF, {"biz_tag": "a", "step": 10}), SUCCESS)
        for _ in range(3):
            await door.ask("GET", f"{LEAF}?biz_tag=a")
        for _ in range(2):
            data = (await door.ask("PUT", INIT, {"biz_tag": "a"})).json["data"]
            assert data["Buffer"] == [{"Cursor": 3, "Max": 10, "Min": 1, "InitOk": True}]
        golden(await door.ask("GET", f"{LEAF}?biz_tag=a"), b'{"code":0,"data":{"ID":4},"msg":"success"}')


@pytest.mark.covers("U.17", "1.5")
@pytest.mark.parametrize(
    ("body", "reply"),
    [
        (b"", MALFORMED),
        (b"x", MALFORMED),
        (b"[]", MALFORMED),
        (b'{"biz_tag": 1}', MALFORMED),
        (b'{"biz_tag": "a", "max_id": -1}', MALFORMED),
        (b'{"biz_tag": "a", "max_id": 1.5}', MALFORMED),
        (b'{"biz_tag": "a", "max_id": "1"}', MALFORMED),
        (b'{"biz_tag": "a", "max_id": true}', MALFORMED),
        (b'{"biz_tag": "a", "max_id": 18446744073709551616}', MALFORMED),
        (b'{"biz_tag": "a", "step": 2147483648}', MALFORMED),
        (b'{"biz_tag": "a", "description": 1}', MALFORMED),
        (b"{}", INVALID),
        (b'{"biz_tag": ""}', INVALID),
        (b'{"biz_tag": null, "max_id": 5}', INVALID),
        (b'{"biz_tag": "a", "step": -5}', INVALID),
        (b'{"biz_tag": "a", "max_id": 9223372036854775808}', INVALID),
        (b'{"biz_tag": " a"}', INVALID),
        (b'{"biz_tag": "a", "step": 10000001}', b'{"code":1001,"msg":"step limit exceeded"}'),
        (b'{"biz_tag": "x"}', b"""{"code":1001,"msg":"Error 1062: Duplicate entry 'x' for key 'biz_tag'"}"""),
    ],
)
async def test_a_tag_that_cannot_be_created_has_the_error_of_the_port(body: bytes, reply: bytes) -> None:
    async with leaf_go("x") as door:
        golden(await door.ask("POST", LEAF, sent=body), reply)
        assert [each.tag for each in await door.ids.tags()] == ["x"]


async def test_a_first_number_of_0_is_1_and_null_is_what_is_missing() -> None:
    async with leaf_go() as door:
        for tag, max_id in (("a", 0), ("b", None), ("c", 1)):
            golden(await door.ask("POST", LEAF, {"biz_tag": tag, "max_id": max_id, "step": None}), SUCCESS)
            golden(await door.ask("GET", f"{LEAF}?biz_tag={tag}"), b'{"code":0,"data":{"ID":1},"msg":"success"}')


@pytest.mark.covers("U.17", "1.23")
async def test_a_step_is_never_negative_and_that_of_an_unknown_tag_is_not_updated() -> None:
    async with leaf_go() as door:
        await door.ids.create("a", step=7)
        for body, reply in (
            ({"biz_tag": "a", "step": -5}, INVALID),
            ({"biz_tag": "a", "step": 0}, INVALID),
            ({"biz_tag": "a"}, INVALID),
            ({"step": 5}, INVALID),
            ({"biz_tag": "a", "step": 2**31}, MALFORMED),
            ({"biz_tag": "a", "step": "5"}, MALFORMED),
            ({"biz_tag": "nope", "step": 5}, NO_UPDATE),
        ):
            golden(await door.ask("PUT", STEP, body), reply)
        assert (await door.ids.inspect("a")).store.step == 7


@pytest.mark.covers("U.17", "1.8")
async def test_a_tag_that_is_unknown_is_a_db_error_and_one_without_numbers_fails() -> None:
    async with leaf_go() as door:
        await door.ids.create("full", limit=1)
        assert (await door.good("GET", f"{LEAF}?biz_tag=full"))["data"] == {"ID": 1}
        for query in ("", "?biz_tag=", "?biz_tag=nope", "?other=full"):
            golden(await door.ask("GET", LEAF + query), DB_ERROR)
        for body in ({}, {"biz_tag": ""}, {"biz_tag": "nope"}):
            golden(await door.ask("PUT", INIT, body), DB_ERROR)
        golden(await door.ask("PUT", INIT, sent=b"x"), MALFORMED)
        golden(await door.ask("GET", f"{LEAF}?biz_tag=full"), b'{"code":1001,"msg":"get id failed"}')


@pytest.mark.parametrize(
    ("error", "get", "others"),
    [
        (StoreUnavailable("away", retry_after=3.0), DB_ERROR, DB_ERROR),
        (RedisUnavailable("away", retry_after=3.0), b'{"code":1001,"msg":"get id failed"}', DB_ERROR),
    ],
)
async def test_errors_of_servers_say_when_to_retry(
    error: IssuerError, get: bytes, others: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaf_go("a") as door:

        async def fails(*_: object, **__: object) -> Any:
            raise error

        for name in ("next", "create", "configure", "warm"):
            monkeypatch.setattr(door.ids, name, fails)
        said = {"biz_tag": "a", "step": 5}
        for reply, *request in (
            (get, "GET", f"{LEAF}?biz_tag=a"),
            (others, "POST", LEAF, {"biz_tag": "b"}),
            (others, "PUT", STEP, said),
            (others, "PUT", INIT, said),
        ):
            answer = await door.ask(*request)
            golden(answer, reply)
            assert answer.headers["retry-after"] == "3"


@pytest.mark.covers("U.17")
async def test_other_methods_and_paths_are_gins_404_and_a_slash_at_the_end_is_a_redirect() -> None:
    async with leaf_go("a") as door:
        for method, path in (
            *((each, f"{LEAF}?biz_tag=a") for each in ("HEAD", "PUT", "DELETE", "PATCH", "OPTIONS")),
            *((each, path) for each in ("GET", "POST") for path in (INIT, STEP)),
            ("GET", "/api/leaf/nope"),
            ("HEAD", "/api/leaf/"),
        ):
            answer = await door.ask(method, path)
            assert (answer.status, answer.headers["content-type"]) == (404, "text/plain")
            assert answer.body == (b"" if method == "HEAD" else b"404 page not found")
        answer = await door.ask("GET", f"{LEAF}/?biz_tag=a")
        assert (answer.status, answer.headers["location"]) == (301, f"{LEAF}?biz_tag=a")
        for method, path in (("POST", LEAF), ("PUT", STEP), ("PUT", INIT)):
            answer = await door.ask(method, f"{path}/")
            assert (answer.status, answer.headers["location"]) == (307, path)
        assert await door.refused("GET", "/api/leaves") == (404, "not_found")
        assert (await door.ids.peek("a")).value == 1


async def test_with_tokens_a_draw_needs_issue_and_changes_need_admin_and_are_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access, made = tokens(tmp_path, it=(["issue", "read"], ["a", "b"]), chief=(["admin"], ["*"]))
    async with leaf_go("a", access=access) as door:
        calls = [
            ("GET", f"{LEAF}?biz_tag=a", None),
            ("PUT", INIT, {"biz_tag": "a"}),
            ("POST", LEAF, {"biz_tag": "b"}),
            ("PUT", STEP, {"biz_tag": "a", "step": 5}),
        ]
        for method, path, body in calls:
            assert await door.refused(method, path, body) == (401, "unauthenticated")
        for number, (method, path, body) in enumerate(calls):
            answer = await door.ask(method, path, body, token=made["it"])
            assert answer.status == (200 if number < 2 else 403)
        for method, path, body in (("GET", f"{LEAF}?biz_tag=c", None), ("PUT", INIT, {"biz_tag": "c"})):
            assert await door.refused(method, path, body, token=made["it"]) == (403, "forbidden")
        assert [each.tag for each in await door.ids.tags()] == ["a"]
        caplog.clear()
        with caplog.at_level("INFO", "issuer.audit"):
            for method, path, body in calls[2:]:
                assert "x-request-id" in (await door.ask(method, path, body, token=made["chief"])).headers
        lines = [record.getMessage() for record in caplog.records]
        assert lines[0].startswith("leaf_go_create of tag 'b': 200, by token 'chief' from 127.0.0.1, request ")
        assert lines[1].startswith("leaf_go_step of tag 'a': 200, by token 'chief' from 127.0.0.1, request ")
        assert access.tally.requests["leaf_go_get", 200, "it"] == 1


async def test_a_token_beyond_its_rate_is_told_so(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["*"], 0.001))
    async with leaf_go("a", access=access) as door:
        await door.good("GET", f"{LEAF}?biz_tag=a", token=made["it"])
        answer = await door.ask("GET", f"{LEAF}?biz_tag=a", token=made["it"])
        golden(answer, b'{"code":1001,"msg":"too many requests"}')
        assert int(answer.headers["retry-after"]) > 1


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with leaf_go() as door:
        body = json.dumps({"biz_tag": "a", "description": "x" * 70_000}).encode()
        assert await door.refused("POST", LEAF, sent=body) == (413, "too_large")


async def test_no_page_of_another_site_makes_a_tag_with_a_form() -> None:
    async with leaf_go() as door:
        form = [("Content-Type", "text/plain"), ("Origin", "https://evil.example")]
        assert await door.refused("POST", LEAF, sent=b'{"biz_tag":"a"}', headers=form) == (403, "cross_origin")
        assert await door.ids.tags() == []
