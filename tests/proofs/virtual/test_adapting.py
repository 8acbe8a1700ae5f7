"""A step that is left to the issuer follows the traffic: a segment lasts about ten minutes, at every rate."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest

import issuer
from issuer import Issuer
from issuer.core.supply import adapt
from issuer_persistence.errors import Corrupt, Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.records import DEFAULT_MAX_STEP as MOST
from issuer_persistence.records import DEFAULT_STEP as LEAST
from issuer_persistence.records import DEFAULT_TARGET as TARGET
from issuer_persistence.records import Tag, TagChanges
from issuer_persistence.sqlite import SQLiteStore
from tests.proofs.virtual.world import World

MODES = ("strict", "direct")

pytestmark = [pytest.mark.live, pytest.mark.colours("blocking")]


def connect(made: World, mode: str) -> Issuer:
    """A process without a scheduler: `lasting` calls `tick`, and not each virtual second wakes a thread."""
    ids = made.connect(scheduler=None, **({"redis": "none"} if mode == "direct" else {}))
    ids.create("a", exist_ok=True)
    return ids


@contextmanager
def process(made: World, mode: str) -> Iterator[Issuer]:
    with connect(made, mode) as ids:
        yield ids


def step(made: World) -> int:
    found = made.store.get("a", timeout=5)
    assert found is not None
    return found.step


def lasting(made: World, ids: Issuer, speed: float, seconds: float) -> list[int]:
    """Draw at that speed for that long; return each step that was in force meanwhile, in its order."""
    seen, end = [step(made)], made.now + seconds
    while made.now < end:
        chunk = step(made) // 20
        taken = made.call(lambda: (ids.take("a", chunk), ids.tick()))  # noqa: B023 - done before the next round
        assert taken.took < 1, taken.answer
        made.turns.sleep(chunk / speed)
        if step(made) != seen[-1]:
            seen.append(step(made))
    return seen


def fits(speed: float, step: int) -> bool:
    """Whether a step of this size lasts 450 to 1200 seconds, or is the lowest or the highest one."""
    lasts = step / speed
    return (
        TARGET * 0.7 < lasts < TARGET * 2.1 or (step == LEAST and lasts > TARGET) or (step == MOST and lasts < TARGET)
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("speed", [0.5, 5, 50, 5000])
def test_the_step_grows_until_it_lasts_ten_minutes_and_stays(made: World, mode: str, speed: float) -> None:
    with process(made, mode) as ids:
        grown = lasting(made, ids, speed, 3600)
        assert grown == [min(MOST, LEAST << times) for times in range(len(grown))]
        assert fits(speed, grown[-1]), grown
        before = len(made.store.ledger("a", newest=10**6, timeout=5))
        assert lasting(made, ids, speed, 4 * 3600) == grown[-1:]
        writes = len(made.store.ledger("a", newest=10**6, timeout=5)) - before
        assert writes <= 4 * 8 or step(made) == MOST


@pytest.mark.parametrize("mode", MODES)
def test_a_tag_names_how_long_its_step_lasts_and_its_bounds(made: World, mode: str) -> None:
    with process(made, mode) as ids:
        ids.configure("a", target="1m", min_step=40, max_step=5000)
        ids.configure("a", step="auto")
        grown = lasting(made, ids, 50, 600)
        assert grown[0] in (40, LEAST)
        assert 45 <= grown[-1] / 50 <= 120, grown
        assert lasting(made, ids, 1000, 300)[-1] == 5000
        assert lasting(made, ids, 0.5, 12 * 3600)[-1] == 40
        ids.configure("a", max_step=60)
        ids.configure("a", min_step=60)
        assert lasting(made, ids, 50, 60)[-1] == 60


@pytest.mark.covers("U.18")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [6000, "auto"])
def test_callers_get_numbers_through_an_outage_that_the_tag_survives(
    made: World, mode: str, step: int | Literal["auto"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 6 numbers per second, what a segment of 6000 has left at 80 % lasts 200 seconds."""

    def away(*_: Any, **__: Any) -> None:
        raise Unconfirmed("away")

    with process(made, mode) as ids:
        ids.configure("a", step=step, survive="12m", refill_at=0.8)
        lasting(made, ids, 6, 3 * 3600)
        for _ in range(12):  # at any moment
            with monkeypatch.context() as outage:
                outage.setattr(made.store, "reserve", away)
                until = made.now + 630  # `lasting` looks every 80 seconds whether a segment is due
                while made.now < until:
                    assert len(made.call(lambda: (ids.take("a", 120), ids.tick())).done.answer[0]) == 120
                    made.turns.sleep(20)
            lasting(made, ids, 6, 613)


