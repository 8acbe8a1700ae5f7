"""A tag's lease, what it has ahead, and its scheme, as settings: the same promises from every store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from issuer.persistence.errors import LeaseOnStrict, TagPresent
from issuer.persistence.records import AHEAD_MOST, LEASE_MOST, Tag
from tests.contract.benches import (
    SCHEME,
    TIMEOUT,
    check_contiguous,
    create,
    get,
    nested,
    of_size,
    ranges,
    reserve,
    spans,
)

if TYPE_CHECKING:
    from issuer.persistence.contract import Store
    from tests.contract.benches import Bench

#: What each is of a tag that was given nothing, and what it may be.
SETTINGS: dict[str, tuple[Any, list[Any]]] = {
    "lease": (None, [500, 0, LEASE_MOST, 1]),
    "ahead": (1, [5, AHEAD_MOST, 1]),
    "scheme": ({}, [{"format": "{seq}"}, nested(20), of_size(16 * 1024), SCHEME, {}]),
}
OURS: dict[str, Any] = {"lease": 5, "ahead": 3, "scheme": SCHEME}


def ours(record: Tag) -> dict[str, Any]:
    return {name: getattr(record, name) for name in SETTINGS}


def test_a_tag_has_what_it_was_made_with_and_else_the_default(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    plain = create(one, "a", order="trend")
    assert ours(plain) == ours(get(two, "a")) == {name: default for name, (default, _) in SETTINGS.items()}
    made = create(one, "b", order="trend", **OURS)
    assert ours(made) == OURS
    assert (get(two, "b"), two.tags(timeout=TIMEOUT)) == (made, [plain, made])
    assert ours(reserve(two, tag="b").tag) == OURS
    assert create(one, "c", order="trend", lease=0, scheme={}) == get(two, "c")
    assert get(two, "c").lease == 0


@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_changed_without_anything_else(bench: Bench, setting: str) -> None:
    one, two = bench.store, bench.open()
    before = create(one, step=10, order="trend")
    for value in SETTINGS[setting][1]:
        changed = one.configure("orders", timeout=TIMEOUT, **{setting: value})
        assert changed == replace(before, version=changed.version, timestamp=changed.timestamp, **{setting: value})
        assert changed.version != before.version
        assert get(two) == changed
        before = changed


def test_it_stays_whatever_else_changes(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, limit=1000, order="trend", **OURS)
    mine = reserve(one)
    assert one.hand_back([mine], 3, timeout=TIMEOUT)
    one.halt("orders", below=20, timeout=TIMEOUT)
    assert ours(one.recover("orders", at_least=20, timeout=TIMEOUT)) == OURS
    unsaid: dict[str, Any] = dict.fromkeys(SETTINGS)
    assert ours(two.configure("orders", step=20, limit=90, description="x", timeout=TIMEOUT, **unsaid)) == OURS
    held = [reserve(two), reserve(one)]
    assert spans(held) == [(20, 80), (80, 90)]  # the second is the short one, at the limit
    assert [ours(each.tag) for each in held] == [OURS] * 2
    assert ours(two.configure("orders", limit=1000, raise_to=500, timeout=TIMEOUT)) == OURS
    assert ours(one.delete("orders", timeout=TIMEOUT)) == ours(get(two)) == OURS


def test_what_somebody_else_has_set_holds_at_the_very_next_reservation(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, order="trend")
    got = []
    for by, ahead, step, lease in ((one, 3, 10, 50), (two, 1, 10, 0), (one, 2, 20, 7), (two, 1, 5, 8)):
        by.configure("orders", ahead=ahead, step=step, lease=lease, timeout=TIMEOUT)
        for held in (reserve(one), reserve(two)):
            assert held.high - held.low == ahead * step
            assert held.tag.lease == lease
            got += spans([held])
    assert ranges(one) == got
    check_contiguous(got, 0, 170)


def test_a_tag_made_again_has_what_is_given_now(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    top = 0
    create(one, step=10, order="trend", **OURS)
    given: list[dict[str, Any]] = [
        {"order": order, "lease": lease, "ahead": 1 + index, "scheme": SCHEME}
        for index, (order, lease) in enumerate([("trend", None), ("trend", 0), ("trend", 9), ("strict", None)])
    ]
    for again in given:
        before = get(two)
        with pytest.raises(TagPresent):
            create(two, **again)
        assert get(two) == before
        top = reserve(one).high
        one.delete("orders", timeout=TIMEOUT)
        with pytest.raises(LeaseOnStrict):
            create(two, order="strict", lease=9)
        assert get(one).deleted
        made = create(two, step=10, **again)
        assert {name: getattr(made, name) for name in again} == again
        assert (made.max, get(one)) == (top, made)
        held = reserve(one)
        assert (held.high, held.tag.lease) == (top + 10 * again["ahead"], again["lease"])


WRONG: dict[str, list[Any]] = {
    "lease": [-1, LEASE_MOST + 1, 2**63, 1.0, "5", True],
    "ahead": [0, -1, AHEAD_MOST + 1, 2**63, 1.0, "5", True],
}
RANGES = {"lease": r"lease must be an integer in 0\.\.1000000", "ahead": r"ahead must be an integer in 1\.\.1000"}


def test_what_is_out_of_range_is_a_value_error_and_changes_nothing(store: Store) -> None:
    made = create(store, order="trend", lease=7, ahead=7)
    # The check comes before any I/O: one store tries them all.
    tried = [(name, value) for name, values in WRONG.items() for value in values[: None if not store.shared else 1]]
    for name, value in tried:
        with pytest.raises(ValueError, match=f"{RANGES[name]}, not {value!r}"):
            store.configure("orders", timeout=TIMEOUT, **{name: value})
        with pytest.raises(ValueError, match=f"{RANGES[name]}, not {value!r}"):
            create(store, "new", order="trend", **{name: value})
    assert store.tags(timeout=TIMEOUT) == [made]


# --------------------------------------------------------------------------------------------------------------- lease


def test_a_strict_tag_has_no_lease(store: Store) -> None:
    with pytest.raises(LeaseOnStrict) as caught:
        create(store, order="strict", lease=5)
    assert (caught.value.tag, caught.value.lease) == ("orders", 5)
    assert store.get("orders", timeout=TIMEOUT) is None
    made = create(store, order="strict")
    with pytest.raises(LeaseOnStrict) as caught:
        store.configure("orders", step=5, lease=1, scheme=SCHEME, timeout=TIMEOUT)
    assert (caught.value.tag, caught.value.lease) == ("orders", 1)
    assert get(store) == made
    assert store.configure("orders", lease=0, timeout=TIMEOUT).lease == 0
    assert create(store, "users", order="strict", lease=0).lease == 0


def test_a_tag_turned_strict_behind_our_back_has_no_lease(shared_bench: Bench) -> None:
    store = shared_bench.store
    create(store, step=10, order="trend", lease=5)
    shared_bench.tamper("orders", order="strict")
    assert (get(store).order, get(store).lease) == ("strict", None)
    assert [reserve(store).low, reserve(store).low] == [0, 10]
    assert store.configure("orders", step=20, timeout=TIMEOUT).lease is None
    assert store.configure("orders", lease=0, timeout=TIMEOUT).lease == 0


# --------------------------------------------------------------------------------------------------------------- ahead


@pytest.mark.covers("3.26", "3.28")
def test_a_reservation_brings_so_many_steps_as_one_segment(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, ahead=4)
    held = [reserve(one), reserve(two, 7), reserve(one), reserve(two)]
    assert spans(held) == ranges(two) == [(0, 40), (40, 47), (47, 87), (87, 127)]
