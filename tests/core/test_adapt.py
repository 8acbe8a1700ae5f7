"""Adapted steps: how they grow and shrink, in stores that processes share, in periods, in parts and at limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.core.periods import PERIOD_BITS
from issuer.core.supply.adapt import fitting
from issuer.errors import LimitReached
from issuer.operations.tags import SEGMENT_MOST
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import DEFAULT_MAX_STEP, DEFAULT_STEP, DEFAULT_TARGET, HIGHEST, Tag, TagChanges, now_ms
from tests.days import DAILY, DAY, EVE, Set, shown
from tests.refusals import refused
from tests.schemes import Make

pytestmark = pytest.mark.colours("blocking")


def entry(low: int, high: int, time: int) -> LedgerEntry:
    return LedgerEntry(tag="orders", low=low, high=high, reason="load", time=time)


def record(step: int = 1000, **settings: Any) -> Tag:
    return Tag(tag="a", max=0, step=step, step_mode="auto", created=0, timestamp=0, version="", **settings)


def fitted(step: int, lasts: float, *, proved: bool = True, size: int | None = None, **settings: Any) -> int:
    """Return the step after segments that lasted so many seconds."""
    size = step * settings.get("ahead", 1) if size is None else size
    segments = [entry(size, 2 * size, 0), entry(0, size, 0)]
    return fitting(record(step, **settings), segments, segments if proved else [], round(lasts * 1000))


@pytest.mark.covers("3.17")
def test_a_step_is_doubled_or_halved_within_its_bounds_and_left_alone_between() -> None:
    assert [fitted(8000, DEFAULT_TARGET * share) for share in (0.1, 0.74, 0.76, 1.9, 2.1, 50)] == [
        16_000, 16_000, 8000, 8000, 4000, 4000
    ]  # fmt: skip
    assert fitted(8000, 1, proved=False) == 8000
    assert fitted(8000, 10**6, proved=False) == 4000
    least, most = DEFAULT_STEP, DEFAULT_MAX_STEP
    assert [fitted(least, 10**6), fitted(most, 1), fitted(600_000, 1)] == [least, most, most]
    # Of the step in force no segment was reserved yet: it is not changed again.
    assert [fitted(8000, 0.1, size=4000), fitted(8000, 10**6, size=16_000)] == [8000, 8000]


@pytest.mark.covers("3.17")
def test_a_step_lasts_as_long_and_stays_within_the_bounds_that_the_tag_names() -> None:
    assert [fitted(8000, share * 60, target=60) for share in (0.7, 0.8, 1.9, 2.1)] == [16_000, 8000, 8000, 4000]
    assert [fitted(8000, 1, max_step=9000), fitted(8000, 10**6, min_step=7000)] == [9000, 7000]
    # A changed bound holds at once, also for a step that would stay.
    assert [fitted(8000, DEFAULT_TARGET, max_step=50, min_step=5), fitted(8000, DEFAULT_TARGET, min_step=10**5)] == [
        50, 10**5
    ]  # fmt: skip
    # A segment of two steps lasts twice the outage to survive.
    assert [fitted(8000, share * 2000, survive=2000, ahead=2) for share in (1.4, 1.6)] == [16_000, 8000]


DAYS = 86_400_000


def segments(store: MemoryStore, tag: str) -> list[LedgerEntry]:
    return store.ledger(tag, newest=1000, timeout=10)[::-1]


@pytest.mark.live
@pytest.mark.covers("3.17")
@pytest.mark.parametrize("direct", [False, True])
def test_processes_adapt_a_step_in_a_store_that_they_share(
    store_url: str, redis_url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as ends:
        redis = "none" if direct else redis_url
        processes = [ends.enter_context(issuer.connect(redis=redis, store=store_url)) for _ in range(3)]
        one = processes[0]
        one.create("a", order="trend", lease=0, min_step=20, max_step=300, survive="1h")

        def draw(ids: Issuer, times: int = 100) -> list[int]:
            return [number for _ in range(times) for number in ids.take("a", 10)]

        with ThreadPoolExecutor(3) as pool:
            taken = [number for numbers in pool.map(draw, processes) for number in numbers]
        sizes = [each.high - each.low for each in one.segments("a", count=1000).entries]
        assert (sizes[-1], max(sizes)) == (20, 300)
        monkeypatch.setattr("issuer.core.supply.adapt.now_ms", lambda: now_ms() + 30 * DAYS)
        taken += draw(one, 120)
        assert one.inspect("a").store.step == 20
    assert len(taken) == len({*taken}) == 4200
    if not direct:
        assert sorted(taken) == [*range(1, 4201)]


def test_an_adapted_step_grows_over_midnight_and_stays_within_its_period(
    daily: Make, at: Set, store: MemoryStore
) -> None:
    ids = daily("2026-11-20 23:59:00", min_step=10, max_step=80, survive="1h")
    drawn = [shown(ids.issue("a")) for _ in range(200)]
    at("2026-11-21 00:00:01")
    drawn += [shown(ids.issue("a")) for _ in range(200)]
    assert drawn == [(day, number) for day in (EVE, DAY) for number in range(1, 201)]
    made = segments(store, "a")
    assert [each.high - each.low for each in made[:4]] == [10, 20, 40, 80]
    assert all(each.low >> PERIOD_BITS == each.high >> PERIOD_BITS for each in made)


def test_the_largest_adapted_segment_stays_within_its_period(make: Make, at: Set, store: MemoryStore) -> None:
    ids = make()
    at("2026-11-20 23:59:00")
    too_large: list[dict[str, Any]] = [{"max_step": SEGMENT_MOST // 4 + 1}, {"ahead": 5}]
    bounds: dict[str, Any] = {"min_step": SEGMENT_MOST // 4, "max_step": SEGMENT_MOST // 4, "ahead": 4}
    for wrong in too_large:
        with pytest.raises(issuer.InvalidArgument, match="segment must lie within its period"):
            ids.create("a", **{**bounds, **wrong}, **DAILY)
    ids.create("a", **bounds, **DAILY)
    for wrong in too_large:
        refused(issuer.InvalidArgument, "segment must lie within its period", ids.configure, "a", **wrong)
    assert shown(ids.issue("a")) == (EVE, 1)
    at("2026-11-21 00:00:01")
    assert shown(ids.issue("a")) == (DAY, 1)
    made = segments(store, "a")
    assert [each.high - each.low for each in made] == [SEGMENT_MOST] * 2
    assert all(each.low >> PERIOD_BITS == each.high >> PERIOD_BITS for each in made)


def test_the_last_numbers_of_a_day_are_issued_with_an_adapted_step(daily: Make, at: Set, store: MemoryStore) -> None:
    ids = daily("2026-11-20 12:00:00", min_step=3, max_step=1000, limit=50, survive="1d")
    assert [ids.next("a") for _ in range(50)] == [*range(1, 51)]
    before = segments(store, "a")
    for _ in range(5):
        refused(LimitReached, "", ids.next, "a")
    assert segments(store, "a") == before
    at("2026-11-21 00:00:01")
    assert [ids.next("a") for _ in range(50)] == [*range(1, 51)]


@pytest.mark.parametrize("settings", [{}, {"stride": 5, "offset": 2}, {"scramble": "k1", "scramble_strict": True}])
def test_numbers_near_the_limit_are_issued_once_with_an_adapted_step(make: Make, settings: dict[str, Any]) -> None:
    ids = make()
    ids.create("a", min_step=4, max_step=10**6, survive="1h", limit=3000, **settings)
    wanted = [*range(2, 3001, 5)] if "stride" in settings else [*range(1, 3001)]
    taken = [ids.next("a") for _ in wanted]
    refused(LimitReached, "", ids.next, "a")
    assert len({*taken}) == len(taken)
    assert "scramble" in settings or taken == wanted


def test_each_part_has_the_bounds_and_a_rate_of_its_own(make: Make, store: MemoryStore) -> None:
    ids = make()
    ids.create("a", keyed=True, min_step=4, max_step=64, target="5m", survive="2m", drain=False, order="strict")
    for _ in range(200):
        ids.issue("a", restart_key="busy")
    ids.issue("a", restart_key="quiet")
    parts = [each for each in store.tags(count=9, timeout=10) if each.tag != "a"]
    assert [(each.tag, each.step) for each in parts] == [("a#busy", 64), ("a#quiet", 4)]
    assert all((each.min_step, each.max_step, each.target, each.survive) == (4, 64, 300, 120) for each in parts)
    assert not any(each.drain for each in parts)
    # As an older program would create it: without the bounds.
    store.configure("a#quiet", TagChanges(min_step=1000, max_step=2000), timeout=10)
    ids.configure("a", max_step=50, drain=True)
    ids.configure("a", step="auto")
    parts = [each for each in store.tags(count=9, timeout=10) if each.tag != "a"]
    assert [(each.step, each.min_step, each.max_step, each.drain) for each in parts] == [(4, 4, 50, True)] * 2


def test_an_automatic_step_begins_with_the_lowest_one_of_the_tag(make: Make) -> None:
    ids = make()
    ids.create("a", step=7, min_step=30, max_step=60)
    assert ids.configure("a", step="auto").step == 30
    assert ids.configure("a", step="auto", min_step=40).step == 40
    assert ids.configure("a", target="1h").step == 40


def test_a_lowest_step_above_the_highest_one_is_refused_where_nothing_is_created(make: Make) -> None:
    ids = make()
    ids.create("a")
    refused(issuer.InvalidArgument, "min_step 1000 is above max_step 10", ids.create, "a", max_step=10, exist_ok=True)


def test_a_first_segment_of_more_numbers_than_there_are_is_a_part_of_them(store: MemoryStore) -> None:
    with issuer.connect(redis="none", store=store) as ids:
        ids.create("a", min_step=2**62, max_step=HIGHEST, ahead=3)
        store.configure("a", TagChanges(step=HIGHEST), timeout=10)
        assert ids.next("a") == 1
        assert [each.high for each in segments(store, "a")] == [HIGHEST // 10]