@pytest.mark.parametrize("mode", MODES)
def test_the_step_shrinks_again_by_half_a_segment(made: World, mode: str) -> None:
    """Leaf's step only ever grows back to where it was before it doubles; here the night ends what the day began."""
    with process(made, mode) as ids:
        high = lasting(made, ids, 100, 3600)[-1]
        shrunk = lasting(made, ids, 5, 36 * 3600)
        assert shrunk[0] == high
        assert all(after * 2 == before for before, after in pairwise(shrunk)), shrunk
        assert fits(5, shrunk[-1]), shrunk


def test_a_step_in_a_file_grows_alike(made: World, tmp_path: Path) -> None:
    made.store = store = SQLiteStore(tmp_path / "ids.db")  # type: ignore[assignment] # it hangs in no test here
    with process(made, "strict") as ids:
        grown = lasting(made, ids, 50, 3600)
        assert grown == [LEAST << times for times in range(len(grown))]
        assert fits(50, grown[-1]), grown
    store.close()


def test_two_processes_double_it_at_most_once_a_segment(made: World) -> None:
    with process(made, "direct") as one, process(made, "direct") as two:
        seen, taken = [LEAST], []
        for _ in range(300):
            for ids in (one, two):
                chunk = step(made) // 20
                taken += made.call(lambda: ids.take("a", chunk)).done.answer  # noqa: B023 - done before the next round
                ids.tick()
                made.turns.sleep(chunk / 50)
                seen.append(step(made))
        assert len({*taken}) == len(taken)
        sizes = [each.high - each.low for each in reversed(made.store.ledger("a", newest=100, timeout=5))]
        assert all(after <= 2 * before for before, after in pairwise(sizes)), sizes
        assert fits(50, seen[-1]), seen[-1]
        assert max(seen) <= 2 * seen[-1], seen


def test_a_redis_that_loses_its_data_again_and_again_makes_no_step_grow(made: World) -> None:
    with process(made, "strict") as ids:
        for size in (LEAST, 2 * LEAST):
            made.store.configure("a", TagChanges(step=size), timeout=5)
            for _ in range(20):
                assert made.draws(ids, "a").number
                made.wire.server.wipe()
                made.turns.sleep(5)
            assert step(made) == size


def test_a_program_that_crashes_again_and_again_loses_no_grown_segment(made: World) -> None:
    """Leaf loses two segments of the grown size at each restart."""
    connect(made, "direct")
    made.store.configure("a", TagChanges(step=64 * LEAST), timeout=5)
    for _ in range(20):
        ids = connect(made, "direct")  # never closed
        assert made.draws(ids, "a").number
        made.turns.sleep(5)
    assert made.store.top("a") <= 20 * LEAST
    assert step(made) <= 64 * LEAST


@pytest.mark.parametrize("mode", MODES)
def test_programs_that_restart_in_order_lose_no_number(made: World, mode: str) -> None:
    with process(made, mode) as ids:
        lasting(made, ids, 1000, 1200)
        last = made.draws(ids, "a").number
    grown = step(made)
    assert grown > 16 * LEAST
    for number in range(last + 1, last + 11):
        with process(made, mode) as ids:
            assert made.draws(ids, "a").number == number
        made.turns.sleep(5)
    assert step(made) <= grown


