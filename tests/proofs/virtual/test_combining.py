"""Callers that share a draw, and what goes wrong for one of them: none of the others is lost, late or served twice."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.drivers.blocking.combiner import PASSING, Batch, Combiner
from issuer_persistence.records import TagSettings
from tests.audit import repeats
from tests.proofs.virtual.test_outages import GRACE
from tests.proofs.virtual.world import Call, World, world
from tests.seeds import seeded

#: Longer than anything that is to happen at once, and shorter than all that anybody waits for.
SOON = 0.05


class Interrupt(BaseException):
    """What Ctrl-C is to the code it hits."""


@pytest.fixture
def threads() -> Iterator[World]:
    with world("blocking", seeded(7)) as made:
        yield made


def called(made: World, ids: Issuer, timeouts: list[float]) -> list[Call]:
    return [made.draws(ids, "a", timeout) for timeout in timeouts]


def lay_bomb(spot: str, line: Combiner, monkeypatch: pytest.MonkeyPatch) -> None:
    """See to it that the next leader is interrupted there."""
    when, _, where = spot.partition(" ")
    laid = [Interrupt]

    def bomb(call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def wrapper(*args: Any, **options: Any) -> Any:
            if laid and when == "before":
                raise laid.pop()
            result = call(*args, **options)
            if laid:
                raise laid.pop()
            return result

        return wrapper

    if where == "the turn":
        plain, taken = line._turn.acquire, bomb(line._turn.acquire)
        # Who leads gives a time-out, by name; others look whether it is free.
        monkeypatch.setattr(line._turn, "acquire", lambda *args, **named: (taken if named else plain)(*args, **named))
    else:
        owner = Batch if where in ("start", "finish") else line
        monkeypatch.setattr(owner, where, bomb(getattr(owner, where)))


def among(made: World, ids: Issuer, spot: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Let so many threads share a draw whose leader is interrupted there."""
    ids.create("a", step=1000)
    ids.next("a")
    line = ids.engine.registry.combiner("a")
    turn = line._turn
    turn.acquire()
    lay_bomb(spot, line, monkeypatch)
    callers = called(made, ids, [8.0] * count)
    made.turns.sleep(0.001)
    turn.release()
    assert all(caller.took <= 8.1 for caller in callers)
    return callers


SPOTS = [
    f"{when} {where}" for where in ("start", "the turn", "_close", "_draw", "finish") for when in ("before", "after")
]


@pytest.mark.parametrize("spot", SPOTS)
def test_a_leader_that_is_interrupted_leaves_nobody_waiting(
    threads: World, monkeypatch: pytest.MonkeyPatch, spot: str
) -> None:
    with threads.connect(scheduler=None) as ids:
        callers = among(threads, ids, spot, 12, monkeypatch)
        numbers = [caller.answer for caller in callers if isinstance(caller.answer, int)]
        assert [type(caller.answer) for caller in callers].count(Interrupt) == 1
        assert len(numbers) == 11
        # Where it had taken its turn and nobody knew, the next leader waits so long for it.
        assert max(caller.took for caller in callers) < (1.0 if spot == "after the turn" else 0) + SOON
        again = called(threads, ids, [8.0] * 5)
        assert repeats([1, *numbers, *(caller.number for caller in again)]) == []
        assert max(caller.took for caller in again) < SOON


