"""Redis goes away, alone or with the store: callers ride it out, nobody storms, and all goes on by itself."""

import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Literal

import pytest

import issuer
from issuer import Issuer, clock
from issuer.clock import LONGEST_PAUSE
from issuer.core import steps as flight
from issuer.core.supply import supply
from issuer.core.supply.mode import Mode
from issuer.drivers import topology as breaker
from issuer.drivers.aio.combiner import LOOK_EVERY
from issuer.drivers.running import SHORTEST
from issuer.gateway.commands import script
from tests.audit import repeats
from tests.proofs.virtual.world import World

NEXT = script("next").sha.encode()
FAULTS = ["refuse", "blackhole", "drop_requests"]

#: Seconds within which service is back once the servers are: somebody tries, and whoever waits looks again.
BACK = 2 * LONGEST_PAUSE + 0.1

#: What a call may take above its deadline: the shortest time of a round trip, and the time until a task's is looked at.
GRACE = SHORTEST + LOOK_EVERY + 0.001

#: What a round trip to a dead Redis costs.
TIMEOUT = 0.6
TAGS = 40


@pytest.mark.covers("3.20")
@pytest.mark.parametrize("fault", FAULTS)
def test_strict_callers_ride_out_an_outage_and_go_on_at_once(made: World, fault: str) -> None:
    with made.connect() as ids:
        ids.create("a", step=1000)
        assert ids.next("a") == 1
        getattr(made.wire, fault)()
        callers = [made.draws(ids, "a", 100) for _ in range(5)]
        late = made.draws(ids, "a", 1.0)
        made.turns.sleep(50.0)
        made.wire.pass_through()
        back = made.now
        assert isinstance(late.error, issuer.RedisUnavailable)
        assert 0 < late.error.retry_after <= breaker.TRIAL  # one may just be under way
        assert 1.0 <= late.took < 1.0 + GRACE
        assert sorted(caller.number for caller in callers) == sorted({caller.number for caller in callers})
        assert max(caller.began + caller.took for caller in callers) - back < BACK


def test_a_strict_caller_is_not_slowed_by_what_others_found_out(made: World) -> None:
    with made.connect() as ids:
        for tag in range(20):
            for name, order in ((f"s{tag}", "strict"), (f"t{tag}", "trend")):
                ids.create(name, step=1000, order=order)  # type: ignore[arg-type]  # one of the two
                ids.next(name)
        made.wire.refuse()
        for tag in range(20):
            ids.next(f"t{tag}")  # direct
        callers = [made.draws(ids, f"s{tag}", 20) for tag in range(20)]
        made.turns.sleep(1.0)
        made.wire.pass_through()
        assert max(caller.took for caller in callers) < 1.0 + BACK
        # Whoever asks for what is in hand only gets it as soon as it is there.
        assert ids.next("s0", timeout=0) > 0


#: Each has its own connections, and knows nothing of the others.
PROCESSES = 8
CALLERS = 25

#: Seconds after which the pauses have grown, each failure taking a second; how long the outage lasts then.
SETTLED = 9.0
OUTAGE = 6.0


def busiest(times: Sequence[float], width: float) -> int:
    """Return the most of these times that lie within so many seconds."""
    ordered = sorted(times)
    return max((bisect_left(ordered, first + width) - at for at, first in enumerate(ordered)), default=0)


def attempts(made: World, fault: str, tags: int) -> tuple[dict[int, list[float]], list[float]]:
    """Let 200 callers of so many tags wait through an outage.

    Returns when each process tried to connect during it, and when anybody did after its end.
    """
    with ExitStack() as ends:
        crews = [ends.enter_context(made.connect()) for _ in range(PROCESSES)]
        for tag in range(tags):
            crews[0].create(f"a{tag}", step=10_000)
            for ids in crews:
                ids.next(f"a{tag}")
        getattr(made.wire, fault)()
        callers = [(n % tags, made.draws(ids, f"a{n % tags}", 60)) for ids in crews for n in range(CALLERS)]
        made.turns.sleep(SETTLED)
        began = made.now
        made.turns.sleep(OUTAGE)
        made.wire.pass_through()
        back = made.now
        for tag in range(tags):
            assert repeats(caller.number for its, caller in callers if its == tag) == []
        assert max(caller.began + caller.took for _, caller in callers) - back < BACK
        during: dict[int, list[float]] = {}
        for at, process in made.wire.tried:
            if began <= at < back:
                during.setdefault(process, []).append(at)
        return during, [at for at, _ in made.wire.tried if at >= back]


