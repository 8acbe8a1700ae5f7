"""Leases that fit the rate of a process: when they begin, how large they are, and that nothing is left unused."""

from itertools import pairwise

import pytest

import issuer
from issuer import Issuer
from issuer.core.supply import pace
from issuer.core.supply.mode import Mode
from issuer.core.supply.pace import LEAST, Pace, auto_lease
from issuer.core.supply.supply import Supply
from issuer_persistence.records import LEASE_MOST
from tests.proofs.virtual.world import World

pytestmark = pytest.mark.live

#: Numbers a second of a busy process.
BUSY = 200


def supply_of(ids: Issuer) -> Supply:
    found: Supply = ids.engine.registry.combiner("a").supply
    return found


def busy(made: World, ids: Issuer, seconds: float, speed: float = BUSY) -> list[int]:
    """Draw at that speed for that long."""
    numbers = []
    for _ in range(round(seconds * speed)):
        numbers.append(made.draws(ids, "a").number)
        made.turns.sleep(1 / speed)
    return numbers


def cur(ids: Issuer) -> int:
    seen = ids.inspect("a").redis
    assert seen is not None
    return seen.cur or 0


@pytest.mark.covers("U.27")
def test_a_busy_process_holds_what_it_uses_in_a_second_and_gives_it_back_when_it_rests(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", order="trend")
        numbers = busy(made, ids, 1.5)
        assert supply_of(ids).origin.mode is Mode.REDIS
        numbers += busy(made, ids, 5)
        assert supply_of(ids).origin.mode is Mode.LEASED
        took = list[float]()
        for _ in range(3 * BUSY):
            call = made.draws(ids, "a").done
            numbers.append(call.number)
            took.append(call.took)
            buffer = supply_of(ids).state.buffer
            assert buffer is not None
            assert buffer.left < 1.1 * BUSY
            made.turns.sleep(1 / BUSY)
        assert max(took) < 0.0001  # nobody waits for Redis
        assert cur(ids) > numbers[-1]
        made.turns.sleep(3)
        assert cur(ids) == numbers[-1]
        assert supply_of(ids).state.buffer is None
        numbers.append(ids.next("a"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_process_whose_rate_falls_gives_back_what_would_last_for_long(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", order="trend", step=10_000)
        numbers = busy(made, ids, 6, speed=1000)
        numbers += busy(made, ids, 2, speed=20)
        buffer = supply_of(ids).state.buffer
        assert buffer is not None
        assert 0 < buffer.left <= 30
        numbers += busy(made, ids, 2, speed=20)
        assert cur(ids) <= numbers[-1] + 30
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_slow_process_and_one_with_bursts_hold_nothing(made: World) -> None:
    with made.connect() as ids, made.connect() as other:
        ids.create("a", order="trend")
        numbers = busy(made, ids, 8, speed=LEAST - 2)
        for _ in range(3):
            for _ in range(BUSY):
                numbers += [made.draws(each, "a").number for each in (ids, other)]
                made.turns.sleep(1 / BUSY)
            made.turns.sleep(30)
            assert cur(ids) == max(numbers)
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_a_take_makes_no_lease_larger(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", order="trend", step=10**6)
        for _ in range(6 * 20):
            ids.take("a", 1000)
            made.turns.sleep(0.05)
        assert 0 < supply_of(ids).origin.auto <= 20


@pytest.mark.parametrize("given", [{"lease": 0}, {"scheduler": None}])
def test_a_process_with_a_lease_of_its_own_or_without_a_scheduler_adapts_nothing(
    made: World, given: dict[str, None]
) -> None:
    with made.connect(**given) as ids:
        ids.create("a", order="trend")
        for _ in range(6):
            busy(made, ids, 1)
            ids.tick()
        assert supply_of(ids).origin.mode is Mode.REDIS


def test_a_lease_that_is_set_later_or_made_auto_is_used_after_the_record_was_read(made: World) -> None:
    with made.connect() as ids:
        ids.create("a", order="trend", lease=5)
        assert ids.inspect("a").lease_mode == "set"
        busy(made, ids, 5)
        assert supply_of(ids).origin.lease_size() == 5
        assert ids.configure("a", lease="auto").lease_mode == "auto"
        busy(made, ids, 70)
        assert supply_of(ids).origin.lease_size() == pytest.approx(BUSY / 2, rel=0.2)
        assert ids.configure("a", lease=0).lease_mode == "set"
        busy(made, ids, 70)
        assert supply_of(ids).origin.mode is Mode.REDIS
        with pytest.raises(issuer.InvalidArgument, match="process"):
            ids.configure("a", lease="process")


def test_near_the_limit_no_process_holds_numbers_that_another_one_lacks(made: World) -> None:
    with made.connect() as ids, made.connect() as other:
        ids.create("a", order="trend", limit=4000, step=1000)
        numbers, ended = [], None
        while ended is None:
            for each in (ids, other):
                call = made.draws(each, "a").done
                if not isinstance(call.answer, int):
                    ended = call.error
                    break
                numbers.append(call.number)
                made.turns.sleep(1 / BUSY)
        assert isinstance(ended, issuer.LimitReached)
        assert len(set(numbers)) == len(numbers)
        held = sum(each.origin.auto for each in (supply_of(ids), supply_of(other)))
        assert held == 0
        assert len(numbers) > 3800  # the rest was held in the middle of the segments, and is a gap


def test_the_lowest_of_three_rates_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pace, "monotonic", lambda: now[0])
    measured = Pace()
    found = []
    for used in (10, 110, 300, 301, 500, 700, 900):
        now[0] += 1
        found.append(measured.rate(used))
    assert found == [0, 0, 10, 1, 1, 1, 199]
    now[0] += 0.1
    assert measured.rate(10**6) == 199  # too soon after the last measurement
    assert [auto_lease(rate, 10**9) for rate in (LEAST - 0.1, LEAST, 1000, 10**8)] == [0, 5, 500, LEASE_MOST]
    assert auto_lease(1000, 100) == 20
    assert all(one <= two for one, two in pairwise(auto_lease(rate, 5000) for rate in range(2000)))
