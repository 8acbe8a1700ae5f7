"""What requests make a worker hold: counted while it is held, refused beyond the budget, and released in every case."""

import asyncio
import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.budget import STRANGERS_SHARE, Budget
from issuer.doors.web.calls import BODY_MOST
from issuer.settings import Settings
from tests.doors.http.doors import HOST, Answer, Door, open_door, tokens
from tests.waiting import eventually

TAKE = "/v1/tags/a/take"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("issuer.doors.web.calls.PROGRESS", 60.0)


class Slow:
    """A request that stops after some bytes of its body, and what the server has answered.

    `reads`: whether it reads. `writes`: how many messages the server has begun to send.
    """

    def __init__(
        self,
        door: Door,
        path: str,
        body: bytes,
        *,
        method: str = "POST",
        media: str = "application/json",
        token: str = "",
    ) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.more: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.send(body, more=True)
        headers = [(b"host", HOST.encode()), (b"content-type", media.encode()), (b"transfer-encoding", b"chunked")]
        if token:
            headers.append((b"authorization", b"Bearer " + token.encode()))
        self.sent: list[Any] = []
        self.writes = 0
        scope = {
            "type": "http", "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": headers, "client": ("127.0.0.1", 5),
        }  # fmt: skip

        async def send(message: Any) -> None:
            self.writes += 1
            await self.reads.wait()
            self.sent.append(message)

        self.task = asyncio.create_task(door.app(scope, self.more.get, send))

    def send(self, body: bytes, *, more: bool = False) -> None:
        self.more.put_nowait({"type": "http.request", "body": body, "more_body": more})

    async def answer(self) -> Answer:
        await self.task
        headers = {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}
        return Answer(self.sent[0]["status"], headers, b"".join(each.get("body", b"") for each in self.sent))


def refused(answer: Answer) -> None:
    assert (answer.status, answer.code) == (503, "busy")
    assert (answer.headers["retry-after"], answer.headers["connection"]) == ("1", "close")


async def test_bodies_that_arrive_are_counted_and_one_too_many_is_refused_and_draws_nothing() -> None:
    budget = Budget(600_000)
    async with open_door("a", budget=budget) as door:
        body = json.dumps({"n": 3, "timeout": 60}).encode()
        slow = [Slow(door, TAKE, body[:-1] + b" " * 60_000) for _ in range(2)]
        await eventually(lambda: budget.held > 2 * 240_000)
        refused(await door.ask("POST", TAKE, sent=b" " * 60_000, headers=[("Content-Type", "application/json")]))
        assert await door.good("POST", TAKE, {"n": 2}) == {"tag": "a", "numbers": [1, 2]}, "small ones have room"
        for each in slow:
            each.send(b"}")
        assert sorted([(await each.answer()).json["numbers"] for each in slow]) == [[3, 4, 5], [6, 7, 8]]
        assert budget.held == 0


async def test_a_request_that_waits_for_its_body_is_counted() -> None:
    budget = Budget(170_000)
    async with open_door("a", budget=budget) as door:
        slow = [Slow(door, TAKE, b"{") for _ in range(5)]
        await eventually(lambda: budget.held > 5 * 28_000)
        refused(await Slow(door, TAKE, b"{").answer())
        for number, each in enumerate(slow, 1):
            each.send(b'"n": 1}')
            assert (await each.answer()).json["numbers"] == [number]
        assert budget.held == 0


async def test_a_request_without_a_body_is_answered_when_the_budget_is_used_up() -> None:
    async with open_door("a", budget=Budget(0)) as door:
        for headers in ([], [("Content-Length", "0")]):
            key = ("Prefer", "the long way"), ("Accept", "text/plain")
            answer = await door.ask("POST", "/v1/tags/a/next", headers=[*headers, *key])
            assert (answer.status, answer.headers["content-type"][:10]) == (200, "text/plain")
        for path in ("/livez", "/readyz", "/v1/tags"):
            assert (await door.ask("GET", path)).status == 200
        refused(await Slow(door, "/v1/tags/a/next", b"{").answer())


