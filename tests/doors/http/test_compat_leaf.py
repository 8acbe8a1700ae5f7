"""The HTTP calls of Leaf: each route, status, body and quirk, as a Leaf server gave them; what it must not copy."""

import re
import sqlite3
import time
import tracemalloc
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from issuer.doors.web import service
from issuer.doors.web.compat.leaf import SNOWFLAKE_TAG
from issuer.errors import ClockBehind, InvalidArgument, IssuerError, StoreUnavailable
from issuer.settings import Settings
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.doors.http.doors import HOST, Answer, Door, open_door, tokens

GET = "/api/segment/get/"
TEXT = "text/plain;charset=UTF-8"
EXCEPTION = "com.sankuai.inf.leaf.server.exception.LeafServerException"


def leaf(*tags: str, compat: Sequence[str] = ("leaf",), **options: Any) -> AbstractAsyncContextManager[Door]:
    return open_door(*tags, limits=Settings(compat=[*compat], compat_timeout=60.0), **options)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_MACHINE", "3")


def failed(answer: Answer, reason: int, path: str) -> str:
    """Look at an error of a draw, and return our code of it."""
    assert (answer.status, answer.headers["content-type"]) == (500, "application/json;charset=UTF-8")
    assert answer.headers["connection"] == "close"
    assert [*answer.json] == ["timestamp", "status", "error", "exception", "message", "path", "code"]
    assert type(answer.json["timestamp"]) is int
    assert answer.json["status"] == 500
    assert answer.json["error"] == "Internal Server Error"
    assert answer.json["exception"] == EXCEPTION
    assert answer.json["message"] == f"Result{{id={reason}, status=EXCEPTION}}"
    assert answer.json["path"] == path
    return str(answer.json["code"])


@pytest.mark.covers("U.17", "1.15")
async def test_a_segment_call_draws_with_get_and_post_alike_and_the_reply_is_the_digits_alone() -> None:
    async with leaf() as door:
        await door.ids.create("order", start=1000)
        for number, method in enumerate(("GET", "POST", "GET"), 1000):
            answer = await door.ask(method, f"{GET}order")
            assert (answer.status, answer.body) == (200, b"%d" % number)
            assert answer.headers["content-type"] == TEXT
            assert answer.headers["content-length"] == "4"
        answer = await door.ask("GET", f"{GET}order", headers=[("Accept", "application/json")])
        assert (answer.body, answer.headers["content-type"]) == (b"1003", "application/json;charset=UTF-8")


@pytest.mark.covers("U.17")
@pytest.mark.parametrize(
    ("path", "tag", "headers"),
    [
        ("order.v2", "order", {"content-disposition": "inline;filename=f.txt", "content-type": TEXT}),
        ("order.json", "order", {"content-type": "application/json;charset=UTF-8"}),
        ("order%2Ev2", "order", {"content-disposition": "inline;filename=f.txt"}),
        ("a.b.c", "a.b", {}),
        ("order/", "order", {}),
        ("order.v2/", "order.v2", {}),  # Spring does not cut a key that a slash follows
        ("order;x=1", "order", {}),
        ("order.v2;x=1.5", "order", {}),
        ("%E8%AE%A2%E5%8D%95", "订单", {}),
    ],
)
async def test_the_last_suffix_of_a_key_is_cut_as_spring_cuts_it(path: str, tag: str, headers: dict[str, str]) -> None:
    async with leaf() as door:
        for at, each in enumerate(("order", "order.v2", "a.b", "a.b.c", "订单")):
            await door.ids.create(each, start=at * 1000 + 1)
        wanted = (await door.ids.peek(tag)).value
        answer = await door.ask("GET", GET + path)
        assert (answer.status, answer.body) == (200, b"%d" % wanted)
        assert headers.items() <= answer.headers.items()
        assert ("content-disposition" in answer.headers) == (
            path.partition(";")[0] in ("order.v2", "order%2Ev2", "a.b.c")
        )


