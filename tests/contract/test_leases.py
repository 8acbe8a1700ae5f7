"""A tag's own lease: the same promises from every store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from persistence.errors import Corrupt, LeaseOnStrict, TagMissing, TagPresent
from persistence.records import LEASE_MOST
from tests.contract.benches import TIMEOUT, create, get, ranges, reserve

if TYPE_CHECKING:
    from persistence.contract import Store
    from tests.contract.benches import Bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


def test_a_tag_says_nothing_of_a_lease_unless_it_is_given_one(store: Store) -> None:
    assert create(store).lease is None
    assert get(store).lease is None
    for lease in (0, 1, LEASE_MOST):
        made = create(store, str(lease), order="trend", lease=lease)
        assert made.lease == lease
        assert get(store, str(lease)) == made
    assert [each.lease for each in store.tags(timeout=TIMEOUT)] == [0, 1, LEASE_MOST, None]


def test_a_lease_is_changed_without_anything_else(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    before = create(one, order="trend")
    for lease in (500, 0, LEASE_MOST, 1):
        changed = one.configure("orders", lease=lease, timeout=TIMEOUT)
        assert changed == replace(before, lease=lease, version=changed.version, timestamp=changed.timestamp)
        assert changed.version != before.version
        assert get(two) == changed
        before = changed


def test_a_lease_stays_whatever_else_changes(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, limit=45, order="trend", lease=5)
    mine = reserve(one)
    assert mine.tag.lease == 5
    assert one.hand_back([mine], 3, timeout=TIMEOUT)
    one.halt("orders", below=20, timeout=TIMEOUT)
    assert one.recover("orders", at_least=20, timeout=TIMEOUT).lease == 5
    assert two.configure("orders", step=20, lease=None, timeout=TIMEOUT).lease == 5
    assert [reserve(each).tag.lease for each in (one, two)] == [5, 5]  # the second is the short one, at the limit
    assert two.configure("orders", limit=1000, description="other", raise_to=500, timeout=TIMEOUT).lease == 5
    assert get(one).lease == 5


def test_a_lease_set_by_somebody_else_is_in_the_next_reservation(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, order="trend")
    assert [reserve(each).tag.lease for each in (one, two)] == [None, None]
    one.configure("orders", lease=50, timeout=TIMEOUT)
    assert [reserve(each).tag.lease for each in (two, one)] == [50, 50]


@pytest.mark.parametrize("lease", [-1, LEASE_MOST + 1, 2**63, 1.0, "5", True])
def test_a_lease_out_of_range_is_a_value_error(store: Store, lease: int) -> None:
    made = create(store, order="trend", lease=7)
    with pytest.raises(ValueError, match=r"lease must be an integer in 0\.\.1000000"):
        store.configure("orders", lease=lease, timeout=TIMEOUT)
    with pytest.raises(ValueError, match="lease must be"):
        create(store, "new", order="trend", lease=lease)
    assert store.tags(timeout=TIMEOUT) == [made]


def test_a_strict_tag_has_no_lease(store: Store) -> None:
    with pytest.raises(LeaseOnStrict) as caught:
        create(store, order="strict", lease=5)
    assert (caught.value.tag, caught.value.lease) == ("orders", 5)
    assert store.get("orders", timeout=TIMEOUT) is None
    made = create(store, order="strict")
    with pytest.raises(LeaseOnStrict) as caught:
        store.configure("orders", step=5, lease=1, timeout=TIMEOUT)
    assert (caught.value.tag, caught.value.lease) == ("orders", 1)
    assert get(store) == made
    assert store.configure("orders", lease=0, timeout=TIMEOUT).lease == 0
    assert create(store, "users", order="strict", lease=0).lease == 0


def test_a_tag_that_is_not_live_gets_no_lease(store: Store) -> None:
    create(store, "gone", order="trend", lease=5)
    buried = store.delete("gone", timeout=TIMEOUT)
    for tag in ("nobody", "gone"):
        with pytest.raises(TagMissing):
            store.configure(tag, lease=9, timeout=TIMEOUT)
    assert get(store, "gone") == buried


@pytest.mark.parametrize(
    ("order", "lease"), [("trend", None), ("trend", 0), ("trend", 9), ("strict", None), ("strict", 0)]
)
def test_a_tag_made_again_has_the_lease_given_now(bench: Bench, order: str, lease: int | None) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, order="trend", lease=5)
    with pytest.raises(TagPresent):
        create(two, order="trend", lease=lease)
    assert get(two).lease == 5
    top = reserve(one).high
    one.delete("orders", timeout=TIMEOUT)
    with pytest.raises(LeaseOnStrict):
        create(two, order="strict", lease=9)
    assert get(one).deleted
    made = create(two, step=10, order=order, lease=lease)  # type: ignore[arg-type]  # from the list above
    assert (made.order, made.lease, made.max) == (order, lease, top)
    assert get(one) == made
    assert reserve(one).tag.lease == lease


@pytest.mark.parametrize("value", [-1, LEASE_MOST + 1, 1.5, "x"])
def test_a_lease_of_another_shape_is_corrupt_and_changes_nothing(shared_bench: Bench, value: object) -> None:
    store = shared_bench.store
    create(store, step=10, order="trend", lease=5)
    reserve(store)  # what was seen now must not keep anybody from noticing
    shared_bench.tamper("orders", lease=value)
    for call in (
        partial(reserve, store),
        partial(reserve, shared_bench.open(), 5),
        partial(get, store),
        partial(store.tags, timeout=TIMEOUT),
        partial(store.configure, "orders", lease=5, timeout=TIMEOUT),
        partial(store.recover, "orders", at_least=500, timeout=TIMEOUT),
        partial(store.delete, "orders", timeout=TIMEOUT),
    ):
        with pytest.raises(Corrupt, match="lease"):
            call()
    assert ranges(store) == [(0, 10)]
    shared_bench.tamper("orders", lease=6)
    assert reserve(store).low == 10


def test_a_tag_turned_strict_behind_our_back_has_no_lease(shared_bench: Bench) -> None:
    store = shared_bench.store
    create(store, step=10, order="trend", lease=5)
    shared_bench.tamper("orders", order="strict")
    assert (get(store).order, get(store).lease) == ("strict", None)
    assert [reserve(store).low, reserve(store).low] == [0, 10]
    assert store.configure("orders", step=20, timeout=TIMEOUT).lease is None
