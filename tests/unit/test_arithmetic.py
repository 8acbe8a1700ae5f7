"""The sums of the protocol are exact up to 2^63-1, where floats are not."""

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.core.arithmetic import BURST, mark, rate, runway, telling
from persistence.records import HIGHEST, LedgerEntry

TWENTY_PERCENT = Fraction(1, 5)
NEAR_2_53 = range(2**53 - 12, 2**53 + 13)
NEAR_THE_END = range(HIGHEST - 12, HIGHEST + 1)


def expected(low: int, high: int) -> int:
    return low + max(1, ceil((high - low) * TWENTY_PERCENT))


class TestMark:
    @pytest.mark.parametrize(
        ("size", "after"), [(1, 1), (2, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (100, 20), (101, 21), (1000, 200)]
    )
    def test_it_lies_a_fifth_into_the_segment_rounded_up(self, size: int, after: int) -> None:
        assert mark(0, size) == after
        assert mark(4711, 4711 + size) == 4711 + after

    @pytest.mark.parametrize("size", [*range(1, 300), *NEAR_2_53, *NEAR_THE_END])
    def test_it_is_exact_for_every_size(self, size: int) -> None:
        assert mark(0, size) == expected(0, size)

    @pytest.mark.parametrize("low", [*NEAR_2_53, *(end - 1001 for end in NEAR_THE_END)])
    def test_it_is_exact_wherever_the_segment_lies(self, low: int) -> None:
        assert [mark(low, low + size) for size in range(1, 1002)] == [
            expected(low, low + size) for size in range(1, 1002)
        ]

    def test_floats_would_get_it_wrong(self) -> None:
        assert ceil(HIGHEST * 0.2) != mark(0, HIGHEST)

    @given(st.integers(0, HIGHEST - 1), st.data())
    def test_it_is_a_number_of_the_segment(self, low: int, data: st.DataObject) -> None:
        high = data.draw(st.integers(low + 1, HIGHEST))
        assert mark(low, high) == expected(low, high)
        assert low < mark(low, high) <= high


def entry(low: int, high: int, time: int) -> LedgerEntry:
    return LedgerEntry(tag="orders", low=low, high=high, reason="load", time=time)


class TestRate:
    def test_too_few_reservations_tell_nothing(self) -> None:
        assert rate([], 0) is None
        assert rate([entry(0, 1000, 5)], 10) is None

    def test_reservations_in_the_same_millisecond_tell_nothing(self) -> None:
        assert rate([entry(1000, 2000, 5), entry(0, 1000, 5)], 5) is None

    def test_a_clock_that_went_back_tells_nothing(self) -> None:
        assert rate([entry(1000, 2000, 5), entry(0, 1000, 9)], 9) is None

    def test_each_reservation_says_that_the_one_before_was_used_since(self) -> None:
        newest_first = [entry(3000, 9000, 20_000), entry(1000, 3000, 10_000), entry(0, 1000, 0)]
        assert rate(newest_first, 20_000) == pytest.approx(3000 / 20)

    def test_a_pause_no_longer_than_the_average_interval_changes_nothing(self) -> None:
        newest_first = [entry(1000, 2000, 10_000), entry(0, 1000, 0)]
        assert rate(newest_first, 20_000) == rate(newest_first, 10_000) == pytest.approx(100)

    def test_a_longer_pause_counts_as_time_without_use(self) -> None:
        newest_first = [entry(1000, 2000, 10_000), entry(0, 1000, 0)]
        assert rate(newest_first, 30_000) == pytest.approx(1000 / 20)

    @given(st.integers(1, 10**6), st.integers(0, 10**9))
    def test_the_longer_the_pause_the_lower_the_rate(self, interval: int, pause: int) -> None:
        newest_first = [entry(1000, 2000, interval), entry(0, 1000, 0)]
        soon, late = rate(newest_first, interval + pause), rate(newest_first, interval + pause + 1)
        assert soon is not None
        assert late is not None
        assert 0 < late <= soon


class TestRunway:
    def test_it_is_what_is_left_over_the_rate(self) -> None:
        assert runway(1000, 50.0) == pytest.approx(20)
        assert runway(0, 50.0) == 0

    @pytest.mark.parametrize(("left", "per_second"), [(None, 1.0), (1, None), (None, None), (1, 0.0)])
    def test_what_is_unknown_stays_unknown(self, left: int | None, per_second: float | None) -> None:
        assert runway(left, per_second) is None


class TestTelling:
    """Of what few numbers a young tag gave, nobody can tell its rate."""

    @staticmethod
    def reservations(*moments: int, size: int = 10) -> list[LedgerEntry]:
        """Return ledger entries of those times, in ms, the newest first."""
        return [
            LedgerEntry(tag="orders", low=0, high=size, time=moment, host="h", pid=1, reason="load")
            for moment in sorted(moments, reverse=True)
        ]

    def test_two_segments_that_followed_the_first_tell_it_if_they_took_some_seconds(self) -> None:
        assert telling(self.reservations(0, 5, BURST), 10, 100)
        assert not telling(self.reservations(0, 5, BURST - 1), 10, 100)
        assert not telling(self.reservations(0, BURST), 10, 100)
        assert not telling([], 10, 100)

    def test_what_was_handed_back_tells_nothing(self) -> None:
        assert not telling(self.reservations(0, BURST, 2 * BURST, size=3), 10, 100)

    def test_so_many_in_a_row_tell_it_however_fast_they_came(self) -> None:
        assert telling(self.reservations(*range(100)), 10, 100)
        assert not telling(self.reservations(*range(99)), 10, 100)
