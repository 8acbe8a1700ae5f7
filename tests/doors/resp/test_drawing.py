"""Sharing of draws: which numbers go to which caller, with draws that bring what the test says."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import issuer
from issuer import AsyncIssuer
from issuer.clock import Deadline, monotonic
from issuer.doors.resp.demand import Demand
from issuer.drivers.aio import combiner as line
from issuer.errors import IssuerError, LimitReached
from issuer_persistence.memory import MemoryStore
from tests.waiting import eventually, run


class FakeClient:
    def __init__(self) -> None:
        self.flushed = 0
        self.told: list[tuple[str, IssuerError]] = []

    def rejected(self, tag: str, error_: IssuerError) -> None:
        self.told.append((tag, error_))

    def flush(self) -> None:
        self.flushed += 1


class Bench:
    """A combiner whose draws wait until the test lets them bring something: how many numbers, at most, or an error."""

    timeout = 60.0

    def __init__(self, ids: AsyncIssuer) -> None:
        self.combiner = ids.engine.combiner("a")
        self.asked: list[int] = []
        self.next = 1
        self.combiner._draw = self._draw  # type: ignore[method-assign]
        self.combiner._timeout = self.timeout
        self._outcomes: asyncio.Queue[int | list[int] | Exception] = asyncio.Queue()

    def let(self, *outcomes: int | list[int] | Exception) -> None:
        for outcome in outcomes:
            self._outcomes.put_nowait(outcome)

    def in_memory(self, n: int) -> None:
        self.combiner.state.buffer = SimpleNamespace(open=iter(self._numbers(n)))  # type: ignore[assignment]

    async def _draw(self, n: int, until: float) -> Sequence[int]:  # noqa: ARG002 - as the one in its place
        assert self.combiner.waiting >= n
        self.asked.append(n)
        outcome = await self._outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        if isinstance(outcome, list):
            return outcome
        return self._numbers(min(n, outcome))

    def _numbers(self, n: int) -> range:
        self.next += n
        return range(self.next - n, self.next)

    def demand(self, n: int, client: FakeClient | None = None) -> Demand:
        demand = Demand(client or FakeClient(), "a", n)
        self.combiner.enqueue(demand)
        return demand

    def task(self, timeout: float | None = None) -> asyncio.Future[int]:
        return asyncio.ensure_future(self.combiner.next(timeout))

    async def answered(self, *demands: Demand) -> list[bytes | None]:
        await eventually(lambda: all(demand.reply is not None for demand in demands))
        return [demand.reply for demand in demands]


def connected(**settings: Any) -> AsyncIssuer:
    """An issuer whose Redis is never asked: the draws are the test's."""
    return issuer.aconnect(redis="redis://127.0.0.1:1", store=MemoryStore(), scheduler=None, **settings)


