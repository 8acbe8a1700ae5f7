"""Numbers over HTTP: every way to draw, to look at and to take apart, and how replies show them."""

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import issuer
from issuer.doors.access import Access
from issuer.doors.web import service
from issuer.doors.web.app import application
from issuer.errors import StoreUnavailable
from issuer.operations import numbers
from issuer.settings import Settings
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag, TagChanges
from tests.clocks import Clock
from tests.doors.http.doors import open_door, tokens

TAGS = [
    "orders", "a/b", "a%2Fb", "%", "%41", "#", "a#b", "{}", "{tag}", "?as=string", "a b", "a+b", "-", "~", "é", "数字",
    "😀", ".", "..", "...", "../orders", "next", "tags", "a;b=c,d", '"\\', "x" * 200, "a&b",
]  # fmt: skip
HIGH = 2**63 - 10


@pytest.mark.parametrize("tag", TAGS)
async def test_each_tag_that_python_takes_has_its_own_numbers(tag: str) -> None:
    async with open_door() as door:
        made = await door.ask("POST", "/v1/tags", {"tag": tag, "start": 77})
        place = made.headers["location"]
        assert (made.status, made.json["tag"]) == (201, tag)
        assert place == f"/v1/tags/{quote(tag, safe='')}"
        shown = [await door.good("POST", f"{place}/next") for _ in range(3)]
        assert shown == [{"tag": tag, "number": number} for number in (77, 78, 79)]
        assert (await door.good("GET", place))["tag"] == tag
        assert [each["tag"] for each in (await door.good("GET", "/v1/tags"))["tags"]] == [tag]
        assert await door.ids.next(tag) == 80
        elsewhere = f"/v1/tags/-/next?tag={quote(tag, safe='')}"
        assert await door.good("POST", elsewhere) == {"tag": tag, "number": 81}
        # As browsers and Python's own `quote` write it: what needs no escape stands bare.
        assert (await door.good("POST", f"/v1/tags/{quote(tag, safe='!$&()*+,;=:@')}/next"))["number"] == 82


async def test_a_slash_of_a_tag_is_not_one_between_segments() -> None:
    async with open_door("a/next", "a") as door:
        await door.ids.take("a", 5)
        assert await door.good("POST", "/v1/tags/a%2Fnext/next") == {"tag": "a/next", "number": 1}
        assert await door.good("POST", "/v1/tags/a/next") == {"tag": "a", "number": 6}
        assert await door.refused("POST", "/v1/tags/a/next/next") == (404, "not_found")


async def test_a_server_that_tells_only_the_decoded_path_serves_all_tags_without_a_slash() -> None:
    async with open_door("é %") as door:
        path = "/v1/tags/é %/next"
        found = await door.good("POST", "/x", raw_path=None, path=path)
        assert found == {"tag": "é %", "number": 1}


async def test_numbers_are_integers_or_strings_as_the_client_wants_them() -> None:
    async with open_door() as door:
        await door.ids.create("high", start=HIGH)
        for at in range(3):  # the first one the long way, then the short one
            assert (await door.good("POST", "/v1/tags/high/next"))["number"] == HIGH + 2 * at
            assert (await door.good("POST", "/v1/tags/high/next?as=string"))["number"] == str(HIGH + 2 * at + 1)
        taken = await door.good("POST", "/v1/tags/high/take?as=string", {"n": 2})
        assert taken == {"tag": "high", "numbers": [str(HIGH + 6), str(HIGH + 7)]}
        assert (await door.good("GET", "/v1/tags/high/peek?as=string"))["number"] == str(HIGH + 8)
        shown = await door.good("GET", "/v1/tags/high?as=string")
        assert shown["limit"] == str(2**63 - 1)
        assert shown["store"]["max"] == str(2**63 - 1)
        assert shown["store"]["step"] == 1000, "no number of the tag"
        decoded = await door.good("GET", f"/v1/tags/high/decode/{HIGH}?as=string")
        assert decoded == {"tag": "high", "value": str(HIGH), "counter": str(HIGH)}
        who = await door.good("GET", f"/v1/tags/high/who/{HIGH}?as=string")
        assert (who["number"], who["max"], who["entries"][0]["low"]) == (str(HIGH), str(2**63 - 1), str(HIGH - 1))
        page = await door.good("GET", "/v1/tags/high/segments?as=string")
        assert page["segments"][0]["high"] == str(2**63 - 1)
        assert isinstance(page["segments"][0]["time"], int)
        tags = await door.good("GET", "/v1/tags?as=string")
        assert tags["tags"][0]["max"] == str(2**63 - 1)
        dry = await door.good("POST", "/v1/tags/high/recover?as=string", {})
        assert dry["recoveries"][0]["new"] == str(2**63 - 1)


