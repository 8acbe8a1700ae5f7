"""The sums of the protocol are exact up to 2^63-1, where floats are not."""

from fractions import Fraction
from math import ceil
from typing import Any

import pytest

from issuer.core.arithmetic import BURST, conclusive, rate, rate_at_refill, runway
from issuer.core.supply.adapt import fitting
from issuer.core.supply.local_buffer import QUICK, SLOW, share_at_refill, stream_lease, threshold
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.records import DEFAULT_MAX_STEP, DEFAULT_STEP, DEFAULT_TARGET, HIGHEST, LEASE_MOST, Tag

NEAR_2_53 = range(2**53 - 12, 2**53 + 13)


def expected(low: int, high: int, share: str = "0.2") -> int:
    return low + ceil((high - low) * Fraction(share))


class TestMark:
    def test_it_lies_a_fifth_into_the_segment_rounded_up(self) -> None:
        after = {1: 1, 2: 1, 4: 1, 5: 1, 6: 2, 10: 2, 11: 3, 100: 20, 101: 21, 1000: 200}
        assert {size: threshold(4711, 4711 + size) - 4711 for size in after} == after

    def test_it_is_exact_for_every_size_wherever_the_segment_lies(self) -> None:
        near_the_end = range(HIGHEST - 12, HIGHEST + 1)
        for size in (*range(1, 300), *NEAR_2_53, *near_the_end):
            for share in ("0.2", "0.01", "0.333", "0.8", "0.9"):
                assert 0 < threshold(0, size, float(share)) == expected(0, size, share) <= size, size
        for low in (*NEAR_2_53, *(end - 301 for end in near_the_end)):
            for size in range(1, 302):
                assert low < threshold(low, low + size) == expected(low, low + size) <= low + size, (low, size)


def entry(low: int, high: int, time: int) -> LedgerEntry:
    return LedgerEntry(tag="orders", low=low, high=high, reason="load", time=time)


class TestRate:
    def test_too_few_reservations_or_a_clock_that_stood_or_went_back_tell_nothing(self) -> None:
        assert rate([], 0) is None
        assert rate([entry(0, 1000, 5)], 10) is None
        assert rate([entry(1000, 2000, 5), entry(0, 1000, 5)], 5) is None
        assert rate([entry(1000, 2000, 5), entry(0, 1000, 9)], 9) is None

    def test_each_reservation_says_that_the_one_before_was_used_since(self) -> None:
        newest_first = [entry(3000, 9000, 20_000), entry(1000, 3000, 10_000), entry(0, 1000, 0)]
        assert rate(newest_first, 20_000) == pytest.approx(3000 / 20)

    def test_a_pause_longer_than_the_average_interval_counts_as_time_without_use(self) -> None:
        newest_first = [entry(1000, 2000, 10_000), entry(0, 1000, 0)]
        assert rate(newest_first, 20_000) == rate(newest_first, 10_000) == pytest.approx(100)
        assert rate(newest_first, 30_000) == pytest.approx(1000 / 20)


class TestRateAtRefill:
    def test_of_segments_of_one_size_a_whole_one_is_used_in_each_interval(self) -> None:
        newest_first = [entry(2000, 3000, 20_000), entry(1000, 2000, 10_000), entry(0, 1000, 0)]
        assert rate_at_refill(newest_first, 0.2, 30_000) == pytest.approx(100)

    def test_of_a_first_segment_only_the_share_is_used(self) -> None:
        assert rate_at_refill([entry(0, 1000, 0)], 0.2, 10_000) == pytest.approx(20)

    def test_of_a_growing_step_the_share_of_the_new_segment_and_the_rest_of_the_old_one_are_used(self) -> None:
        assert rate_at_refill([entry(1000, 3000, 0), entry(0, 1000, -5000)], 0.2, 10_000) == pytest.approx(120)
        assert rate_at_refill([entry(1000, 3000, 0), entry(0, 1000, -5000)], 0.8, 10_000) == pytest.approx(180)

    def test_without_a_segment_or_with_a_clock_that_went_back_it_is_unknown_and_without_time_it_is_high(self) -> None:
        assert rate_at_refill([], 0.2, 10) is None
        assert rate_at_refill([entry(0, 1000, 11)], 0.2, 10) is None
        assert rate_at_refill([entry(0, 1000, 10)], 0.2, 10) == pytest.approx(200_000)


def record(step: int = 1000, **settings: Any) -> Tag:
    return Tag(tag="a", max=0, step=step, step_mode="auto", created=0, timestamp=0, version="", **settings)


