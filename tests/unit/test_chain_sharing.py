"""Threads and tasks that share a chain of plugins."""

import asyncio
import threading

import pytest

from issuer.plugins import AsyncChain, AsyncPlugin, Call, Chain, Plugin
from issuer.plugins import hooks as module
from tests.surrounding import CALL, Awaited, Changing, Raising, Telling, drawing
from tests.unit.refusals import refused
from tests.unit.together import together
from tests.waiting import run


def test_threads_that_share_a_chain_neither_lose_nor_repeat_numbers() -> None:
    counter = iter(range(1, 100_000))
    lock = threading.Lock()
    after: list[int] = []

    class Noting(Plugin):
        def after(self, call: Call, number: int) -> None:
            assert call.n == 1
            after.append(number)

    def draw() -> list[int]:
        with lock:
            return [next(counter)]

    chain = Chain([Noting(), Raising(ValueError("mine"), "before", "after", "on_error"), Changing(add=10**6)])

    def work() -> list[int]:
        return [number for _ in range(300) for number in chain.around(CALL, draw)]

    issued = sorted(number for numbers in together(*[work] * 8) for number in numbers)
    assert issued == [10**6 + number for number in range(1, 2401)]
    assert sorted(after) == issued


class Waiting(AsyncPlugin):
    """Waits in one hook until it is told to go on."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.there = asyncio.Event()
        self.go_on = asyncio.Event()
        self.errors: list[Exception] = []

    async def _wait(self, where: str) -> None:
        if where == self.where:
            self.there.set()
            await self.go_on.wait()

    async def before(self, call: Call) -> None:
        assert call.tag == "a"
        await self._wait("before")

    async def after(self, call: Call, number: int) -> None:
        assert (call.tag, number > 0) == ("a", True)
        await self._wait("after")

    async def on_error(self, call: Call, error: Exception) -> None:
        assert call.tag == "a"
        self.errors.append(error)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_cancelled_callers_number_is_a_gap_and_nobody_elses(where: str) -> None:
    async def main() -> None:
        counter = iter(range(1, 100))
        drawn: list[int] = []

        async def draw() -> list[int]:
            await asyncio.sleep(0)
            drawn.append(next(counter))
            return drawn[-1:]

        waiting = Waiting(where)
        chain = AsyncChain([waiting])
        first = asyncio.create_task(chain.around(CALL, draw))
        await waiting.there.wait()
        others = [asyncio.create_task(chain.around(CALL, draw)) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        waiting.go_on.set()
        got = [number for numbers in await asyncio.gather(*others) for number in numbers]
        gap = {1} if where == "after" else set()
        assert len(got) == len(set(got)) == 20
        assert set(got) == set(drawn) - gap
        assert waiting.errors == []

    run(main())


async def seven() -> list[int]:
    return [7]


@pytest.mark.parametrize("where", ["before", "after", "on_error"])
def test_a_cancellation_of_the_plugins_own_making_is_its_failure(where: str) -> None:
    failing = Raising(asyncio.CancelledError(), where, *(["before"] if where == "on_error" else []))

    async def main() -> None:
        assert await AsyncChain([Awaited(failing)]).around(CALL, seven) == [7]
        assert await AsyncChain([failing]).around(CALL, seven) == [7]

    run(main())
    assert Chain([failing]).around(CALL, drawing()) == [7]
    assert len(failing.seen) == 3
    assert all("waited for was cancelled" in str(error) for error in failing.seen)


def test_many_numbers_leave_the_loop_its_turns() -> None:
    async def main() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async def draw() -> list[int]:
            return list(range(5000))

        beside = asyncio.create_task(other())
        numbers = await AsyncChain([Telling("a", [])]).around(Call("a", 5000), draw)
        beside.cancel()
        assert numbers == list(range(5000))
        assert turns >= 5000 // module.TURN_EVERY

    run(main())


def test_a_blocking_draw_that_waits_for_a_loop_is_an_error() -> None:
    refused(RuntimeError, "waits for an event loop", module.finished, asyncio.sleep(0))