async def test_a_client_whose_integers_end_at_2_to_the_53_can_say_numbers_as_strings() -> None:
    async with open_door() as door:
        made = {"tag": "a", "above": str(HIGH), "limit": str(HIGH + 5)}
        assert (await door.good("POST", "/v1/tags", made))["limit"] == HIGH + 5
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == HIGH + 1
        recovered = await door.good("POST", "/v1/tags/a/recover", {"dry_run": False, "at_least": str(HIGH + 3)})
        assert recovered["recoveries"][0]["new"] == HIGH + 5


@pytest.mark.parametrize(
    ("accept", "plain"),
    [
        ("text/plain", True),
        ("TEXT/plain; charset=utf-8", True),
        ("text/*", True),
        ("text/plain, */*;q=0.5", True),
        ("application/json;q=0.5, text/plain;q=0.6", True),
        ("*/*", False),
        ("application/json, text/plain, */*", False),
        ("application/json", False),
        ("text/plain;q=0.5, application/json", False),
        ("text/html", False),
        ("", False),
        ("text/plain;q=rubbish, application/json;q=0.1", True),
    ],
)
async def test_the_bare_number_is_for_those_who_want_text(accept: str, plain: bool) -> None:
    async with open_door() as door:
        await door.ids.create("a", format="A{seq:04d}")
        await door.ids.create("b")
        for tag, text in (("a", {"text": "A0001"}), ("b", {})):
            answer = await door.ask("POST", f"/v1/tags/{tag}/next", headers=[("Accept", accept)])
            assert answer.headers["content-type"] == ("text/plain; charset=utf-8" if plain else "application/json")
            assert answer.body == b"1" if plain else answer.json == {"tag": tag, "number": 1, **text}
        taken = await door.ask("POST", "/v1/tags/b/take", {"n": 3}, headers=[("Accept", accept)])
        assert taken.body == (b"2\n3\n4\n" if plain else b'{"tag":"b","numbers":[2,3,4]}')
        peeked = await door.ask("GET", "/v1/tags/b/peek", headers=[("Accept", accept)])
        assert peeked.body == b"5" if plain else peeked.json["number"] == 5


async def test_a_draw_has_the_same_reply_on_the_short_way_and_on_the_long_one(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, a=(["issue"], ["*"]), b=(["read"], ["*"]))

    bodies: list[Any] = [None, {}]
    async with open_door(access=access) as door:
        for tag in ("orders", "ä/b"):
            await door.ids.create(tag)
            path = f"/v1/tags/{quote(tag, safe='')}/next"
            await door.good("POST", path, {}, token=made["a"])  # from now on it is known to have no texts
            for query in ("", "?as=string"):
                for token in (made["a"], made["b"], "unknown"):
                    short, long = [
                        await door.ask("POST", path + query, body, token=token, headers=[("x-request-id", "1")])
                        for body in bodies
                    ]
                    same = [
                        (each.status, {**each.headers, "content-length": ""}, re.sub(rb"[0-9]+", b"", each.body))
                        for each in (short, long)
                    ]
                    assert same[0] == same[1]
        assert sum(door.app._tally.draws["a"].counts) == 4, "half of the draws took the short way"


async def test_a_format_that_another_process_gives_a_tag_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service, "PLAIN_FOR", 0.0)
    store = f"sqlite:///{tmp_path}/issuer.db"
    async with open_door(store=store) as door:
        await door.ids.create("a", step=1)  # so that the next number is reserved, and the record read with it
        assert await door.good("POST", "/v1/tags/a/next") == {"tag": "a", "number": 1}
        async with issuer.aconnect(redis="none", store=store, scheduler=None) as other:
            await other.configure("a", format="A{seq:04d}")
        drawn = [await door.good("POST", "/v1/tags/a/next") for _ in range(5)]
        assert drawn[-1] == {"tag": "a", "number": 6, "text": "A0006"}


