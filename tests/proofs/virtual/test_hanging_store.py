"""The store hangs: no number in hand waits for it, then callers are refused, then it goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.clock import LONGEST_PAUSE
from issuer.core.record import PATIENCE, PATIENCE_ALONE, identity
from issuer.core.steps import LATEST_RETRY
from issuer.core.supply import direct, extend
from issuer.core.supply.mode import Origin
from issuer.engine.scheduler import SWEEP_EVERY
from issuer_persistence.errors import MaxBehind
from tests.proofs.virtual.test_outages import BACK, GRACE
from tests.proofs.virtual.world import World

STORE_TIMEOUT = 0.9

#: No caller asks again sooner, see `issuer.clock.pause`.
SHORTEST_PAUSE = 0.005

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


@contextmanager
def process(made: World, mode: str, step: int = 10, **settings: Any) -> Iterator[Issuer]:
    """An issuer of this mode, with a tag `a`."""
    how, tag = MODES[mode]
    limit = {"limit": settings.pop("limit")} if "limit" in settings else {}
    with made.connect(**{"timeout": 4.0, "store_timeout": STORE_TIMEOUT, **how, **settings}) as ids:
        ids.create("a", step=step, **limit, **tag)
        yield ids


def refused(made: World, ids: Issuer, timeout: float | None = None) -> issuer.StoreUnavailable:
    """Draw in vain, for want of the store, and return the error."""
    error = made.draws(ids, "a", timeout).error
    assert isinstance(error, issuer.StoreUnavailable)
    return error


@pytest.mark.covers("0.12", "0.16", "0.17", "3.26", "3.27")
@modes
def test_no_number_in_hand_waits_for_a_store_that_hangs(made: World, mode: str) -> None:
    with process(made, mode, 500, timeout=0.6) as ids:
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
            began = made.now
            refused(made, ids, timeout)
            assert made.now - began < timeout + GRACE
        made.turns.sleep(20.0)
        made.store.resume()
        made.turns.sleep(SWEEP_EVERY + BACK)
        again = made.call(lambda: ids.take("a", 100, timeout=0))
        assert again.took < BACK
        assert again.answer[0] > 1000
        assert again.answer == sorted(set(again.answer))


@pytest.mark.covers("3.26")
@modes
def test_an_outage_is_told_once_and_so_is_its_end(made: World, mode: str, caplog: pytest.LogCaptureFixture) -> None:
    with process(made, mode, 100, store_timeout=0.1, timeout=5.0) as ids:
        ids.next("a")
        made.store.hang()
        ids.take("a", 50)
        made.turns.sleep(30.0)
        assert ids.engine.registry.combiner("a").supply.refill.segments.flights.failures > 2
        assert [each.levelname for each in caplog.records if "no segment can be" in each.message] == ["WARNING"]
        made.store.resume()
        made.turns.until(lambda: "segments are reserved again" in caplog.text)
        ids.take("a", 300)
        assert caplog.text.count("no segment can be") == caplog.text.count("segments are reserved again") == 1


@pytest.mark.covers("3.26", "3.27")
@modes
def test_past_what_a_caller_insists_on_it_is_refused_at_once_until_the_store_is_back(
    made: World, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    with process(made, mode, insist=10.0) as ids:
        numbers = [ids.next("a")]
        made.store.hang()
        while isinstance(caller := made.draws(ids, "a").done.answer, int):
            numbers.append(caller)
        assert len(numbers) <= 20
        assert 4.0 <= made.draws(ids, "a").took < 4.0 + GRACE  # who comes early waits: a failover of the store is short
        made.turns.sleep(10.0)
        late = [made.draws(ids, "a") for _ in range(50)]
        assert max(each.took for each in late) < ROUND_TRIP
        assert all(isinstance(each.error, issuer.StoreUnavailable) for each in late)
        assert "the store has not answered for" in str(late[0].error)
        made.turns.sleep(600.0)
        began, after = made.now, refused(made, ids)
        assert made.now - began < ROUND_TRIP
        assert late[0].error.retry_after < 5 < after.retry_after <= LATEST_RETRY  # type: ignore[attr-defined]
        made.store.resume()
        made.turns.sleep(SWEEP_EVERY + BACK)
        assert ids.next("a") > numbers[-1]
        told = [each.message for each in caplog.records if "callers" in each.message]
        assert len(told) == 2
        assert "callers are waiting for a number: store: no answer within" in told[0]
        assert "callers get numbers again, after" in told[1]


@modes
def test_without_a_scheduler_one_caller_at_a_time_finds_out_whether_the_store_is_back(made: World, mode: str) -> None:
    with process(made, mode, insist=0, scheduler=None) as ids:
        assert ids.take("a", 10)[-1] == 10
        made.store.hang()
        first = made.draws(ids, "a")
        assert isinstance(first.error, issuer.StoreUnavailable)
        assert first.took < STORE_TIMEOUT + GRACE
        made.turns.sleep(1.0)
        many = [made.draws(ids, "a") for _ in range(20)]
        if mode == "direct":  # elsewhere they share a draw
            assert sum(each.took > ROUND_TRIP for each in many) == 1
        assert max(each.took for each in many) < STORE_TIMEOUT + GRACE
        made.store.resume()
        made.turns.sleep(LONGEST_PAUSE)
        assert ids.next("a") == 11
        made.store.hang()
        ids.take("a", 9)
        made.turns.sleep(3600.0)  # nobody has asked for an hour: what was then says nothing
        made.store.resume()
        assert ids.next("a") == 21


def test_what_was_long_ago_refuses_nobody(made: World) -> None:
    with process(made, "direct", insist=0, idle_after=600) as ids:
        ids.take("a", 10)
        made.turns.sleep(5.0)
        made.store.hang()
        ids.take("a", 10)
        refused(made, ids)
        # The sweep has left the tag out for five minutes, and the process will forget it five minutes later.
        made.turns.sleep(900.0)
        made.store.resume()
        made.turns.sleep(STORE_TIMEOUT)
        assert ids.next("a") > 20


def test_callers_in_a_hurry_have_nobody_refused(made: World) -> None:
    """They leave the store so little time that its silence says nothing."""
    with process(made, "direct", store_timeout=3.0, insist=0, scheduler=None) as ids:
        ids.take("a", 10)
        made.store.hang()
        for _ in range(10):
            refused(made, ids, 0.1)
        made.store.resume()
        assert ids.next("a") > 10


@modes
def test_a_limit_that_was_reached_before_is_no_cause_while_the_store_is_away(made: World, mode: str) -> None:
    with process(made, mode, limit=10, timeout=0.5, store_timeout=3.0) as ids:
        ids.take("a", 10)
        assert isinstance(made.draws(ids, "a").error, issuer.LimitReached)
        ids.configure("a", limit=1000)
        made.store.hang()
        assert "limit" not in str(refused(made, ids))
        made.store.resume()


def test_a_caller_whom_another_process_keeps_waiting_logs_it(made: World, caplog: pytest.LogCaptureFixture) -> None:
    with made.connect() as loader, made.connect(scheduler=None, timeout=30.0, insist=60.0) as ids:
        loader.create("a", step=10, order="strict")
        assert [loader.next("a"), ids.next("a")] == [1, 2]
        made.turns.sleep(1.0)
        made.store.hang()
        loader.take("a", 18)  # all that is in Redis
        caplog.clear()
        waiting = made.draws(ids, "a")
        made.turns.sleep(10.0)
        assert [each.message for each in caplog.records if "callers are waiting" in each.message]
        made.store.resume()
        assert waiting.number > 20
        assert "callers get numbers again" in caplog.text


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
            made.turns.until(
                lambda: ids.next("a") and ids.engine.registry.combiner("a").supply.state.buffer is not None
            )


@pytest.mark.parametrize("kept", [True, False])
def test_leases_are_checked_without_the_store(made: World, monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """With the guard taken out, which keeps the id of the store, the check waits for it."""
    if not kept:
        monkeypatch.setattr(Origin, "identity", lambda self, within=inf: self.public(identity(within)))
    with made.connect(lease=50, timeout=10, scheduler=None) as ids:
        ids.create("a", step=1000, order="trend")
        ids.next("a")
        made.store.hang()
        made.turns.sleep(60.0)  # until the check is due
        before = len(made.store.begun)
        caller = made.draws(ids, "a")
        assert caller.number == 2
        assert (caller.took < ROUND_TRIP) == (len(made.store.begun) == before) == kept
        assert kept or caller.took > 1.0


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
        line = ids.engine.registry.combiners["a"]
        hurried = made.draws(ids, "a", 0.0)
        assert isinstance(hurried.error, issuer.StoreUnavailable | issuer.RedisUnavailable)
        assert ids.engine.registry.combiners["a"] is line
        made.store.resume()
        numbers = [patient.number, *(ids.next("a") for _ in range(20))]
        assert numbers == sorted(set(numbers))


@pytest.mark.covers("0.22")
@modes
def test_no_other_tag_waits_for_the_one_whose_call_to_the_store_takes_five_seconds(made: World, mode: str) -> None:
    with process(made, mode, store_timeout=8.0, timeout=20.0) as ids:
        others = [f"b{number}" for number in range(20)]
        for tag in others:
            ids.create(tag, step=20, **MODES[mode][1])
            ids.next(tag)
        made.store.slow, made.store.seconds = "a", 5.0
        waits = made.draws(ids, "a")
        for _ in range(60):  # three segments of each other tag
            made.turns.sleep(0.05)
            for call in [made.draws(ids, tag) for tag in others]:
                assert call.took <= 3 * ROUND_TRIP
                assert isinstance(call.answer, int)
        assert waits.ended is None
        assert min(made.store.top(tag) for tag in others) >= 60
        assert 5.0 <= waits.took <= 5.0 + GRACE


@pytest.mark.parametrize(("mode", "attempts"), [("direct", direct.ATTEMPTS), ("strict", extend.ATTEMPTS)])
def test_a_store_that_contradicts_itself_is_asked_a_few_times_only(
    made: World, monkeypatch: pytest.MonkeyPatch, mode: str, attempts: int
) -> None:
    """One of its servers has outdated data. Callers ask again after a pause."""
    asked: list[float] = []

    def outdated(tag: str, *_: Any, **__: Any) -> None:
        asked.append(made.now)
        raise MaxBehind(tag, 0, 1)

    with process(made, mode, scheduler=None) as ids:
        ids.take("a", 10)
        monkeypatch.setattr(made.store, "reserve", outdated)
        assert isinstance(made.call(lambda: ids.take("a", 30, timeout=1.0)).error, issuer.Unavailable)
    at_once = [0]
    for before, now in pairwise([-inf, *asked]):
        at_once.append(at_once[-1] + 1 if now - before < SHORTEST_PAUSE else 1)
    assert 1 < max(at_once) <= attempts
