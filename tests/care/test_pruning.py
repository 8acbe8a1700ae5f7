"""The deletion of old ledger entries, in the background."""

from dataclasses import replace

import pytest

from issuer.care import pruning
from issuer.engine import scheduler
from issuer_persistence import pruning as pages
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import LEDGER_KEPT, Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.pruning import Pruned
from issuer_persistence.records import TagSettings, now_ms
from tests.colours import Connect
from tests.waiting import until

ENTRIES = 9


class Failing(MemoryStore):
    """A store in which nothing can be deleted."""

    def prune(self, *, before: int, timeout: float) -> Pruned:
        raise Unconfirmed(f"no entry from before {before} was deleted within {timeout:g} s")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page for each sweep, and sweeps that follow each other."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.05)
    monkeypatch.setattr(pruning, "SHARE", 0.0)
    monkeypatch.setattr(pages, "PAGE", 3)


def test_it_goes_on_with_each_sweep_until_nothing_is_left(connect: Connect) -> None:
    store = MemoryStore()
    store.create("a", TagSettings(step=1, order="trend"), timeout=10)
    for _ in range(ENTRIES):
        store.reserve("a", None, purpose=Purpose("test"), timeout=10)
    long_ago = now_ms() - LEDGER_KEPT - 1
    store._ledger = {name: replace(entry, time=long_ago) for name, entry in store._ledger.items()}
    with connect(redis="none", store=store) as ids:
        assert ids.next("a") == ENTRIES + 1

        def old() -> int:
            return sum(each.time == long_ago for each in store.snapshot().ledger.values())

        assert until(lambda: old() == 0, 60)


def test_a_failure_is_a_warning(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with connect(redis="none", store=Failing()) as ids:
        ids.create("a", step=1)
        assert ids.next("a") == 1
        assert until(lambda: "old ledger entries could not be deleted" in caplog.text, 60)
    assert {each.levelname for each in caplog.records if "deleted" in each.message} == {"WARNING"}
