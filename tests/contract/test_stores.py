"""What every store promises, one by one: the same tests on each."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from persistence.errors import LimitHit, LimitTooLow, MaxBehind, Misconfigured, TagMissing, TagPresent
from persistence.records import HIGHEST, now_ms
from tests.contract.benches import TIMEOUT, create, get, ranges, reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    from persistence.contract import Store
    from tests.contract.benches import Bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


# ------------------------------------------------------------------------------------------------------------ the tag


def test_a_new_tag_is_what_was_asked_for(store: Store) -> None:
    before = now_ms()
    made = create(store, above=99, step=50, limit=10_000, order="trend")
    assert (made.max, made.step, made.limit, made.order) == (99, 50, 10_000, "trend")
    assert made.description == "made by a test"
    assert not made.halted
    assert not made.deleted
    assert before <= made.created == made.timestamp <= now_ms()
    assert get(store) == made


@pytest.mark.covers("3.4")
def test_the_first_number_of_a_tag_is_the_one_above_its_start(store: Store) -> None:
    create(store, above=99, step=10)
    assert (reserve(store).low, reserve(store).low) == (99, 109)


@pytest.mark.covers("1.5", "2.11")
def test_a_tag_is_made_once(store: Store) -> None:
    made = create(store, above=7)
    with pytest.raises(TagPresent):
        create(store, above=1_000_000)
    assert get(store) == made


@pytest.mark.covers("1.5")
def test_every_change_brings_a_fresh_version_and_the_time(store: Store) -> None:
    create(store, step=10)
    seen = [get(store)]
    changes: list[Callable[[], object]] = [
        lambda: reserve(store),
        lambda: store.configure("orders", step=20, timeout=TIMEOUT),
        lambda: store.halt("orders", below=HIGHEST, timeout=TIMEOUT),
        lambda: store.recover("orders", at_least=0, timeout=TIMEOUT),
        lambda: store.hand_back([reserve(store)], 0, timeout=TIMEOUT),
        lambda: store.delete("orders", timeout=TIMEOUT),
        lambda: create(store),
    ]
    for change in changes:
        change()
        seen.append(get(store))
        assert seen[-1].timestamp >= seen[-2].timestamp
    assert len({each.version for each in seen}) == len(seen)


def test_an_unknown_tag_is_none(store: Store) -> None:
    assert store.get("nobody", timeout=TIMEOUT) is None


@pytest.mark.covers("1.23", "2.5", "3.48", "3.49")
def test_an_unknown_or_deleted_tag_is_refused_by_every_verb(store: Store) -> None:
    create(store, "gone")
    store.delete("gone", timeout=TIMEOUT)
    for tag in ("nobody", "gone"):
        for call in (
            partial(reserve, store, tag=tag),
            partial(store.configure, tag, step=1, timeout=TIMEOUT),
            partial(store.halt, tag, below=1, timeout=TIMEOUT),
            partial(store.recover, tag, at_least=1, timeout=TIMEOUT),
        ):
            with pytest.raises(TagMissing):
                call()
    with pytest.raises(TagMissing):
        store.delete("nobody", timeout=TIMEOUT)
    assert store.get("nobody", timeout=TIMEOUT) is None
    assert get(store, "gone").max == 0


@pytest.mark.parametrize("tag", ["a", "ünï ⚙ código", "a.b$c:{d}/e?f#g", "x" * 200, "'; DROP TABLE tags; --"])
def test_any_name_will_do(store: Store, tag: str) -> None:
    create(store, tag, step=5)
    assert reserve(store, tag=tag).high == 5
    assert [each.tag for each in store.tags(timeout=TIMEOUT)] == [tag]
    assert ranges(store, tag) == [(0, 5)]


@pytest.mark.covers("0.5")
def test_tags_are_independent(store: Store) -> None:
    create(store, "users", above=100, step=7)
    create(store, "orders", step=5)
    got = [(reserve(store, tag=tag).low, tag) for tag in ("orders", "users", "orders", "users")]
    assert got == [(0, "orders"), (100, "users"), (5, "orders"), (107, "users")]


def test_live_tags_are_listed_by_name(store: Store) -> None:
    for tag in ("b", "a", "c", "Ä"):
        create(store, tag)
    store.delete("b", timeout=TIMEOUT)
    assert store.tags(timeout=TIMEOUT) == [get(store, "a"), get(store, "c"), get(store, "Ä")]


def test_the_store_id_stays_and_is_the_same_for_all(bench: Bench) -> None:
    first = bench.store.store_id(timeout=TIMEOUT)
    create(bench.store)
    assert first == bench.store.store_id(timeout=TIMEOUT) == bench.open().store_id(timeout=TIMEOUT)
    assert len(first) >= 16


# ---------------------------------------------------------------------------------------------------------- reserving


@pytest.mark.covers("4.15", "0.9")
def test_segments_follow_each_other_exactly(store: Store) -> None:
    create(store, step=1000)
    got = [reserve(store), reserve(store, 1), reserve(store), reserve(store, 2500)]
    assert [(each.low, each.high) for each in got] == [(0, 1000), (1000, 1001), (1001, 2001), (2001, 4501)]
    assert got[-1].tag == get(store)
    assert got[-1].version == get(store).version
    assert get(store).max == 4501


def test_a_reservation_is_in_the_ledger_with_who_when_and_why(store: Store) -> None:
    before = now_ms()
    create(store, step=10)
    got = store.reserve("orders", None, reason="refill", timeout=TIMEOUT)
    [entry] = store.ledger("orders", newest=5, timeout=TIMEOUT)
    assert (entry.id, entry.tag, entry.low, entry.high, entry.reason) == (got.entry, "orders", 0, 10, "refill")
    assert before <= entry.time <= now_ms()
    assert entry.host
    assert entry.pid > 0


def test_the_ledger_shows_the_highest_numbers_first_and_no_more_than_asked(store: Store) -> None:
    create(store, step=10)
    for _ in range(5):
        reserve(store)
    newest = store.ledger("orders", newest=2, timeout=TIMEOUT)
    assert [(each.low, each.high) for each in newest] == [(40, 50), (30, 40)]
    assert store.ledger("orders", newest=0, timeout=TIMEOUT) == []
    assert store.ledger("nobody", newest=2, timeout=TIMEOUT) == []


@pytest.mark.covers("1.9", "U.5")
def test_a_changed_step_takes_effect_at_the_next_reservation_of_every_store_object(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10)
    assert reserve(one).high == 10
    assert reserve(two).high == 20
    one.configure("orders", step=500, timeout=TIMEOUT)
    assert reserve(two).high == 520
    assert reserve(one).high == 1020
    two.configure("orders", step=3, timeout=TIMEOUT)
    assert reserve(one).high == 1023


@pytest.mark.parametrize("above", [2**31 - 2, 2**53 - 2, HIGHEST - 10])
def test_numbers_are_exact_where_other_types_end(store: Store, above: int) -> None:
    create(store, above=above, step=1)
    for n in range(1, 6):
        got = reserve(store)
        assert (got.low, got.high) == (above + n - 1, above + n)
    assert get(store).max == above + 5
    assert ranges(store)[-1] == (above + 4, above + 5)


@pytest.mark.covers("4.11")
def test_the_last_segment_is_shorter_and_then_the_tag_is_full(store: Store) -> None:
    create(store, above=HIGHEST - 1500, step=1000)
    assert reserve(store).high == HIGHEST - 500
    last = reserve(store)
    assert (last.low, last.high) == (HIGHEST - 500, HIGHEST)
    for n in (None, 1, HIGHEST):
        with pytest.raises(LimitHit) as caught:
            reserve(store, n)
        assert (caught.value.max, caught.value.limit) == (HIGHEST, HIGHEST)
    assert get(store).max == HIGHEST
    assert len(ranges(store)) == 2


def test_an_exact_reservation_is_whole_or_refused(store: Store) -> None:
    create(store, step=10, limit=25)
    reserve(store, 20)
    before = get(store)
    for n in (None, 6, HIGHEST):
        with pytest.raises(LimitHit):
            reserve(store, n, exact=True)
    assert get(store) == before
    assert reserve(store, 5, exact=True).high == 25


def test_a_step_beyond_the_limit_gives_what_there_is(store: Store) -> None:
    create(store, step=HIGHEST, limit=100)
    got = reserve(store)
    assert (got.low, got.high) == (0, 100)


def test_a_raised_limit_opens_a_full_tag(store: Store) -> None:
    create(store, step=10, limit=10)
    reserve(store)
    with pytest.raises(LimitHit):
        reserve(store)
    store.configure("orders", limit=15, timeout=TIMEOUT)
    assert reserve(store).high == 15


def test_a_max_below_what_the_caller_knows_is_refused(store: Store) -> None:
    create(store, step=10)
    reserve(store)
    assert reserve(store, at_least=10).low == 10
    before = get(store)
    with pytest.raises(MaxBehind) as caught:
        reserve(store, at_least=21)
    assert (caught.value.max, caught.value.at_least) == (20, 21)
    assert get(store) == before


def test_a_restored_store_is_noticed_by_who_saw_more(bench: Bench) -> None:
    create(bench.store, step=10)
    backup = bench.backup()
    top = reserve(bench.store).high
    bench.restore(backup)
    with pytest.raises(MaxBehind):
        reserve(bench.store, at_least=top)
    assert ranges(bench.store) == []


# ------------------------------------------------------------------------------------------------------- handing back


@pytest.mark.covers("N.4")
def test_what_is_handed_back_is_reserved_again(store: Store) -> None:
    create(store, step=100)
    got = reserve(store)
    assert store.hand_back([got], 40, timeout=TIMEOUT)
    assert get(store).max == 40
    assert ranges(store) == [(0, 40)]
    assert reserve(store).low == 40


def test_nothing_is_handed_back_once_somebody_reserved_above(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=100)
    mine = reserve(one)
    reserve(two)
    assert not one.hand_back([mine], 40, timeout=TIMEOUT)
    assert get(one).max == 200
    assert ranges(one) == [(0, 40), (100, 200)]  # nobody has 41..100: the ledger says so


def test_a_hand_back_sent_twice_takes_effect_once(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=100)
    mine = reserve(one)
    assert one.hand_back([mine], 0, timeout=TIMEOUT)
    assert not one.hand_back([mine], 0, timeout=TIMEOUT)
    other = reserve(two)
    assert (other.low, other.high) == (mine.low, mine.high)
    # The same max again, and only the version says that it is another's: the delayed copy must not cut it.
    assert not one.hand_back([mine], 0, timeout=TIMEOUT)
    assert get(one).max == 100
    assert (0, 100) in ranges(one)


def test_a_hand_back_from_before_a_restore_is_refused(bench: Bench) -> None:
    create(bench.store, step=100)
    backup = bench.backup()
    mine = reserve(bench.store)
    bench.restore(backup)
    other = reserve(bench.store)
    assert other.high == mine.high
    assert not bench.store.hand_back([mine], 0, timeout=TIMEOUT)
    assert get(bench.store).max == 100
    assert ranges(bench.store) == [(0, 100)]


def test_two_reservations_in_a_row_are_handed_back_in_one(store: Store) -> None:
    create(store, step=100)
    held = [reserve(store), reserve(store)]
    assert store.hand_back(held, 30, timeout=TIMEOUT)
    assert get(store).max == 30
    assert sorted(ranges(store)) == [(0, 30), (100, 100)]


def test_never_more_is_handed_back_than_was_held(store: Store) -> None:
    create(store, step=100)
    reserve(store)
    assert store.hand_back([reserve(store)], 0, timeout=TIMEOUT)
    assert get(store).max == 100
    assert (0, 100) in ranges(store)


def test_a_hand_back_that_makes_no_sense_is_a_value_error(store: Store) -> None:
    create(store, step=100)
    first, second, third = reserve(store), reserve(store), reserve(store)
    before = get(store)
    for held, used in (([], 0), ([first, third], 50), ([third, second], 250), ([third], 301), ([third], -1)):
        with pytest.raises(ValueError, match=r"hand back|contiguous|used"):
            store.hand_back(held, used, timeout=TIMEOUT)
    with pytest.raises(ValueError, match="contiguous"):
        store.hand_back([second, replace(third, tag=replace(third.tag, tag="users"))], 150, timeout=TIMEOUT)
    assert get(store) == before


# ---------------------------------------------------------------------------------------------------------- settings


def test_only_what_is_given_is_changed(store: Store) -> None:
    made = create(store, step=10, limit=1000)
    changed = store.configure("orders", step=20, timeout=TIMEOUT)
    assert replace(changed, step=10, version=made.version, timestamp=made.timestamp) == made
    changed = store.configure("orders", limit=500, description="other", raise_to=77, timeout=TIMEOUT)
    assert (changed.step, changed.limit, changed.description, changed.max) == (20, 500, "other", 77)
    assert get(store) == changed


@pytest.mark.covers("U.5")
def test_max_is_never_lowered_by_command(store: Store) -> None:
    create(store, above=100)
    assert store.configure("orders", raise_to=50, timeout=TIMEOUT).max == 100
    assert store.configure("orders", raise_to=150, timeout=TIMEOUT).max == 150


def test_a_limit_below_max_is_refused(store: Store) -> None:
    create(store, above=100, limit=1000)
    before = get(store)
    with pytest.raises(LimitTooLow) as caught:
        store.configure("orders", limit=99, timeout=TIMEOUT)
    assert (caught.value.limit, caught.value.max) == (99, 100)
    with pytest.raises(LimitTooLow):
        store.configure("orders", raise_to=1001, timeout=TIMEOUT)
    with pytest.raises(LimitTooLow):
        store.configure("orders", limit=500, raise_to=501, timeout=TIMEOUT)
    assert get(store) == before
    assert store.configure("orders", limit=100, timeout=TIMEOUT).limit == 100


@pytest.mark.parametrize(
    ("name", "values"),
    [("step", (0, -1, 1.0, True, 2**63)), ("limit", (0, 2**63, "5")), ("raise_to", (-1, 2.0, 2**63))],
)
def test_settings_out_of_range_are_a_value_error(store: Store, name: str, values: tuple[object, ...]) -> None:
    made = create(store)
    for value in values:
        settings: dict[str, object] = {name: value}
        with pytest.raises(ValueError, match=name):
            store.configure("orders", **settings, timeout=TIMEOUT)  # type: ignore[arg-type]  # wrong on purpose
    assert get(store) == made


def test_arguments_out_of_range_are_a_value_error(store: Store) -> None:
    made = create(store)
    for n in (0, -5, 2**63):
        with pytest.raises(ValueError, match="n must"):
            reserve(store, n)
    for call in (
        lambda: reserve(store, at_least=-1),
        lambda: store.recover("orders", at_least=2**63, timeout=TIMEOUT),
        lambda: store.halt("orders", below=2**63, timeout=TIMEOUT),
        lambda: store.ledger("orders", newest=-1, timeout=TIMEOUT),
        lambda: store.segments("orders", count=0, timeout=TIMEOUT),
        lambda: store.prune(before=-1, timeout=TIMEOUT),
        lambda: create(store, "new", above=-1),
        lambda: create(store, "new", step=0),
        lambda: create(store, "new", limit=2**63),
        lambda: create(store, "new", order="random"),  # type: ignore[arg-type]  # wrong on purpose
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    assert store.tags(timeout=TIMEOUT) == [made]


# ------------------------------------------------------------------------------------------------------------- ledger


def test_pruning_keeps_the_newest_entry_of_each_tag(store: Store) -> None:
    for tag in ("orders", "users"):
        create(store, tag, step=10)
        for _ in range(3):
            reserve(store, tag=tag)
    assert store.prune(before=1, timeout=TIMEOUT) == 0
    assert store.prune(before=now_ms() + 1, timeout=TIMEOUT) == 4
    assert ranges(store) == ranges(store, "users") == [(20, 30)]
    assert store.prune(before=now_ms() + 1, timeout=TIMEOUT) == 0


def test_closing_twice_is_harmless(bench: Bench) -> None:
    create(bench.store)
    bench.store.close()
    bench.store.close()
    if bench.store.shared:
        with pytest.raises(Misconfigured, match="closed"):
            reserve(bench.store)
        assert get(bench.open()).max == 0