async def test_exact_draws_from_the_tag_with_its_whole_name() -> None:
    async with leaf(compat=["leaf:exact"]) as door:
        await door.ids.create("order", start=1)
        await door.ids.create("order.v2", start=1001)
        assert (await door.ask("GET", f"{GET}order.v2")).body == b"1001"
        assert (await door.ask("GET", f"{GET}order.v2")).headers.get("content-disposition") is None
        assert (await door.ask("GET", f"{GET}order")).body == b"1"
        failed(await door.ask("GET", f"{GET}order.json"), -2, f"{GET}order.json")


@pytest.mark.covers("U.17", "1.8")
async def test_a_tag_that_is_unknown_or_deleted_or_of_other_case_is_result_2() -> None:
    async with leaf("order", "gone") as door:
        await door.ids.delete("gone")
        for key in ("nope", "gone", "Order", "%20", "x" * 201, ".hidden"):
            assert failed(await door.ask("GET", GET + key), -2, GET + key) == "unknown_tag"
        assert (await door.ids.peek("order")).value == 1


@pytest.mark.covers("U.17")
async def test_every_other_failure_is_result_3_and_nothing_is_0() -> None:
    async with leaf() as door:
        await door.ids.create("full", limit=1)
        assert (await door.ask("GET", f"{GET}full")).body == b"1"
        assert failed(await door.ask("GET", f"{GET}full"), -3, f"{GET}full") == "limit_reached"
        await door.ids.create("halted", step=1)
        await door.ids.halt("halted")
        assert failed(await door.ask("GET", f"{GET}halted"), -3, f"{GET}halted") == "store_behind"


@pytest.mark.parametrize(
    "scheme",
    [{"format": "A{seq}"}, {"restart": "daily", "format": "{date:%Y%m%d}-{seq}"}, {"shards": True}, {"keyed": True}],
    ids=lambda each: next(iter(each)),
)
async def test_a_tag_with_texts_or_numbers_that_repeat_is_refused(scheme: dict[str, Any], redis_url: str) -> None:
    async with leaf(redis=redis_url) as door:
        await door.ids.create("a", **scheme)
        for _ in range(2):
            assert failed(await door.ask("GET", f"{GET}a"), -3, f"{GET}a") == "invalid_argument"


async def test_a_tag_that_gets_texts_later_is_refused_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PLAIN_FOR", 0.0)
    async with leaf() as door:
        await door.ids.create("a", step=1)  # so that the record is read with the next number
        assert (await door.ask("GET", f"{GET}a")).body == b"1"
        await door.ids.configure("a", format="A{seq}")
        answers = [await door.ask("GET", f"{GET}a") for _ in range(5)]
        assert failed(answers[-1], -3, f"{GET}a") == "invalid_argument"


async def test_scrambled_and_strided_numbers_are_plain_numbers() -> None:
    async with leaf(settings={"keys": {"k": b"0123456789abcdef"}}) as door:
        await door.ids.create("even", stride=2, offset=2)
        await door.ids.create("hidden", scramble="k", limit=10**6)
        assert [(await door.ask("GET", f"{GET}even")).body for _ in range(3)] == [b"2", b"4", b"6"]
        number = int((await door.ask("GET", f"{GET}hidden")).body)
        assert (await door.ids.decode("hidden", number)).counter == 1


@pytest.mark.covers("U.17")
async def test_head_and_options_draw_nothing_and_other_methods_are_refused() -> None:
    async with leaf("order") as door:
        answer = await door.ask("HEAD", f"{GET}order")
        assert (answer.status, answer.body) == (200, b"")
        answer = await door.ask("OPTIONS", f"{GET}order")
        assert (answer.status, answer.body, answer.headers["allow"]) == (200, b"", "GET,POST,HEAD,OPTIONS")
        for method in ("PUT", "DELETE", "PATCH"):
            assert await door.refused(method, f"{GET}order") == (405, "method_not_allowed")
        assert (await door.ids.peek("order")).value == 1


