"""The HTTP calls of tinyid: each reply as a tinyid server gave it, and what a client makes of a segment."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest

from issuer.doors.access import Access
from issuer.errors import StoreUnavailable
from issuer.settings import Settings
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.memory import MemoryStore
from tests.doors.http.doors import Answer, Door, open_door, tokens

FORM = [("Content-Type", "application/x-www-form-urlencoded")]
ID, SEGMENT = "/tinyid/id/nextId", "/tinyid/id/nextSegmentId"
TEXT = "text/plain;charset=UTF-8"
AWAY = b"the store did not answer in time, or did not reserve numbers: the log of the server has the reason"
TOKEN_IS_WRONG = b'{"data":null,"code":5,"message":"token is error"}'


def tinyid(*tags: str, batch: int = 100_000, **options: Any) -> AbstractAsyncContextManager[Door]:
    return open_door(*tags, limits=Settings(compat=["tinyid"], compat_timeout=60.0, compat_batch=batch), **options)


def golden(answer: Answer, body: bytes, media: str = "application/json;charset=UTF-8") -> None:
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, body, media)


def given(segment: bytes) -> Iterator[int]:
    """Yield the numbers that the Java client gives of a segment: it looks for the first one, then adds delta."""
    current, _, high, delta, remainder = (int(each) for each in segment.split(b","))
    while current % delta != remainder:
        current += 1
        if current % delta == remainder:
            current -= delta
            break
    while (current := current + delta) <= high:
        yield current


@pytest.mark.covers("U.17")
async def test_next_id_has_the_replies_of_tinyid() -> None:
    async with tinyid("order") as door:
        query = "bizType=order&token=any"
        golden(await door.ask("GET", f"{ID}?{query}"), b'{"data":[1],"code":200,"message":""}')
        golden(await door.ask("POST", f"{ID}?{query}&batchSize=2"), b'{"data":[2,3],"code":200,"message":""}')
        golden(await door.ask("GET", f"{ID}Simple?{query}"), b"4", TEXT)
        golden(await door.ask("POST", f"{ID}Simple?{query}&batchSize=3"), b"5,6,7", TEXT)
        golden(await door.ask("GET", f"{ID}.json?{query}"), b'{"data":[8],"code":200,"message":""}')
        golden(await door.ask("GET", f"{ID}/?{query}&batchSize="), b'{"data":[9],"code":200,"message":""}')
        as_json = [("Accept", "application/json")]
        golden(await door.ask("GET", f"{ID}Simple?{query}", headers=as_json), b"10", "application/json;charset=UTF-8")


@pytest.mark.covers("U.17")
async def test_parameters_come_from_query_or_form_and_a_body_of_json_is_not_read() -> None:
    async with tinyid("a b") as door:
        golden(await door.ask("POST", f"{ID}Simple", sent=b"bizType=a+b&token=x", headers=FORM), b"1", TEXT)
        golden(await door.ask("POST", f"{ID}Simple?token=x", sent=b"bizType=a%20b", headers=FORM), b"2", TEXT)
        # Spring joins the values of a text with commas, and takes the first value of an integer.
        await door.ids.create("a b,other")
        both = await door.ask("POST", f"{ID}Simple?bizType=a+b&token=x", sent=b"bizType=other", headers=FORM)
        golden(both, b"1", TEXT)
        twice = await door.ask("GET", f"{ID}Simple?bizType=a+b&token=x&batchSize=1&batchSize=2")
        golden(twice, b"3", TEXT)
        golden(await door.ask("POST", ID, {"bizType": "a b", "token": "x"}), TOKEN_IS_WRONG)
        golden(await door.ask("POST", f"{ID}Simple?bizType=a+b&token=x", headers=FORM), b"4", TEXT)


@pytest.mark.covers("U.17")
async def test_a_batch_is_cut_at_the_highest_size_and_0_or_less_is_empty() -> None:
    async with tinyid(batch=2000) as door:
        await door.ids.create("order", step=10_000)
        query = "bizType=order&token=any&batchSize="
        found = await door.good("GET", f"{ID}?{query}2147483647")
        assert found["data"] == [*range(1, 2001)]
        for size in ("0", "-1", "-2147483648"):
            golden(await door.ask("GET", f"{ID}?{query}{size}"), b'{"data":[],"code":200,"message":""}')
            golden(await door.ask("GET", f"{ID}Simple?{query}{size}"), b"", TEXT)
        for size in ("x", "1.5", "2147483648", "99999999999"):
            for path in (ID, f"{ID}Simple"):
                answer = await door.ask("GET", f"{path}?{query}{size}")
                assert (answer.status, answer.json["error"]) == (400, "Bad Request")
                assert [*answer.json] == ["timestamp", "status", "error", "exception", "message", "path"]
                assert answer.json["exception"].endswith(".MethodArgumentTypeMismatchException")
                assert answer.json["message"].endswith(f'NumberFormatException: For input string: "{size}"')
                assert answer.json["path"] == path
        assert (await door.ids.peek("order")).value == 2001


@pytest.mark.covers("U.17")
async def test_errors_are_codes_with_the_status_200_and_empty_bodies_of_the_simple_calls() -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend")
        for query in ("", "?token=x", "?bizType=order", "?bizType=&token=x", "?bizType=order&token="):
            for path in (ID, SEGMENT):
                golden(await door.ask("GET", path + query), TOKEN_IS_WRONG)
                golden(await door.ask("GET", f"{path}Simple{query}"), b"", TEXT)
        unknown = b'{"data":null,"code":6,"message":"%bcan not find biztype:nope"}'
        query = "?bizType=nope&token=x"
        golden(await door.ask("GET", ID + query), unknown % b"error query segmentId: ")
        golden(await door.ask("GET", f"{ID}{query}&batchSize=0"), unknown % b"error query segmentId: ")
        golden(await door.ask("GET", SEGMENT + query), unknown % b"")
        for path in (ID, SEGMENT):
            golden(await door.ask("GET", f"{path}Simple{query}"), b"", TEXT)
        for path in ("/tinyid/id/nope", "/tinyid/", "/tinyid/id/nextIdSimple/x"):
            answer = await door.ask("GET", path)
            assert (answer.status, answer.json["message"]) == (404, "No message available")
        assert (await door.ids.peek("order")).value == 1


@pytest.mark.covers("U.17", "1.15")
async def test_a_segment_is_one_step_of_the_store_and_its_numbers_are_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend", step=1000, above=1)
        query = "?bizType=order&token=x"
        golden(
            await door.ask("POST", SEGMENT + query),
            b'{"data":{"maxId":1001,"loadingId":201,"currentId":1,"delta":1,"remainder":0},"code":200,"message":""}',
        )
        golden(await door.ask("POST", f"{SEGMENT}Simple{query}", headers=FORM), b"1001,1201,2001,1,0", TEXT)
        first: list[int] = [*given(b"1,201,1001,1,0"), *given(b"1001,1201,2001,1,0")]
        assert first == [*range(2, 2002)]
        own = await door.ids.take("order", 3)
        assert not {*own} & {*first}
        await door.ids.configure("order", step=10)
        monkeypatch.setattr("issuer.core.supply.reservations.RECENT", 0.0)
        golden(await door.ask("GET", f"{SEGMENT}Simple{query}"), b"3001,3003,3011,1,0", TEXT)
        ledger = (await door.ids.segments("order", upward=True)).entries
        reasons: list[LedgerEntry] = [each for each in ledger if each.reason == "tinyid"]
        assert [(each.low, each.high) for each in reasons] == [(1, 1001), (1001, 2001), (3001, 3011)]


async def test_a_client_that_goes_on_costs_one_transaction_for_each_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = create_autospec(MemoryStore.get, side_effect=MemoryStore.get)
    monkeypatch.setattr(MemoryStore, "get", reads)
    monkeypatch.setattr("issuer.core.supply.reservations.RECENT", 60.0)
    async with tinyid() as door:
        await door.ids.create("order", order="trend", step=10)
        for low in (0, 10, 20):
            answer = await door.ask("GET", f"{SEGMENT}Simple?bizType=order&token=x")
            assert answer.body.startswith(b"%d," % low)
            if low == 0:
                reads.reset_mock()
        assert not reads.called
        await door.ids.configure("order", step=5)
        sizes = list[int]()
        for _ in range(2):
            low, _, high, *_ = map(
                int, (await door.ask("GET", f"{SEGMENT}Simple?bizType=order&token=x")).body.split(b",")
            )
            sizes.append(high - low)
        assert sizes == [10, 5], "the reservation brings the new step"


@pytest.mark.covers("U.17", "1.12")
@pytest.mark.parametrize(
    ("stride", "offset", "above", "replies"),
    [
        (3, 3, 0, [b"2,4,15,3,0", b"17,19,30,3,0"]),
        (2, 1, 1, [b"2,3,11,2,1", b"12,13,21,2,1"]),
        (5, 1, 0, [b"0,4,21,5,1", b"25,29,46,5,1"]),
    ],
)
async def test_a_segment_of_a_tag_with_a_stride_has_delta_and_remainder(
    stride: int, offset: int, above: int, replies: list[bytes]
) -> None:
    """tinyid's row with delta 2, remainder 1 and max_id 1 gives 3 next: `above=1` at stride 2, offset 1."""
    async with tinyid() as door:
        await door.ids.create("order", order="trend", step=5, stride=stride, offset=offset, above=above)
        found: list[int] = []
        for reply in replies:
            answer = await door.ask("GET", f"{SEGMENT}Simple?bizType=order&token=x")
            assert answer.body == reply
            found += given(answer.body)
        wanted = [each for each in range(above + 1, 100) if each % stride == offset % stride][: len(found)]
        assert found == wanted
        assert (await door.ask("GET", f"{ID}Simple?bizType=order&token=x")).body == b"%d" % (wanted[-1] + stride)


