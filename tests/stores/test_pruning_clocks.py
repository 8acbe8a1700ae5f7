"""Ledger entries are deleted by the time of the store, whatever the clock of the process says."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import pytest
import time_machine

from issuer.care import pruning
from issuer.care.pruning import Pruning
from issuer.clock import Deadline, monotonic
from issuer.drivers.blocking.runner import Runner
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import now_ms
from tests.stores.benches import TIMEOUT, create, reserve

if TYPE_CHECKING:
    from issuer_persistence.contract import Store

HOUR, DAY = 3600, 86_400


def fill(store: Store, times: int) -> None:
    for _ in range(times):
        reserve(store, 10)


def entries(store: Store) -> list[LedgerEntry]:
    return store.ledger("orders", newest=1000, timeout=TIMEOUT)


def prune(store: Store, by: Pruning) -> None:
    while not Runner(store, None, TIMEOUT).run(by.prune(), Deadline(TIMEOUT)):
        pass


@pytest.fixture(autouse=True)
def _filled(store: Store) -> None:
    """Five entries that are 100 days old, and five fresh ones."""
    create(store, step=10)
    with time_machine.travel(time.time() - 100 * DAY):
        fill(store, 5)
    fill(store, 5)


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
    monkeypatch.setattr(pruning, "monotonic", lambda: monotonic() + 91 * DAY)
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
