"""Rates and runways, from the ledger of reservations."""

import pytest

from issuer.core.arithmetic import BURST, conclusive, rate, rate_at_refill, runway
from issuer_persistence.ledger import LedgerEntry


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
