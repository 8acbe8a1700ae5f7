"""close() while callers wait and extensions are under way: everybody gets an answer, and no number comes after it."""

import asyncio
from typing import Literal

import pytest

import issuer
from issuer import Issuer
from issuer.operations.config import CLOSING
from tests.audit import repeats
from tests.proofs.virtual.test_outages import GRACE
from tests.proofs.virtual.world import Call, World

WAITERS = 30


def gone(ids: Issuer) -> None:
    """Assert that it is closed, and has left no task behind."""
    with pytest.raises(issuer.IssuerError, match="closed"):
        ids.next("a")
    assert ids.engine.runtime.fast_path.numbers == {}
    ids.__exit__(None, None, None)


def assert_told(made: World, calls: list[Call], by: float) -> list[int]:
    """Each has a number, all different, or was told of the close, in time. Returns the numbers."""
    made.turns.until(lambda: all(call.ended for call in calls))
    assert max(call.ended or 0.0 for call in calls) <= by
    numbers = [call.answer for call in calls if isinstance(call.answer, int)]
    assert repeats(numbers) == []
    assert {str(call.answer) for call in calls} - {*map(str, numbers)} <= {"tag 'a': this issuer is closed"}
    return numbers


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("seconds", [0.3, 60.0])
def test_callers_that_wait_for_a_segment_are_told_of_the_close(
    made: World, order: Literal["strict", "trend"], scheduler: str | None, seconds: float
) -> None:
    """A store that takes longer than that is waited for until the deadline of `close`."""
    redis = {} if order == "strict" else {"redis": "none"}
    ids = made.connect(scheduler=scheduler, timeout=100, store_timeout=90, **redis)
    ids.create("a", step=3, order=order)
    made.store.begun.clear()
    made.store.seconds = seconds
    calls = [made.draws(ids, "a") for _ in range(WAITERS)]
    made.turns.until(lambda: "reserve" in made.store.begun)
    closing = made.call(ids.close)
    assert closing.took <= min(seconds * 2, CLOSING) + GRACE
    numbers = assert_told(made, calls, made.now + seconds)  # whoever asks the store in person hears of it first
    made.turns.sleep(2 * seconds)
    gone(ids)
    if order == "trend" and (seconds < CLOSING or made.colour == "blocking"):
        # What came too late for them went back to the store. What a cancelled task has asked for is a gap.
        assert made.store.top("a") == len(numbers)


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("fault", ["blackhole", "refuse"])
def test_callers_that_wait_for_redis_are_told_of_the_close(made: World, fault: str, scheduler: str | None) -> None:
    ids = made.connect(scheduler=scheduler, timeout=100)
    ids.create("a", step=3)
    ids.create("t", step=3, order="trend", lease=2)
    assert [ids.next("a"), ids.next("t")] == [1, 1]
    getattr(made.wire, fault)()
    calls = [made.draws(ids, "a") for _ in range(WAITERS)]
    others = [made.call(lambda: ids.take("t", 3)) for _ in range(WAITERS)]
    made.turns.sleep(0.01)
    assert made.call(ids.close).took <= CLOSING + GRACE
    # Tasks at once. A thread's round trip goes on until its time-out.
    assert assert_told(made, calls, made.now + (GRACE if made.colour == "asyncio" else 2.0)) == []
    made.turns.until(lambda: all(other.ended for other in others))
    assert not [other.answer for other in others if not isinstance(other.answer, issuer.IssuerError | list)]
    gone(ids)


def test_an_extension_that_ends_after_close_opens_nothing_again(made: World) -> None:
    ids = made.connect()
    ids.create("a", step=100)
    ids.take("a", 25)
    made.turns.until(lambda: made.store.top("a") == 200)
    made.turns.sleep(0.1)
    made.store.begun.clear()
    made.store.seconds = CLOSING + 1.0
    ids.take("a", 100)
    made.turns.until(lambda: "reserve" in made.store.begun)
    assert made.call(ids.close).took <= CLOSING + GRACE
    made.turns.sleep(10.0)
    gone(ids)


def test_close_waits_for_the_fetch_of_a_tag_that_was_deleted_meanwhile(made: World) -> None:
    ids = made.connect()
    ids.create("a", step=100)
    ids.next("a")
    made.store.begun.clear()
    made.store.seconds = 1.0
    ids.take("a", 25)
    made.turns.until(lambda: "reserve" in made.store.begun)
    made.store.seconds = 0.0
    ids.delete("a")
    made.turns.until(lambda: "a" not in ids.engine.registry.combiners)
    assert made.call(ids.close).took >= 0.9
    tries = len(made.wire.tried)
    made.turns.sleep(10.0)
    assert len(made.wire.tried) == tries, "a connection was opened after close"
    gone(ids)


def test_a_close_that_is_cancelled_closes_all_the_same(made: World) -> None:
    async def main() -> None:
        ids = issuer.aconnect(redis=made.wire.async_client(), store=made.store, timeout=8)
        await ids.create("a", step=3)
        made.store.seconds = 0.5
        waiting = asyncio.create_task(ids.next("a"))
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ids.close(), 0.1)
        assert ids.closed
        with pytest.raises(issuer.IssuerError, match="closed"):
            await waiting

    if made.colour == "asyncio":
        made.turns.run(main())


@pytest.mark.parametrize("lease", [0, 15])
def test_an_election_that_close_finds_is_served_and_keeps_nobody_waiting(made: World, lease: int) -> None:
    """The draw that reaches the mark elects this process, and its extension has not begun when it closes."""
    with made.connect(lease=lease) as ids:
        ids.create("a", step=70, order="trend")
        numbers = ids.take("a", 20)
    with made.connect(scheduler=None) as ids:
        began = made.now
        numbers += ids.take("a", 120)
        assert made.now - began < GRACE  # and not the window for which an election stands
    assert numbers == list(range(1, 141))
