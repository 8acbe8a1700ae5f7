"""How many steps a reservation brings: the same promises from every store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from persistence.errors import Corrupt, LimitHit
from persistence.memory import MemoryStore
from persistence.records import AHEAD_MOST, HIGHEST, Tag
from tests.contract.benches import TIMEOUT, check_contiguous, create, get, ranges, reserve

if TYPE_CHECKING:
    from persistence.contract import Store
    from tests.contract.benches import Bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


@pytest.mark.covers("3.26", "3.28")
def test_a_reservation_brings_so_many_steps_as_one_segment(store: Store) -> None:
    made = create(store, step=10, ahead=4)
    assert made.ahead == 4
    assert get(store) == made
    first, asked, second = reserve(store), reserve(store, 7), reserve(store)
    assert [(each.low, each.high) for each in (first, asked, second)] == [(0, 40), (40, 47), (47, 87)]
    assert ranges(store) == [(0, 40), (40, 47), (47, 87)]


def test_a_tag_has_one_step_ahead_unless_it_is_given_more(store: Store) -> None:
    assert create(store, step=10).ahead == 1
    assert (reserve(store).high, get(store).ahead) == (10, 1)


def test_ahead_is_changed_without_anything_else(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    before = create(one, step=10)
    for ahead in (5, AHEAD_MOST, 1):
        changed = one.configure("orders", ahead=ahead, timeout=TIMEOUT)
        assert changed == replace(before, ahead=ahead, version=changed.version, timestamp=changed.timestamp)
        assert get(two) == changed
        before = changed


def test_what_somebody_else_has_set_holds_at_the_very_next_reservation(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10)
    sizes = []
    for ahead, step in ((3, 10), (1, 10), (2, 20), (1, 5)):
        for each in (one, two):
            each.configure("orders", ahead=ahead, step=step, timeout=TIMEOUT)
            sizes += [(each_.high - each_.low) for each_ in (reserve(one), reserve(two))]
    assert sizes == [30] * 4 + [10] * 4 + [40] * 4 + [5] * 4
    check_contiguous(ranges(one), 0, 340)


def test_ahead_stays_whatever_else_changes(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, ahead=3, limit=1000)
    mine = reserve(one)
    assert one.hand_back([mine], 3, timeout=TIMEOUT)
    one.halt("orders", below=20, timeout=TIMEOUT)
    assert one.recover("orders", at_least=20, timeout=TIMEOUT).ahead == 3
    assert two.configure("orders", step=20, limit=90, description="other", timeout=TIMEOUT).ahead == 3
    assert [(each.low, each.high, each.tag.ahead) for each in (reserve(two), reserve(one))] == [
        (20, 80, 3),
        (80, 90, 3),  # the short one, at the limit
    ]


@pytest.mark.covers("4.11")
def test_near_the_limit_the_segment_is_shorter_and_then_refused(bench: Bench) -> None:
    for tag, store in (("a", bench.store), ("b", bench.open())):
        create(store, tag, step=10, ahead=4, limit=95)
        reserved = [reserve(store, tag=tag) for _ in range(3)]
        assert [(each.low, each.high) for each in reserved] == [(0, 40), (40, 80), (80, 95)]
        with pytest.raises(LimitHit):
            reserve(store, tag=tag)
        assert get(store, tag).max == 95


@pytest.mark.parametrize(("above", "high"), [(0, HIGHEST), (HIGHEST - 5, HIGHEST)])
def test_more_steps_than_there_are_numbers_never_overflow(store: Store, above: int, high: int) -> None:
    create(store, above=above, step=HIGHEST // 2, ahead=AHEAD_MOST)
    reserved = reserve(store)
    assert (reserved.low, reserved.high) == (above, high)
    with pytest.raises(LimitHit):
        reserve(store)
    assert get(store).max == HIGHEST


def test_without_the_guard_of_the_limit_numbers_above_it_are_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: a segment is as long as it was wanted."""
    monkeypatch.setattr(Tag, "reserved", lambda tag, _n, **_options: tag.changed(max=tag.max + tag.segment))
    store = MemoryStore()
    create(store, step=10, ahead=4, limit=95)
    assert [reserve(store).high for _ in range(3)][-1] > 95


@pytest.mark.parametrize("ahead", [0, -1, AHEAD_MOST + 1, 2**63, 1.0, "5", True])
def test_ahead_out_of_range_is_a_value_error(store: Store, ahead: int) -> None:
    made = create(store, ahead=7)
    with pytest.raises(ValueError, match=r"ahead must be an integer in 1\.\.1000"):
        store.configure("orders", ahead=ahead, timeout=TIMEOUT)
    with pytest.raises(ValueError, match="ahead must be"):
        create(store, "new", ahead=ahead)
    assert store.tags(timeout=TIMEOUT) == [made]


@pytest.mark.parametrize("ahead", [1, 9])
def test_a_tag_made_again_has_what_is_given_now(bench: Bench, ahead: int) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, ahead=5)
    top = reserve(one).high
    one.delete("orders", timeout=TIMEOUT)
    made = create(two, step=10, ahead=ahead)
    assert (made.ahead, made.max) == (ahead, top)
    assert reserve(one).high == top + 10 * ahead


@pytest.mark.parametrize("value", [-1, 0, AHEAD_MOST + 1, 1.5, "x"])
def test_ahead_of_another_shape_is_corrupt_and_changes_nothing(shared_bench: Bench, value: object) -> None:
    store = shared_bench.store
    create(store, step=10, ahead=2)
    reserve(store)  # what was seen now must not keep anybody from noticing
    shared_bench.tamper("orders", ahead=value)
    for call in (
        partial(reserve, store),
        partial(get, store),
        partial(store.tags, timeout=TIMEOUT),
        partial(store.configure, "orders", ahead=5, timeout=TIMEOUT),
        partial(store.recover, "orders", at_least=500, timeout=TIMEOUT),
    ):
        with pytest.raises(Corrupt, match="ahead"):
            call()
    assert ranges(store) == [(0, 20)]
    shared_bench.tamper("orders", ahead=3)
    assert reserve(store).high == 50
