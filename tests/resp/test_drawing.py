"""Sharing of draws: which numbers go to whom, with a door that gives what the test says."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import pytest

from issuer.clock import Deadline, monotonic
from issuer.doors.resp import drawing
from issuer.doors.resp.drawing import Demand, Drawing
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError, LimitReached, RedisUnavailable
from tests.waiting import eventually, run


class FakeDoor:
    """Each draw waits until the test lets it bring something: how many numbers, at most, or an error."""

    timeout = 60.0

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.deadlines: list[float] = []
        self.next = 1
        self.hand = 0
        self._outcomes: asyncio.Queue[int | Exception] = asyncio.Queue()

    def let(self, *outcomes: int | Exception) -> None:
        for outcome in outcomes:
            self._outcomes.put_nowait(outcome)

    def knows(self, _: str) -> bool:
        return True

    def at_hand(self, _: str, n: int) -> list[int]:
        n = min(n, self.hand)
        self.hand -= n
        return list(self._numbers(n))

    async def draw(self, _: str, n: int, deadline: Deadline, waiting: Callable[[], int]) -> Sequence[int]:
        assert waiting() >= n
        self.asked.append(n)
        self.deadlines.append(deadline.at)
        outcome = await self._outcomes.get()
        if isinstance(outcome, Exception):
            raise outcome
        return self._numbers(min(n, outcome))

    def overdue(self, tag: str) -> IssuerError:
        return RedisUnavailable("late", tag=tag, retry_after=0.2)

    def _numbers(self, n: int) -> range:
        self.next += n
        return range(self.next - n, self.next)


class FakeClient:
    def __init__(self) -> None:
        self.lost = False
        self.done: list[Demand] = []
        self.flushed = 0

    def answered(self, demand: Demand) -> None:
        self.done.append(demand)

    def flush(self) -> None:
        self.flushed += 1


class Bench:
    def __init__(self) -> None:
        self.door = FakeDoor()
        self.drawing = Drawing(cast("AsyncEngine", self.door), asyncio.get_running_loop())

    def demand(self, n: int, client: FakeClient | None = None) -> Demand:
        demand = Demand(client or FakeClient(), n)
        self.drawing.draw("a", demand)
        return demand

    async def answered(self, *demands: Demand) -> list[bytes | None]:
        await eventually(lambda: all(demand.reply is not None for demand in demands))
        return [demand.reply for demand in demands]


def on(test: Callable[[Bench], Awaitable[None]]) -> Callable[[], None]:
    async def main() -> None:
        bench = Bench()
        await test(bench)
        await bench.drawing.close()

    def wrapped() -> None:
        run(main())

    wrapped.__name__ = test.__name__
    return wrapped


def ints(*numbers: int) -> bytes:
    return b"".join(b":%d\r\n" % number for number in numbers)


LATE = b"-UNAVAILABLE late; retry in 0.2 s\r\n"


@on
async def test_all_that_are_there_at_once_share_a_draw_in_their_order(bench: Bench) -> None:
    demands = [bench.demand(n) for n in (1, 3, 2)]
    bench.door.let(99)
    assert await bench.answered(*demands) == [ints(1), ints(2, 3, 4), ints(5, 6)]
    assert bench.door.asked == [6]


@on
async def test_a_demand_that_comes_during_a_draw_waits_for_the_next_one(bench: Bench) -> None:
    first = bench.demand(1)
    await eventually(lambda: bench.door.asked)
    later = bench.demand(2)
    # More than was asked for can't come, so nothing of the first draw is left for it.
    bench.door.let(99, 99)
    assert await bench.answered(first, later) == [ints(1), ints(2, 3)]
    assert bench.door.asked == [1, 2]


@on
async def test_a_short_draw_answers_the_first_and_asks_again_for_the_rest(bench: Bench) -> None:
    demands = [bench.demand(n) for n in (2, 3, 1)]
    bench.door.let(2, 1, 99)
    assert await bench.answered(*demands) == [ints(1, 2), ints(3, 4, 5), ints(6)]
    assert bench.door.asked == [6, 4, 3]


@on
async def test_the_rest_of_a_short_draw_comes_before_what_was_asked_for_meanwhile(bench: Bench) -> None:
    first = bench.demand(3)
    await eventually(lambda: bench.door.asked)
    later = bench.demand(1)
    bench.door.let(2, 99)
    assert await bench.answered(first, later) == [ints(1, 2, 3), ints(4)]


@on
async def test_an_error_part_way_is_for_those_without_a_number(bench: Bench) -> None:
    demands = [bench.demand(n) for n in (2, 3, 1)]
    bench.door.let(4, LimitReached("a", limit=4, value=4))
    replies = await bench.answered(*demands)
    assert replies[0] == ints(1, 2)
    error = replies[2]
    assert error is not None
    assert error.startswith(b"-LIMIT ")
    assert replies[1] == ints(3, 4) + error
    bench.door.let(1)
    assert await bench.answered(bench.demand(1)) == [ints(5)]


@on
async def test_an_unforeseen_error_is_every_ones_and_the_next_draw_goes_on(bench: Bench) -> None:
    demands = [bench.demand(1), bench.demand(2)]
    bench.door.let(RuntimeError("x"))
    assert await bench.answered(*demands) == [b"-ERR internal error\r\n", b"-ERR internal error\r\n" * 2]
    bench.door.let(1)
    assert await bench.answered(bench.demand(1)) == [ints(1)]


@on
async def test_numbers_of_a_client_that_has_gone_are_gaps(bench: Bench) -> None:
    gone, client = FakeClient(), FakeClient()
    lost, other = bench.demand(2, gone), bench.demand(2, client)
    await eventually(lambda: bench.door.asked)
    gone.lost = True
    late = bench.demand(1)
    bench.door.let(99, 99)
    assert await bench.answered(other, late) == [ints(3, 4), ints(5)]
    assert lost.reply is None
    assert gone.done == []


@on
async def test_nothing_is_drawn_for_a_client_that_has_gone_before(bench: Bench) -> None:
    gone = FakeClient()
    lost, other = bench.demand(5, gone), bench.demand(1)
    gone.lost = True
    bench.door.let(99)
    assert await bench.answered(other) == [ints(1)]
    assert (bench.door.asked, lost.reply) == ([1], None)


@on
async def test_numbers_in_hand_are_given_at_once_but_not_past_those_that_wait(bench: Bench) -> None:
    bench.door.hand = 4
    assert bench.demand(3).reply == ints(1, 2, 3)
    short = bench.demand(2)
    assert short.reply is None
    bench.door.hand = 5
    behind = bench.demand(1)
    assert behind.reply is None
    bench.door.let(99)
    assert await bench.answered(short, behind) == [ints(4, 5), ints(6)]


@on
async def test_a_demand_waits_no_longer_than_its_time_whatever_the_draw_does(bench: Bench) -> None:
    bench.door.timeout = 0.2
    stuck = bench.demand(2)
    await eventually(lambda: bench.door.asked)
    behind = bench.demand(1)
    assert await bench.answered(stuck, behind) == [LATE * 2, LATE]
    # The draw ends in its own time, and what it brings is nobody's.
    bench.door.timeout = 60.0
    await eventually(lambda: bench.drawing._drawers["a"]._until > monotonic() + 30)
    assert not bench.drawing.waiting
    bench.door.let(2)
    later = bench.demand(1)
    bench.door.let(99)
    assert await bench.answered(later) == [ints(3)]


def test_what_comes_after_the_loop_was_held_up_has_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench()
        first = bench.demand(1)
        await eventually(lambda: bench.door.asked)
        # For longer than a demand may wait; the clock was looked at before that, and is again when the loop goes on.
        monkeypatch.setattr(drawing, "monotonic", lambda: monotonic() + 1000.0)
        late = bench.demand(1)
        until = late.until
        await eventually(lambda: bench.drawing._drawers["a"]._until > until)
        assert late.reply is None
        bench.door.let(1, 1)
        assert (await bench.answered(first, late))[1] == ints(2)
        await bench.drawing.close()

    run(main())


@on
async def test_a_demand_is_answered_to_its_client_once(bench: Bench) -> None:
    client = FakeClient()
    demand = bench.demand(2, client)
    bench.door.let(1, 99)
    await bench.answered(demand)
    demand.give([9])
    demand.fail(LATE)
    assert demand.reply == ints(1, 2)
    assert client.done == [demand]
    await eventually(lambda: client.flushed == 2)


@on
async def test_closing_fails_what_waits(bench: Bench) -> None:
    demands = deque([bench.demand(1)])
    await eventually(lambda: bench.door.asked)
    demands.append(bench.demand(2))
    assert bench.drawing.waiting == 3
    await bench.drawing.close()
    replies = await bench.answered(*demands)
    assert [reply and reply.count(b"-UNAVAILABLE the server is stopping; retry in 1 s\r\n") for reply in replies] == [
        1,
        2,
    ]
    assert bench.drawing.waiting == 0


def test_tags_that_clients_make_up_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "QUIET_MOST", 10)

    async def main() -> None:
        bench = Bench()
        busy = bench.demand(1)
        for number in range(100):
            bench.door.hand = 1
            bench.drawing.draw(f"made-up-{number}", Demand(FakeClient(), 1))
        assert len(bench.drawing._drawers) <= 11
        bench.door.let(1)
        await bench.answered(busy)
        await bench.drawing.close()

    run(main())


def test_one_draw_is_not_of_more_numbers_than_are_packed_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "DRAW_MOST", 3)

    async def main() -> None:
        bench = Bench()
        demands = [bench.demand(2), bench.demand(3)]
        bench.door.let(99, 99)
        assert await bench.answered(*demands) == [ints(1, 2), ints(3, 4, 5)]
        assert bench.door.asked == [3, 2]
        await bench.drawing.close()

    run(main())