class Held(MemoryStore):
    """A store that gives no numbers as long as it is held."""

    held = False

    def reserve(self, *given: Any, **named: Any) -> Any:
        if self.held:
            raise StoreUnavailable("held")
        return super().reserve(*given, **named)


async def test_a_draw_waits_for_as_long_as_its_client_wants() -> None:
    store = Held()
    # By itself it would wait for longer than the test does.
    async with open_door(store=store, settings={"timeout": 3600.0, "insist": 3600.0}, longest=3600.0) as door:
        await door.ids.create("a", step=1)
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == 1
        store.held = True
        assert await door.refused("POST", "/v1/tags/a/next", {"timeout": 0.05}) == (503, "store_unavailable")


async def test_text_period_and_shard_stand_where_the_tag_has_them() -> None:
    async with open_door() as door:
        await door.ids.create("bills", format="B{seq:06d}{check}")
        await door.ids.create("shards", shards={"shard_bits": 2})
        await door.ids.create("strided", stride=3, offset=2)
        issued = await door.good("POST", "/v1/tags/bills/next")
        assert issued == {"tag": "bills", "number": 1, "text": issued["text"]}
        assert issued["text"].startswith("B000001")
        found = await door.good("GET", f"/v1/tags/bills/decode/{issued['text']}")
        assert (found["value"], found["counter"]) == (1, 1)
        assert (await door.good("GET", "/v1/tags/bills/decode/1?number=true"))["value"] == 1
        assert await door.refused("GET", "/v1/tags/bills/decode/B0000019999") == (422, "not_decodable")
        sharded = await door.good("POST", "/v1/tags/shards/next", {"shard_key": "alice"})
        assert {*sharded} == {"tag", "number", "text", "shard"}
        who = await door.good("GET", f"/v1/tags/shards/who/{sharded['number']}")
        assert (who["tag"], who["number"], who["value"]) == (f"shards#{sharded['shard']}", 1, sharded["number"])
        assert await door.refused("POST", "/v1/tags/shards/next") == (400, "invalid_argument")
        peeked = await door.good("GET", "/v1/tags/shards/peek?shard_key=alice")
        assert (peeked["shard"], peeked["text"]) == (sharded["shard"], str(peeked["number"]))
        assert await door.good("POST", "/v1/tags/strided/next") == {"tag": "strided", "number": 2}


async def test_a_format_that_is_given_while_numbers_are_drawn_is_seen_at_once() -> None:
    async with open_door() as door:
        await door.ids.create("a", step=1)
        for number in (1, 2, 3):
            assert await door.good("POST", "/v1/tags/a/next") == {"tag": "a", "number": number}
        await door.good("PATCH", "/v1/tags/a", {"format": "A{seq}"})
        await door.ids.take("a", 5)  # its next segment, with which each process hears of it
        assert await door.good("POST", "/v1/tags/a/next") == {"tag": "a", "number": 9, "text": "A9"}


@pytest.mark.live
async def test_a_period_is_shown_and_strict_numbers_rise(redis_url: str) -> None:
    async with open_door(redis=redis_url) as door:
        daily = {"tag": "daily", "restart": "daily", "format": "{date:%Y%m%d}-{seq:06d}"}
        assert (await door.good("POST", "/v1/tags", daily))["order"] == "strict"
        issued = await door.good("POST", "/v1/tags/daily/next")
        assert issued["text"] == f"{issued['period'].replace('-', '')}-000001"
        await door.good("POST", "/v1/tags", {"tag": "strict"})
        drawn = [(await door.good("POST", "/v1/tags/strict/next"))["number"] for _ in range(50)]
        assert drawn == sorted(set(drawn))
        beside = await asyncio.gather(*(door.good("POST", "/v1/tags/strict/next") for _ in range(200)))
        assert len({each["number"] for each in beside} | {*drawn}) == 250


