"""What every store promises of its ledger: entries, pages, and numbers that are handed back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from issuer_persistence.errors import (
    Corrupt,
    MaxBehind,
    StoreError,
)
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import LedgerEntry, Purpose
from issuer_persistence.records import HIGHEST, fresh_version, now_ms
from tests.stores.benches import (
    TIMEOUT,
    MemoryBench,
    SQLBench,
    SQLiteBench,
    create,
    get,
    ranges,
    reserve,
    spans,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from issuer_persistence.contract import Store
    from issuer_persistence.ledger import LedgerPage, Position, Reservation
    from tests.stores.benches import Bench


def test_an_id_that_the_ledger_has_is_reserved_by_nobody_again(store: Store) -> None:
    """By the id, a remote store finds its range again if the reply was lost."""
    create(store, step=1000)
    create(store, "others")
    purpose = Purpose("test", id=fresh_version())
    first = store.reserve("orders", 10, purpose=purpose, timeout=TIMEOUT)
    assert first.entry == purpose.id
    for tag in ("orders", "others"):
        with pytest.raises(StoreError):
            store.reserve(tag, 10, purpose=purpose, timeout=TIMEOUT)
    second = reserve(store)
    assert second.low >= first.high
    assert ranges(store) == [(first.low, first.high), (second.low, second.high)]
    assert [each.id for each in store.own("orders", [purpose.id], timeout=TIMEOUT)] == [purpose.id]
    assert store.own("others", [purpose.id], timeout=TIMEOUT) == []


@pytest.mark.covers("4.15", "0.9")
def test_segments_follow_each_other_exactly_and_the_ledger_says_who_when_and_why(store: Store) -> None:
    before = now_ms()
    create(store, step=1000)
    got = [reserve(store), reserve(store, 1), reserve(store), reserve(store, 2500)]
    assert spans(got) == ranges(store) == [(0, 1000), (1000, 1001), (1001, 2001), (2001, 4501)]
    assert (got[-1].tag, got[-1].version, get(store).max) == (get(store), get(store).version, 4501)
    entry = store.ledger("orders", newest=5, timeout=TIMEOUT)[2]
    assert (entry.id, entry.tag, entry.reason) == (got[1].entry, "orders", "test")
    assert before <= entry.time <= now_ms()
    assert entry.host
    assert entry.pid > 0
    assert [number for number in range(999, 1004) if entry.holds(number)] == [1001]


@pytest.mark.covers("N.4")
def test_what_is_handed_back_is_reserved_again(store: Store) -> None:
    create(store, step=100)
    assert store.hand_back([reserve(store)], 40, timeout=TIMEOUT)
    assert get(store).max == 40
    assert ranges(store) == [(0, 40)]
    held = [reserve(store), reserve(store)]
    assert spans(held) == [(40, 140), (140, 240)]
    assert store.hand_back(held, 70, timeout=TIMEOUT)  # two in a row
    assert get(store).max == 70
    assert sorted(ranges(store)) == [(0, 40), (40, 70), (140, 140)]
    assert store.hand_back([reserve(store)], 0, timeout=TIMEOUT)  # never more than was held
    assert get(store).max == 70
    assert (40, 70) in ranges(store)


def restored(bench: Bench, held: Reservation, backup: object) -> None:
    """The store goes back to before the reservation, and somebody else gets the same numbers."""
    bench.restore(backup)
    if isinstance(bench.store, Journalled):
        bench.store._compared.add("orders")  # else it would know
    assert spans([reserve(bench.store)]) == spans([held])


def given_again(bench: Bench, held: Reservation, _: object) -> None:
    """It was handed back before, and somebody else has the numbers: the max is the same, and only the version tells."""
    for expected in (True, False):
        assert bench.store.hand_back([held], 0, timeout=TIMEOUT) is expected
    assert spans([reserve(bench.open())]) == spans([held])


#: What comes between a reservation and its hand back, which then takes nothing; who writes into the store past this
#: program writes no version, so that only the max tells.
BETWEEN: dict[str, Callable[[Bench, Reservation, object], object]] = {
    "reserved above": lambda bench, *_: reserve(bench.open()),
    "given again": given_again,
    "restored": restored,
    "recovered": lambda bench, held, _: bench.store.recover("orders", at_least=held.high, timeout=TIMEOUT),
    "deleted": lambda bench, *_: bench.store.delete("orders", timeout=TIMEOUT),
    "changed by hand": lambda bench, *_: bench.tamper("orders", max=5000),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_hand_back_that_comes_too_late_is_refused(bench: Bench, between: str) -> None:
    create(bench.store, step=100)
    backup = bench.backup()
    mine = reserve(bench.store)
    BETWEEN[between](bench, mine, backup)
    before = get(bench.store)
    assert not bench.store.hand_back([mine], 40, timeout=TIMEOUT)
    assert get(bench.store) == before
    # Nobody has 41..100, and the ledger says so, unless they are somebody else's by now.
    assert ((0, 100) in ranges(bench.store)) is (between in {"given again", "restored"})


@pytest.mark.covers("1.11")
def test_a_max_below_the_ledger_is_refused_until_it_is_recovered(transactional_bench: SQLiteBench | SQLBench) -> None:
    store = transactional_bench.store
    create(store, step=10)
    held = [reserve(store) for _ in range(3)]
    transactional_bench.tamper("orders", max=15)
    with pytest.raises(MaxBehind) as behind:
        reserve(store)
    assert (behind.value.max, behind.value.at_least, behind.value.certain) == (15, 30, True)
    assert (get(store).max, ranges(store)) == (15, spans(held))
    store.recover("orders", at_least=30, timeout=TIMEOUT)
    assert reserve(store).low == 30
    # What was handed back whole is in the ledger, and is no number that anybody has.
    last = reserve(store)
    assert store.hand_back([last], last.low, timeout=TIMEOUT)
    assert reserve(store, 5).low == last.low


def test_an_entry_is_never_made_longer(transactional_bench: SQLiteBench | SQLBench) -> None:
    """As by a hand back that is sent again, when it was shortened further meanwhile."""
    create(transactional_bench.store, step=100)
    held = reserve(transactional_bench.store)
    with transactional_bench.store.transaction(TIMEOUT) as transaction:  # type: ignore[attr-defined]  # it has some
        for high in (50, 80):
            transaction.shorten(held.entry, high)
    assert ranges(transactional_bench.store) == [(0, 50)]


def test_a_hand_back_that_makes_no_sense_is_a_value_error(store: Store) -> None:
    create(store, step=100)
    first, second, third = reserve(store), reserve(store), reserve(store)
    before = get(store)
    rows = [first, third], [third, second], [second, replace(third, tag=replace(third.tag, tag="users"))]
    for held, used in (([], 0), *((row, 150) for row in rows), ([third], 301), ([third], -1)):
        with pytest.raises(ValueError, match="contiguous" if held in rows else r"nothing to return|used"):
            store.hand_back(held, used, timeout=TIMEOUT)
    assert get(store) == before


def pages(store: Store, size: int, *, upward: bool = False, beyond: Position | None = None) -> list[LedgerPage]:
    """All pages of so many entries, one after the other."""
    found = []
    while True:
        page = store.segments("orders", beyond=beyond, upward=upward, count=size, timeout=TIMEOUT)
        assert len(page.entries) <= size
        found.append(page)
        if page.last is None:
            return found
        beyond = page.last


def listed(store: Store, size: int, *, upward: bool = False, beyond: Position | None = None) -> list[LedgerEntry]:
    return [entry for page in pages(store, size, upward=upward, beyond=beyond) for entry in page.entries]


def test_the_pages_of_the_ledger_hold_every_entry_once_in_order(store: Store) -> None:
    create(store, step=10)
    create(store, "users", step=7)
    assert [(page.entries, page.damaged) for page in pages(store, 5)] == [([], [])]
    expected = []
    for _ in range(5):
        expected += spans([reserve(store)])
        reserve(store, tag="users")
    for size in (1, 2, 3, 100):
        assert spans(listed(store, size, upward=True)) == expected
        assert spans(listed(store, size)) == expected[::-1]
    for newest in (0, 2, 100):
        assert spans(store.ledger("orders", newest=newest, timeout=TIMEOUT)) == expected[::-1][:newest]
    assert store.ledger("nobody", newest=2, timeout=TIMEOUT) == []
    # A page may begin at any number.
    assert spans(listed(store, 2, upward=True, beyond=(20, -1, ""))) == expected[1:]
    assert spans(listed(store, 2, upward=True, beyond=(21, -1, ""))) == expected[2:]
    assert spans(listed(store, 2, beyond=(20, -1, ""))) == expected[:1]


def test_entries_that_share_an_end_or_that_a_double_cant_tell_apart_are_on_one_page_each(bench: Bench) -> None:
    create(bench.store)
    made = [(low, 50) for low in (0, 10, 10, 10, 50)]
    made += [(high - 1, high) for high in (2**53, 2**53 + 1, 2**53 + 2, HIGHEST - 1, HIGHEST)]
    ids = {bench.forge(low=low, high=high) for low, high in made}
    for upward in (False, True):
        found = listed(bench.store, 1, upward=upward)
        assert len(found) == len(made)
        assert {entry.id for entry in found} == ids
        assert spans(found) == made[:: 1 if upward else -1]


#: What another program may have written; into a store in memory Python's types let the first alone.
DAMAGED: list[dict[str, object]] = [
    {"low": 60, "high": 50},
    {"high": "fifty"},
    {"low": -5},
    {"high": 15.5},
    {"reason": b"\x00"},
]


def test_a_damaged_entry_is_told_and_hides_no_other(bench: Bench) -> None:
    damages = DAMAGED[:1] if isinstance(bench, MemoryBench) else DAMAGED
    create(bench.store, step=10)
    for _ in range(3):
        reserve(bench.store)
    count = 0
    for damage in damages:
        try:
            bench.forge(**damage)
        except StoreError:
            assert isinstance(bench, SQLBench), "only the columns of an SQL database have a type"
            continue
        count += 1
        for size in (1, 2, 100):
            found = pages(bench.store, size)
            assert spans(entry for page in found for entry in page.entries) == [(20, 30), (10, 20), (0, 10)], damage
            assert [error.tag for page in found for error in page.damaged] == ["orders"] * count, damage


def test_entries_are_found_by_their_id_as_they_stand_now(store: Store) -> None:
    create(store, step=10)
    create(store, "users", step=10)
    one, two, other = reserve(store), reserve(store), reserve(store, tag="users")
    store.hand_back([two], 14, timeout=TIMEOUT)
    found = store.entries("orders", {one.entry, two.entry, other.entry, "nothing"}, timeout=TIMEOUT)
    assert sorted(spans(found)) == [(0, 10), (10, 14)]
    assert store.entries("orders", [], timeout=TIMEOUT) == []


def test_an_entry_says_which_service_reserved_it_as_far_as_a_journal_has_room_for(store: Store) -> None:
    create(store, step=10)
    for label in ("billing", "", "\ud800" + "x" * 500):
        store.reserve("orders", None, purpose=Purpose("test", label, f"b-{len(label)}"), timeout=TIMEOUT)
    found = store.ledger("orders", newest=3, timeout=TIMEOUT)
    assert [each.application for each in found] == ["?" + "x" * 99, "", "billing"]
    assert [each.born for each in found] == ["b-501", "b-0", "b-7"]
    assert [each.application for each in store.entries("orders", [found[2].id], timeout=TIMEOUT)] == ["billing"]
    assert [each.application for each in listed(store, 2)] == [each.application for each in found]


def test_an_entry_of_before_has_no_label_and_one_of_another_type_is_damaged() -> None:
    fields = {"tag": "orders", "low": 0, "high": 5, "reason": "load", "id": "x", "time": 1, "host": "h", "pid": 1}
    assert LedgerEntry.checked(fields).application == ""
    assert LedgerEntry.checked(fields).born == ""
    assert LedgerEntry.checked({**fields, "application": None}).application == ""
    with pytest.raises(Corrupt):
        LedgerEntry.checked({**fields, "application": 5})
