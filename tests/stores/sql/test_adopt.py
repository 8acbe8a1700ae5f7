"""The end of sharing a table with Leaf, its Go port or tinyid: `issuer adopt`, and URLs without the layout."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from issuer_persistence.errors import (
    Corrupt,
    Misconfigured,
    StoreError,
    TagMissing,
)
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagChanges
from tests.stores.benches import TIMEOUT, create, get, ranges, reserve, spans
from tests.stores.sql.test_shared_row import low_high

if TYPE_CHECKING:
    from tests.stores.shared_rows import SharedRowBench


@pytest.mark.parametrize(
    ("max_id", "step", "problem"), [(-5, 10, "max_id"), (500, 0, "step"), (500, -5, "step"), (500, None, "step")]
)
def test_a_damaged_row_is_an_entry_of_its_own_and_the_others_are_adopted(
    beside: SharedRowBench, max_id: int, step: int | None, problem: str
) -> None:
    if step is None and beside.layout != "tinyid":
        step = 0  # the column is NOT NULL
    for tag in ("a", "z"):
        beside.add(tag, max_id=500, step=10)
    beside.add("orders", max_id=max_id, step=step)
    store, row = beside.store, beside.row()
    with pytest.raises(Corrupt, match=problem):
        reserve(store)
    assert beside.row() == row
    assert [type(each).__name__ for each in store.tags(count=9, timeout=TIMEOUT)] == ["Tag", "Corrupt", "Tag"]
    assert [each.tag for each in store.tags(after="a", count=1, timeout=TIMEOUT)] == ["orders"]
    with pytest.raises(Corrupt, match="orders"):
        store.adopt(timeout=TIMEOUT)
    assert store.shared_with(timeout=TIMEOUT)  # not before all are
    for tag in ("a", "z"):
        assert ranges(store, tag) != []
    beside.run(f"DELETE FROM {beside.theirs.table} WHERE max_id < 0 OR step <= 0 OR step IS NULL")  # noqa: S608 - ours
    assert store.adopt(timeout=TIMEOUT) == 2
    assert not store.shared_with(timeout=TIMEOUT)


@pytest.mark.covers("N.10")
def test_after_adopt_a_program_that_still_draws_is_noticed_and_nothing_repeats(beside: SharedRowBench) -> None:
    beside.add("orders", max_id=beside.theirs.ahead)
    beside.add("users", max_id=700 + beside.theirs.ahead)
    assert reserve(beside.store, 10).high == 10
    beside.fetch()
    assert beside.store.adopt(timeout=TIMEOUT) == 2
    assert ranges(beside.store) == [(0, 10), (10, 20)]
    assert ranges(beside.store, "users") == [(0, 700)]
    assert reserve(beside.store, 10).high == 30
    assert sharing(beside) == (True, ())
    assert low_high(beside.fetch()) == (30, 40)  # it still runs
    assert sharing(beside) == (True, ("orders",))
    other = beside.open()
    for _ in range(2):
        with pytest.raises(Misconfigured, match=r"another program has taken 31\.\.40.*issuer recover orders"):
            reserve(other)
    # Whatever else is changed, the tag stays refused.
    other.configure("orders", TagChanges(step=5, step_mode="fixed", ahead=1), timeout=TIMEOUT)
    assert other.halt("orders", timeout=TIMEOUT)
    with pytest.raises(StoreError):
        reserve(other)
    assert reserve(other, tag="users").low == 700  # the others go on
    assert beside.store.adopt(timeout=TIMEOUT) == 2  # adopting again takes over nothing new
    assert other.recover("orders", at_least=0, timeout=TIMEOUT).max == 40
    assert spans([reserve(other)]) == [(40, 45)]
    assert sharing(beside) == (True, ())
    beside.add("new", max_id=100)
    with pytest.raises(Misconfigured, match="another program"):
        reserve(other, tag="new")


def sharing(bench: SharedRowBench) -> tuple[bool, tuple[str, ...]]:
    found = bench.store.examine(timeout=TIMEOUT).sharing
    assert found is not None
    assert (found.program, found.table) == (bench.theirs.program, bench.theirs.table)
    return found.adopted, found.moved


def test_after_adopt_a_tag_can_be_deleted_and_goes_on_above_its_numbers(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    reserve(beside.store)
    beside.store.adopt(timeout=TIMEOUT)
    assert beside.store.delete("orders", timeout=TIMEOUT).max == 10
    assert beside.store.tags(count=10, timeout=TIMEOUT) == []
    assert low_high(beside.fetch()) == (10, 20)  # the row stays, so that a program that still draws repeats nothing
    assert create(beside.store, step=10).max == 20
    assert spans([reserve(beside.store)]) == [(20, 30)]


def test_a_deleted_tag_whose_row_was_lowered_goes_on_above_its_numbers(beside: SharedRowBench) -> None:
    create(beside.store, step=10)
    reserve(beside.store, 100)
    beside.store.adopt(timeout=TIMEOUT)
    beside.store.delete("orders", timeout=TIMEOUT)
    beside.run(f"UPDATE {beside.theirs.table} SET max_id = 1")  # noqa: S608 - ours
    assert create(beside.store, step=10).max == 100


@pytest.mark.covers("N.10")
def test_a_url_without_the_layout_reserves_nothing_beside_the_other_program(beside: SharedRowBench) -> None:
    beside.add("orders", max_id=beside.theirs.ahead, step=10)
    plain = open_store(beside.server)
    assert plain.get("orders", timeout=TIMEOUT) is None  # nobody has used the tables yet
    assert reserve(beside.store, 10).high == 10
    beside.fetch()
    for adopted in (False, True):
        if adopted:
            beside.store.adopt(timeout=TIMEOUT)
        with closing(open_store(beside.server)) as other:
            for call in (partial(reserve, other), partial(create, other, "users"), partial(get, other)):
                with pytest.raises(Misconfigured, match=f"must have layout={beside.layout}"):
                    call()
    with closing(plain), pytest.raises(Misconfigured, match=f"must have layout={beside.layout}"):
        reserve(plain)
    assert reserve(beside.open()).low == 20


@pytest.mark.covers("N.10")
@pytest.mark.parametrize("has_tags", [False, True])
def test_the_tables_of_a_store_without_a_layout_are_not_used_for_a_shared_one(
    leaf: SharedRowBench, *, has_tags: bool
) -> None:
    """Not even without tags: the process that made them would go on without a look at the layout."""
    leaf.add("orders", max_id=1)
    with closing(open_store(leaf.server)) as plain:
        assert plain.upgrade(timeout=TIMEOUT)
        if has_tags:
            create(plain, "users")
        with pytest.raises(Misconfigured, match=r"made without layout=leaf.*prefix to the URL of all processes"):
            reserve(leaf.store)
        with closing(open_store(f"{leaf.url}&prefix=shared_")) as shared:
            assert reserve(shared).high == 10
        leaf.fetch()
        with pytest.raises(TagMissing):
            reserve(plain)