async def test_paths_that_are_no_call_of_leaf_have_boots_404_and_bad_ones_tomcats_400() -> None:
    async with leaf() as door:
        for path in (GET, GET[:-1], f"{GET}a/b", "/api/snowflake/get/"):
            answer = await door.ask("GET", path)
            assert (answer.status, [*answer.json]) == (404, ["timestamp", "status", "error", "message", "path"])
            assert answer.json["message"] == "No message available"
            assert (answer.json["error"], answer.json["path"]) == ("Not Found", path)
        for path in ("small%2Fx", "small%zz", "%ff"):
            answer = await door.ask("GET", GET + path)
            assert (answer.status, answer.headers["content-type"]) == (400, "text/html;charset=utf-8")
            assert b"HTTP Status 400" in answer.body
        assert await door.refused("GET", "/api/segments/get/a") == (404, "not_found")


@pytest.mark.covers("U.17")
@pytest.mark.parametrize(
    ("number", "worker", "sequence", "timestamp"),
    [
        (1168814402523164672, "15", "0", "1567502043740(2019-09-03 09:14:03.740)"),
        (-5, "1023", "4091", "1288834974656(2010-11-04 01:42:54.656)"),
        ("+4097", "1", "1", "1288834974657(2010-11-04 01:42:54.657)"),
        (2**63 - 1, "1023", "4095", "3487858230208(2080-07-10 17:30:30.208)"),
        (-(2**63), "0", "0", "-910188280895(1941-02-27 09:55:19.105)"),
    ],
)
async def test_a_snowflake_number_is_decoded_with_signed_shifts_into_strings(
    number: object, worker: str, sequence: str, timestamp: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    async with leaf() as door:
        said = str(number).replace("+", "%2B")
        answer = await door.ask("GET", f"/decodeSnowflakeId?snowflakeId={said}")
        assert answer.headers["content-type"] == "application/json;charset=UTF-8"
        assert answer.body.decode() == f'{{"workerId":"{worker}","sequenceId":"{sequence}","timestamp":"{timestamp}"}}'
        form = [("Content-Type", "application/x-www-form-urlencoded")]
        posted = await door.ask("POST", "/decodeSnowflakeId", sent=f"snowflakeId={said}".encode(), headers=form)
        assert posted.body == answer.body


@pytest.mark.covers("U.17")
async def test_what_is_no_long_is_told_with_200_and_a_missing_parameter_with_400() -> None:
    async with leaf() as door:
        for said in ("x", "", str(2**63), "1.5", "9" * 30, "٣"):
            answer = await door.ask("GET", f"/decodeSnowflakeId?snowflakeId={said}")
            assert (answer.status, answer.body.decode()) == (200, '{"errorMsg":"snowflake Id反解析发生异常!"}')
        answer = await door.ask("GET", "/decodeSnowflakeId?snowflakeId=1&snowflakeId=1")
        assert answer.json == {"errorMsg": "snowflake Id反解析发生异常!"}
        answer = await door.ask("GET", "/decodeSnowflakeId")
        assert answer.status == 400
        assert [*answer.json] == ["timestamp", "status", "error", "exception", "message", "path"]
        assert answer.json["message"] == "Required String parameter 'snowflakeId' is not present"
        assert answer.json["exception"].endswith(".MissingServletRequestParameterException")


@pytest.mark.covers("U.17")
async def test_a_snowflake_call_draws_from_one_tag_whatever_its_key() -> None:
    async with leaf() as door:
        path = "/api/snowflake/get/any"
        assert failed(await door.ask("GET", path), -1, path) == "unknown_tag", "as the mode that is off must not be 0"
        await door.ids.create(SNOWFLAKE_TAG, strategy="snowflake", options={"epoch": 1288834974657, "machine": "fixed"})
        numbers = [int((await door.ask("GET", f"/api/snowflake/get/{key}")).body) for key in ("a", "b.c", "d/")]
        assert sorted({*numbers}) == numbers
        told = await door.ask("GET", f"/decodeSnowflakeId?snowflakeId={numbers[0]}")
        assert told.json["workerId"] == "3"


@pytest.mark.parametrize(
    "settings", [{}, {"strategy": "snowflake", "options": {"machine": "fixed"}}], ids=["segment", "epoch"]
)
async def test_a_snowflake_tag_whose_numbers_could_be_leafs_old_ones_is_not_used(settings: dict[str, Any]) -> None:
    async with leaf() as door:
        await door.ids.create(SNOWFLAKE_TAG, **settings)
        for _ in range(2):
            answer = await door.ask("GET", "/api/snowflake/get/a")
            assert failed(answer, -1, "/api/snowflake/get/a") == "invalid_argument"


@pytest.mark.parametrize(("behind", "reason"), [(5, -1), (6, -3)])
async def test_a_clock_that_went_back_is_result_1_if_leaf_would_wait_for_it(
    behind: int, reason: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaf() as door:
        await door.ids.create(SNOWFLAKE_TAG, strategy="snowflake", options={"epoch": 1288834974657, "machine": "fixed"})

        async def next_(*_: object, **__: object) -> int:
            raise ClockBehind("behind", behind=behind)

        monkeypatch.setattr(door.ids, "next", next_)
        answer = await door.ask("GET", "/api/snowflake/get/a")
        assert failed(answer, reason, "/api/snowflake/get/a") == "clock_behind"
        assert answer.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("error", "reason"),
    [(StoreUnavailable("away", retry_after=3.2), -3), (InvalidArgument("no"), -3), (IssuerError("closed"), -3)],
)
async def test_an_error_that_passes_says_when_to_retry(
    error: IssuerError, reason: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with leaf("order") as door:

        async def next_(*_: object, **__: object) -> int:
            raise error

        monkeypatch.setattr(door.ids, "next", next_)
        answer = await door.ask("GET", f"{GET}order")
        failed(answer, reason, f"{GET}order")
        assert answer.headers.get("retry-after") == ("4" if isinstance(error, StoreUnavailable) else None)


async def test_a_closed_issuer_is_result_1() -> None:
    async with leaf("order") as door:
        await door.ids.close()
        failed(await door.ask("GET", f"{GET}order"), -1, f"{GET}order")


def cells(page: bytes) -> list[list[str]]:
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page.decode())]