def test_a_batch_that_nobody_lands_would_keep_them_waiting(threads: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: an interrupted leader doesn't tell."""
    monkeypatch.setattr(Batch, "ours", property(lambda _: False))
    with threads.connect(scheduler=None) as ids:
        callers = among(threads, ids, "before _draw", 6, monkeypatch)
        assert max(caller.took for caller in callers) > 7.9


@pytest.mark.parametrize("longest", [PASSING, 1.0])
def test_who_never_comes_for_a_number_holds_the_next_batch_up_for_milliseconds(
    threads: World, monkeypatch: pytest.MonkeyPatch, longest: float
) -> None:
    """And for longer if the guard is."""
    monkeypatch.setattr("issuer.drivers.blocking.combiner.PASSING", longest)
    with threads.connect(scheduler=None) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        line = ids.engine.registry.combiner("a")
        with line._turn:
            line._passing = Batch().passed
            line._queued = True
        callers = called(threads, ids, [8.0] * 8)
        assert sorted(caller.number for caller in callers) == list(range(2, 10))
        assert longest <= max(caller.took for caller in callers) < longest + SOON


TIMEOUTS = [0.0, 0.1, 0.4, 15.0] * 6


def assert_each_in_time(callers: list[Call], timeouts: list[float]) -> None:
    """The patient ones got numbers, all different; the others an error at their own deadline."""
    numbers = [caller.number for caller, timeout in zip(callers, timeouts, strict=True) if timeout > 2]
    assert repeats(numbers) == []
    for caller, timeout in zip(callers, timeouts, strict=True):
        if timeout < 2:
            assert isinstance(caller.error, issuer.StoreUnavailable | issuer.RedisUnavailable)
            assert caller.took < timeout + GRACE


@pytest.mark.covers("U.3", "1.21")
@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("fault", ["blackhole", "refuse"])
def test_callers_wait_for_a_redis_that_is_away_until_their_own_deadline(
    made: World, fault: str, scheduler: str | None
) -> None:
    with made.connect(scheduler=scheduler) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        getattr(made.wire, fault)()
        callers = called(made, ids, TIMEOUTS)
        made.turns.sleep(5.0)
        made.wire.pass_through()
        assert_each_in_time(callers, TIMEOUTS)


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("drawn", [0, 4])
def test_callers_wait_for_a_store_that_is_away_until_their_own_deadline(
    made: World, scheduler: str | None, drawn: int
) -> None:
    with made.connect(scheduler=scheduler) as ids:
        ids.create("a", step=2)
        ids.take("a", drawn or 1)
        made.turns.sleep(3.0)
        made.store.hang()
        with pytest.raises(issuer.StoreUnavailable) as error:
            ids.take("a", 100, timeout=0)
        assert len(error.value.drawn) <= 4
        callers = called(made, ids, TIMEOUTS)
        made.turns.sleep(5.0)
        for _ in range(10):
            assert made.draws(ids, "a", 0.02).took < 0.02 + GRACE
        made.store.resume()
        assert_each_in_time(callers, TIMEOUTS)


def test_timeout_0_gets_the_answer_of_a_round_trip_while_others_share_draws(made: World) -> None:
    with made.connect(scheduler=None) as ids:
        ids.create("a", step=1_000_000)
        numbers = [ids.next("a")]
        others = [made.call(lambda: [ids.next("a") for _ in range(50)]) for _ in range(16)]
        numbers += [ids.next("a", timeout=0) for _ in range(50)]
        assert numbers == sorted(set(numbers))
        drawn = [number for other in others if other.took for number in other.answer]
        assert repeats([*numbers, *drawn]) == []


@pytest.mark.parametrize("error", [issuer.UnknownTag, issuer.LimitReached, issuer.FenceError])
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_definite_error_reaches_every_caller_as_an_exception_of_its_own(
    made: World, error: type[issuer.IssuerError], scheduler: str | None
) -> None:
    limited = error is issuer.LimitReached
    if error is not issuer.UnknownTag:
        made.store.create("a", TagSettings(step=10, limit=30, order="strict"), timeout=1)
    made.wire.server.role = "slave" if error is issuer.FenceError else "master"
    with made.connect(scheduler=scheduler) as ids:
        callers = called(made, ids, [8.0] * 50)
        assert max(caller.took for caller in callers) < 0.5
    numbers = sorted(caller.answer for caller in callers if isinstance(caller.answer, int))
    assert numbers == list(range(1, 31 if limited else 1))
    errors = [caller.answer for caller in callers if not isinstance(caller.answer, int)]
    assert {type(one) for one in errors} == {error}
    assert len({id(one) for one in errors}) == len(errors) == 50 - len(numbers)