@pytest.mark.covers("U.17")
async def test_the_last_segment_is_shortened_and_after_it_there_is_an_error() -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend", step=1000, limit=1001)
        path = f"{SEGMENT}Simple?bizType=order&token=x"
        bodies = [(await door.ask("GET", path)).body for _ in range(4)]
        assert bodies == [b"0,200,1000,1,0", b"1000,1000,1001,1,0", b"", b""]
        error = (await door.ask("GET", f"{SEGMENT}?bizType=order&token=x")).json
        assert (error["data"], error["code"]) == (None, 6)
        assert "has reached its limit" in error["message"]
        await door.ids.create("small", order="trend", step=1000, limit=3)
        assert (await door.ask("GET", path.replace("order", "small"))).body == b"0,0,3,1,0"


@pytest.mark.parametrize(
    "scheme",
    [{"order": "strict"}, {"scramble": "k", "limit": 1000}, {"format": "A{seq}"}, {"shards": True}],
    ids=["strict", "scramble", "format", "shards"],
)
async def test_a_segment_whose_numbers_the_client_cannot_give_is_refused(
    scheme: dict[str, Any], redis_url: str
) -> None:
    async with tinyid(redis=redis_url, settings={"keys": {"k": b"0123456789abcdef"}}) as door:
        await door.ids.create("order", **{"order": "trend", **scheme})
        query = "?bizType=order&token=x"
        assert (await door.good("GET", SEGMENT + query))["code"] == 6
        golden(await door.ask("POST", f"{SEGMENT}Simple{query}", headers=FORM), b"", TEXT)
        assert (await door.ids.inspect("order")).store.max == 0


