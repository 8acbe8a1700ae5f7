"""A `max` that somebody has lowered below what the ledger shows as reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from issuer_persistence.errors import MaxBehind
from issuer_persistence.sql.store import SQLStore
from tests.stores.benches import TIMEOUT, create, get, ranges, reserve

if TYPE_CHECKING:
    from tests.stores.sql.conftest import Database

pytestmark = pytest.mark.live


def lower(store: SQLStore, high: int) -> None:
    with store.transaction(TIMEOUT) as transaction:
        transaction.cursor.execute(f'UPDATE {store.statements.tags} SET "max" = %s', (high,))  # noqa: S608 - ours


@pytest.mark.covers("1.11")
def test_a_max_below_the_ledger_is_refused_until_it_is_recovered(database: Database) -> None:
    store = database.opened()
    create(store)
    held = [reserve(store, 10) for _ in range(3)]
    lower(store, 15)
    with pytest.raises(MaxBehind) as behind:
        reserve(store, 10)
    assert (behind.value.max, behind.value.at_least, behind.value.certain) == (15, 30, True)
    assert (get(store).max, ranges(store)) == (15, [(0, 10), (10, 20), (20, 30)])
    store.recover("orders", at_least=30, timeout=TIMEOUT)
    assert reserve(store, 10).low == 30
    # What was handed back whole is in the ledger, and is no number that anybody has.
    last = reserve(store, 10)
    assert store.hand_back([last], last.low, timeout=TIMEOUT)
    assert reserve(store, 5).low == last.low
    assert held[0].low == 0
