"""The store hangs: no number in hand waits for it, then callers are refused, then it goes on."""

from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.clock import LONGEST_PAUSE
from issuer.core.ownership import PATIENCE, PATIENCE_ALONE
from issuer.core.retire import identity
from issuer.core.source import Source
from tests.virtual.test_outages import BACK, GRACE
from tests.virtual.world import World

STORE_TIMEOUT = 0.9

#: What a round trip takes at most on this wire, with what follows it at once.
ROUND_TRIP = 0.01

#: How the numbers come, as arguments of `connect` and of `create`.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strict": ({}, {"order": "strict"}),
    "trend": ({}, {"order": "trend"}),
    "leased": ({"lease": 20}, {"order": "trend"}),
    "direct": ({"redis": "none"}, {"order": "trend"}),
}

modes = pytest.mark.parametrize("mode", MODES)


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
@modes
def test_no_number_in_hand_waits_for_a_store_that_hangs(made: World, mode: str) -> None:
    settings, tag = MODES[mode]
    with made.connect(timeout=0.6, store_timeout=STORE_TIMEOUT, **settings) as ids:
        ids.create("a", step=500, **tag)
        numbers = ids.take("a", 120)
        made.turns.until(lambda: made.store.top("a") == 1000)  # both segments are there
        made.turns.sleep(1.0)
        made.store.hang()
        slowest = 0.0
        while True:
            caller = made.draws(ids, "a")
            if caller.took > GRACE and not isinstance(caller.answer, int):
                break
            slowest = max(slowest, caller.took)
            numbers.append(caller.number)
        assert numbers == list(range(1, 1001))  # exactly what was in hand
        assert slowest < ROUND_TRIP
        assert isinstance(caller.error, issuer.StoreUnavailable)
        assert 0 < caller.error.retry_after <= LONGEST_PAUSE
        for timeout in (0.0, 0.3):
            asked = made.draws(ids, "a", timeout)
            assert isinstance(asked.error, issuer.StoreUnavailable)
            assert asked.took < timeout + GRACE
        made.turns.sleep(20.0)
        made.store.resume()
        again = made.call(lambda: ids.take("a", 100, timeout=10))
        assert again.took < BACK
        assert again.answer[0] > 1000
        assert again.answer == sorted(set(again.answer))


@pytest.mark.covers("3.26")
@modes
def test_an_outage_is_told_once_and_so_is_its_end(made: World, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    settings, tag = MODES[mode]
    with made.connect(store_timeout=0.1, **settings) as ids:
        ids.create("a", step=100, **tag)
        ids.next("a")
        made.store.hang()
        ids.take("a", 50)
        made.turns.sleep(30.0)
        assert ids._roster.line("a").supply._segments._failures > 2
        assert [each.levelname for each in caplog.records if "no segment comes" in each.message] == ["WARNING"]
        made.store.resume()
        made.turns.until(lambda: "segments come again" in caplog.text)
        ids.take("a", 300)
        assert caplog.text.count("no segment comes") == caplog.text.count("segments come again") == 1


@pytest.mark.parametrize("acquainted", [False, True])
@pytest.mark.parametrize(("scheduler", "patience"), [("background", PATIENCE), (None, PATIENCE_ALONE)])
def test_a_leased_process_that_begins_while_the_store_hangs_draws_at_once(
    made: World, scheduler: str | None, patience: float, acquainted: bool
) -> None:
    """But for the first number, which waits a moment for the store's id, or for the record if that is known."""
    with made.connect() as other, made.connect(lease=50, timeout=10, scheduler=scheduler) as ids:
        other.create("a", step=1000, order="trend")
        assert other.next("a") == 1
        if acquainted:
            other.create("b")
            ids.next("b")
        made.store.hang()
        first, *others = [made.draws(ids, "a").took for _ in range(100)]
        assert first < (0.05 if acquainted else patience) + ROUND_TRIP
        assert max(others) < ROUND_TRIP
        assert ids.next("a") == 102
        made.store.resume()
        if scheduler:
            made.turns.until(lambda: ids.next("a") and ids._roster.line("a").supply.hand is not None)


def checked_late(made: World, ids: Issuer) -> float:
    """Draw from leases whose check is due, while the store hangs; return how long that takes."""
    ids.create("a", step=1000, order="trend")
    ids.next("a")
    made.store.hang()
    made.turns.sleep(60.0)
    before = len(made.store.begun)
    caller = made.draws(ids, "a")
    assert caller.number == 2
    assert (len(made.store.begun) == before) == (caller.took < ROUND_TRIP)
    return caller.took


def test_leases_are_checked_without_the_store(made: World) -> None:
    with made.connect(lease=50, timeout=10, scheduler=None) as ids:
        assert checked_late(made, ids) < ROUND_TRIP


def test_with_the_id_of_the_store_not_kept_a_lease_waits_for_the_store(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out."""
    monkeypatch.setattr(Source, "_identity", lambda self: self._public(identity()))
    with made.connect(lease=50, timeout=10, scheduler=None) as ids:
        assert checked_late(made, ids) > 1.0


def test_a_caller_in_a_hurry_takes_nothing_from_under_one_who_waits(made: World) -> None:
    """Both would have a line of their own, with leases of its own: numbers of one process that go backwards."""
    with made.connect() as other, made.connect(lease=4, scheduler=None) as ids:
        other.create("a", step=10, order="trend")
        other.take("a", 2)
        made.turns.sleep(1.0)
        made.store.hang()
        other.take("a", 18)
        patient = made.draws(ids, "a", 10.0)
        made.turns.sleep(PATIENCE_ALONE / 2)
        line = ids._roster.lines["a"]
        hurried = made.draws(ids, "a", 0.0)
        assert isinstance(hurried.error, issuer.StoreUnavailable | issuer.RedisUnavailable)
        assert ids._roster.lines["a"] is line
        made.store.resume()
        numbers = [patient.number, *(ids.next("a") for _ in range(20))]
        assert numbers == sorted(set(numbers))
