"""The keyed permutation shows nothing of the order; scrambled numbers keep their digits and never repeat."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import product
from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument, NotDecodable, SchemeError
from issuer.numbers.permutation import Permutation
from issuer.numbers.scrambling import KeySpan, Scrambling, fingerprint
from issuer_persistence.records import HIGHEST
from tests.refusals import refused

SECRETS = (b"0123456789abcdef", b"k" * 16, bytes(range(64)))

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


@pytest.mark.covers("U.8", "3.3")
def test_every_small_range_goes_onto_itself() -> None:
    for key, size in product(SECRETS, [*range(1, 131), 255, 256, 257, 300]):
        low = size * 7 % 50
        permutation = Permutation(key, low, low + size - 1)
        numbers = range(low, low + size)
        there = [permutation.forward(number) for number in numbers]
        assert sorted(there) == list(numbers)
        assert [permutation.backward(number) for number in there] == list(numbers)


class TestNothingShows:
    @pytest.mark.covers("0.14", "3.3", "4.2")
    def test_numbers_land_anywhere_and_at_any_distance_however_many_lie_between(self) -> None:
        ranges = [(SECRETS[0], 10**17, 10**18 - 1), (SECRETS[1], 1, HIGHEST), (SECRETS[2], 10**8, 10**9 - 1)]
        for key, low, high in ranges:
            size = high - low + 1
            permutation = Permutation(key, low, high)
            there = [permutation.forward(low + n) - low for n in range(SAMPLES + 1000)]
            assert chi_square(there[:SAMPLES], size) < CHI_SQUARE_MOST
            assert chi_square([value % BINS for value in there[:SAMPLES]], BINS) < CHI_SQUARE_MOST
            for apart in (1, 10, 1000):
                pairs = list(zip(there[:SAMPLES], there[apart:], strict=False))
                distances = [(after - before) % size for before, after in pairs]
                assert chi_square(distances, size) < CHI_SQUARE_MOST
                assert len(set(distances)) > SAMPLES - 10
                assert gcd(*distances) == 1
                assert 0.48 < sum(after > before for before, after in pairs) / SAMPLES < 0.52

    def test_a_key_that_differs_in_one_bit_or_another_range_gives_another_order(self) -> None:
        low, high = 10**11, 10**12 - 1
        one, other = Permutation(bytes(16), low, high), Permutation(bytes(15) + b"\x01", low, high)
        numbers = range(low, low + 2000)
        assert sum(one.forward(number) == other.forward(number) for number in numbers) < 3
        distances = [(one.forward(number) - other.forward(number)) % (high - low + 1) for number in numbers]
        assert chi_square(distances, high - low + 1) < CHI_SQUARE_MOST
        longer = Permutation(bytes(16), low, high + 1)
        assert sum(one.forward(number) == longer.forward(number) for number in numbers) < 3


def test_what_is_no_range_or_no_key_or_lies_outside_is_refused() -> None:
    for low, high in ((1, 0), (-1, 5), (0, HIGHEST + 1)):
        refused(InvalidArgument, "", Permutation, SECRETS[0], low, high)
    refused(InvalidArgument, "", Permutation, b"", 0, 9)
    permutation = Permutation(SECRETS[0], 10, 20)
    for number in (9, 21, -1, HIGHEST):
        for way in (permutation.forward, permutation.backward):
            assert refused(InvalidArgument, "", way, number).value == number


KEYS = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210", "k3": bytes(range(32))}


def piece(start: int, key: str = "k1", limit: int = HIGHEST) -> KeySpan:
    return KeySpan(start, key, fingerprint(KEYS[key]), limit)


class TestDigits:
    @pytest.mark.covers("U.8", "3.3")
    @pytest.mark.parametrize("limit", [1, 9, 10, 777, 12_345])
    def test_all_numbers_up_to_the_limit_go_onto_themselves_with_as_many_digits(self, limit: int) -> None:
        scrambling = Scrambling([piece(1, limit=limit)], KEYS)
        there = [scrambling.scramble(number) for number in range(1, limit + 1)]
        assert sorted(there) == list(range(1, limit + 1))
        assert all(len(str(number)) == len(str(shown)) for number, shown in enumerate(there, 1))
        assert [scrambling.unscramble(shown) for shown in there] == list(range(1, limit + 1))

    def test_numbers_below_the_first_key_stay_as_they_are(self) -> None:
        for start in (1, 5, 10, 100, 471, 999, 1000):
            scrambling = Scrambling([piece(start)], KEYS)
            there = [scrambling.scramble(number) for number in range(1, 2000)]
            assert there[: start - 1] == list(range(1, start)), start
            assert len({*there} & {*range(1, 1000)}) == 999
            assert min(there[999:]) >= 1000

    @given(st.integers(1, HIGHEST), st.integers(1, HIGHEST), st.sampled_from(sorted(KEYS)))
    def test_it_is_undone_with_the_key(self, number: int, limit: int, key: str) -> None:
        number, limit = sorted((number, limit))
        scrambling = Scrambling([piece(1, key, limit)], KEYS)
        shown = scrambling.scramble(number)
        assert len(str(shown)) == len(str(number))
        assert 1 <= shown <= limit
        assert scrambling.unscramble(shown) == number

    def test_what_a_number_comes_to_never_changes(self) -> None:
        numbers = (1, 2, 3, 10, 11, 100, 1000, 1001, 123_456, 10**17, HIGHEST)
        scrambling = Scrambling([piece(1)], KEYS)
        assert [scrambling.scramble(number) for number in numbers] == [
            *(5, 8, 6, 97, 56, 583, 9754, 6772, 941_392),
            *(814_472_461_950_920_063, 4_250_284_728_056_461_343),
        ]
        assert fingerprint(KEYS["k1"]) == "c7f75b1dc278eb2f"


class TestKeys:
    def test_what_is_no_key_is_refused_by_the_name_of_the_setting_and_not_shown(self) -> None:
        for key in (b"", b"0123456789abcde"):
            error = refused(SchemeError, r"^keys: key 'k1' is too short", Scrambling, [piece(1)], {"k1": key})
            assert (error.setting, error.value) == ("keys", "k1")
        error = refused(SchemeError, "^keys: key 'k1' must be bytes", Scrambling, [piece(1)], {"k1": "abcdefgh" * 3})
        assert "abcdefgh" not in str(error)

    def test_a_key_that_this_process_lacks_is_refused(self) -> None:
        both = [piece(1), piece(100, "k2")]
        refused(SchemeError, "no key 'k2', only k1: add it", Scrambling, both, {"k1": KEYS["k1"]})
        refused(SchemeError, "no key 'k1', none at all: add it", Scrambling, [piece(1)], {})

    def test_who_only_reads_needs_the_keys_of_what_is_read(self) -> None:
        pieces = [piece(1), piece(100, "k2")]
        both, reading = Scrambling(pieces, KEYS), Scrambling(pieces, {"k1": KEYS["k1"]}, reading=True)
        assert [reading.unscramble(both.scramble(number)) for number in range(1, 100)] == [*range(1, 100)]
        for number in (100, 5000):
            refused(SchemeError, "no key 'k2'", reading.unscramble, both.scramble(number))
        refused(SchemeError, "key 'k1' differs", Scrambling, pieces, {"k1": KEYS["k3"]}, reading=True)


class TestPieces:
    def test_pieces_that_make_no_sense_are_refused(self) -> None:
        alone = [[], [piece(0)], [piece(10, limit=9)], [piece(1, limit=HIGHEST + 1)]]
        for pieces in (*alone, [piece(1)] * 2, [piece(100), piece(10)], [piece(1, limit=99), piece(1000)]):
            assert refused(SchemeError, "", Scrambling, pieces, KEYS).setting == "scramble"

    def test_numbers_above_the_limit_are_refused(self) -> None:
        scrambling = Scrambling([piece(1, limit=777)], KEYS)
        assert scrambling.highest == 777
        refused(InvalidArgument, "", scrambling.scramble, 778)
        refused(NotDecodable, "", scrambling.unscramble, 778)
