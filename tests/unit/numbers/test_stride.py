"""Interleaved series: each site its own residue class, also while strides are changed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import NotDecodable, SchemeError
from issuer.numbers.stride import Piece, Strides, changed
from persistence.records import HIGHEST
from tests.unit.refusals import refused

CHANGES = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))),
    min_size=1,
    max_size=5,
)


class Site:
    """A store that shares nothing, and what was given from it."""

    def __init__(self, stride: int, offset: int, pieces: tuple[Piece, ...] | None = None) -> None:
        self.pieces = changed((), 0, stride, offset) if pieces is None else pieces
        self.counter = 0
        self.given: list[int] = []

    def give(self, n: int) -> list[int]:
        strides = Strides(self.pieces)
        fresh = [strides.value(self.counter + k) for k in range(1, n + 1)]
        self.counter += n
        self.given += fresh
        return fresh

    def change(self, stride: int, offset: int, *, above: int | None = None) -> None:
        self.pieces = changed(self.pieces, self.counter, stride, offset, above=above)


class TestSeries:
    @pytest.mark.covers("1.12")
    def test_two_sites_give_the_odd_and_the_even_numbers(self) -> None:
        assert Site(2, 1).give(3) == [1, 3, 5]
        assert Site(2, 2).give(3) == [2, 4, 6]

    @pytest.mark.covers("2.2")
    @given(st.integers(1, 50), st.data(), st.integers(0, 10**6))
    def test_a_series_stays_in_its_residue_class(self, stride: int, data: st.DataObject, taken: int) -> None:
        offset = data.draw(st.integers(1, stride))
        values = [Strides(changed((), taken, stride, offset)).value(taken + n) for n in range(1, 50)]
        assert {value % stride for value in values} == {offset % stride}
        assert {after - before for before, after in pairwise(values)} == {stride}
        assert taken < values[0] <= taken + stride

    @given(CHANGES)
    def test_whatever_strides_follow_each_other_a_site_repeats_nothing_and_decodes_all(
        self, changes: list[tuple[int, tuple[int, int]]]
    ) -> None:
        site = Site(1, 1)
        for n, (stride, offset) in changes:
            site.change(stride, offset)
            assert all(value % stride == offset % stride for value in site.give(n))
        assert site.given == sorted(set(site.given))
        strides = Strides(site.pieces)
        assert [strides.counter(value) for value in site.given] == list(range(1, site.counter + 1))
        assert [strides.value(counter) for counter in range(1, site.counter + 1)] == site.given
        for value in sorted(set(range(1, max(site.given, default=0))) - set(site.given))[:200]:
            refused(NotDecodable, "", strides.counter, value)

    @given(CHANGES, st.integers(1, 3000))
    def test_the_highest_counter_is_the_last_one_within_the_limit(
        self, changes: list[tuple[int, tuple[int, int]]], limit: int
    ) -> None:
        site = Site(1, 1)
        for n, (stride, offset) in changes:
            site.change(stride, offset)
            site.give(n)
        strides = Strides(site.pieces)
        highest = strides.highest(limit)
        assert highest == 0 or strides.value(highest) <= limit < strides.value(highest + 1)
        if highest == 0:
            assert strides.value(1) > limit


class TestWidening:
    @pytest.mark.covers("1.13")
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), max_size=60), st.permutations([0, 1, 2]))
    def test_from_two_sites_to_three_while_all_issue_repeats_nothing(
        self, load: list[tuple[int, int]], order: list[int]
    ) -> None:
        sites = [Site(2, 1), Site(2, 2)]
        for which, n in load:
            if which < 2:
                sites[which].give(n)
        border = max((max(site.given, default=0) for site in sites), default=0) + 500
        third = Site(3, 3, changed((), 0, 3, 3, above=border))
        sites.append(third)
        for which in order:
            if which < 2:
                sites[which].give(7)
                sites[which].change(3, which + 1, above=border)
            for each, n in load[:10]:
                if each == 2 or len(sites[each].pieces) > 1:
                    sites[each].give(n)
        for site in sites:
            site.give(300)
        together = [value for site in sites for value in site.given]
        assert len(together) == len(set(together))

    def test_without_a_common_border_sites_repeat_each_other(self) -> None:
        """The mutation: each site goes over to three strides where it stands."""
        one, two = Site(2, 1), Site(2, 2)
        one.give(50)
        one.change(3, 1)
        assert set(one.give(50)) & set(two.give(100))

    def test_a_site_that_has_passed_the_border_is_refused(self) -> None:
        site = Site(2, 1)
        site.give(100)
        assert refused(SchemeError, "up to 199", site.change, 3, 1, above=198).setting == "stride_above"
        site.change(3, 1, above=199)
        assert site.give(2) == [202, 205]

    def test_counters_that_were_not_reserved_take_the_newest_stride(self) -> None:
        first = changed((), 10, 2, 1)
        assert changed(first, 10, 3, 1) == (Piece(11, 13, 3),)

    def test_what_lies_beyond_64_bits_is_refused(self) -> None:
        refused(SchemeError, "no number above", changed, (), 5, 2, 1, above=HIGHEST)


class TestRefusals:
    def test_a_stride_or_an_offset_out_of_its_range_is_refused(self) -> None:
        for stride in (0, -1, 2.0, True, "2", 2**32 + 1):
            error = refused(SchemeError, "", changed, (), 0, stride, 1)
            assert (error.setting, error.value) == ("stride", stride)
        for offset in (0, 3, -1, True, 1.0, None):
            error = refused(SchemeError, "", changed, (), 0, 2, offset)
            assert (error.setting, error.value) == ("offset", offset)

    def test_pieces_that_would_repeat_are_refused(self) -> None:
        for pieces in (
            [Piece(0, 1, 2)],
            [Piece(10, 9, 2)],
            [Piece(1, HIGHEST + 1, 2)],
            [Piece(1, 1, 2), Piece(1, 100, 2)],
            [Piece(1, 1, 2), Piece(11, 19, 3)],
            [Piece(5, 5, 1), Piece(3, 100, 1)],
        ):
            assert refused(SchemeError, "", Strides, pieces).setting == "stride"