def on(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        async with connected() as ids:
            bench = Bench(ids)
            await test(bench)
            bench.combiner.state.buffer = None

    def wrapped() -> None:
        run(main())

    wrapped.__name__ = test.__name__
    return wrapped


def ints(*numbers: int) -> bytes:
    return b"".join(b":%d\r\n" % number for number in numbers)


@on
async def test_all_that_are_there_at_once_share_a_draw_in_their_order(bench: Bench) -> None:
    demands = [bench.demand(n) for n in (1, 3, 2)]
    bench.let(99)
    assert await bench.answered(*demands) == [ints(1), ints(2, 3, 4), ints(5, 6)]
    assert bench.asked == [6]


@on
async def test_single_incrs_share_a_draw_that_is_granted_in_full_or_short(bench: Bench) -> None:
    clients = [FakeClient() for _ in range(3)]
    demands = [bench.demand(1, client) for client in clients]
    bench.let(99)
    assert await bench.answered(*demands) == [ints(1), ints(2), ints(3)]
    demands = [bench.demand(1, client) for client in clients]
    bench.let(2, 99)
    assert await bench.answered(*demands) == [ints(4), ints(5), ints(6)]
    assert bench.asked == [3, 3, 1]
    assert all(client.flushed for client in clients)


@on
async def test_tasks_and_clients_share_a_draw_in_the_order_of_their_calls(bench: Bench) -> None:
    first, task, last = bench.demand(2), bench.task(), bench.demand(1)
    another = bench.task()
    bench.let(99)
    assert await bench.answered(first, last) == [ints(1, 2), ints(4)]
    assert (await task, await another) == (3, 5)
    assert bench.asked == [5]


@on
async def test_a_short_draw_of_tasks_and_clients_goes_on_where_it_ended(bench: Bench) -> None:
    first, task, last, another = bench.demand(2), bench.task(), bench.demand(2), bench.task()
    bench.let(2, 2, 99)
    assert await bench.answered(first, last) == [ints(1, 2), ints(4, 5)]
    assert (await task, await another) == (3, 6)
    assert bench.asked == [6, 4, 2]


@on
async def test_a_task_that_is_cancelled_leaves_its_number_to_nobody(bench: Bench) -> None:
    task, demand = bench.task(), bench.demand(1)
    await eventually(lambda: bench.asked)
    task.cancel()
    late = bench.demand(1)
    bench.let(99, 99)
    assert await bench.answered(demand, late) == [ints(2), ints(3)]
    assert bench.asked == [2, 1]


@on
async def test_a_demand_that_comes_during_a_draw_waits_for_the_next_one(bench: Bench) -> None:
    first = bench.demand(1)
    await eventually(lambda: bench.asked)
    later = bench.demand(2)
    # More than was asked for can't come, so nothing of the first draw is left for it.
    bench.let(99, 99)
    assert await bench.answered(first, later) == [ints(1), ints(2, 3)]
    assert bench.asked == [1, 2]


@on
async def test_a_short_draw_answers_the_first_and_asks_again_for_the_rest(bench: Bench) -> None:
    demands = [bench.demand(n) for n in (2, 3, 1)]
    bench.let(2, 1, 99)
    assert await bench.answered(*demands) == [ints(1, 2), ints(3, 4, 5), ints(6)]
    assert bench.asked == [6, 4, 3]


@on
async def test_the_rest_of_a_short_draw_comes_before_what_was_asked_for_meanwhile(bench: Bench) -> None:
    first = bench.demand(3)
    await eventually(lambda: bench.asked)
    later = bench.demand(1)
    bench.let(2, 99)
    assert await bench.answered(first, later) == [ints(1, 2, 3), ints(4)]


@on
async def test_an_error_part_way_is_for_those_without_a_number_and_is_reported(bench: Bench) -> None:
    client = FakeClient()
    demands = [bench.demand(2), bench.demand(3, client), bench.demand(1)]
    bench.let(4, LimitReached("a", limit=4, value=4))
    replies = await bench.answered(*demands)
    assert replies[0] == ints(1, 2)
    error = replies[2]
    assert error is not None
    assert error.startswith(b"-LIMIT ")
    assert replies[1] == ints(3, 4) + error
    assert [(tag, type(told)) for tag, told in client.told] == [("a", LimitReached)]
    bench.let(1)
    assert await bench.answered(bench.demand(1)) == [ints(5)]


@on
async def test_an_unforeseen_error_is_every_ones_and_the_next_draw_goes_on(bench: Bench) -> None:
    demands = [bench.demand(1), bench.demand(2)]
    task = bench.task()
    bench.let(RuntimeError("x"))
    assert await bench.answered(*demands) == [b"-ERR internal error\r\n", b"-ERR internal error\r\n" * 2]
    with pytest.raises(RuntimeError, match="x"):
        await task
    bench.let(1)
    assert await bench.answered(bench.demand(1)) == [ints(1)]


@on
async def test_numbers_of_a_client_that_has_gone_are_gaps(bench: Bench) -> None:
    lost, other = bench.demand(2), bench.demand(2)
    await eventually(lambda: bench.asked)
    lost.reply = b""  # as its connection does
    late = bench.demand(1)
    bench.let(99, 99)
    assert await bench.answered(other, late) == [ints(3, 4), ints(5)]
    assert lost.reply == b""


@on
async def test_nothing_is_drawn_for_a_client_that_has_gone_before(bench: Bench) -> None:
    lost, other = bench.demand(5), bench.demand(1)
    lost.reply, bench.combiner.left = b"", True  # as its connection does
    bench.let(99)
    assert await bench.answered(other) == [ints(1)]
    assert (bench.asked, lost.reply) == ([1], b"")


@on
async def test_numbers_in_memory_are_given_at_once_but_not_past_those_that_wait(bench: Bench) -> None:
    combiner = bench.combiner
    bench.in_memory(4)
    assert (combiner.from_memory(3), combiner.from_memory(2), combiner.from_memory(1)) == ([1, 2, 3], [4], [])
    waits = bench.demand(1)
    bench.in_memory(5)
    assert combiner.from_memory(1) == []
    bench.let(99)
    assert await bench.answered(waits) == [ints(10)]


def test_a_demand_waits_no_longer_than_its_time_whatever_the_draw_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "timeout", 0.2)

    @on
    async def late(bench: Bench) -> None:
        stuck = bench.demand(2)
        await eventually(lambda: bench.asked)
        behind = bench.demand(1)
        replies = await bench.answered(stuck, behind)
        assert [reply and reply.count(b"-UNAVAILABLE ") for reply in replies] == [2, 1]
        # The draw ends in its own time, and nobody gets what it brings.
        bench.combiner._timeout = 60.0
        await eventually(lambda: bench.combiner._until > monotonic() + 30)
        assert not bench.combiner.waiting
        bench.let(2)
        later = bench.demand(1)
        bench.let(99)
        assert await bench.answered(later) == [ints(3)]

    late()