@pytest.mark.parametrize("how", ["gone", "late", "cancelled", "too large", "no JSON"])
async def test_what_a_body_held_is_released(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "late":
        monkeypatch.setattr("issuer.doors.web.calls.PROGRESS", 0.1)
    budget = Budget()
    async with open_door("a", budget=budget) as door:
        slow = Slow(door, TAKE, b'{"n"')
        held = []
        if how != "late":
            held.append(await eventually(lambda: budget.held))
        if how == "gone":
            slow.more.put_nowait({"type": "http.disconnect"})
        elif how == "cancelled":
            slow.task.cancel()
        elif how != "late":
            slow.send(b" " * BODY_MOST if how == "too large" else b"}")
        if how == "cancelled":
            with pytest.raises(asyncio.CancelledError):
                await slow.task
        else:
            assert (await slow.answer()).status == {"late": 408, "too large": 413}.get(how, 400)
        assert budget.held == 0
        assert await door.good("POST", "/v1/tags/a/next") == {"tag": "a", "number": 1}


async def test_lists_of_numbers_that_were_not_drawn_yet_are_counted_and_too_many_are_refused() -> None:
    budget = Budget(1_000_000)
    async with open_door(
        budget=budget, limits=Settings(compat=["tinyid"], compat_batch=100_000, compat_timeout=60.0)
    ) as door:
        await door.ids.create("a", order="trend", stride=2, offset=1)
        refused(await door.ask("POST", TAKE, {"n": 25_000}))
        taken = await door.good("POST", TAKE, {"n": 20_000})
        assert taken["numbers"] == list(range(1, 40_001, 2))
        assert budget.held == 0
        batch = "/tinyid/id/nextId?bizType=a&token=x&batchSize="
        refused(await door.ask("GET", f"{batch}26000"))
        assert (await door.good("GET", f"{batch}2"))["data"] == [40_001, 40_003]
        assert await door.refused("POST", TAKE, {"n": 10**30}) == (400, "invalid_argument")
        assert await door.refused("POST", TAKE, {"n": -(10**30)}) == (400, "invalid_argument")
        assert budget.held == 0


async def test_ranges_of_numbers_need_little_memory_until_they_are_written() -> None:
    budget = Budget()
    async with open_door(budget=budget) as door:
        await door.ids.create("a", order="trend")
        tracemalloc.start()
        slow = Slow(door, TAKE, b'{"n": 500000')
        slow.reads.clear()
        slow.send(b"}")
        await eventually(lambda: slow.writes)
        assert 131_072 <= budget.held < 140_000
        assert tracemalloc.get_traced_memory()[0] < 5_000_000
        tracemalloc.stop()
        slow.reads.set()
        assert len(json.loads((await slow.answer()).body)["numbers"]) == 500_000
        assert await door.refused("POST", TAKE, {"n": 10**30}) == (400, "invalid_argument")


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_a_large_reply_waits_in_small_pieces_and_is_counted_until_it_is_read(path: str) -> None:
    budget = Budget()
    async with open_door(budget=budget) as door:
        page = await door.ask("GET", path)
        size = int(page.headers["content-length"])
        budget.most = 3 * size - 1
        readers = [Slow(door, path, b"", method="GET") for _ in range(2)]
        for each in readers:
            each.reads.clear()
        await eventually(lambda: budget.held == 2 * size)
        refused(await door.ask("GET", path))
        assert (await door.ask("GET", "/livez")).status == 200
        for each in readers:
            each.reads.set()
            answer = await each.answer()
            assert (answer.status, answer.body) == (200, page.body)
            assert max(len(message.get("body", b"")) for message in each.sent) <= 16_384
        assert budget.held == 0


async def test_a_large_reply_to_a_reader_is_counted_until_it_is_read() -> None:
    budget = Budget(10_000)
    async with open_door(budget=budget) as door:
        await door.ids.create_many({f"a{number}": {} for number in range(100)})
        refused(await door.ask("GET", "/v1/tags"))
        assert len((await door.good("GET", "/v1/tags?count=5"))["tags"]) == 5
        assert budget.held == 0


async def test_strangers_use_up_no_more_than_their_share(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, shop=(["issue"], ["*"]))
    budget = Budget(1_000_000)
    path, fields = "/tinyid/id/nextIdSimple", f"bizType=a&token={made['shop']}".encode()
    async with open_door(
        "a", access=access, budget=budget, limits=Settings(compat=["tinyid"], compat_timeout=60.0)
    ) as door:

        def form(body: bytes) -> Slow:
            return Slow(door, path, body, media=FORM)

        slow = [form(fields + b"&x=" + b"x" * 20_000) for _ in range(2)]
        await eventually(lambda: budget.held > 2 * 80_000)
        refused(await form(b"x" * 20_000).answer())
        assert budget.strangers.held == budget.held <= STRANGERS_SHARE * budget.most
        # A client with a token has the rest.
        known = Slow(door, TAKE, b'{"n": 1' + b" " * 60_000, token=made["shop"])
        await eventually(lambda: budget.held > budget.strangers.held + 240_000)
        known.send(b"}")
        assert (await known.answer()).json["numbers"] == [1]
        for number, each in enumerate(slow, 2):
            each.send(b"")
            answer = await each.answer()
            assert answer.body == b"%d" % number
            assert "connection" not in answer.headers, "its token is known now"
        assert (budget.held, budget.strangers.held) == (0, 0)


@pytest.mark.parametrize(
    ("method", "path", "families"),
    [
        ("POST", TAKE, ()),
        ("POST", "/v1/tags", ()),
        ("POST", "/api/leaf", ("leaf-go",)),
        ("PUT", "/api/leaf/step", ("leaf-go",)),
        ("PUT", "/api/leaf/init/cache", ("leaf-go",)),
        ("POST", "/decodeSnowflakeId", ("leaf",)),
        ("POST", "/api/segment/get/a", ("leaf",)),
    ],
)
async def test_the_body_of_a_stranger_is_not_read(
    method: str, path: str, families: Sequence[Any], tmp_path: Path
) -> None:
    access, _ = tokens(tmp_path, shop=(["issue"], ["*"]))
    async with open_door(access=access, limits=Settings(compat=families)) as door:
        for media in ("application/json", FORM):
            # Without pieces, the body ends in a disconnect.
            answer = await door.ask(method, path, pieces=[], headers=[("Content-Type", media)])
            assert (answer.status, answer.code) == (401, "unauthenticated")
            assert answer.headers["connection"] == "close"
