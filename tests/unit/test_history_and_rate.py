"""Who got which number, what a history forgets, and how fast numbers are given by a clock that the test moves."""

import asyncio
import json
import os
import socket
import threading
from functools import partial
from typing import Any

import pytest

from issuer.errors import InvalidArgument
from issuer.plugins import AsyncChain, Call, Chain, History, Rate, Rates, Record, noted
from issuer.plugins.history import KEPT
from tests.clocks import Clock
from tests.surrounding import Faced, drawing
from tests.unit.refusals import refused
from tests.unit.together import together
from tests.waiting import run


class Ticking(Clock):
    """A wall clock in whole milliseconds."""

    def __call__(self) -> int:
        return int(self.now)


@pytest.mark.covers("3.41")
def test_it_tells_who_got_what_when(face: Faced) -> None:
    history = History(clock=Ticking(1_700_000_000_000))
    with noted("GET /checkout"):
        assert face(history).around(Call("orders", 2), drawing((7, 8))) == [7, 8]
    first, second = history.find()
    assert first.number == 8
    host, pid, caller = socket.gethostname(), os.getpid(), second.caller
    assert second == Record(1_700_000_000_000, "orders", 7, host, pid, caller, context="GET /checkout")
    assert json.loads(json.dumps(second.content()))["number"] == 7


def test_it_names_the_thread_or_the_task_whose_context_ends_with_its_block() -> None:
    history = History()
    chain = AsyncChain([history])

    async def draw() -> list[int]:
        await asyncio.sleep(0)
        return [7]

    async def request(number: int) -> None:
        with noted("outer"):
            with noted(f"request {number}"):
                await chain.around(Call("a"), draw)
            await chain.around(Call("outer"), draw)
        await chain.around(Call("after"), draw)

    async def main() -> None:
        await asyncio.gather(*[asyncio.create_task(request(each), name=f"task-{each}") for each in range(20)])

    run(main())
    seen = {(record.caller, record.context) for record in history.find(tag="a")}
    assert seen == {(f"task-{each}", f"request {each}") for each in range(20)}
    assert [{record.context for record in history.find(tag=tag)} for tag in ("outer", "after")] == [{"outer"}, {""}]
    thread = threading.Thread(target=Chain([history]).around, args=(Call("b"), drawing((1,))), name="worker-7")
    thread.start()
    thread.join()
    assert [record.caller for record in history.find(tag="b")] == ["worker-7"]
    refused(InvalidArgument, "context must be a text, not 7", noted(7).__enter__)  # type: ignore[arg-type]


def test_it_finds_by_all_that_is_given() -> None:
    clock = Ticking(1000)
    history = History(clock=clock)
    for number in range(10):
        history.after(Call("even" if number % 2 == 0 else "odd"), number)
        clock.now += 10
    wanted: list[tuple[dict[str, Any], list[int]]] = [
        ({}, list(range(9, -1, -1))),
        ({"tag": "even"}, [8, 6, 4, 2, 0]),
        ({"number": 7}, [7]),
        ({"number": 7, "tag": "even"}, []),
        ({"number": 0}, [0]),
        ({"since": 1070}, [9, 8, 7]),
        ({"since": 1071, "tag": "even"}, [8]),
        ({"limit": 2, "tag": "odd", "since": 1000}, [9, 7]),
    ]
    for given, numbers in wanted:
        assert [record.number for record in history.find(**given)] == numbers, given


def test_what_cannot_be_looked_for_or_kept_is_told() -> None:
    wrong: list[tuple[str, Any]] = [("limit", 0), ("limit", True), ("number", "7"), ("number", -1), ("since", "now")]
    for name, value in wrong:
        refused(InvalidArgument, "", History().find, **{name: value})
    for kept in (0, True, "10", 1_000_001):
        refused(InvalidArgument, "kept must be", History, kept)


@pytest.fixture
def clock() -> Clock:
    return Clock(5000.0)


@pytest.fixture
def rate(clock: Clock) -> Rate:
    return Rate(clock=clock)


def give(rate: Rate, n: int, tag: str = "a") -> None:
    Chain([rate]).around(Call(tag, n), drawing(range(n)))


@pytest.mark.covers("3.41")
def test_it_counts_what_was_given(face: Faced, clock: Clock) -> None:
    rate = Rate(clock=clock)
    face(rate).around(Call("a", 600), drawing(range(600)))
    assert rate.of("a") == Rates(second=600.0, ten_seconds=60.0, minute=10.0, total=600)
    assert json.loads(json.dumps(rate.of("a").content()))["total"] == 600


def test_tags_are_counted_apart(rate: Rate) -> None:
    assert rate.of("a") == Rates(0.0, 0.0, 0.0, 0)
    give(rate, 60, "b")
    give(rate, 120, "a")
    assert [(tag, rates.minute, rates.total) for tag, rates in rate.all().items()] == [("a", 2.0, 120), ("b", 1.0, 60)]


def test_numbers_leave_one_window_after_the_other(rate: Rate, clock: Clock) -> None:
    give(rate, 600)
    windows = ((0.9, 600, 60, 10), (1.2, 0, 60, 10), (9, 0, 60, 10), (11.1, 0, 0, 10), (59, 0, 0, 10), (61.1, 0, 0, 0))
    for moment, second, ten_seconds, minute in windows:
        clock.now = 5000.0 + moment
        assert rate.of("a") == Rates(second, ten_seconds, minute, 600), moment


def test_a_window_begins_within_a_slice(rate: Rate, clock: Clock) -> None:
    give(rate, 100)  # all in the second from 5000 to 5001
    clock.now = 5010.25
    assert rate.of("a").ten_seconds == pytest.approx(7.5)  # three quarters of that second are less than 10 s old
    clock.now = 5010.75
    assert rate.of("a").ten_seconds == pytest.approx(2.5)


def test_slices_are_used_again_without_what_they_held(rate: Rate, clock: Clock) -> None:
    for round_ in range(200):
        clock.now = 5000.0 + 61 * round_  # the same place of the ring each time
        give(rate, 60)
        assert rate.of("a").minute == pytest.approx(1.0)
    assert rate.of("a").total == 200 * 60


def test_eight_threads_lose_no_count_and_no_record_but_the_oldest_while_it_is_searched(rate: Rate) -> None:
    history = History(1000)
    chain = Chain([history, rate])
    filled: list[str] = []

    def search() -> None:
        while len(filled) < 8:
            history.find(tag="3")

    def fill(tag: str) -> None:
        try:
            for number in range(600):
                chain.around(Call(tag), drawing((number,)))
                chain.around(Call("all"), drawing((number,)))
        finally:
            filled.append(tag)

    together(search, *(partial(fill, str(index)) for index in range(8)))
    assert rate.of("all") == Rates(second=4800.0, ten_seconds=480.0, minute=80.0, total=4800)
    records = history.find()
    assert len(history) == len(records) == 1000
    assert History()._entries.maxlen == KEPT
    for index in range(8):
        theirs = [record.number for record in records if record.tag == str(index)]
        # The last of each, without a hole.
        assert theirs == list(range(599, 599 - len(theirs), -1))