def test_what_comes_after_the_loop_was_held_up_has_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    @on
    async def held_up(bench: Bench) -> None:
        first = bench.demand(1)
        await eventually(lambda: bench.asked)
        # For longer than a demand may wait; the clock was looked at before that, and is again when the loop goes on.
        monkeypatch.setattr(line, "monotonic", lambda: monotonic() + 1000.0)
        until = bench.combiner._until
        late = bench.demand(1)
        await eventually(lambda: bench.combiner._until > until)
        assert late.reply is None
        bench.let(1, 1)
        assert (await bench.answered(first, late))[1] == ints(2)

    held_up()


@on
async def test_a_demand_is_answered_to_its_client_once(bench: Bench) -> None:
    client = FakeClient()
    demand = bench.demand(2, client)
    bench.let(1, 99)
    await bench.answered(demand)
    demand.give([9])
    demand.set_result(9)
    demand.set_exception(LimitReached("a", limit=4, value=4))
    assert demand.reply == ints(1, 2)
    assert client.told == []
    await eventually(lambda: client.flushed == 2)


@on
async def test_closing_fails_what_waits(bench: Bench) -> None:
    demands = [bench.demand(1)]
    await eventually(lambda: bench.asked)
    demands.append(bench.demand(2))
    assert bench.combiner.waiting == 3
    await bench.combiner.end(Deadline(5.0))
    replies = await bench.answered(*demands)
    assert [reply and reply.count(b"this issuer is closed") for reply in replies] == [1, 2]
    assert bench.combiner.waiting == 0


@on
async def test_a_client_that_asks_again_as_its_error_is_flushed_is_not_forgotten(bench: Bench) -> None:
    class Again(FakeClient):
        again: Demand | None = None

        def flush(self) -> None:
            if self.again is None:
                self.again = bench.demand(1)

    client = Again()
    bench.demand(1, client)
    await eventually(lambda: bench.asked)
    bench.combiner._server.cancel()  # type: ignore[union-attr]
    await eventually(lambda: client.again is not None)
    assert client.again is not None
    bench.let(1)
    assert await bench.answered(client.again) == [ints(1)]


def test_one_draw_is_not_of_more_numbers_than_are_packed_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "DRAW_MOST", 3)

    @on
    async def bounded(bench: Bench) -> None:
        demands = [bench.demand(2), bench.demand(3)]
        bench.let(99, 99)
        assert await bench.answered(*demands) == [ints(1, 2), ints(3, 4, 5)]
        assert bench.asked == [3, 2]

    bounded()


@on
async def test_numbers_of_a_strategy_need_not_be_contiguous(bench: Bench) -> None:
    task, demand = bench.task(), bench.demand(2)
    bench.let([100, 105, 107])
    assert await task == 100
    assert await bench.answered(demand) == [ints(105, 107)]


@on
async def test_numbers_of_a_scheme_are_made_of_what_is_drawn(bench: Bench) -> None:
    def value(counter: int) -> int:
        if counter > 3:
            raise LimitReached("a", limit=3, value=3)
        return counter * 1000

    bench.combiner.state.scheme = SimpleNamespace(value=value)
    demands = [bench.demand(1), bench.demand(3)]
    bench.let(99, 99)
    replies = await bench.answered(*demands)
    assert replies[0] == ints(1000)
    assert replies[1] is not None
    assert replies[1].startswith(ints(2000, 3000) + b"-LIMIT ")
