"""The ledger page by page, and entries by their id: the same promises from every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from issuer.persistence.errors import Corrupt
from issuer.persistence.records import HIGHEST, LedgerEntry
from tests.contract.benches import TIMEOUT, MemoryBench, SQLiteBench, create, reserve, spans

if TYPE_CHECKING:
    from issuer.persistence.contract import Store
    from issuer.persistence.records import LedgerPage, Position
    from tests.contract.benches import Bench


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


def test_what_is_reserved_and_handed_back_between_two_pages_hides_nothing_else(store: Store) -> None:
    create(store, step=10)
    held = [reserve(store) for _ in range(4)]
    first = store.segments("orders", count=2, timeout=TIMEOUT)
    reserve(store)
    assert not store.hand_back([held[3]], 35, timeout=TIMEOUT)
    assert spans(first.entries) == [(30, 40), (20, 30)]
    assert spans(listed(store, 2, beyond=first.last)) == [(10, 20), (0, 10)]


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
    for count, damage in enumerate(damages, 1):
        bench.forge(**damage)
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


def test_sqlite_finds_each_page_by_its_index(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store)
    connection = sqlite_bench.connect()
    try:
        for comparison, order in (("<", "DESC"), (">", "")):
            plan = connection.execute(
                f"EXPLAIN QUERY PLAN SELECT * FROM segments WHERE tag = ? AND high {comparison}= ? "  # noqa: S608 - ours
                f"AND (high, low, id) {comparison} (?, ?, ?) ORDER BY high {order}, low {order}, id {order} LIMIT ?",
                ("orders", 5, 5, 5, "x", 10),
            ).fetchall()
            assert "USING INDEX segments_by_number (tag=? AND high" in plan[0][3]
            assert "FOR LAST 2 TERMS" in plan[1][3] or "RIGHT PART" in plan[1][3]
    finally:
        connection.close()


def test_an_entry_says_which_service_reserved_it_as_far_as_a_journal_has_room_for(store: Store) -> None:
    create(store, step=10)
    for label in ("billing", "", "\ud800" + "x" * 500):
        store.reserve("orders", None, reason="test", application=label, born=f"b-{len(label)}", timeout=TIMEOUT)
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
