"""Who got which number: what a history remembers, finds and forgets."""

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from issuer.errors import InvalidArgument
from issuer.plugins import AsyncChain, Call, Chain, History, Record, noted
from issuer.plugins.history import KEPT
from tests.clocks import Clock
from tests.surrounding import Faced, drawing
from tests.unit.refusals import refused
from tests.unit.together import together
from tests.waiting import run


def drawn(number: int) -> Callable[[], Coroutine[Any, Any, list[int]]]:
    """Return a draw of that number that lets others have a turn."""

    async def draw() -> list[int]:
        await asyncio.sleep(0)
        return [number]

    return draw


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
    assert second == Record(
        at=1_700_000_000_000,
        tag="orders",
        number=7,
        host=socket.gethostname(),
        pid=os.getpid(),
        caller=second.caller,
        context="GET /checkout",
    )
    assert json.loads(json.dumps(second.content()))["number"] == 7


def test_it_names_the_thread_or_the_task_whose_context_ends_with_its_block() -> None:
    history = History()
    chain = AsyncChain([history])

    async def request(number: int) -> None:
        with noted(f"request {number}"):
            await chain.around(Call("a"), drawn(number))
        await chain.around(Call("after"), drawn(number))

    async def main() -> None:
        await asyncio.gather(*[asyncio.create_task(request(each), name=f"task-{each}") for each in range(20)])

    run(main())
    seen = {record.number: (record.caller, record.context) for record in history.find(tag="a")}
    assert seen == {each: (f"task-{each}", f"request {each}") for each in range(20)}
    assert {record.context for record in history.find(tag="after")} == {""}
    thread = threading.Thread(target=Chain([history]).around, args=(Call("b"), drawing((1,))), name="worker-7")
    thread.start()
    thread.join()
    assert [record.caller for record in history.find(tag="b")] == ["worker-7"]


def test_blocks_within_blocks_come_back_to_the_outer_words() -> None:
    history = History()
    with noted("outer"):
        with noted("inner"):
            history.after(Call("a"), 1)
        history.after(Call("a"), 2)
    assert [record.context for record in history.find()] == ["outer", "inner"]
    refused(InvalidArgument, "is a text, not 7", noted(7).__enter__)  # type: ignore[arg-type]


def test_it_finds_by_all_that_is_given() -> None:
    clock = Ticking(1000)
    history = History(clock=clock)
    for number in range(10):
        history.after(Call("even" if number % 2 == 0 else "odd"), number)
        clock.now += 10

    def found(**wanted: Any) -> list[int]:
        return [record.number for record in history.find(**wanted)]

    assert found() == list(range(9, -1, -1))
    assert found(tag="even") == [8, 6, 4, 2, 0]
    assert found(tag="none") == []
    assert found(number=7) == [7]
    assert found(number=7, tag="even") == []
    assert found(number=0) == [0]
    assert found(since=1070) == [9, 8, 7]
    assert found(since=1071, tag="even") == [8]
    assert found(limit=3) == [9, 8, 7]
    assert found(limit=2, tag="odd", since=1000) == [9, 7]


def test_what_cannot_be_looked_for_or_kept_is_told() -> None:
    wrong: list[tuple[str, list[Any]]] = [("limit", [0, True, 1.0]), ("number", ["7", -1]), ("since", ["now"])]
    for name, values in wrong:
        for value in values:
            refused(InvalidArgument, "", History().find, **{name: value})
    for kept in (0, -1, True, 1.5, "10", 1_000_001):
        refused(InvalidArgument, "kept must be", History, kept)


def test_it_forgets_exactly_the_oldest() -> None:
    history = History(100)
    for number in range(250):
        history.after(Call("a"), number)
        assert len(history) == min(number + 1, 100)
    assert [record.number for record in history.find()] == list(range(249, 149, -1))
    assert len(History()) == 0
    assert History()._entries.maxlen == KEPT


@pytest.mark.parametrize("kept", [50, 100_000])
def test_eight_threads_fill_it_to_its_bound_while_it_is_searched(kept: int) -> None:
    history = History(kept)
    chain = Chain([history])
    filled: list[str] = []

    def search() -> None:
        while len(filled) < 8:
            history.find(tag="3")

    def fill(tag: str) -> None:
        try:
            for number in range(600):
                chain.around(Call(tag), drawing((number,)))
        finally:
            filled.append(tag)

    together(search, *(partial(fill, str(index)) for index in range(8)))
    records = history.find()
    assert len(history) == len(records) == min(8 * 600, kept)
    for index in range(8):
        theirs = [record.number for record in records if record.tag == str(index)]
        # The last of each, without a hole.
        assert theirs == list(range(599, 599 - len(theirs), -1))