def fitted(step: int, lasts: float, *, proved: bool = True, size: int | None = None, **settings: Any) -> int:
    """Return the step after segments that lasted so many seconds."""
    size = step * settings.get("ahead", 1) if size is None else size
    segments = [entry(size, 2 * size, 0), entry(0, size, 0)]
    return fitting(record(step, **settings), segments, segments if proved else [], round(lasts * 1000))


@pytest.mark.covers("3.17")
def test_a_step_is_doubled_or_halved_within_its_bounds_and_left_alone_between() -> None:
    assert [fitted(8000, DEFAULT_TARGET * share) for share in (0.1, 0.74, 0.76, 1.9, 2.1, 50)] == [
        16_000, 16_000, 8000, 8000, 4000, 4000
    ]  # fmt: skip
    assert fitted(8000, 1, proved=False) == 8000
    assert fitted(8000, 10**6, proved=False) == 4000
    least, most = DEFAULT_STEP, DEFAULT_MAX_STEP
    assert [fitted(least, 10**6), fitted(most, 1), fitted(600_000, 1)] == [least, most, most]
    # Of the step in force no segment was reserved yet: it is not changed again.
    assert [fitted(8000, 0.1, size=4000), fitted(8000, 10**6, size=16_000)] == [8000, 8000]


@pytest.mark.covers("3.17")
def test_a_step_lasts_as_long_and_stays_within_the_bounds_that_the_tag_names() -> None:
    assert [fitted(8000, share * 60, target=60) for share in (0.7, 0.8, 1.9, 2.1)] == [16_000, 8000, 8000, 4000]
    assert [fitted(8000, 1, max_step=9000), fitted(8000, 10**6, min_step=7000)] == [9000, 7000]
    # A changed bound holds at once, also for a step that would stay.
    assert [fitted(8000, DEFAULT_TARGET, max_step=50, min_step=5), fitted(8000, DEFAULT_TARGET, min_step=10**5)] == [
        50, 10**5
    ]  # fmt: skip
    # A segment of two steps lasts twice the outage to survive.
    assert [fitted(8000, share * 2000, survive=2000, ahead=2) for share in (1.4, 1.6)] == [16_000, 8000]


@pytest.mark.covers("U.18")
def test_the_rest_of_a_segment_lasts_for_the_outage_to_survive_if_the_segment_is_large_enough() -> None:
    kept = record(survive=100, refill_at=0.5)
    assert [share_at_refill(kept, 1000, rate) for rate in (None, 0.0, 4.9, 5.0)] == [0.5] * 4
    assert [share_at_refill(kept, 1000, rate) for rate in (7.0, 9.9, 10.0, 10**9)] == pytest.approx(
        [0.3, 0.01, 0.001, 0.001]
    )
    assert share_at_refill(record(refill_at=0.5), 1000, 10**9) == 0.5
    assert threshold(0, 1000, share_at_refill(kept, 1000, 7.0)) == 300


def test_the_runway_is_what_is_left_over_the_rate_if_both_are_known() -> None:
    assert runway(1000, 50.0) == pytest.approx(20)
    assert runway(0, 50.0) == 0
    for left, per_second in ((None, 1.0), (1, None), (None, None), (1, 0.0)):
        assert runway(left, per_second) is None, (left, per_second)


def test_of_what_few_numbers_a_young_tag_gave_nobody_can_tell_its_rate() -> None:
    def told(*moments: int, size: int = 10) -> bool:
        return conclusive([entry(0, size, moment) for moment in sorted(moments, reverse=True)], 10, 100)

    # Two segments that followed the first, if they took some seconds.
    assert told(0, 5, BURST)
    assert not told(0, 5, BURST - 1)
    assert not told(0, BURST)
    assert not told()
    # What was handed back tells nothing; a hundred in a row do, however fast they came.
    assert not told(0, BURST, 2 * BURST, size=3)
    assert told(*range(100))
    assert not told(*range(99))


def test_what_is_used_up_quickly_is_drawn_ahead_in_twice_the_number_within_a_fifth_of_a_segment() -> None:
    moments = (0, QUICK, SLOW, 2 * SLOW)
    assert [stream_lease(8000, lasted, least=1000, segment=100_000) for lasted in moments] == [16_000, 8000, 8000, 4000]
    assert [stream_lease(9000, 0, least=1000, segment=each) for each in (50_000, 1000)] == [10_000, 1000]
    assert stream_lease(LEASE_MOST, 0, least=1000, segment=HIGHEST) == LEASE_MOST
