"""Deleting and making again, halting and recovering: the same promises from every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from persistence.errors import Halted, LimitHit, TagMissing
from tests.contract.benches import TIMEOUT, create, get, reserve

if TYPE_CHECKING:
    from persistence.contract import Store
    from tests.contract.benches import Bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


# --------------------------------------------------------------------------------------------------------- tombstones


@pytest.mark.covers("U.10")
def test_a_tag_made_again_goes_on_above_its_tombstone(store: Store) -> None:
    create(store, step=100)
    top = reserve(store).high
    buried = store.delete("orders", timeout=TIMEOUT)
    assert buried.deleted
    assert buried.max == top
    assert store.delete("orders", timeout=TIMEOUT) == buried
    assert create(store, above=0, step=7).max == top
    got = reserve(store)
    assert (got.low, got.high) == (top, top + 7)


def test_a_tag_made_again_may_start_higher_than_its_tombstone(store: Store) -> None:
    create(store, above=10)
    store.delete("orders", timeout=TIMEOUT)
    assert create(store, above=5000).max == 5000


def test_a_tag_without_numbers_left_is_not_made(store: Store) -> None:
    with pytest.raises(LimitHit):
        create(store, above=100, limit=100)
    assert store.get("orders", timeout=TIMEOUT) is None
    create(store, above=100)
    buried = store.delete("orders", timeout=TIMEOUT)
    with pytest.raises(LimitHit):
        create(store, limit=100)
    assert get(store) == buried


def test_a_hand_back_after_deleting_changes_nothing(store: Store) -> None:
    create(store, step=10)
    got = reserve(store)
    store.delete("orders", timeout=TIMEOUT)
    assert not store.hand_back([got], 0, timeout=TIMEOUT)
    assert get(store).max == 10


# --------------------------------------------------------------------------------------------------- halt and recover


def test_a_halted_tag_gives_nothing_until_it_is_recovered(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10)
    reserve(two)
    assert one.halt("orders", below=500, timeout=TIMEOUT)
    before = get(one)
    for each in (one, two):
        with pytest.raises(Halted) as caught:
            reserve(each, at_least=10)
        assert caught.value.max == 10
    assert get(one) == before
    recovered = two.recover("orders", at_least=500, timeout=TIMEOUT)
    assert (recovered.max, recovered.halted) == (500, False)
    assert reserve(one).low == 500


def test_a_halt_comes_too_late_once_max_is_high_enough(store: Store) -> None:
    create(store, above=500)
    before = get(store)
    assert not store.halt("orders", below=500, timeout=TIMEOUT)
    assert get(store) == before
    assert store.halt("orders", below=501, timeout=TIMEOUT)
    assert store.halt("orders", below=0, timeout=TIMEOUT)  # it is halted now, whoever did it


def test_a_halt_without_a_condition_stops_reservations_whatever_max_is(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10)
    reserve(two)
    for _ in range(2):
        assert one.halt("orders", timeout=TIMEOUT)
        with pytest.raises(Halted):
            reserve(two)
    before = get(one)
    assert one.halt("orders", timeout=TIMEOUT)
    assert get(one) == before
    assert two.recover("orders", at_least=0, timeout=TIMEOUT).max == 10
    assert reserve(two).low == 10
    with pytest.raises(TagMissing):
        one.halt("nobody", timeout=TIMEOUT)


def test_a_halt_outlives_deleting_and_making_again(store: Store) -> None:
    create(store)
    store.halt("orders", below=500, timeout=TIMEOUT)
    store.delete("orders", timeout=TIMEOUT)
    create(store)
    with pytest.raises(Halted):
        reserve(store)


@pytest.mark.covers("N.6")
def test_recovering_twice_does_no_harm_and_never_lowers(store: Store) -> None:
    create(store, above=700)
    for at_least, expected in ((1000, 1000), (1000, 1000), (5, 1000)):
        assert store.recover("orders", at_least=at_least, timeout=TIMEOUT).max == expected


def test_a_hand_back_is_refused_after_a_recovery_to_the_same_max(store: Store) -> None:
    create(store, step=10)
    got = reserve(store)
    store.recover("orders", at_least=got.high, timeout=TIMEOUT)
    assert not store.hand_back([got], 0, timeout=TIMEOUT)
    assert get(store).max == 10


def test_a_tag_recovered_above_its_limit_is_full_and_can_be_widened(store: Store) -> None:
    create(store, step=10, limit=100)
    recovered = store.recover("orders", at_least=250, timeout=TIMEOUT)
    assert (recovered.max, recovered.limit) == (250, 100)
    with pytest.raises(LimitHit):
        reserve(store)
    assert store.configure("orders", step=20, timeout=TIMEOUT).step == 20
    store.configure("orders", limit=1000, timeout=TIMEOUT)
    assert (reserve(store).low, get(store).max) == (250, 270)