def test_a_step_that_a_user_sets_meanwhile_stays(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(made, "strict") as ids:
        assert made.draws(ids, "a").number == 1
        get = made.store.get
        fixed: list[Tag] = []

        def overtaken(tag: str, *, timeout: float) -> Tag | None:
            found = get(tag, timeout=timeout)
            if not fixed:
                fixed.append(made.store.configure(tag, TagChanges(step=7, step_mode="fixed"), timeout=timeout))
            return found

        monkeypatch.setattr(made.store, "get", overtaken)
        made.call(lambda: (ids.take("a", LEAST // 2), ids.tick())).done  # noqa: B018 - waits
        assert fixed, "the step did not grow"
        assert (step(made), ids.inspect("a").store.step_mode) == (7, "fixed")
        assert made.store.top("a") == LEAST + 7


def test_a_step_that_a_user_has_fixed_before_stays(made: World) -> None:
    """This process has read the tag before."""
    with process(made, "strict") as ids:
        assert made.draws(ids, "a").number == 1
        made.store.configure("a", TagChanges(step=7, step_mode="fixed"), timeout=5)
        made.call(lambda: (ids.take("a", LEAST // 2), ids.tick())).done  # noqa: B018 - waits
        assert (step(made), made.store.top("a")) == (7, LEAST + 7)


def test_a_step_shrinks_beside_callers_of_reserve(made: World) -> None:
    """Their ranges, small ones in quick succession, are no traffic of the others."""
    with process(made, "strict") as ids:
        made.store.configure("a", TagChanges(step=16 * LEAST), timeout=5)
        ids.next("a")
        for _ in range(12 * 20):
            made.call(lambda: (ids.take("a", 16 * LEAST // 20), ids.tick())).done  # noqa: B018 - waits
            made.turns.sleep(160)
            made.store.reserve("a", 9000, purpose=Purpose("mine"), timeout=5)
        assert step(made) < 16 * LEAST


def test_a_silent_ledger_holds_up_a_call_for_a_second(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: str, *, newest: int, timeout: float) -> None:
        made.turns.sleep(timeout)
        raise Unconfirmed(f"the newest {newest} entries are not read")

    with process(made, "strict") as ids:
        assert made.draws(ids, "a").number == 1
        monkeypatch.setattr(made.store, "ledger", silent)
        for _ in range(4):
            taken = made.call(lambda: ids.take("a", LEAST))
            assert len(taken.done.answer) == LEAST
            assert taken.took <= adapt.PATIENCE + 0.5


def test_reservations_that_fail_halve_a_step_once(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise Unconfirmed("away")

    with process(made, "strict") as ids:
        made.store.configure("a", TagChanges(step=16 * LEAST), timeout=5)
        ids.next("a")
        lasting(made, ids, 1, 3600)
        before = step(made)
        monkeypatch.setattr(made.store, "reserve", away)
        for _ in range(50):
            made.call(lambda: (ids.take("a", 500), ids.tick())).done  # noqa: B018 - waits
            made.turns.sleep(500)
        assert step(made) >= before // 2


def test_a_damaged_ledger_keeps_nobody_from_a_segment(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: Any, **__: Any) -> None:
        raise Corrupt("a", "an entry is damaged")

    with process(made, "strict") as ids:
        assert made.draws(ids, "a").number == 1
        monkeypatch.setattr(made.store, "ledger", damaged)
        made.call(lambda: (ids.take("a", LEAST // 2), ids.tick())).done  # noqa: B018 - waits
        assert (made.store.top("a"), step(made)) == (2 * LEAST, LEAST)


def test_a_grown_step_ends_at_the_limit(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with process(made, "strict") as ids:
        made.store.configure("a", TagChanges(limit=20 * LEAST + 7), timeout=5)
        taken = 0
        while taken < 20 * LEAST + 7:
            numbers = made.call(lambda: (ids.take("a", 50 if taken < 20 * LEAST else 1), ids.tick())).done.answer[0]  # noqa: B023
            assert numbers[0] == taken + 1
            taken = numbers[-1]
        monkeypatch.setattr(made.store, "ledger", None)  # is not read any more
        for _ in range(3):
            assert isinstance(made.draws(ids, "a", 1.0).error, issuer.LimitReached)
        assert step(made) == 4 * LEAST, "it does not grow while the limit makes segments shorter"
