"""What every store promises of its tags, one by one: the same tests on each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from bson.decimal128 import Decimal128

from issuer_persistence.contract import Store
from issuer_persistence.errors import (
    Corrupt,
    Halted,
    LeaseOnStrict,
    LimitHit,
    LimitTooLow,
    MaxBehind,
    Misconfigured,
    SchemeMismatch,
    StoreError,
    TagMissing,
    TagPresent,
    Unconfirmed,
)
from issuer_persistence.facts import StoreFacts
from issuer_persistence.memory import MemoryStore
from issuer_persistence.newest import Newest
from issuer_persistence.records import AHEAD_MOST, HIGHEST, LEASE_MOST, TagChanges, TagSettings, now_ms
from tests.stores.benches import (
    TIMEOUT,
    MongoBench,
    SQLBench,
    SQLiteBench,
    create,
    get,
    ranges,
    reserve,
    spans,
)
from tests.stores.shared_rows import SharedRowBench

if TYPE_CHECKING:
    from collections.abc import Callable

    from issuer_persistence.records import Tag
    from tests.stores.benches import Bench


@pytest.mark.covers("3.4", "3.48", "3.49")
def test_a_new_tag_is_what_was_asked_for_and_starts_above_its_start(bench: Bench) -> None:
    before = now_ms()
    made = create(bench.store, above=99, step=50, limit=10_000, order="trend")
    assert (made.max, made.step, made.limit, made.order) == (99, 50, 10_000, "trend")
    assert (made.description, made.halted, made.deleted) == ("made by a test", False, False)
    assert before <= made.created == made.timestamp <= now_ms()
    assert get(bench.store) == get(bench.open()) == made
    assert len(first := bench.store.store_id(timeout=TIMEOUT)) >= 16
    assert bench.open().store_id(timeout=TIMEOUT) == first
    assert spans([reserve(bench.store), reserve(bench.open())]) == [(99, 149), (149, 199)]


@pytest.mark.covers("1.5", "2.11", "4.19")
def test_a_tag_is_made_once_and_setting_it_up_again_changes_nothing(bench: Bench) -> None:
    create(bench.store, above=7, step=10)
    reserve(bench.store)
    before, ledger = get(bench.store), ranges(bench.store)
    for again in ({"above": 7, "step": 10}, {"above": 1_000_000, "order": "trend", "limit": 5, "lease": 3}):
        with pytest.raises(TagPresent):
            create(bench.open(), **again)
    assert (bench.store.tags(count=1000, timeout=TIMEOUT), ranges(bench.store)) == ([before], ledger)
    assert spans([reserve(bench.store)]) == [(17, 27)]


@pytest.mark.covers("1.5")
def test_every_change_brings_a_fresh_version_and_the_time(store: Store) -> None:
    create(store, step=10)
    seen = [get(store)]
    changes: list[Callable[[], object]] = [
        lambda: reserve(store),
        lambda: store.configure("orders", TagChanges(step=20), timeout=TIMEOUT),
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


@pytest.mark.covers("1.23", "2.5", "3.48", "3.49")
def test_an_unknown_or_deleted_tag_is_refused_by_every_verb(bench: Bench) -> None:
    store = bench.store
    create(store, "gone")
    top = reserve(store, tag="gone").high  # what was seen now must not keep anybody from noticing
    bench.open().delete("gone", timeout=TIMEOUT)
    for tag in ("nobody", "gone"):
        for call in (
            partial(reserve, store, tag=tag),
            partial(store.configure, tag, TagChanges(step=1), timeout=TIMEOUT),
            partial(store.halt, tag, below=1, timeout=TIMEOUT),
            partial(store.halt, tag, timeout=TIMEOUT),
            partial(store.recover, tag, at_least=1, timeout=TIMEOUT),
        ):
            with pytest.raises(TagMissing):
                call()
    with pytest.raises(TagMissing):
        store.delete("nobody", timeout=TIMEOUT)
    assert store.get("nobody", timeout=TIMEOUT) is None
    assert get(store, "gone").max == top


@pytest.mark.covers("0.5")
def test_any_name_will_do_and_each_has_its_own_series(bench: Bench) -> None:
    store = bench.store
    names = ["a", "ünï ⚙ código", "a.b$c:{d}/e?f#g", "x" * bench.name_most, "'; DROP TABLE tags; --", "Ä"]
    for above, tag in enumerate(names):
        create(store, tag, above=above, step=5)
    for turn in range(2):
        assert [reserve(store, tag=tag).low for tag in names] == [above + 5 * turn for above in range(len(names))]
    store.delete("a", timeout=TIMEOUT)
    assert [each.tag for each in store.tags(count=1000, timeout=TIMEOUT)] == sorted(names[1:])
    assert store.tags(count=1000, timeout=TIMEOUT) == [get(store, tag) for tag in sorted(names[1:])]
    for above, tag in enumerate(names):
        assert ranges(store, tag) == [(above, above + 5), (above + 5, above + 10)]


def read_pages(store: Store, count: int, between: Callable[[], object] = lambda: None) -> list[str]:
    """The names on all pages. After each page but the last `between` runs."""
    names: list[str] = []
    after = None
    for _ in range(1000):
        page = store.tags(after=after, count=count, timeout=TIMEOUT)
        assert page == [get(store, each.tag) for each in page]
        names += [each.tag for each in page]
        if len(page) < count:
            return names
        after = page[-1].tag
        between()
    raise AssertionError("the pages have no end")


@pytest.mark.covers("U.19")
def test_pages_of_tags_are_complete_and_sorted_by_the_bytes_of_utf_8(bench: Bench) -> None:
    names = [
        *("Z", "a", "a b", "a#1", "a#10", "a#2", "aa", "A", "a'b", '"', "%", "_", "$", "$gt", "0", "10", "9", "~", "é"),
        *("e\u0301", "ß", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff", "京"),
    ]
    for tag in [*names, "gone", "a#gone"]:
        create(bench.store, tag)
    for tag in ("gone", "a#gone"):
        bench.store.delete(tag, timeout=TIMEOUT)
    expected = sorted(names, key=str.encode)
    store = bench.open()
    for count in (1, 2, 7, len(names), len(names) + 1, HIGHEST):
        assert read_pages(store, count) == expected, count
    for after in ("", "a#1", "a#3", "gone", "\U0010ffff"):  # the name may be that of no tag, or of a deleted one
        following = [each for each in expected if each.encode() > after.encode()]
        assert [each.tag for each in store.tags(after=after, count=5, timeout=TIMEOUT)] == following[:5], after
    for bad in (0, -1, True, 2**63, 1.0):
        with pytest.raises(ValueError, match="count must be"):
            store.tags(count=bad, timeout=TIMEOUT)  # type: ignore[arg-type]  # not an int


@pytest.mark.covers("U.20")
def test_many_tags_are_created_at_once_as_each_alone_would_be(bench: Bench) -> None:
    store, before = bench.store, now_ms()
    for tag in ("again", "halted"):
        create(store, tag, above=40, step=10)
        reserve(store, tag=tag)
        store.halt(tag, below=None if tag == "halted" else 0, timeout=TIMEOUT)
        store.delete(tag, timeout=TIMEOUT)
    create(store, "beside")
    asked = {f"t{number:03d}": TagSettings(above=number, step=5, order="trend", lease=3) for number in range(150)}
    asked |= {"again": TagSettings(above=7), "ünï ⚙": TagSettings(scheme=bench.scheme), "halted": TagSettings(above=99)}
    made = store.create_many(asked, timeout=TIMEOUT)
    assert [each.tag for each in made] == [*asked]
    assert [get(bench.open(), each.tag) for each in made] == made
    assert [each.max for each in made] == [*range(150), 50, 0, 99]
    assert [each.halted for each in made] == [False] * 152 + [True]
    assert len({each.version for each in made}) == len(made)
    assert all(before <= each.created == each.timestamp <= now_ms() for each in made[:150])
    kept = [each.settings.kept() for each in made]
    assert kept == [each.kept() for each in asked.values()]
    assert spans([reserve(store, tag="t009"), reserve(store, 1, tag="again")]) == [(9, 14), (50, 51)]
    assert store.create_many({}, timeout=TIMEOUT) == []


@pytest.mark.covers("U.20")
def test_of_many_tags_none_is_created_if_one_cannot_be(bench: Bench) -> None:
    store = bench.store
    create(store, "present")
    create(store, "used up", above=9)
    create(store, "other", scheme={"id": "1", "restart": "daily"})
    for tag in ("used up", "other", "fine"):
        if tag == "fine":
            create(store, tag)
        store.delete(tag, timeout=TIMEOUT)
    names = ("present", "used up", "other", "fine")
    before = [get(store, tag) for tag in names]
    bad: dict[str, tuple[TagSettings, type[StoreError]]] = {
        "present": (TagSettings(), TagPresent),
        "used up": (TagSettings(limit=9), LimitHit),
        "other": (TagSettings(scheme={"id": "1", "restart": "yearly"}), SchemeMismatch),
        "new": (TagSettings(order="strict", lease=5), LeaseOnStrict),
    }
    for tag, (settings, error) in bad.items():
        for place in (0, 3, 6):
            asked = [*dict.fromkeys(["fine", "a", "b", "c", "d", "e"], TagSettings()).items()]
            asked.insert(place, (tag, settings))
            with pytest.raises(error) as caught:
                store.create_many(dict(asked), timeout=TIMEOUT)
            assert getattr(caught.value, "tag", None) == tag
            assert [get(store, each) for each in names] == before
            assert [each.tag for each in store.tags(count=1000, timeout=TIMEOUT)] == ["present"]
            assert store.get("a", timeout=TIMEOUT) is None


@pytest.mark.covers("U.20")
def test_of_many_tags_that_several_callers_create_each_caller_gets_all_or_none(
    shared_bench: SQLiteBench | MongoBench,
) -> None:
    names = [f"t{number}" for number in range(8)]
    create(shared_bench.store, names[3])
    shared_bench.store.delete(names[3], timeout=TIMEOUT)

    def create_some(seed: int) -> list[Tag]:
        asked = dict.fromkeys(Random(seed).sample(names, 4), TagSettings(step=seed + 1))
        try:
            return stores[seed].create_many(asked, timeout=TIMEOUT)
        except TagPresent:
            return []

    stores = [shared_bench.open() for _ in range(6)]
    with ThreadPoolExecutor(len(stores)) as pool:
        made = [each for found in pool.map(create_some, range(len(stores))) for each in found]
    assert made
    assert sorted(made, key=lambda each: each.tag) == shared_bench.store.tags(count=1000, timeout=TIMEOUT)


@pytest.mark.covers("U.19")
@pytest.mark.parametrize("seed", range(3))
def test_a_tag_that_stays_is_on_exactly_one_page_while_others_come_and_go(bench: Bench, seed: int) -> None:
    random, store, other = Random(seed), bench.store, bench.open()
    stays = {f"stays{number:02d}" for number in random.sample(range(100), 20)}
    goes = [f"goes{number}" for number in range(10)] + [f"stays{number:02d}x" for number in range(0, 100, 10)]
    for tag in random.sample([*sorted(stays), *goes], len(stays) + len(goes)):
        create(store, tag)

    def come_and_go() -> None:
        tag = random.choice(goes)
        with suppress(TagMissing):
            other.delete(tag, timeout=TIMEOUT)
        if random.random() < 0.5:
            create(other, tag)
        create(other, f"{random.choice('agsz')}{random.random()}")
        reserve(other, tag=random.choice(sorted(stays)))

    names = read_pages(store, 3, come_and_go)
    assert names == sorted(set(names))
    assert stays <= set(names)


def test_numbers_are_exact_where_other_types_end(store: Store) -> None:
    for above in (2**31 - 2, 2**53 - 2, HIGHEST - 10):
        tag = str(above)
        create(store, tag, above=above, step=1)
        expected = [(above + n, above + n + 1) for n in range(5)]
        assert spans(reserve(store, tag=tag) for _ in range(5)) == ranges(store, tag) == expected
        assert get(store, tag).max == above + 5


@pytest.mark.covers("4.11")
def test_the_last_segment_is_shorter_and_then_the_tag_is_full(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    made: list[tuple[dict[str, int], list[int]]] = [
        ({"above": HIGHEST - 1500, "step": 1000}, [HIGHEST - 500, HIGHEST]),
        ({"step": 10, "ahead": 4, "limit": 95}, [40, 80, 95]),
        ({"step": HIGHEST, "limit": 100}, [100]),
        # More steps than there are numbers never overflow.
        ({"step": HIGHEST // 2, "ahead": AHEAD_MOST}, [HIGHEST]),
        ({"above": HIGHEST - 5, "step": HIGHEST // 2, "ahead": AHEAD_MOST}, [HIGHEST]),
    ]
    for tag, (settings, highs) in zip("abcde", made, strict=True):
        create(one, tag, **settings)
        got = [reserve(each, tag=tag) for each, _ in zip((two, one, two), highs, strict=False)]
        assert spans(got) == ranges(one, tag) == list(pairwise([settings.get("above", 0), *highs]))
        before = get(one, tag)
        for n in (None, 1, HIGHEST):
            with pytest.raises(LimitHit) as caught:
                reserve(two, n, tag=tag)
            assert (caught.value.max, caught.value.limit) == (highs[-1], highs[-1])
        assert get(one, tag) == before
        assert len(ranges(one, tag)) == len(highs)


def test_an_exact_reservation_is_whole_or_refused(store: Store) -> None:
    create(store, step=10, limit=25)
    reserve(store, 20)
    before = get(store)
    for n in (None, 6, HIGHEST):
        with pytest.raises(LimitHit):
            reserve(store, n, exact=True)
    assert get(store) == before
    assert reserve(store, 5, exact=True).high == 25
    with pytest.raises(LimitHit):
        reserve(store)
    store.configure("orders", TagChanges(limit=30), timeout=TIMEOUT)  # a raised limit opens a full tag
    assert reserve(store).high == 30


def test_a_max_below_what_the_caller_knows_is_refused(bench: Bench) -> None:
    create(bench.store, step=10)
    backup = bench.backup()
    reserve(bench.store)
    assert reserve(bench.store, at_least=10).low == 10
    before = get(bench.store)
    with pytest.raises(MaxBehind) as caught:
        reserve(bench.store, at_least=21)
    assert (caught.value.max, caught.value.at_least) == (20, 21)
    assert get(bench.store) == before
    bench.restore(backup)
    with pytest.raises(MaxBehind):
        reserve(bench.store, at_least=20)
    assert ranges(bench.store) == []


@pytest.mark.covers("U.5", "3.48", "3.49")
def test_a_limit_below_max_is_refused_and_max_is_never_lowered(store: Store) -> None:
    create(store, above=100, limit=1000)
    before = get(store)
    with pytest.raises(LimitTooLow) as caught:
        store.configure("orders", TagChanges(limit=99), timeout=TIMEOUT)
    assert (caught.value.limit, caught.value.max) == (99, 100)
    for raise_to, limit in ((1001, None), (501, 500)):
        with pytest.raises(LimitTooLow):
            store.configure("orders", TagChanges(raise_to=raise_to, limit=limit), timeout=TIMEOUT)
    assert get(store) == before
    assert store.configure("orders", TagChanges(limit=100), timeout=TIMEOUT).limit == 100
    assert store.configure("orders", TagChanges(limit=500, raise_to=177), timeout=TIMEOUT).max == 177
    assert store.configure("orders", TagChanges(raise_to=150), timeout=TIMEOUT).max == 177  # never lowered


def test_arguments_out_of_range_are_a_value_error(store: Store) -> None:
    made = create(store)
    for call in (
        lambda: reserve(store, 0),
        lambda: reserve(store, -5),
        lambda: reserve(store, 2**63),
        lambda: reserve(store, at_least=-1),
        lambda: store.recover("orders", at_least=2**63, timeout=TIMEOUT),
        lambda: store.halt("orders", below=2**63, timeout=TIMEOUT),
        lambda: store.ledger("orders", newest=-1, timeout=TIMEOUT),
        lambda: store.segments("orders", count=0, timeout=TIMEOUT),
        lambda: store.prune(before=-1, timeout=TIMEOUT),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()
    assert store.tags(count=1000, timeout=TIMEOUT) == [made]


#: What other programs, or an operator by hand, may leave in a record.
FOREIGN: dict[str, list[object]] = {
    "max": [5.0, 2.0**60, 9.3e18, "5", None, -1],
    "step": [10.0, 1.5, 0],
    "limit": [1e6, b"x"],
    "order": ["other", 3],
    "halted": [2, 1.0],
    "deleted": ["no", None],
    "version": [7],
    "description": [None],
    "created": [0.5, "now"],
    "lease": [-1, LEASE_MOST + 1, 1.5, 5.0, "5"],
    "ahead": [-1, 0, AHEAD_MOST + 1, 1.5, "x"],
    "scheme": ["not JSON", "[1]", '{"a":1.5}', '{"a":18446744073709551616}', '{"a":' * 50_000],
}
#: And what only MongoDB can tell from ours, or only SQLite would take for it.
FOREIGN_TO_MONGODB: dict[str, list[object]] = {
    **{field: [Decimal128("5"), True] for field in ("max", "lease")},
    "halted": [0],
    "scheme": [[1], 5, {"a": 1.5}, {"a": [{"b": 1.5}]}],
}


@pytest.mark.parametrize("field", FOREIGN)
def test_what_no_store_writes_is_corrupt_and_left_alone(shared_bench: Bench, field: str) -> None:
    create(shared_bench.store, step=10, order="trend", lease=5, scheme=shared_bench.scheme)
    for other in ("a", "z"):
        create(shared_bench.store, other)
    values, in_filter, known = FOREIGN[field], True, True
    if isinstance(shared_bench, SQLiteBench):
        shared_bench.loosen()
    elif isinstance(shared_bench, MongoBench):
        values = values + FOREIGN_TO_MONGODB.get(field, [])
        known = field in {"max", "limit", "version", "ahead"}
        in_filter = known or field == "lease"
    store = shared_bench.store
    for value in values:
        reserve(store)  # what was seen now must not keep anybody from noticing
        good, ledger = shared_bench.raw()[field], ranges(store)
        try:
            shared_bench.tamper("orders", **{field: value})
        except StoreError:
            assert isinstance(shared_bench, SQLBench), "only the columns of an SQL database have a type"
            continue
        with pytest.raises(Corrupt if known else StoreError, match=field):
            reserve(store)  # what MongoDB's filter doesn't see costs a segment that nobody gets, and one only
        before = shared_bench.raw()
        calls: list[Callable[[], object]] = [
            partial(reserve, store),
            partial(reserve, store, 5),
            partial(get, store),
            partial(store.configure, "orders", TagChanges(step=5), timeout=TIMEOUT),
            partial(create, store),
        ]
        if in_filter:
            calls += [partial(store.recover, "orders", at_least=5, timeout=TIMEOUT)]
            calls += [partial(store.delete, "orders", timeout=TIMEOUT)]
        for call in calls:
            with pytest.raises(Corrupt, match=field):
                call()
        for after, count in ((None, 3), ("a", 1)):
            *sound, damaged = sorted(
                store.tags(after=after, count=count, timeout=TIMEOUT), key=lambda each: isinstance(each, Corrupt)
            )
            assert [each.tag for each in sound] == (["a", "z"] if count > 1 else [])
            assert damaged.tag == "orders"
            assert field in str(damaged)
            assert isinstance(damaged, Corrupt)
            assert (damaged.__traceback__, damaged.__context__) == (None, None)  # it holds no frames
        assert [each.tag for each in store.tags(after="orders", count=9, timeout=TIMEOUT)] == ["z"]
        assert shared_bench.raw() == before, value
        assert before[field] == value
        assert ranges(store) == ledger
        shared_bench.tamper("orders", **{field: good})


@pytest.mark.covers("U.10", "3.48", "3.49")
def test_a_tag_made_again_goes_on_above_its_tombstone(store: Store) -> None:
    create(store, step=100)
    held = reserve(store)
    buried = store.delete("orders", timeout=TIMEOUT)
    assert buried.deleted
    assert buried.max == held.high
    assert store.delete("orders", timeout=TIMEOUT) == buried
    assert create(store, above=0, step=7).max == held.high
    assert spans([reserve(store)]) == [(held.high, held.high + 7)]
    store.delete("orders", timeout=TIMEOUT)
    assert create(store, above=5000).max == 5000  # or higher, if it is told to


def test_a_tag_without_numbers_left_is_not_made(store: Store) -> None:
    with pytest.raises(LimitHit):
        create(store, above=100, limit=100)
    assert store.get("orders", timeout=TIMEOUT) is None
    create(store, above=100)
    buried = store.delete("orders", timeout=TIMEOUT)
    with pytest.raises(LimitHit):
        create(store, limit=100)
    assert get(store) == buried


def test_a_halted_tag_gives_nothing_until_it_is_recovered(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, above=500, step=10)
    reserve(two)
    before = get(one)
    assert not one.halt("orders", below=510, timeout=TIMEOUT)  # too late: max is there already
    assert get(one) == before
    for below in (511, None):
        assert one.halt("orders", below=below, timeout=TIMEOUT)
        before = get(one)
        for each in (one, two):
            with pytest.raises(Halted) as caught:
                reserve(each, at_least=510)
            assert caught.value.max == 510
        for again in (0, None):
            assert one.halt("orders", below=again, timeout=TIMEOUT)  # it is halted now, whoever did it
        assert get(one) == before
        one.delete("orders", timeout=TIMEOUT)
        create(two, step=10)
        with pytest.raises(Halted):  # it outlives deleting and making again
            reserve(two)
        assert not two.recover("orders", at_least=0, timeout=TIMEOUT).halted
    assert reserve(two).low == 510


@pytest.mark.covers("N.6")
def test_recovering_never_lowers_and_a_tag_above_its_limit_is_full_and_can_be_widened(store: Store) -> None:
    create(store, above=70, step=10, limit=100)
    for at_least, expected in ((250, 250), (250, 250), (5, 250)):
        recovered = store.recover("orders", at_least=at_least, timeout=TIMEOUT)
        assert (recovered.max, recovered.limit) == (expected, 100)
    with pytest.raises(LimitHit):
        reserve(store)
    assert store.configure("orders", TagChanges(step=20), timeout=TIMEOUT).step == 20
    store.configure("orders", TagChanges(limit=1000), timeout=TIMEOUT)
    assert (reserve(store).low, get(store).max) == (250, 270)


def test_closing_twice_is_harmless(bench: Bench) -> None:
    create(bench.store)
    bench.store.close()
    bench.store.close()
    if bench.store.shared:
        for call in (partial(reserve, bench.store), partial(bench.store.examine, timeout=TIMEOUT)):
            with pytest.raises(Misconfigured, match="closed"):
                call()
        assert get(bench.open()).max == 0


def test_examining_names_the_kind_and_changes_nothing(bench: Bench) -> None:
    create(bench.store)
    reserve(bench.store)
    before = get(bench.store), ranges(bench.store)
    seen = bench.store.examine(timeout=TIMEOUT)
    assert bench.store.url.startswith(seen.kind)
    assert seen.lasting is bench.store.shared
    assert (get(bench.store), ranges(bench.store)) == before
    # One of somebody else's need not tell anything.
    assert Store.examine(bench.store, timeout=TIMEOUT) == StoreFacts(kind=bench.store.url.partition("://")[0])


def test_in_memory_a_name_is_one_store_in_the_process() -> None:
    create(MemoryStore.named("one"), step=10)
    assert reserve(MemoryStore.named("one")).high == 10
    assert MemoryStore.named("two").get("orders", timeout=TIMEOUT) is None
    assert not MemoryStore.shared


def test_in_memory_a_busy_store_costs_no_more_than_the_timeout_and_a_forked_one_refuses() -> None:
    store = MemoryStore()
    create(store)
    with store.transaction(TIMEOUT):
        with pytest.raises(Unconfirmed, match="busy"):
            store.get("orders", timeout=0.01)
        store._process = 0  # as a child finds it, whether it was told of the fork or not
        with pytest.raises(Misconfigured, match="forked child"):
            get(store)


def test_only_a_store_on_another_programs_table_can_be_adopted(bench: object) -> None:
    store = bench.store  # type: ignore[attr-defined]  # a bench of each kind
    if not isinstance(bench, SharedRowBench):
        with pytest.raises(Misconfigured, match="not on the table of another program"):
            store.adopt(timeout=TIMEOUT)


def test_the_entries_that_were_set_last_are_kept() -> None:
    newest: Newest[int] = Newest(2)
    newest["a"], newest["b"], newest["a"] = 1, 2, 3
    newest["c"] = 4
    assert newest == {"a": 3, "c": 4}