@pytest.mark.covers("3.20")
@pytest.mark.parametrize(("fault", "tags"), [("refuse", 1), ("blackhole", 1), ("drop_requests", 10), ("blackhole", 10)])
def test_two_hundred_waiting_callers_make_no_storm(made: World, fault: str, tags: int) -> None:
    """Each process tries once per 0.125 to 0.25 s, whatever it waits for, and never in step with the others."""
    during, after = attempts(made, fault, tags)
    assert len(during) == PROCESSES
    for times in during.values():
        assert busiest(times, LONGEST_PAUSE / 2) == 1
        assert len(times) > OUTAGE / 3  # a trial that gets no answer takes a second
    assert busiest([at for times in during.values() for at in times], 0.002) < PROCESSES / 2
    # Nor do they all come back in the same 0.1 s.
    assert busiest(after, 0.1) < PROCESSES * CALLERS / 2


def test_without_pauses_the_same_callers_storm(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: neither pauses between attempts nor a breaker."""
    for module in (clock, flight, supply, breaker):
        monkeypatch.setattr(module, "pause", lambda _attempt: 0.001)
    monkeypatch.setattr(breaker.Breaker, "admit", lambda _self, **_options: False)
    monkeypatch.setattr(sys.modules[__name__], "SETTLED", 0.5)
    monkeypatch.setattr(sys.modules[__name__], "OUTAGE", 0.5)
    during, _ = attempts(made, "refuse", 1)
    assert min(busiest(times, LONGEST_PAUSE / 2) for times in during.values()) > 8


def busy(made: World, tags: int = TAGS) -> Issuer:
    """Return an issuer of so many trend tags, each drawn from."""
    ids = made.connect(redis_timeout=TIMEOUT, timeout=10)
    for tag in range(tags):
        ids.create(f"t{tag}", step=100, order="trend")
        ids.next(f"t{tag}")
    return ids


def slow_calls(made: World, ids: Issuer, tags: range) -> int:
    """Draw once from each tag, some time after the other; return how many calls met a time-out."""
    slow = 0
    for tag in tags:
        made.turns.sleep(LONGEST_PAUSE)
        began = made.now
        ids.next(f"t{tag}")
        slow += made.now - began >= TIMEOUT / 2
    return slow


@pytest.mark.covers("3.21")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_dead_redis_costs_one_time_out_however_many_tags_there_are(made: World, fault: str) -> None:
    with busy(made) as ids:
        for tag in range(TAGS, TAGS + 10):
            ids.create(f"t{tag}", step=100, order="trend")  # and some that nobody has drawn from
        before, began = len(made.wire.tried), made.now
        getattr(made.wire, fault)()
        every = range(TAGS + 10)
        assert slow_calls(made, ids, every) + slow_calls(made, ids, every) == (fault == "blackhole")
        assert len(made.wire.tried) - before <= 2 * (made.now - began)  # the scheduler's trials, once a sweep
        made.wire.pass_through()
        made.turns.until(
            lambda: not any(line.supply.origin.mode is Mode.DIRECT for line in ids.engine.registry.combiners.values()),
            3.0,
        )
        for tag in every:
            numbers = [ids.next(f"t{tag}") for _ in range(3)]
            assert numbers == sorted(set(numbers))


@pytest.mark.covers("3.21")
def test_without_the_breaker_each_tag_pays_its_own_time_out(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out."""
    monkeypatch.setattr(breaker.Breaker, "admit", lambda _self, **_options: False)
    with busy(made, 5) as ids:
        made.wire.blackhole()
        assert slow_calls(made, ids, range(5)) == 5


def test_a_caller_in_a_hurry_sends_nobody_away_from_a_redis_that_is_only_slow(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy(made, 2) as ids:
        monkeypatch.setattr(made.wire, "travel", lambda: SHORTEST)
        with suppress(issuer.IssuerError):
            ids.next("t0", timeout=0)
        assert [ids.next("t1") for _ in range(5)] == [2, 3, 4, 5, 6]


@pytest.mark.covers("3.31")
@pytest.mark.parametrize("fault", FAULTS)
def test_redis_back_with_the_store_away_serves_what_redis_holds(made: World, fault: str) -> None:
    store = made.store
    with made.connect(scheduler=None) as other, made.connect(timeout=10, redis_timeout=0.5) as ids:
        ids.create("t", step=100, order="trend")
        numbers = [ids.next("t")]
        getattr(made.wire, fault)()
        numbers += ids.take("t", 50)
        made.turns.until(lambda: store.top("t") == 300)  # both segments of its own
        made.wire.pass_through()
        numbers += other.take("t", 150)  # the last of them out of 301..400
        getattr(made.wire, fault)()
        store.hang()
        numbers += [ids.next("t") for _ in range(150)]
        failing = made.draws(ids, "t", 0.3)
        assert isinstance(failing.error, issuer.StoreUnavailable)
        assert 0 < failing.error.retry_after < 1
        assert failing.took < 0.3 + GRACE
        waiting = made.draws(ids, "t")
        made.turns.sleep(1.0)
        made.wire.pass_through()
        assert waiting.took < 3.0
        assert waiting.number > 300
        numbers += [waiting.number, *(ids.next("t") for _ in range(5))]
        store.resume()
        assert repeats([*numbers, *ids.take("t", 300)]) == []


@pytest.mark.covers("3.31", "3.27", "0.16")
@pytest.mark.parametrize("order", ["strict", "trend"])
def test_with_both_away_what_is_held_is_served_then_refused_and_it_goes_on(
    made: World, order: Literal["strict", "trend"]
) -> None:
    unavailable = issuer.StoreUnavailable if order == "trend" else issuer.RedisUnavailable
    with made.connect(timeout=0.6) as ids:
        ids.create("a", step=100, order=order)
        numbers = ids.take("a", 5)
        made.wire.refuse()
        if order == "trend":
            numbers += ids.take("a", 30)  # direct, and past its mark
            made.turns.sleep(1.0)  # until both segments of its own are there
        made.store.hang()
        with suppress(unavailable):
            while True:
                numbers.append(ids.next("a"))
        assert len(numbers) == (205 if order == "trend" else 5)
        for timeout in (0.0, 1.0):
            asked = made.draws(ids, "a", timeout)
            assert isinstance(asked.error, unavailable)
            assert 0 < asked.error.retry_after <= LONGEST_PAUSE
            assert asked.took < timeout + GRACE
        waiting = made.draws(ids, "a", 60)
        made.turns.sleep(3.0)
        made.store.resume()
        made.wire.pass_through()
        assert waiting.took < 3.0 + BACK
        numbers += [waiting.number, *ids.take("a", 200)]
        assert numbers == sorted(set(numbers))
        assert max(numbers) <= made.store.top("a")
        made.turns.until(lambda: ids.engine.registry.combiner("a").supply.origin.mode is not Mode.DIRECT, 3.0)


def test_a_caller_that_gives_up_takes_the_tag_from_nobody(made: World) -> None:
    """With a combiner of its own the next caller would draw in no order with those that are served after the outage."""
    with made.connect() as maker, made.connect(scheduler=None) as ids:
        maker.create("a", step=100, order="trend")
        maker.next("a")
        ids.next("a")  # out of Redis
        combiner = ids.engine.registry.combiner("a")
        assert combiner.supply.state.record is None
        made.wire.hold_replies(NEXT, 2)
        waits = made.draws(ids, "a", 30)
        made.turns.until(lambda: made.wire.held)
        assert isinstance(made.draws(ids, "a", 0.01).error, issuer.Unavailable)
        assert ids.engine.registry.combiner("a") is combiner
        made.wire.release()
        assert waits.number in (3, 4)
