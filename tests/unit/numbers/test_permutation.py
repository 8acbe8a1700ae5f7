"""The keyed permutation: a bijection of every range, that shows nothing of the order."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument
from issuer.numbers.permutation import Permutation
from issuer.persistence.records import HIGHEST
from tests.unit.refusals import refused

KEYS = (b"0123456789abcdef", b"k" * 16, bytes(range(64)))

#: Of 100 bins, 99 degrees of freedom: a fair one exceeds it once in 10^7. Keys are fixed, so there is no luck in it.
CHI_SQUARE_MOST = 185.0
BINS = 100
SAMPLES = 10_000


def chi_square(values: Sequence[int], size: int) -> float:
    """How far values in 0..size-1 are from being spread evenly over the bins."""
    borders = [size * n // BINS for n in range(BINS)]
    found = [0] * BINS
    for value in values:
        found[bisect_right(borders, value) - 1] += 1
    expected = len(values) / BINS
    return sum((count - expected) ** 2 / expected for count in found)


class TestBijection:
    @pytest.mark.covers("U.8", "3.3")
    @pytest.mark.parametrize("key", KEYS)
    def test_every_small_range_goes_onto_itself(self, key: bytes) -> None:
        for size in [*range(1, 131), 255, 256, 257, 300]:
            low = size * 7 % 50
            permutation = Permutation(key, low, low + size - 1)
            numbers = range(low, low + size)
            there = [permutation.forward(number) for number in numbers]
            assert sorted(there) == list(numbers)
            assert [permutation.backward(number) for number in there] == list(numbers)

    @given(st.binary(min_size=1, max_size=80), st.integers(0, HIGHEST), st.integers(0, HIGHEST), st.data())
    def test_it_is_undone_with_the_key(self, key: bytes, one: int, other: int, data: st.DataObject) -> None:
        low, high = sorted((one, other))
        number = data.draw(st.integers(low, high))
        permutation = Permutation(key, low, high)
        shown = permutation.forward(number)
        assert low <= shown <= high
        assert permutation.backward(shown) == number
        assert permutation.forward(permutation.backward(number)) == number

    def test_what_a_number_comes_to_never_changes(self) -> None:
        # Another mapping in a later version would repeat the numbers that were given with this one.
        permutation = Permutation(KEYS[0], 0, HIGHEST)
        assert [permutation.forward(number) for number in (0, 1, HIGHEST)] == [
            3_065_920_866_755_228_148,
            1_406_109_035_011_002_684,
            4_331_219_300_642_769_772,
        ]


class TestNothingShows:
    @pytest.mark.covers("3.3", "4.2")
    @pytest.mark.parametrize(
        ("key", "low", "high"),
        [(KEYS[0], 10**17, 10**18 - 1), (KEYS[1], 1, HIGHEST), (KEYS[2], 10**8, 10**9 - 1)],
    )
    def test_neighbours_land_anywhere_and_at_any_distance(self, key: bytes, low: int, high: int) -> None:
        size = high - low + 1
        permutation = Permutation(key, low, high)
        there = [permutation.forward(low + n) - low for n in range(SAMPLES)]
        distances = [(after - before) % size for before, after in pairwise(there)]
        assert chi_square(there, size) < CHI_SQUARE_MOST
        assert chi_square(distances, size) < CHI_SQUARE_MOST
        assert chi_square([value % BINS for value in there], BINS) < CHI_SQUARE_MOST
        assert len(set(distances)) > SAMPLES - 10
        assert gcd(*distances) == 1

    def test_the_measure_would_see_a_shifted_counter(self) -> None:
        size = 10**9
        for factor in (1, 2**14, 48_271):
            there = [factor * n % size for n in range(SAMPLES)]
            distances = [(after - before) % size for before, after in pairwise(there)]
            assert chi_square(distances, size) > CHI_SQUARE_MOST

    @pytest.mark.covers("0.14", "4.2")
    @pytest.mark.parametrize("apart", [1, 10, 1000])
    def test_the_distance_of_two_numbers_says_nothing_of_how_many_lie_between(self, apart: int) -> None:
        low, high = 10**11, 10**12 - 1
        size = high - low + 1
        permutation = Permutation(KEYS[0], low, high)
        there = [permutation.forward(low + n) for n in range(SAMPLES + apart)]
        distances = [(after - before) % size for before, after in zip(there, there[apart:], strict=False)]
        assert chi_square(distances, size) < CHI_SQUARE_MOST
        rising = sum(after > before for before, after in zip(there, there[apart:], strict=False))
        assert 0.48 < rising / SAMPLES < 0.52

    def test_a_key_that_differs_in_one_bit_or_another_range_gives_another_order(self) -> None:
        low, high = 10**11, 10**12 - 1
        one, other = Permutation(bytes(16), low, high), Permutation(bytes(15) + b"\x01", low, high)
        numbers = range(low, low + 2000)
        assert sum(one.forward(number) == other.forward(number) for number in numbers) < 3
        distances = [(one.forward(number) - other.forward(number)) % (high - low + 1) for number in numbers]
        assert chi_square(distances, high - low + 1) < CHI_SQUARE_MOST
        longer = Permutation(bytes(16), low, high + 1)
        assert sum(one.forward(number) == longer.forward(number) for number in numbers) < 3


class TestRefusals:
    def test_what_is_no_range_or_no_key_or_lies_outside_is_refused(self) -> None:
        for low, high in ((1, 0), (-1, 5), (0, HIGHEST + 1)):
            refused(InvalidArgument, "", Permutation, KEYS[0], low, high)
        refused(InvalidArgument, "", Permutation, b"", 0, 9)
        permutation = Permutation(KEYS[0], 10, 20)
        for number in (9, 21, -1, HIGHEST):
            for way in (permutation.forward, permutation.backward):
                assert refused(InvalidArgument, "", way, number).value == number