@pytest.mark.live
async def test_an_idempotency_key_has_one_number_however_often_it_is_asked(redis_url: str) -> None:
    async with open_door(redis=redis_url) as door:
        await door.good("POST", "/v1/tags", {"tag": "a"})
        await door.good("POST", "/v1/tags", {"tag": "bills", "format": "B{seq:03d}"})

        async def drawn(tag: str, key: str, body: Any = None) -> Any:
            return await door.good("POST", f"/v1/tags/{tag}/next", body, headers=[("Idempotency-Key", key)])

        first = await drawn("a", "order-1")
        assert [await drawn("a", "order-1") for _ in range(3)] == [first] * 3
        assert [await drawn("a", "order-1", {"ttl": 60}), await drawn("a", "order-2")] == [
            first,
            {"tag": "a", "number": first["number"] + 1},
        ]
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == first["number"] + 2
        assert await drawn("bills", "x") == await drawn("bills", "x") == {"tag": "bills", "number": 1, "text": "B001"}
        many = await asyncio.gather(*(drawn("a", "order-3") for _ in range(20)))
        assert len({each["number"] for each in many}) == 1
        for wrong in ("", "a\tb", "x" * 201):
            headers = [("Idempotency-Key", wrong)]
            assert await door.refused("POST", "/v1/tags/a/next", headers=headers) == (400, "invalid_argument")
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == many[0]["number"] + 1, "nothing was drawn"


@pytest.mark.live
async def test_an_idempotency_key_is_the_tokens_own_and_outlives_its_rotation(redis_url: str, tmp_path: Path) -> None:
    scopes = {"shop": (["issue"], ["*"]), "bill": (["issue"], ["*"])}
    access, made = tokens(tmp_path, **scopes)
    async with open_door("a", redis=redis_url, access=access) as door:
        await door.ids.create("texts", format="B{seq:03d}")

        async def drawn(name: str, key: str, tag: str = "a") -> int:
            headers = [("Idempotency-Key", key)]
            return int((await door.good("POST", f"/v1/tags/{tag}/next", token=made[name], headers=headers))["number"])

        # Keys that would be one another's, or the library's, if name and key were simply put together.
        callers = [("shop", "1001"), ("bill", "1001"), ("shop", "bill:1001"), ("bill", "shop:1001")]
        first = {each: await drawn(*each) for each in callers}
        library = {key: await door.ids.next("a", key=key) for key in ("1001", "shop:1001", "bill:1001")}
        assert len({*first.values(), *library.values()}) == 7
        assert await drawn("shop", "1", "texts") != await drawn("bill", "1", "texts")
        assert {each: await drawn(*each) for each in callers} == first
        assert {key: await door.ids.next("a", key=key) for key in library} == library

        again, new = tokens(tmp_path, **scopes)
        assert new["shop"] != made["shop"]
        made.update(new)
        door.app = application(door.ids, again)
        assert {each: await drawn(*each) for each in callers} == first


@pytest.mark.live
async def test_what_clients_may_have_kept_is_bounded_and_refused_beyond(redis_url: str) -> None:
    clock = Clock()
    access = Access(None)
    access.rates.clock = clock
    async with open_door(
        "a", redis=redis_url, access=access, limits=Settings(longest_ttl=60, keys_per_second=2)
    ) as door:

        async def drawn(key: str, body: Any = None) -> tuple[int, str]:
            answer = await door.ask("POST", "/v1/tags/a/next", body, headers=[("Idempotency-Key", key)])
            return (200, "") if answer.status == 200 else (answer.status, answer.code)

        for ttl in (60.001, 1e9, 1e300):
            assert await drawn("1", {"ttl": ttl}) == (400, "invalid_argument")
        assert [await drawn("1", {"ttl": 60}), await drawn("2")] == [(200, "")] * 2  # the usual ttl would be too long
        assert await door.ids.next("a") == 3, "nothing was drawn"
        # Only a new key counts: known ones come again as often as clients like.
        clock.now += 10
        assert [await drawn(key) for key in ("1", "2") * 5] == [(200, "")] * 10
        assert [await drawn(key) for key in ("3", "4")] == [(200, "")] * 2
        late = await door.ask("POST", "/v1/tags/a/next", headers=[("Idempotency-Key", "5")])
        assert (late.status, late.code, late.headers["retry-after"]) == (429, "too_many_requests", "1")
        assert "keys_per_second" in late.json["detail"]
        clock.now += 0.5
        assert await drawn("5") == (200, "")


