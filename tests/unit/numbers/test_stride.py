"""Interleaved series: each site its own residue class, also while strides are changed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import NotDecodable, SchemeError
from issuer.numbers.stride import Piece, Strides, changed
from issuer.persistence.records import HIGHEST
from tests.unit.numbers.test_scheme import Issued
from tests.unit.refusals import refused

CLASS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


class TestSeries:
    @pytest.mark.covers("1.12")
    def test_two_sites_give_the_odd_and_the_even_numbers(self) -> None:
        assert Issued(stride=2, offset=1).issue(3) == [1, 3, 5]
        assert Issued(stride=2, offset=2).issue(3) == [2, 4, 6]

    @pytest.mark.covers("2.2")
    @given(st.integers(1, 50), st.data(), st.integers(0, 10**6))
    def test_a_series_stays_in_its_residue_class(self, stride: int, data: st.DataObject, taken: int) -> None:
        offset = data.draw(st.integers(1, stride))
        values = [Strides(changed((), taken, stride, offset)).value(taken + n) for n in range(1, 50)]
        assert {value % stride for value in values} == {offset % stride}
        assert {after - before for before, after in pairwise(values)} == {stride}
        assert taken < values[0] <= taken + stride

    @given(st.lists(st.tuples(st.integers(0, 200), CLASS), min_size=1, max_size=5), st.integers(1, 3000))
    def test_whatever_strides_follow_each_other_what_was_given_decodes_and_nothing_else(
        self, changes: list[tuple[int, tuple[int, int]]], limit: int
    ) -> None:
        pieces: tuple[Piece, ...] = ()
        counter, values = 0, list[int]()
        for n, (stride, offset) in changes:
            pieces = changed(pieces, counter, stride, offset)
            values += [Strides(pieces).value(counter + k) for k in range(1, n + 1)]
            counter += n
        strides = Strides(pieces)
        assert values == sorted(set(values)) == [strides.value(each) for each in range(1, counter + 1)]
        assert [strides.counter(value) for value in values] == list(range(1, counter + 1))
        for value in sorted(set(range(1, max(values, default=0))) - set(values))[:100]:
            refused(NotDecodable, "", strides.counter, value)
        highest = strides.highest(limit)
        assert strides.value(highest + 1) > limit
        assert highest == 0 or strides.value(highest) <= limit


class TestWidening:
    @pytest.mark.covers("1.13")
    @given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), max_size=60), st.permutations([0, 1, 2]))
    def test_from_two_sites_to_three_while_all_issue_repeats_nothing(
        self, load: list[tuple[int, int]], order: list[int]
    ) -> None:
        sites = [Issued(stride=2, offset=1), Issued(stride=2, offset=2)]
        for which, n in load:
            if which < 2:
                sites[which].issue(n)
        border = max(max(site.given.values(), default=0) for site in sites) + 500
        sites.append(Issued(stride=3, offset=3, stride_above=border))
        widened = {2}
        for which in order:
            if which < 2:
                sites[which].issue(7)
                sites[which].change(stride=3, offset=which + 1, stride_above=border)
                widened.add(which)
            for each, n in load[:10]:
                if each in widened:
                    sites[each].issue(n)
        together = [value for site in sites for value in (*site.given.values(), *site.issue(300))]
        assert len(together) == len(set(together))

    def test_a_site_that_has_passed_the_border_is_refused(self) -> None:
        site = Issued(stride=2, offset=1)
        site.issue(100)
        error = refused(SchemeError, "up to 199", site.change, stride=3, offset=1, stride_above=198)
        assert error.setting == "stride_above"
        site.change(stride=3, offset=1, stride_above=199)
        assert site.issue(2) == [202, 205]


class TestRefusals:
    def test_a_stride_or_an_offset_out_of_its_range_is_refused(self) -> None:
        for stride in (0, -1, 2.0, True, "2", 2**32 + 1):
            error = refused(SchemeError, "", changed, (), 0, stride, 1)
            assert (error.setting, error.value) == ("stride", stride)
        for offset in (0, 3, -1, True, 1.0, None):
            error = refused(SchemeError, "", changed, (), 0, 2, offset)
            assert (error.setting, error.value) == ("offset", offset)
        refused(SchemeError, "no number above", changed, (), 5, 2, 1, above=HIGHEST)

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
