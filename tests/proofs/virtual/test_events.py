"""Each event comes when what it tells of has happened, in both colours, and at no other time."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer import Issuer, events
from issuer.core.events import Event
from issuer.strategies import Strategy, register
from tests.proofs.virtual.world import World

Seen = list[Event]
Kinds = set[type[Event]]


def observed(ids: Issuer, seen: Seen, **settings: Any) -> Issuer:
    """Make a tag `a` in segments of 100, and have its events from now on."""
    ids.create("a", **{"step": 100, "order": "strict", **settings})
    ids.observe(seen.append)
    return ids


def segments_from_mark_to_load(made: World, seen: Seen) -> None:
    with made.connect() as ids:
        observed(ids, seen)
        assert ids.next("a") == 1
        reserved, loaded = seen
        assert isinstance(reserved, events.Reserved)
        assert (reserved.tag, reserved.reason, reserved.low, reserved.high) == ("a", "load", 0, 100)
        assert reserved.seconds >= 0
        assert loaded == events.SegmentLoaded("a", 0, 100, 0, {})
        ids.take("a", 18)
        seen.clear()
        ids.next("a")
        made.turns.until(lambda: len(seen) == 3)
        assert [type(each) for each in seen] == [events.ElectionWon, events.Reserved, events.SegmentLoaded]
        assert seen[2] == events.SegmentLoaded("a", 100, 200, 20, {})
        made.turns.sleep(1.0)
        drawn = len(seen)
        for _ in range(70):
            ids.next("a")
        assert len(seen) == drawn, "a draw that only brings a number makes no event"


def segments_that_come_late(made: World, seen: Seen) -> None:
    with made.connect(scheduler=None) as ids:
        observed(ids, seen)
        ids.take("a", 100)
        assert events.ExtensionLate not in map(type, seen), "the first segment is nobody's delay"
        ids.take("a", 100)
        ids.next("a")
        assert [each for each in seen if isinstance(each, events.ExtensionLate)] == [
            events.ExtensionLate("a", 100),
            events.ExtensionLate("a", 200),
        ]


def an_outage_of_the_store(made: World, seen: Seen) -> None:
    with made.connect(store_timeout=0.1, timeout=3.0) as ids:
        observed(ids, seen)
        ids.take("a", 10)
        made.store.hang()
        ids.take("a", 90)
        late = made.draws(ids, "a").error
        silent, *more = [each for each in seen if isinstance(each, events.StoreSilent)]
        assert more == []
        assert silent.scheduled
        assert seen.count(events.Rejected("a", late)) == 1
        [waits] = [each for each in seen if isinstance(each, events.CallersWait)]
        assert "no answer within 0.1 s" in waits.cause
        ran_out = [each for each in seen if isinstance(each, events.ExtensionLate)]
        assert ran_out == [events.ExtensionLate("a", 100)], "however often its caller asks"
        made.store.resume()
        made.turns.until(lambda: events.StoreBack("a", None) in seen)
        ids.next("a")
        [served] = [each for each in seen if isinstance(each, events.CallersServed)]
        assert served.seconds > 1.0


def an_outage_of_the_store_without_redis(made: World, seen: Seen) -> None:
    with made.connect(redis="none", scheduler=None, store_timeout=0.1, timeout=1.0) as ids:
        observed(ids, seen, order="trend", step=10)
        ids.take("a", 10)
        made.store.hang()
        made.draws(ids, "a").done  # noqa: B018 - waits for its end
        failed = next(each for each in seen if isinstance(each, events.ReservationFailed))
        assert failed.reason == "direct"
        assert 0.1 <= failed.seconds < 0.2
        [silent] = [each for each in seen if isinstance(each, events.StoreSilent)]
        assert not silent.scheduled


def an_outage_of_redis(made: World, seen: Seen) -> None:
    with made.connect() as ids:
        observed(ids, seen, order="trend")
        ids.next("a")
        made.wire.refuse()
        ids.take("a", 5)
        made.turns.sleep(5.0)
        assert [each for each in seen if isinstance(each, events.WentDirect)] == [events.WentDirect("a")]
        assert len([each for each in seen if isinstance(each, events.RedisSilent)]) == 1
        assert {each.work for each in seen if isinstance(each, events.Failed)} == {"rejoin"}
        assert [each.reason for each in seen if isinstance(each, events.Reserved)][:2] == ["load", "direct"]
        made.wire.pass_through()
        made.turns.until(lambda: events.Rejoined("a", 105) in seen)
        [back] = [each for each in seen if isinstance(each, events.RedisBack)]
        assert back.seconds > 4.0


def an_outage_of_redis_that_a_strict_tag_waits_for(made: World, seen: Seen) -> None:
    with made.connect() as ids:
        observed(ids, seen)
        ids.next("a")
        made.wire.refuse()
        waiting = made.draws(ids, "a", 60)
        made.turns.sleep(5.0)
        made.wire.pass_through()
        assert waiting.number == 2
        kinds = [type(each) for each in seen]
        assert (kinds.count(events.RedisSilent), kinds.count(events.RedisBack)) == (1, 1)


def a_redis_that_lost_its_data(made: World, seen: Seen) -> None:
    with made.connect(scheduler=None) as ids:
        observed(ids, seen)
        ids.take("a", 30)
        made.wire.server.wipe()
        assert ids.next("a") == 101
        assert events.FenceTripped("a", "empty") in seen
        assert events.NumbersLost("a", "empty", above=100, seen=30, most=70) in seen


def a_redis_that_failed_over(made: World, seen: Seen) -> None:
    with made.connect(scheduler=None) as ids:
        observed(ids, seen)
        ids.take("a", 30)
        made.wire.server.new_reign()
        assert ids.next("a") == 101
        assert [each for each in seen if isinstance(each, events.FenceTripped)] == [events.FenceTripped("a", "fenced")]
        assert events.NumbersLost("a", "fenced", above=100, seen=30, most=70) in seen


def leases_that_are_dropped(made: World, seen: Seen) -> None:
    with made.connect(lease=20) as ids:
        observed(ids, seen, order="trend")
        ids.next("a")
        assert events.LeaseDrawn("a", 0, 20) in seen
        made.wire.server.new_reign()
        made.turns.until(lambda: events.LeaseDropped("a") in seen)
        assert events.NumbersWasted("a", 19) in seen


def leases_that_can_be_neither_checked_nor_given_back(made: World, seen: Seen) -> None:
    ids = observed(made.connect(lease=20, scheduler=None), seen, order="trend")
    with ids:
        ids.next("a")
        made.wire.refuse()
        made.turns.sleep(3.0)
        ids.next("a")
        assert {each.work for each in seen if isinstance(each, events.Failed)} == {"check"}
    [lost] = [each for each in seen if isinstance(each, events.NotGivenBack)]
    assert (lost.above, type(lost.error)) == (2, issuer.RedisUnavailable)
    assert events.NumbersWasted("a", 18) in seen


def a_lease_that_nobody_uses_any_more_below_what_was_drawn_since(made: World, seen: Seen) -> None:
    with made.connect(lease=20, idle_after=60) as ids:
        observed(ids, seen, order="trend")
        ids.next("a")
        assert ids.next("a", key="from Redis") == 21
        made.turns.until(lambda: events.NumbersWasted("a", 19) in seen, 120)
        assert events.NotGivenBack not in map(type, seen)
        assert ids.next("a") > 21


def a_limit_that_is_near(made: World, seen: Seen) -> None:
    with made.connect() as ids:
        observed(ids, seen, limit=1000)
        ids.take("a", 790)
        made.turns.sleep(2.0)
        assert events.LimitNear not in map(type, seen)
        ids.take("a", 30)
        made.turns.sleep(2.0)
        ids.take("a", 100)
        [near] = [each for each in seen if isinstance(each, events.LimitNear)]
        assert (near.most, near.limit, near.in_period) == (1000, 1000, False)
        assert 800 <= near.used <= 820


def a_range_for_a_caller(made: World, seen: Seen) -> None:
    with made.connect(scheduler=None) as ids:
        observed(ids, seen, order="trend")
        assert ids.reserve("a", 7) == range(1, 8)
        [reserved] = seen
        assert isinstance(reserved, events.Reserved)
        assert (reserved.reason, reserved.low, reserved.high) == ("reserve", 0, 7)


class Alarming(Strategy):
    """Numbers, each with an alarm."""

    def generate(self, n: int) -> list[int]:
        self.context.alarm(ALARM)
        return [*range(1, n + 1)]


ALARM = issuer.IssuerError("look at it")


def an_alarm_of_a_strategy(made: World, seen: Seen) -> None:
    register("alarming", Alarming)
    with made.connect(scheduler=None) as ids:
        ids.create("a", strategy="alarming")
        ids.observe(seen.append)
        ids.next("a")
        assert events.Alarm("a", ALARM) in seen


#: What is brought about, with the events that it shows.
SCENES: dict[Callable[[World, Seen], None], Kinds] = {
    segments_from_mark_to_load: {events.Reserved, events.SegmentLoaded, events.ElectionWon},
    segments_that_come_late: {events.ExtensionLate},
    an_outage_of_the_store: {
        events.StoreSilent,
        events.StoreBack,
        events.CallersWait,
        events.CallersServed,
        events.Rejected,
        events.Failed,
    },
    an_outage_of_the_store_without_redis: {events.ReservationFailed},
    an_outage_of_redis: {events.RedisSilent, events.RedisBack, events.WentDirect, events.Rejoined},
    an_outage_of_redis_that_a_strict_tag_waits_for: {events.RedisSilent, events.RedisBack},
    a_redis_that_lost_its_data: {events.FenceTripped, events.NumbersLost},
    a_redis_that_failed_over: {events.FenceTripped, events.NumbersLost},
    leases_that_are_dropped: {events.LeaseDrawn, events.LeaseDropped},
    leases_that_can_be_neither_checked_nor_given_back: {events.NotGivenBack, events.NumbersWasted},
    a_lease_that_nobody_uses_any_more_below_what_was_drawn_since: {events.NumbersWasted},
    a_limit_that_is_near: {events.LimitNear},
    a_range_for_a_caller: {events.Reserved},
    an_alarm_of_a_strategy: {events.Alarm},
}


@pytest.mark.covers("1.24")
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_what_happens_is_told(made: World, scene: Callable[[World, Seen], None]) -> None:
    seen: Seen = []
    scene(made, seen)
    assert SCENES[scene] - {type(each) for each in seen} == set()
    assert {each.tag for each in seen} == {"a"}


def test_each_event_is_shown_by_a_scene() -> None:
    kinds = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, Event)]
    assert set().union(*SCENES.values()) == set(kinds) - {Event}


def broken(event: Event) -> None:
    raise RuntimeError(f"of the observer, at {type(event).__name__}")


def test_an_observer_that_raises_is_logged_and_disturbs_no_draw(made: World, caplog: pytest.LogCaptureFixture) -> None:
    seen: Seen = []
    theirs: Seen = []
    with made.connect(lease=20) as ids, made.connect(lease=20) as other:
        ids.observe(broken)
        other.observe(theirs.append)
        observed(ids, seen, order="trend")
        numbers = ids.take("a", 300)
        made.wire.refuse()
        numbers += ids.take("a", 300)
        made.turns.sleep(3.0)
        made.wire.pass_through()
        made.turns.until(lambda: any(isinstance(each, events.Rejoined) for each in seen))
        numbers += ids.take("a", 300)
        assert numbers == sorted(set(numbers))
        assert {events.WentDirect, events.LeaseDrawn, events.SegmentLoaded} <= {type(each) for each in seen}
        other.take("a", 300)
        complaints = [each for each in caplog.records if "observer" in each.getMessage()]
        assert {(each.name, each.levelno) for each in complaints} == {("issuer", logging.ERROR)}
        assert len(complaints) == len({type(each) for each in seen}), "once a minute for each kind"
        assert theirs, "each issuer has observers of its own"


class Unusable(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(record.getMessage())


def test_a_log_that_raises_disturbs_no_draw_either(made: World) -> None:
    handler, log = Unusable(), logging.getLogger("issuer")
    log.addHandler(handler)
    try:
        with made.connect() as ids:
            ids.create("a", step=100, order="trend")
            ids.observe(broken)
            made.wire.refuse()
            assert ids.take("a", 5) == [1, 2, 3, 4, 5]  # WentDirect is a warning
    finally:
        log.removeHandler(handler)