@pytest.mark.live
async def test_a_token_keeps_a_limited_number_of_keys(redis_url: str) -> None:
    clock = Clock()
    access = Access(None)
    access.rates.clock = clock
    limits = Settings(longest_ttl=3600, keys_per_second=1, living_keys=10)
    async with open_door("a", redis=redis_url, access=access, limits=limits) as door:

        async def drawn(key: int, ttl: float = 3600) -> Any:
            return await door.ask("POST", "/v1/tags/a/next", {"ttl": ttl}, headers=[("Idempotency-Key", str(key))])

        ends: dict[int, float] = {}
        for key in range(3 * 360):  # a key each 10 s for three hours, each for an hour
            clock.now += 10
            if (await drawn(key)).status == 200:
                ends[key] = clock.now + 3600
            assert sum(each > clock.now for each in ends.values()) <= 20
        assert 9 <= sum(each > clock.now for each in ends.values()) <= 11
        late = await drawn(-1)
        assert (late.status, late.code) == (429, "too_many_requests")
        assert "living_keys" in late.json["detail"]
        assert 0 < int(late.headers["retry-after"]) <= 360
        known = [await drawn(key) for key in ends]
        assert [each.json["number"] for each in known] == [*range(1, len(ends) + 1)], "known keys get their numbers"
        assert (await drawn(-1, 1)).status == 200


