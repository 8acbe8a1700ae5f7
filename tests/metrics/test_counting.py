"""What each event moves, in virtual time and both colours; gauges follow what the process knows."""

from collections.abc import Callable

import pytest

from issuer import Issuer, events
from issuer.metrics import Metrics
from tests.metrics.conftest import Measure, Measured
from tests.metrics.shown import Shown, shown
from tests.proofs.virtual.test_events import SCENES
from tests.proofs.virtual.world import World


class Observing:
    """A world whose issuers are measured as soon as they are made."""

    def __init__(self, made: World, measure: Measure) -> None:
        self._made, self._measure = made, measure
        self.metrics: Metrics | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._made, name)

    def connect(self, **settings: object) -> Issuer:
        ids = self._made.connect(**settings)
        self.metrics = self._measure(ids)
        return ids


#: What a scene must have moved, with the events that it is made of: each by its class in SCENES.
MOVED: dict[type[events.Event], tuple[str, dict[str, str]]] = {
    events.ElectionWon: ("elections_won_total", {}),
    events.Reserved: ("reservations_total", {"result": "done"}),
    events.ReservationFailed: ("reservations_total", {"result": "failed"}),
    events.SegmentLoaded: ("segments_loaded_total", {}),
    events.ExtensionLate: ("extensions_late_total", {}),
    events.LimitNear: ("limits_near_total", {}),
    events.Failed: ("background_failures_total", {}),
    events.LeaseDrawn: ("leases_drawn_total", {}),
    events.LeaseDropped: ("leases_dropped_total", {}),
    events.WentDirect: ("direct_begun_total", {}),
    events.Rejoined: ("direct_ended_total", {}),
    events.NotGivenBack: ("give_backs_failed_total", {}),
    events.NumbersWasted: ("numbers_wasted_total", {}),
    events.RedisSilent: ("redis_silences_total", {}),
    events.RedisBack: ("redis_silent_seconds_total", {}),
    events.FenceTripped: ("fence_trips_total", {}),
    events.NumbersLost: ("numbers_lost_total", {}),
    events.StoreSilent: ("store_silences_total", {}),
    events.StoreBack: ("store_returns_total", {}),
    events.CallersWait: ("waits_total", {}),
    events.CallersServed: ("wait_seconds_total", {}),
    events.Rejected: ("refusals_total", {}),
    events.Alarm: ("alarms_total", {}),
}


def quantity(seen: list[events.Event], kind: type[events.Event]) -> float:
    """Return what the events of a kind add up to: how many there were, or what they say."""
    found = [each for each in seen if isinstance(each, kind)]
    if kind in (events.RedisBack, events.CallersServed):
        return sum(each.seconds for each in found if isinstance(each, events.RedisBack | events.CallersServed))
    if kind is events.NumbersLost:
        return sum(each.most for each in found if isinstance(each, events.NumbersLost))
    if kind is events.NumbersWasted:
        return sum(each.numbers for each in found if isinstance(each, events.NumbersWasted))
    return len(found)


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_what_observers_hear_is_counted(
    made: World, measure: Measure, scene: Callable[[World, list[events.Event]], None]
) -> None:
    all_seen: list[events.Event] = []

    class Seen(list[events.Event]):
        """The scene's own list, which it may clear."""

        def append(self, event: events.Event) -> None:
            all_seen.append(event)
            super().append(event)

    observing = Observing(made, measure)
    scene(observing, Seen())  # type: ignore[arg-type]  # a world
    assert observing.metrics is not None
    found = shown(observing.metrics)
    for kind, (name, labels) in MOVED.items():
        assert found.total(name, tag="a", **labels) == pytest.approx(quantity(all_seen, kind)), name
    assert {type(each) for each in all_seen} >= SCENES[scene]
    reserved = [each for each in all_seen if isinstance(each, events.Reserved | events.ReservationFailed)]
    assert found.total("reservation_seconds_count") == len(reserved)
    assert found.total("reservation_seconds_sum") == pytest.approx(sum(each.seconds for each in reserved))
    if any(isinstance(each, events.Rejected) for each in all_seen):
        assert found.value("refusals_total", tag="a", code="store_unavailable")


@pytest.mark.covers("U.12")
def test_what_alerts_look_at_is_there_before_it_happens(measured: Measured) -> None:
    with measured() as (ids, metrics):
        ids.create("a", step=100)
        ids.next("a")
        found = shown(metrics)
        for name in ("extensions_late_total", "waits_total", "numbers_lost_total"):
            assert found.value(name, tag="a") == 0, name
        for cause in ("empty", "fenced"):
            assert found.value("fence_trips_total", tag="a", cause=cause) == 0


