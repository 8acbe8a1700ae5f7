"""What a process holds in hand: how much a stream draws ahead, and that it never makes its numbers go backwards.

Redis is back, or is no longer to be trusted.
"""

from itertools import islice

import pytest

import issuer
from issuer import Issuer
from issuer.core.supply.mode import Mode
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from tests.audit import repeats
from tests.proofs.virtual.world import World

FLOOR = script("floor").sha.encode()


def gone_direct(made: World, ids: Issuer) -> list[int]:
    """Draw one number of a trend tag from Redis, which holds 100, then 30 without it: out of 101..200."""
    ids.create("a", step=100, order="trend")
    numbers = [ids.next("a")]
    made.wire.refuse()
    numbers += ids.take("a", 30)
    assert numbers == [1, *range(101, 131)]
    return numbers


def comes_back(made: World) -> None:
    made.wire.pass_through()
    made.turns.sleep(1.0)


def test_a_process_that_rejoins_redis_goes_on_above_what_it_has_issued_without_it(made: World) -> None:
    """Of 1..100 Redis still holds 99."""
    with made.connect(scheduler=None) as ids:
        numbers = gone_direct(made, ids)
        comes_back(made)
        ids.tick()
        assert ids.engine.registry.combiner("a").supply.origin.mode is not Mode.DIRECT
        numbers += ids.take("a", 30)
        assert numbers == [1, *range(101, 161)]  # what was left of 200 went back to the store


def test_numbers_drawn_while_it_rejoins_count_too(made: World) -> None:
    """Its own two segments are no neighbours: what another process has loaded into Redis lies between them."""
    with made.connect(scheduler=None) as ids, made.connect(scheduler=None) as other:
        numbers = gone_direct(made, ids)
        comes_back(made)
        theirs = other.take("a", 100)
        assert theirs == [*range(2, 101), 201]
        made.wire.refuse()
        ids.tick()
        comes_back(made)
        made.wire.hold_replies(FLOOR)
        rejoining = made.call(ids.tick)
        made.turns.until(lambda: made.wire.held)
        numbers += ids.take("a", 80)  # within the reply of the floor
        assert numbers[-1] == 310
        made.wire.release()
        assert rejoining.number in (0, 1)
        assert ids.engine.registry.combiner("a").supply.origin.mode is not Mode.DIRECT
        numbers += ids.take("a", 20)
        assert numbers == sorted(set(numbers))
        assert repeats([*numbers, *theirs, *other.take("a", 100)]) == []


def test_a_redis_that_is_back_serves_those_who_wait_for_a_store_that_hangs(made: World) -> None:
    with (
        made.connect(scheduler=None, timeout=60.0, store_timeout=50.0) as ids,
        made.connect(scheduler=None) as other,
    ):
        gone_direct(made, ids)
        comes_back(made)
        other.take("a", 100)  # Redis has numbers again
        made.wire.refuse()
        ids.take("a", 70)  # all that was in hand
        made.store.hang()
        leader = made.draws(ids, "a", 60.0)
        made.turns.sleep(0.5)
        waiting = made.draws(ids, "a", 60.0)
        made.turns.sleep(1.0)
        comes_back(made)
        made.call(ids.tick)
        made.turns.sleep(2.0)
        assert waiting.ended
        made.store.resume()
        assert repeats([leader.number, waiting.number]) == []


def test_numbers_in_hand_are_not_given_back_while_the_next_ones_are_fetched(made: World) -> None:
    """The store hangs, so they could not be given back either."""
    with made.connect(timeout=60.0, store_timeout=50.0) as ids:
        ids.create("a", step=100, order="trend")
        ids.next("a")
        made.wire.refuse()
        ids.take("a", 10)
        made.store.hang()
        begun = made.store.begun.count("reserve")
        numbers = ids.take("a", 30)
        made.turns.until(lambda: made.store.begun.count("reserve") > begun)
        comes_back(made)
        made.turns.sleep(3.0)
        assert "hand_back" not in made.store.begun
        assert ids.take("a", 10)[0] == numbers[-1] + 1
        made.store.resume()


def test_nothing_is_given_up_for_a_redis_that_takes_no_writes(made: World) -> None:
    """It answers reads: out of memory, or short of replicas."""
    with made.connect(scheduler=None) as ids:
        numbers = gone_direct(made, ids)
        comes_back(made)
        made.wire.deny(FLOOR, "OOM command not allowed when used memory > 'maxmemory'.")
        ids.tick()
        assert "hand_back" not in made.store.begun
        numbers += ids.take("a", 70)  # what was in hand
        assert numbers[-1] == 200


def test_a_damaged_hash_that_redis_is_back_with_is_reported(made: World, caplog: pytest.LogCaptureFixture) -> None:
    with made.connect(scheduler=None) as ids:
        gone_direct(made, ids)
        made.wire.server.client().hset(redis_key("issuer", "a"), "max", "x")
        comes_back(made)
        ids.tick()
        assert "background work failed: Redis key" in caplog.text
        assert ids.next("a") == 131  # what was in hand


@pytest.mark.parametrize("scheduler", ["background", None])
def test_leases_are_dropped_when_redis_can_no_longer_be_trusted(made: World, scheduler: str | None) -> None:
    """Its user may no longer ask whether it is the master that the leases came from."""
    with made.connect(lease=20, scheduler=scheduler) as ids:
        ids.create("a", step=100, order="trend")
        numbers = ids.take("a", 5)
        made.wire.server.info_denied = True
        made.turns.sleep(3.0)
        with pytest.raises(issuer.FenceError):
            ids.next("a")
        made.wire.server.info_denied = False
        numbers += ids.take("a", 50)
        assert numbers == sorted(set(numbers))
        assert numbers[5] > 20


STEP = 20_000


def test_a_stream_draws_more_ahead_while_it_is_used_up_quickly_and_fewer_again(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", step=STEP, order="trend")
        stream = ids.stream("a")
        numbers = list(islice(stream, 100))
        origin = ids.engine.registry.combiners["a"].supply.origin
        assert origin.stream_lease == 1000
        numbers += islice(stream, STEP)
        assert origin.stream_lease == STEP // 5  # more would use segments up before the next one is there
        while origin.stream_lease > 1000:
            made.turns.sleep(2.0)
            numbers += islice(stream, STEP // 5)
            assert len(numbers) < 10 * STEP
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_stream_keeps_to_what_was_said(made: World) -> None:
    with made.connect(lease=50) as ids:
        ids.create("a", step=STEP, order="trend")
        stream = ids.stream("a")
        assert list(islice(stream, 500)) == list(range(1, 501))
        assert {each.high - each.low for each in ids.engine.registry.combiners["a"].supply.state.buffer.held} == {50}  # type: ignore[union-attr]