async def test_a_scheme_that_changes_during_the_reservation_gives_no_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend", limit=10**6)
        store = door.ids.engine.config.store
        reserve = store.reserve

        def changed(tag: str, *given: Any, **options: Any) -> Any:
            reserved = reserve(tag, *given, **options)
            scheme = {"scramble": [{"from": 1, "key": "k"}], "id": "1-a"}
            object.__setattr__(reserved.tag, "scheme", scheme)
            return reserved

        monkeypatch.setattr(store, "reserve", changed)
        golden(await door.ask("GET", f"{SEGMENT}Simple?bizType=order&token=x"), b"", TEXT)


@pytest.mark.covers("U.17")
async def test_a_token_is_one_of_the_servers_tokens_and_is_checked_before_the_tag(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, it=(["issue"], ["order*"]), reads=(["read"], ["*"]))
    async with tinyid(access=access) as door:
        await door.ids.create("order", order="trend", step=10)
        await door.ids.create("other", order="trend")
        golden(await door.ask("GET", f"{ID}Simple?bizType=order&token={made['it']}"), b"1", TEXT)
        segment = await door.ask("POST", f"{SEGMENT}Simple?token={made['it']}&bizType=order", headers=FORM)
        golden(segment, b"10,12,20,1,0", TEXT)
        refused = [("order", "x"), ("order", made["it"].upper()), ("other", made["it"]), ("order", made["reads"])]
        for tag, token in (*refused, ("nope", made["it"])):
            for path in (ID, SEGMENT):
                golden(await door.ask("GET", f"{path}?bizType={tag}&token={token}"), TOKEN_IS_WRONG)
                golden(await door.ask("GET", f"{path}Simple?bizType={tag}&token={token}"), b"", TEXT)
        bearer = await door.ask("GET", f"{ID}?bizType=order", token=made["it"])
        golden(bearer, TOKEN_IS_WRONG)
        unknown = (await door.good("GET", f"{ID}?bizType=order-nope&token={made['it']}"))["message"]
        assert unknown == "error query segmentId: can not find biztype:order-nope"
        assert access.tally.failures["http"] == 8
        assert access.tally.requests["tinyid_nextId", 200, "it"] >= 1
        assert (await door.ids.inspect("other")).store.max == 0