@pytest.mark.covers("U.12")
def test_the_runway_is_what_is_left_in_redis_at_the_rate_of_the_last_minute(made: World, measured: Measured) -> None:
    with measured() as (ids, metrics):
        ids.create("a", step=1000)
        for _ in range(30):
            ids.take("a", 5)
            made.turns.sleep(1.0)
        found = shown(metrics)
        remaining = found.value("remaining_numbers", tag="a")
        assert remaining == 1000 - 150
        runway = found.value("runway_seconds", tag="a")
        assert runway == pytest.approx(remaining / 5, rel=0.25)
        made.turns.sleep(90.0)
        assert shown(metrics).value("runway_seconds", tag="a") is None, "this process does not look at it any more"


def test_what_redis_had_long_ago_is_not_shown_as_what_it_has(made: World, measured: Measured) -> None:
    with measured(scheduler=None) as (ids, metrics):
        ids.create("a", step=1000)
        ids.next("a")
        ids.tick()
        assert shown(metrics).value("remaining_numbers", tag="a") is not None
        made.turns.sleep(70.0)
        assert shown(metrics).value("remaining_numbers", tag="a") is None


@pytest.mark.covers("U.12")
def test_the_limit_ratio_is_the_share_that_is_used(made: World, measured: Measured) -> None:
    with measured() as (ids, metrics):
        ids.create("a", step=10, limit=1000)
        ids.take("a", 500)
        made.turns.sleep(2.0)
        assert shown(metrics).value("limit_ratio", tag="a") == pytest.approx(0.5, abs=0.03)
        assert shown(metrics).value("step_numbers", tag="a") == ids.inspect("a").store.step
        ids.take("a", 460)
        made.turns.sleep(2.0)
        assert shown(metrics).value("limit_ratio", tag="a") == pytest.approx(0.96, abs=0.03)


def test_redis_away_shows_while_it_lasts_and_so_do_the_processes_that_do_without(
    made: World, measured: Measured
) -> None:
    with measured() as (ids, metrics):
        ids.create("a", step=100, order="trend")
        ids.create("b", step=100, order="strict")
        ids.next("a")
        ids.next("b")

        def state() -> tuple[float | None, ...]:
            found: Shown = shown(metrics)
            return (found.value("redis_silent"), *(found.value("direct_processes", tag=tag) for tag in "ab"))

        assert state() == (0, 0, 0)
        made.wire.refuse()
        ids.next("a")
        waiting = made.draws(ids, "b", 600)
        made.turns.until(lambda: shown(metrics).value("callers_waiting", tag="b") == 1)
        assert state() == (1, 1, 0)
        made.wire.pass_through()
        assert waiting.number == 2
        made.turns.until(lambda: state() == (0, 0, 0))
        assert shown(metrics).value("callers_waiting", tag="b") == 0


def test_redis_that_is_back_shows_though_nobody_draws_from_the_tag_any_more(made: World, measured: Measured) -> None:
    with measured() as (ids, metrics):
        ids.create("a", step=100, order="strict")
        ids.next("a")
        made.wire.refuse()
        assert made.draws(ids, "a", 1.0).error.tag == "a"
        assert shown(metrics).value("redis_silent") == 1
        made.wire.pass_through()
        made.turns.until(lambda: shown(metrics).value("redis_silent") == 0)


def test_a_store_that_is_away_shows_while_it_lasts(made: World, measured: Measured) -> None:
    with measured(store_timeout=0.1, timeout=3.0) as (ids, metrics):
        ids.create("a", step=100)
        ids.next("a")
        assert shown(metrics).value("store_silent") == 0
        made.store.hang()
        ids.take("a", 50)
        made.turns.until(lambda: shown(metrics).value("store_silent") == 1)
        made.store.resume()
        made.turns.until(lambda: shown(metrics).value("store_silent") == 0)


def test_nothing_is_asked_of_a_server_for_an_exposition(made: World, measured: Measured) -> None:
    with measured(scheduler=None) as (ids, metrics):
        ids.create("a", step=100, order="trend", lease=10)
        ids.take("a", 25)
        made.wire.refuse()
        made.store.hang()
        began = made.now
        assert shown(metrics).value("issued_total", tag="a") == 25
        assert made.now == began
