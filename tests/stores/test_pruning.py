"""The deletion of old ledger entries: by pages, by one process at a time, and without locks on entries that stay."""

from __future__ import annotations

import logging
import socket
import time
from typing import TYPE_CHECKING

import pytest
import time_machine

from issuer.care import pruning as issuers
from issuer.care.pruning import Pruning
from issuer.clock import Deadline, monotonic
from issuer.drivers.blocking.runner import Runner
from issuer_persistence import pruning
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import LEDGER_KEPT, LedgerEntry
from issuer_persistence.records import now_ms
from issuer_persistence.sql.store import SQLStore
from tests.stores.benches import TIMEOUT, SQLBench, create, ranges, reserve, spans
from tests.waiting import until

if TYPE_CHECKING:
    from issuer_persistence.contract import Store
    from tests.stores.benches import Bench


PAGE = 4
TAGS = ("a", "b", "c", "d")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PAGE", PAGE)


def aged(store: Store, old: int, young: int = 0, tags: tuple[str, ...] = TAGS) -> int:
    """Reserve segments of each tag, the first ones before the time that is returned."""
    for tag in tags:
        create(store, tag, step=10)
    for tag in tags * old:
        reserve(store, tag=tag)
    before = now_ms() + 1
    assert until(lambda: now_ms() > before, 10)
    for tag in tags * young:
        reserve(store, tag=tag)
    return before


def pruned(store: Store, before: int) -> list[int]:
    """Prune until nothing is left to do. Return how many entries each call has deleted."""
    calls: list[int] = []
    while (done := store.prune(before=before, timeout=TIMEOUT)).wait == 0:
        calls.append(done.deleted)
        assert len(calls) < 100
    assert 0 < done.wait <= pruning.EVERY / 1000
    assert done.deleted == 0
    return calls


@pytest.mark.parametrize(("old", "young"), [(1, 0), (3, 0), (9, 0), (0, 9), (1, 9), (5, 9), (9, 1)])
def test_each_page_is_small_and_only_old_entries_go(bench: Bench, old: int, young: int) -> None:
    """With one to three tags on a page, and with three pages to a tag."""
    before = aged(bench.store, old, young)
    calls = pruned(bench.store, before)
    gone = old if young else old - 1  # the newest entry of a tag stays
    assert sum(calls) == gone * len(TAGS)
    assert max(calls) < PAGE
    for tag in TAGS:
        assert ranges(bench.store, tag) == [(n * 10, n * 10 + 10) for n in range(gone, old + young)]
    assert pruned(bench.open(), before + pruning.EVERY - 1) == []  # a day later, it begins again
    assert sum(pruned(bench.open(), before + pruning.EVERY)) == max(young - 1, 0) * len(TAGS)


def test_young_entries_are_not_read_to_their_end(bench: Bench) -> None:
    before = aged(bench.store, 1, 20, tags=("a", "b"))
    assert len(pruned(bench.store, before)) <= 6  # 42 entries would be 14 pages