async def test_a_token_beyond_its_rate_gets_code_6_and_when_to_retry(tmp_path: Path) -> None:
    _, made = tokens(tmp_path, it=(["issue"], ["*"], 10))
    clock = [0.0]
    access = Access(tmp_path / "tokens.toml", clock=lambda: clock[0])
    async with tinyid(access=access) as door:
        await door.ids.create("order", order="trend", step=11)
        query = f"bizType=order&token={made['it']}"
        assert (await door.good("GET", f"{ID}?{query}&batchSize=10"))["data"] == [*range(1, 11)]
        answer = await door.ask("GET", f"{ID}?{query}")
        golden(answer, b'{"data":null,"code":6,"message":"too many requests"}')
        assert answer.headers["retry-after"] == "1"
        golden(await door.ask("GET", f"{ID}Simple?{query}"), b"", TEXT)
        clock[0] += 10
        for path in (f"{ID}?{query}&batchSize=11", f"{SEGMENT}?{query}"):
            assert "may draw up to 10 numbers at once" in (await door.good("GET", path))["message"]
        assert (await door.ids.peek("order")).value == 11


async def test_an_error_of_the_store_is_code_6_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend")

        async def fails(*_: object, **__: object) -> Any:
            raise StoreUnavailable("the store is away", retry_after=2.0)

        monkeypatch.setattr(door.ids, "next", fails)
        monkeypatch.setattr(door.ids.engine, "reserve_step", fails)
        for path, before in ((ID, b"error query segmentId: "), (SEGMENT, b"")):
            answer = await door.ask("GET", f"{path}?bizType=order&token=x")
            golden(answer, b'{"data":null,"code":6,"message":"%b%b"}' % (before, AWAY))
            assert answer.headers["retry-after"] == "2"


async def test_head_draws_nothing() -> None:
    async with tinyid() as door:
        await door.ids.create("order", order="trend")
        for path in (ID, SEGMENT):
            answer = await door.ask("HEAD", f"{path}Simple?bizType=order&token=x")
            assert (answer.status, answer.body) == (200, b"")
        assert (await door.ids.inspect("order")).store.max == 0


async def test_a_plugin_is_asked_before_a_segment_is_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    from issuer.plugins import Plugin

    class Closed(Plugin):
        def before(self, call: Any) -> bool:
            return bool(call.n == 5)

    async with tinyid(settings={"plugins": [Closed()]}) as door:
        await door.ids.create("order", order="trend", step=10)
        path = f"{SEGMENT}Simple?bizType=order&token=x"
        golden(await door.ask("GET", path), b"", TEXT)
        await door.ids.configure("order", step=5)
        monkeypatch.setattr("issuer.core.supply.reservations.RECENT", 0.0)
        golden(await door.ask("GET", path), b"0,1,5,1,0", TEXT)