@pytest.mark.covers("U.17", "1.18")
async def test_the_pages_show_tags_and_segments_with_leafs_ends() -> None:
    """As in Leaf, `max` is the next number that is not reserved, and `value` the next one that is given."""
    async with leaf() as door:
        await door.ids.create("<b>", step=100)
        await door.ids.create("used", step=10)
        for _ in range(4):
            await door.ask("GET", f"{GET}used")
        await door.ids.engine.sweep()
        answer = await door.ask("GET", "/db")
        assert answer.headers["content-type"] == "text/html;charset=utf-8"
        head, first, second = cells(answer.body)
        assert head == ["tag", "max", "step", "update"]
        assert first[:3] == ["&lt;b&gt;", "1", "100"]
        assert (second[0], second[2]) == ("used", "10")
        assert int(second[1]) in (11, 21)
        head, row = cells((await door.ask("GET", "/cache")).body)
        assert head == ["name", "init", "next", "pos", "value0", "max0", "step0", "value1", "max1", "step1"]
        assert row[:7:2] == ["used", row[2], "5", "10"]
        assert (row[1], row[3], row[5]) == ("true", "0", "11")
        assert row[7:] == (["11", "21", "10"] if row[2] == "true" else ["0", "0", "0"])


async def test_a_damaged_record_is_an_entry_of_its_own_and_the_server_is_ready(tmp_path: Path) -> None:
    path = tmp_path / "ids.db"
    async with leaf(store=f"sqlite:///{path}") as door:
        for tag in ("a", "order", "z"):
            await door.ids.create(tag, step=100)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute("UPDATE tags SET step = 0 WHERE tag = 'order'")
        assert (await door.good("GET", "/readyz"))["ready"] is True
        found = await door.good("GET", "/v1/tags")
        assert ([each["tag"] for each in found["tags"]], found["next"]) == (["a", "z"], None)
        [damaged] = found["damaged"]
        assert damaged["tag"] == "order"
        assert damaged["problem"].startswith("step must be")
        after = (await door.good("GET", "/v1/tags?count=1"))["next"]
        found = await door.good("GET", f"/v1/tags?count=1&cursor={after}")
        assert (found["tags"], found["damaged"]) == ([], [damaged])
        [finding] = (await door.good("GET", "/v1/verify"))["discrepancies"]
        assert (finding["tag"], finding["kind"]) == ("order", "damaged record")
        _, *rows = [row[0] for row in cells((await door.ask("GET", "/db")).body)]
        assert rows == ["a", "z"]


