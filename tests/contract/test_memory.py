"""What only the store in memory promises."""

from __future__ import annotations

import pytest

from issuer.persistence.errors import Misconfigured, Unavailable
from issuer.persistence.memory import MemoryStore
from tests.contract.benches import TIMEOUT, create, get, ranges, reserve
from tests.contract.processes import finish, run_python


def test_a_name_is_one_store_in_the_process() -> None:
    create(MemoryStore.named("one"), step=10)
    assert reserve(MemoryStore.named("one")).high == 10
    assert MemoryStore.named("two").get("orders", timeout=TIMEOUT) is None
    assert not MemoryStore.shared


def test_a_backup_restored_takes_back_tags_and_if_asked_the_ledger() -> None:
    store = MemoryStore()
    create(store, step=10)
    backup = store.snapshot()
    reserve(store)
    store.restore(backup, ledger=False)
    assert (get(store).max, ranges(store)) == (0, [(0, 10)])
    store.restore(backup)
    assert (get(store).max, ranges(store)) == (0, [])


def test_a_busy_store_costs_no_more_than_the_timeout() -> None:
    store = MemoryStore()
    create(store)
    with store._locked(TIMEOUT), pytest.raises(Unavailable, match="busy"):
        store.get("orders", timeout=0.01)
    assert get(store).max == 0


def test_after_a_fork_every_method_refuses() -> None:
    store = MemoryStore()
    create(store)
    held = [reserve(store)]
    store.after_fork()
    for call in (
        lambda: store.store_id(timeout=1),
        lambda: create(store, "users"),
        lambda: store.get("orders", timeout=1),
        lambda: store.tags(timeout=1),
        lambda: reserve(store),
        lambda: store.hand_back(held, 0, timeout=1),
        lambda: store.configure("orders", step=1, timeout=1),
        lambda: store.delete("orders", timeout=1),
        lambda: store.halt("orders", below=1, timeout=1),
        lambda: store.recover("orders", at_least=1, timeout=1),
        lambda: store.ledger("orders", newest=1, timeout=1),
        lambda: store.segments("orders", count=1, timeout=1),
        lambda: store.entries("orders", ["x"], timeout=1),
        lambda: store.prune(before=1, timeout=1),
        lambda: store.examine(timeout=1),
    ):
        with pytest.raises(Misconfigured, match="forked child"):
            call()


_FORK = """
import os
from issuer.persistence.memory import MemoryStore
from issuer.persistence.errors import Misconfigured
store = MemoryStore.named("x")
store.create("t", above=0, step=10, limit=100, order="strict", description="", timeout=1)
store._lock.acquire()  # as if another thread were in the middle of a call
if (child := os.fork()) == 0:
    try:
        MemoryStore.named("x").reserve("t", None, reason="", timeout=1)
    except Misconfigured:
        os._exit(0)
    os._exit(1)
store._lock.release()
assert os.waitpid(child, 0)[1] == 0
print(store.reserve("t", None, reason="", timeout=1).high)
"""


@pytest.mark.covers("U.14")
def test_a_forked_child_refuses_even_if_nobody_told_it() -> None:
    assert finish(run_python(["-c", _FORK])).strip() == "10"
