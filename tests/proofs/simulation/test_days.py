"""Many tags with automatic steps for a day and a week, and what docs/operate/operations.md promises of them."""

import re
from collections.abc import Mapping
from itertools import pairwise
from random import Random

import pytest

from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import DEFAULT_MAX_STEP as MOST
from issuer_persistence.records import DEFAULT_STEP as LEAST
from issuer_persistence.records import DEFAULT_TARGET
from tests.proofs.simulation.days import Figures, simulated
from tests.proofs.simulation.fleet import GROUPS, Fleet, Series, started
from tests.proofs.simulation.picture import PATH, drawn
from tests.proofs.simulation.traffic import DAY, HOUR, Traffic, traffic

pytestmark = pytest.mark.live

#: How long it takes at most until the step fits a steady rate: ten segments that are each twice as large, in seconds.
GROWS = 6 * HOUR


def check(fleet: Fleet, found: Mapping[str, Figures]) -> None:
    assert not fleet.late
    assert found["all"].waste < 0.01
    assert max(found["redis"].at_rest) <= 8
    # A tag that is not used for a quarter of an hour costs two writes for each number, in each program without Redis.
    assert max(found["direct"].at_rest) <= 8 * GROUPS["direct"][1]
    for each in fleet.series:
        check_numbers(fleet, each)
        if each.group == "redis":
            check_steps(fleet, each)


def check_numbers(fleet: Fleet, each: Series) -> None:
    """Each number was issued once, out of the reserved ones; those of a strict tag upwards."""
    upwards = sorted(each.ranges, key=lambda numbers: numbers.start)
    assert all(before.stop <= after.start for before, after in pairwise(upwards)), each.tag
    assert upwards == each.ranges or not each.strict, each.tag
    assert fleet.wasted(each) >= 0, each.tag


def check_steps(fleet: Fleet, each: Series) -> None:
    """A step is at most doubled or halved from one segment to the next, and lasts about ten minutes."""
    history = fleet.store.history(each.tag)
    sizes = [entry.high - entry.low for entry in history]
    assert all(LEAST <= size <= MOST for size in sizes), each.tag
    assert all(after in (before // 2, before, before * 2) for before, after in pairwise(sizes)), (each.tag, sizes)
    most = max(each.traffic.rates) * max(
        each.settings.get("target", DEFAULT_TARGET), each.settings.get("survive", 0) * 2
    )
    # After a loss, callers draw what they have waited for at once: this may double the step once.
    if each.traffic.kind == "diurnal":
        assert max(sizes) <= max(2 * LEAST if fleet.disturbed["redis"] else LEAST, 4 * most), each.tag
    if each.traffic.kind == "steady":
        settled = [size for entry, size in zip(history, sizes, strict=True) if is_settled(fleet, entry)]
        assert all(most * 0.7 < size < most * 2.1 or size == LEAST for size in settled), (each.tag, settled)
        changes = sum(after != before for before, after in pairwise(settled))
        # A step that lasts about 3/4 of its target, give or take chance, is doubled once, and then stays.
        assert changes <= len(fleet.disturbed[each.group]) + 1, (each.tag, settled)


def is_settled(fleet: Fleet, entry: LedgerEntry) -> bool:
    """Whether the step could have settled before this entry, since the beginning or the last loss."""
    at = fleet.time_of(entry)
    return not any(0 <= at - begin < GROWS for begin in (0, *fleet.disturbed["redis"]))


@pytest.mark.covers("3.17")
def test_steps_fit_the_traffic_of_a_day() -> None:
    with simulated(40, days=1, seed=1) as (fleet, found):
        check(fleet, found)
        assert found["redis"].waste < 0.0001, "neither a restart nor a crash loses numbers that are in Redis"
        every = [{entry.high - entry.low for entry in fleet.store.history(each.tag)} for each in fleet.series]
        assert sum(max(sizes) > 4 * LEAST for sizes in every) > 5


@pytest.mark.soak
def test_steps_fit_the_traffic_of_a_thousand_tags_in_a_day() -> None:
    with simulated(1000, days=1, seed=2) as (fleet, found):
        check(fleet, found)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_steps_fit_the_traffic_of_a_thousand_tags_in_a_week(seed: int) -> None:
    """A hundred tags in each of ten parts, which can run side by side."""
    with simulated(100, days=7, seed=seed, loss=True) as (fleet, found):
        check(fleet, found)


@pytest.mark.covers("3.17")
def test_a_step_shrinks_to_its_least_after_traffic_has_fallen() -> None:
    """Leaf's step stays where it was, and its two segments last for days."""
    day = Series("a", Traffic("day", lambda at: 100.0 if at < 4 * HOUR else 1.0, 3 * DAY), {"step": "auto"})
    with started([day], 7) as fleet:
        fleet.run(4 * HOUR)
        assert fleet.store.record("a").step == 64 * LEAST
        fleet.run(3 * DAY)
        assert fleet.store.record("a").step == LEAST


@pytest.mark.covers("3.17")
def test_no_restart_loses_a_segment_of_the_highest_step() -> None:
    """Leaf loses up to two million numbers at each restart."""
    busy = Series("a", traffic(Random(7), "steady", 4 * HOUR, peak=4000), {"step": "auto"})
    with started([busy], 7) as fleet:
        restarts = [(3 * HOUR + place * 300, lambda each: each.restart("redis")) for place in range(6)]
        crashes = [(at + 100, lambda each: each.restart("redis", crash=True)) for at, _ in restarts]
        fleet.run(4 * HOUR, [*restarts, *crashes])
        assert fleet.store.record("a").step == MOST
        assert busy.ranges == [range(1, busy.issued + 1)]
        assert not fleet.late
        assert fleet.wasted(busy) == 0


def test_the_picture_of_the_docs_is_up_to_date() -> None:
    """It may differ by a point: the way to Redis takes a random time."""
    shown, drawn_now = (re.split(r"(\d+\.\d)", each) for each in (PATH.read_text(encoding="utf-8"), drawn()))
    assert shown[::2] == drawn_now[::2], "run python -m tests.proofs.simulation.picture"
    assert all(abs(float(a) - float(b)) <= 1 for a, b in zip(shown[1::2], drawn_now[1::2], strict=True))
