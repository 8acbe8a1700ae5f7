"""How fast numbers are given, by a clock that the test moves."""

import json
from functools import partial

import pytest

from issuer.plugins import Call, Chain, Rate, Rates
from tests.clocks import Clock
from tests.surrounding import Faced, drawing
from tests.unit.together import together


@pytest.fixture
def clock() -> Clock:
    return Clock(5000.0)


@pytest.fixture
def rate(clock: Clock) -> Rate:
    return Rate(clock=clock)


def give(rate: Rate, n: int, tag: str = "a") -> None:
    Chain([rate]).around(Call(tag, n), drawing(range(n)))


@pytest.mark.covers("3.41")
def test_it_counts_what_was_given(face: Faced, clock: Clock) -> None:
    rate = Rate(clock=clock)
    face(rate).around(Call("a", 600), drawing(range(600)))
    assert rate.of("a") == Rates(second=600.0, ten_seconds=60.0, minute=10.0, total=600)
    assert json.loads(json.dumps(rate.of("a").content()))["total"] == 600


def test_tags_are_counted_apart(rate: Rate) -> None:
    assert rate.of("a") == Rates(0.0, 0.0, 0.0, 0)
    assert rate.all() == {}
    give(rate, 60, "b")
    give(rate, 120, "a")
    assert {tag: (rates.minute, rates.total) for tag, rates in rate.all().items()} == {"a": (2.0, 120), "b": (1.0, 60)}
    assert list(rate.all()) == ["a", "b"]


def test_numbers_leave_one_window_after_the_other(rate: Rate, clock: Clock) -> None:
    give(rate, 600)
    for moment, seen in {
        0.9: (600.0, 60.0, 10.0),
        1.2: (0.0, 60.0, 10.0),
        9.0: (0.0, 60.0, 10.0),
        11.1: (0.0, 0.0, 10.0),
        59.0: (0.0, 0.0, 10.0),
        61.1: (0.0, 0.0, 0.0),
        10_000.0: (0.0, 0.0, 0.0),
    }.items():
        clock.now = 5000.0 + moment
        assert rate.of("a") == Rates(*seen, total=600), moment


def test_a_steady_rate_is_the_same_over_every_window_and_at_every_moment(rate: Rate, clock: Clock) -> None:
    for tick in range(1, 7001):
        clock.now = 5000.0 + tick / 100  # 100 a second
        give(rate, 1)
        if tick > 6100:
            rates = rate.of("a")
            assert rates.second == pytest.approx(100, abs=2)
            assert rates.ten_seconds == pytest.approx(100, rel=0.02)
            assert rates.minute == pytest.approx(100, rel=0.01)
    assert rate.of("a").total == 7000


def test_a_window_begins_within_a_slice(rate: Rate, clock: Clock) -> None:
    give(rate, 100)  # all in the second from 5000 to 5001
    clock.now = 5010.25
    assert rate.of("a").ten_seconds == pytest.approx(7.5)  # three quarters of that second are less than 10 s old
    clock.now = 5010.75
    assert rate.of("a").ten_seconds == pytest.approx(2.5)


def test_slices_are_used_again_without_what_they_held(rate: Rate, clock: Clock) -> None:
    for round_ in range(200):
        clock.now = 5000.0 + 61 * round_  # the same place of the ring each time
        give(rate, 60)
        assert rate.of("a").minute == pytest.approx(1.0)
    assert rate.of("a").total == 200 * 60


def test_eight_threads_lose_no_count(rate: Rate) -> None:
    chain = Chain([rate])

    def fill(tag: str) -> Rates:
        for _ in range(2000):
            chain.around(Call(tag), drawing((1,)))
        return rate.of("a")

    together(*(partial(fill, "a" if index < 6 else "b") for index in range(8)))
    assert rate.of("a") == Rates(second=12_000.0, ten_seconds=1200.0, minute=200.0, total=12_000)
    assert rate.of("b").total == 4000


def test_it_goes_by_the_monotonic_clock_unless_told_otherwise() -> None:
    rate = Rate()
    give(rate, 10)
    assert rate.of("a").total == 10
    assert 0 < rate.of("a").minute <= 10 / 60