async def test_a_row_that_only_its_own_program_has_changed_has_no_time() -> None:
    class Shared(MemoryStore):
        """As a store on the table of a running Leaf."""

        def tags(self, **named: Any) -> Any:
            return [replace(each, timestamp=0) for each in super().tags(**named)]

    async with leaf(store=Shared()) as door:
        await door.ids.create("order", step=100)
        _, row = cells((await door.ask("GET", "/db")).body)
        assert row == ["order", "1", "100", ""]


async def test_without_the_store_the_tags_are_a_problem_and_a_segment_is_not_initialized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with leaf("used") as door:
        await door.ask("GET", f"{GET}used")

        def away(*_: object, **__: object) -> Any:
            raise Unconfirmed("away")

        store = door.ids.engine.config.store
        for name in ("get", "tags", "ledger"):
            monkeypatch.setattr(store, name, away)
        assert await door.refused("GET", "/db") == (503, "store_unavailable")
        _, row = cells((await door.ask("GET", "/cache")).body)
        assert row == ["used", "false", "false", *"0000000"]


async def test_the_page_of_segments_shows_those_in_redis(redis_url: str) -> None:
    async with leaf(redis=redis_url) as door:
        await door.ids.create("used", step=10)
        await door.ask("GET", f"{GET}used")
        _, row = cells((await door.ask("GET", "/cache/")).body)
        assert row == ["used", "true", "false", "0", "2", "11", "10", "0", "0", "0"]


async def test_with_tokens_a_call_needs_a_bearer_token_of_its_tag(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["order"]), reads=(["read"], ["*"]))
    async with leaf("order", "other", access=access) as door:
        for path in (f"{GET}order", "/api/snowflake/get/a", "/db", "/cache", "/decodeSnowflakeId?snowflakeId=1"):
            answer = await door.ask("GET", path)
            assert (answer.status, answer.code, answer.headers["www-authenticate"]) == (
                401,
                "unauthenticated",
                "Bearer",
            )
        assert (await door.ask("GET", f"{GET}order", token=made["it"])).body == b"1"
        for path, token in ((f"{GET}other", "it"), ("/db", "it"), ("/cache", "it"), (f"{GET}order", "reads")):
            assert await door.refused("GET", path, token=made[token]) == (403, "forbidden")
        assert await door.refused("GET", f"{GET}other.order", token=made["it"]) == (403, "forbidden"), "after the cut"
        assert (await door.ask("GET", "/db", token=made["reads"])).status == 200
        assert (await door.ids.peek("other")).value == 1
        answered = door.app._access.tally.requests
        assert answered["leaf_segment", 200, "it"] == 1


async def test_a_token_beyond_its_rate_is_result_3(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["*"], 0.001))
    async with leaf("order", access=access) as door:
        assert (await door.ask("GET", f"{GET}order", token=made["it"])).body == b"1"
        answer = await door.ask("GET", f"{GET}order", token=made["it"])
        assert failed(answer, -3, f"{GET}order") == "too_many_requests"
        assert int(answer.headers["retry-after"]) > 1
        decode = "/decodeSnowflakeId?snowflakeId=1"
        assert await door.refused("GET", decode, token=made["it"]) == (429, "too_many_requests")