@pytest.mark.parametrize("bench", ["sqlite", "mongo", "postgres", "mariadb", "leaf"], indirect=True)
def test_another_process_goes_on_where_the_first_has_stopped(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    before = aged(bench.store, 9)
    done = [bench.store.prune(before=before, timeout=TIMEOUT) for _ in range(4)]
    assert [each.wait for each in done] == [0] * 4
    other = bench.open()
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    left = {tag: ranges(bench.store, tag) for tag in TAGS}
    assert other.prune(before=before, timeout=TIMEOUT) == (0, pruning.TURN / 1000)
    assert {tag: ranges(bench.store, tag) for tag in TAGS} == left
    monkeypatch.setattr(pruning, "TURN", 0)  # as if the first process had ended a while ago
    calls = pruned(other, before)
    assert sum(calls) == 8 * len(TAGS) - sum(each.deleted for each in done)
    assert len(calls) <= 9  # from the front there would be 12 pages
    for tag in TAGS:
        assert ranges(bench.store, tag) == [(80, 90)]


def test_what_a_clock_ahead_has_left_does_not_stop_it(bench: Bench) -> None:
    before = aged(bench.store, 3)
    far = before + LEDGER_KEPT
    assert bench.store.prune(before=0, timeout=TIMEOUT).deleted == 0
    assert bench.store.prune(before=far, timeout=TIMEOUT).deleted > 0
    pruned(bench.store, far)
    reserve(bench.store, tag="a")
    assert sum(pruned(bench.store, now_ms() + 1)) == 1


@pytest.mark.parametrize("bench", ["sqlite", "mongo"], indirect=True)
@pytest.mark.parametrize("damage", [{"high": "fifty"}, {"time": "old"}, {"low": "low", "high": 999}])
def test_a_damaged_entry_is_kept_and_is_not_the_newest(bench: Bench, damage: dict[str, object]) -> None:
    before = aged(bench.store, 3, tags=("orders",))
    bench.forge(**damage)
    assert sum(pruned(bench.store, before)) == 2
    page = bench.store.segments("orders", count=9, timeout=TIMEOUT)
    assert (spans(page.entries), len(page.damaged)) == ([(20, 30)], 1)


@pytest.mark.parametrize("bench", ["postgres", "mariadb"], indirect=True)
def test_no_draw_waits_for_a_page_and_no_page_for_an_entry_that_stays(bench: SQLBench) -> None:
    before = aged(bench.store, 4, 4, tags=("a", "b"))
    other = bench.open()
    assert isinstance(bench.store, SQLStore)
    with bench.store.transaction(TIMEOUT) as transaction:
        assert pruning.prune(transaction, before).deleted == 3
        for tag in "ab" * 3:
            reserve(other, tag=tag)
    stay = [each.id for tag in "ab" for each in other.ledger(tag, newest=7, timeout=TIMEOUT)]
    with bench.cursor() as cursor:
        for entry in stay:
            cursor.execute(f'SELECT 1 FROM "{bench.prefix}segments" WHERE "id" = %s FOR UPDATE', (entry,))  # noqa: S608
        assert sum(pruned(other, before)) == 5


def test_the_server_ends_a_page_that_takes_too_long(mariadb_bench: SQLBench) -> None:
    """An old entry is locked, so the page waits in the server. PostgreSQL has a limit for each transaction."""
    before = aged(mariadb_bench.store, 4, tags=("a",))
    with mariadb_bench.cursor() as cursor:
        cursor.execute(f'SELECT "id" FROM "{mariadb_bench.prefix}segments" FOR UPDATE')  # noqa: S608
        with pytest.raises(Unconfirmed, match="max_statement_time"):
            mariadb_bench.store.prune(before=before, timeout=TIMEOUT)


HOUR, DAY = 3600, 86_400


def fill(store: Store, times: int) -> None:
    for _ in range(times):
        reserve(store, 10)


def entries(store: Store) -> list[LedgerEntry]:
    return store.ledger("orders", newest=1000, timeout=TIMEOUT)


def prune(store: Store, by: Pruning) -> None:
    while not Runner(store, None, TIMEOUT).run(by.prune(), Deadline(TIMEOUT)):
        pass


@pytest.fixture
def store(bench: Bench) -> Store:
    """A store with five entries that are 100 days old, and five fresh ones."""
    create(bench.store, step=10)
    with time_machine.travel(time.time() - 100 * DAY):
        fill(bench.store, 5)
    fill(bench.store, 5)
    return bench.store


def test_entries_older_than_90_days_are_deleted(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    prune(store, Pruning(store.url))
    assert [each.high for each in entries(store)] == [100, 90, 80, 70, 60]
    assert caplog.text == ""


@pytest.mark.parametrize("seconds", [100 * DAY, -10 * DAY])
def test_a_process_whose_clock_is_wrong_deletes_nothing_that_is_fresh(
    store: Store, seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    if not store.shared:
        return  # all entries are of this process
    with time_machine.travel(time.time() + seconds):
        made = Pruning(store.url)
        fill(store, 20)  # it writes entries of its own, with its own time
        for _ in range(2):
            prune(store, made)
    assert {60, 70, 80, 90, 100, *range(110, 310, 10)} <= {each.high for each in entries(store)}
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    if store.examine(timeout=TIMEOUT).time is not None or seconds > 0:
        assert len(entries(store)) == 30
        assert len(told) == 1
        assert f"{abs(seconds) // DAY} days {'ahead of' if seconds > 0 else 'behind'} {store.url}" in told[0]


def test_a_store_without_a_clock_that_nobody_used_for_weeks(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    if store.examine(timeout=TIMEOUT).time is not None or not store.shared:
        return
    with time_machine.travel(time.time() + 80 * DAY):
        prune(store, Pruning(store.url))
    assert len(entries(store)) == 5
    assert caplog.text == ""


def test_a_store_without_a_clock_whose_process_runs_for_months(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.examine(timeout=TIMEOUT).time is not None:
        return
    began = Pruning(store.url)
    monkeypatch.setattr(issuers, "monotonic", lambda: monotonic() + 91 * DAY)
    with time_machine.travel(time.time() + 91 * DAY):
        prune(store, began)
    assert len(entries(store)) == 1  # the newest is kept


def test_the_last_entry_before_a_time(store: Store) -> None:
    """By the order in which they were written: entries of processes whose clocks were wrong are not the last."""
    if store.examine(timeout=TIMEOUT).time is not None:
        assert store.latest(before=now_ms(), timeout=TIMEOUT) == 0  # it has a better clock
        return
    now = now_ms() + 1
    if not store.shared:
        assert store.latest(before=now, timeout=TIMEOUT) == now
        return
    assert now - HOUR * 1000 < store.latest(before=now, timeout=TIMEOUT) < now
    assert store.latest(before=now - HOUR * 1000, timeout=TIMEOUT) < now - 99 * DAY * 1000
    assert store.latest(before=1, timeout=TIMEOUT) == 1
    with time_machine.travel(time.time() - 10 * DAY):
        fill(store, 1)
    assert store.latest(before=now, timeout=TIMEOUT) < now - 9 * DAY * 1000