@pytest.mark.live
async def test_a_tag_gets_no_more_series_than_the_server_allows(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_door(redis=redis_url, limits=Settings(series_per_tag=3)) as door:
        await door.ids.create("a", restart="yearly", keyed=True, format="{date:%Y}-{key}-{seq}")

        async def drawn(key: str) -> tuple[int, str]:
            answer = await door.ask("POST", "/v1/tags/a/next", {"restart_key": key})
            return (200, "") if answer.status == 200 else (answer.status, answer.code)

        assert [await drawn(key) for key in "abcab"] == [(200, "")] * 5
        looks: list[float] = []
        tags = MemoryStore.tags

        def looked(store: MemoryStore, *, timeout: float, **page: Any) -> list[Tag]:
            looks.append(timeout)
            return tags(store, timeout=timeout, **page)

        monkeypatch.setattr(MemoryStore, "tags", looked)
        monkeypatch.setattr(numbers, "SERIES_COUNTED_FOR", 1000.0)
        assert {await drawn(f"x{at}") for at in range(20)} == {(400, "invalid_argument")}
        assert len(looks) <= 1, "the store is asked once a second at most"
        assert [await drawn(key) for key in "abc"] == [(200, "")] * 3
        assert len(await door.ids.tags()) == 1 + 3
        # Programs may make them: the limit is the server's.
        await door.ids.issue("a", restart_key="d")
        monkeypatch.setattr(numbers, "SERIES_COUNTED_FOR", 0.0)
        door.app = application(door.ids, Access(None), settings=Settings(series_per_tag=5))
        assert [await drawn(key) for key in "ef"] == [(200, ""), (400, "invalid_argument")]
        assert looks


async def test_take_reserve_and_warm_do_what_python_does() -> None:
    async with open_door() as door:
        await door.ids.create("a", step=10)
        await door.good("POST", "/v1/tags/a/warm")
        assert (await door.good("POST", "/v1/tags/a/take", {"n": 25}))["numbers"] == list(range(1, 26))
        reserved = await door.good("POST", "/v1/tags/a/reserve", {"n": 1000})
        assert reserved["last"] - reserved["first"] == 999
        assert (await door.ids.next("a")) not in range(reserved["first"], reserved["last"] + 1)
        for path in ("take", "reserve"):
            assert await door.refused("POST", f"/v1/tags/a/{path}") == (422, "missing_member")
            assert await door.refused("POST", f"/v1/tags/a/{path}", {"n": 0}) == (400, "invalid_argument")
            assert await door.refused("POST", f"/v1/tags/a/{path}", {"n": "5"}) == (422, "wrong_type")
            assert await door.refused("POST", f"/v1/tags/a/{path}", {"n": True}) == (422, "wrong_type")
            assert await door.refused("POST", f"/v1/tags/a/{path}", {"n": 10**30}) == (400, "invalid_argument")


async def test_many_numbers_come_in_pieces_and_are_all_there() -> None:
    async with open_door() as door:
        await door.ids.create("a", step=100_000)
        numbers = list(range(1, 25_001))
        assert (await door.good("POST", "/v1/tags/a/take", {"n": 25_000}))["numbers"] == numbers
        strings = (await door.good("POST", "/v1/tags/a/take?as=string", {"n": 25_000}))["numbers"]
        assert strings == [str(25_000 + number) for number in numbers]
        plain = await door.ask("POST", "/v1/tags/a/take", {"n": 25_000}, headers=[("Accept", "text/plain")])
        assert plain.body.decode().splitlines() == [str(50_000 + number) for number in numbers]


@pytest.mark.parametrize("scheme", [{}, {"offset": 1, "stride": 3}], ids=["plain", "scheme"])
async def test_others_have_their_turn_while_many_numbers_are_taken(scheme: dict[str, Any]) -> None:
    async with open_door() as door:
        # The numbers are in memory: while a draw waits for Redis, others have turns in any case.
        await door.ids.create("a", order="trend", step=5_000_000, lease=1_000_000, **scheme)
        await door.ids.next("a")
        turns, n = 0, 50_000
        least = (n // 1000 - 1) * (2 if scheme else 1)  # a scheme converts them first

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        assert len(await door.ids.take("a", n)) == n
        assert turns >= least, "while the list is made"
        turns = 0
        taken = await door.good("POST", "/v1/tags/a/take", {"n": n})
        assert turns >= least, "and while the reply is packed"
        beside.cancel()
        stride = scheme.get("stride", 1)
        assert [each - taken["numbers"][0] for each in taken["numbers"]] == [*range(0, n * stride, stride)]


async def test_what_take_had_drawn_when_it_failed_is_the_clients() -> None:
    store = MemoryStore()
    async with open_door(store=store) as door:
        for tag, how, kind in (("a", "", int), ("b", "?as=string", str)):
            await door.ids.create(tag, step=10, order="trend")
            await door.ids.next(tag)
            store.configure(tag, TagChanges(limit=25), timeout=10)  # this process does not know of it
            answer = await door.ask("POST", f"/v1/tags/{tag}/take{how}", {"n": 40})
            assert (answer.status, answer.code) == (409, "limit_reached")
            assert (answer.json["drawn"], answer.json["limit"]) == ([*map(kind, range(2, 26))], kind(25))


async def test_peek_and_decode_consume_nothing_and_tell_what_python_tells() -> None:
    async with open_door("a") as door:
        await door.ids.take("a", 5)
        assert [(await door.good("GET", "/v1/tags/a/peek"))["number"] for _ in range(3)] == [6] * 3
        assert (await door.good("POST", "/v1/tags/a/next"))["number"] == 6
        for wrong in ("x", "0", "9223372036854775808", "9" * 99, "-1", "%20"):
            assert await door.refused("GET", f"/v1/tags/a/decode/{wrong}") == (422, "not_decodable"), wrong
            status, _ = await door.refused("GET", f"/v1/tags/a/who/{wrong}")
            assert status in (400, 422), wrong
        assert (await door.good("GET", "/v1/tags/a/who/3"))["state"] == "reserved"
        assert (await door.good("GET", "/v1/tags/a/who/5000"))["entries"] == []


async def test_snowflake_numbers_are_drawn_and_taken_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISSUER_MACHINE", "3")
    async with open_door() as door:
        options = {"machine": "fixed", "epoch": "2026-01-01", "lease": 86_400}
        await door.good("POST", "/v1/tags", {"tag": "events", "strategy": "snowflake", "options": options})
        number = (await door.good("POST", "/v1/tags/events/next"))["number"]
        found = await door.good("GET", f"/v1/tags/events/decode/{number}")
        assert (found["value"], found["machine"]) == (number, 3)
        assert await door.refused("GET", f"/v1/tags/events/who/{number}") == (422, "not_decodable")
        assert "layout" in await door.good("GET", "/v1/tags/events")
        shown = {"format": "{date:%Y%m%d%H%M%S%L%z}-{machine}-{sequence}", "timezone": "Asia/Tokyo"}
        made = {"tag": "shown", "strategy": "snowflake", "limit": "js", **shown}
        assert await door.refused("POST", "/v1/tags", {**made, "options": options}) == (422, "scheme")
        options |= {"machine_bits": 5, "sequence_bits": 7}
        assert (await door.good("POST", "/v1/tags", {**made, "options": options}))["limit"] == 2**53 - 1
        issued = await door.good("POST", "/v1/tags/shown/next")
        assert re.fullmatch(r"\d{17}\+0900-3-\d+", issued["text"])
        found = await door.good("GET", f"/v1/tags/shown/decode/{issued['text']}")
        assert (found["value"], found["machine"]) == (issued["number"], 3)
        plain = await door.refused("POST", "/v1/tags", {"tag": "plain", "format": "{seq}-{machine}"})
        assert plain == (422, "scheme")