async def test_no_page_of_another_site_and_no_prefetch_draws() -> None:
    async with leaf("order") as door:
        for name, value in (
            ("Origin", "https://evil.example"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Purpose", "prefetch;prerender"),
            ("Purpose", "prefetch"),
        ):
            assert await door.refused("GET", f"{GET}order", headers=[(name, value)]) == (403, "cross_origin")
        assert await door.refused("GET", f"{GET}order", host="evil.example") == (403, "wrong_host")
        assert (await door.ids.peek("order")).value == 1


BROWSER = ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0")


async def test_without_tokens_a_browser_draws_only_for_a_page_of_this_server(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["*"]))
    async with leaf(compat=("leaf", "tinyid", "leaf-go")) as door:
        await door.ids.create("order", order="trend")
        await door.ids.create(SNOWFLAKE_TAG, strategy="snowflake", options={"epoch": 1288834974657, "machine": "fixed"})
        draws = (f"{GET}order", "/api/snowflake/get/a", "/tinyid/id/nextId?bizType=order&token=x",
            "/tinyid/id/nextSegmentId?bizType=order&token=x", "/api/leaf?biz_tag=order")  # fmt: skip
        for sent in ([BROWSER], [BROWSER, ("Referer", "http://evil.example/localhost:8000/")]):
            for path in draws:
                assert await door.refused("GET", path, headers=sent) == (403, "cross_origin")
            for path in ("/db", "/cache", "/decodeSnowflakeId?snowflakeId=1"):
                assert (await door.ask("GET", path, headers=sent)).status == 200, "they draw nothing"
        assert (await door.ids.peek("order")).value == 1
        own = ("Referer", f"http://{HOST}/order"), ("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "none")
        for number, sign in enumerate(own, 1):
            assert (await door.ask("GET", f"{GET}order", headers=[BROWSER, sign])).body == b"%d" % number
    async with leaf(access=access) as door:
        assert (await door.ask("GET", f"{GET}order", headers=[BROWSER], token=made["it"])).status == 500


async def test_long_paths_are_not_kept() -> None:
    async with leaf() as door:
        await door.ids.create("京" * 66)
        assert (await door.ask("GET", f"{GET}{quote('京' * 66)}")).body == b"1"
        await door.ask("GET", f"{GET}x")
        tracemalloc.start()
        try:
            for at in range(50):
                assert (await door.ask("GET", f"{GET}{at:060000}")).status == 500
            assert tracemalloc.get_traced_memory()[0] < 1_500_000
        finally:
            tracemalloc.stop()


async def test_several_slashes_count_as_one() -> None:
    async with leaf("order", compat=("leaf", "tinyid", "leaf-go")) as door:
        paths = (f"//{GET[1:]}order", "/api//segment///get//order", "//tinyid//id/nextIdSimple?bizType=order&token=0")
        for number, path in enumerate(paths, 1):
            assert (await door.ask("GET", path)).body == b"%d" % number
        # The port to Go refuses them.
        assert await door.refused("GET", "//api/leaf?biz_tag=order") == (404, "not_found")
        assert await door.refused("POST", "//v1/tags/order/next") == (404, "not_found")


async def test_a_family_is_off_unless_it_is_asked_for_and_may_be_mounted_below_a_prefix() -> None:
    async with open_door("order") as door:
        for path in (f"{GET}order", "/tinyid/id/nextId?bizType=order&token=0", "/api/leaf?biz_tag=order", "/db"):
            assert await door.refused("GET", path) == (404, "not_found")
        assert (await door.ids.peek("order")).value == 1
    async with open_door("order", limits=Settings(compat=["leaf"], compat_prefix="/ids", compat_timeout=60.0)) as door:
        assert await door.refused("GET", f"{GET}order") == (404, "not_found")
        assert (await door.ask("GET", f"/ids{GET}order")).body == b"1"
        assert (await door.good("POST", "/v1/tags/order/next"))["number"] == 2
        failed(await door.ask("GET", f"/ids{GET}nope"), -2, f"/ids{GET}nope")


async def test_a_stop_closes_each_connection_after_its_next_reply() -> None:
    async with leaf("order") as door:
        assert "connection" not in (await door.ask("GET", f"{GET}order")).headers
        door.app.drain()
        assert (await door.ask("GET", f"{GET}order")).headers["connection"] == "close"
