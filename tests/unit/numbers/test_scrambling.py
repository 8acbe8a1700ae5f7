"""Scrambled numbers keep their digits and never repeat, also when keys and limits are changed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument, NotDecodable, SchemeError
from issuer.numbers.scrambling import Piece, Scrambling, fingerprint, may_begin
from issuer.persistence.records import HIGHEST
from tests.unit.refusals import refused

KEYS = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210", "k3": bytes(range(32))}


def piece(start: int, key: str = "k1", limit: int = HIGHEST) -> Piece:
    return Piece(start, key, fingerprint(KEYS[key]), limit)


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


class TestRotation:
    def test_it_is_the_first_number_with_more_digits_or_the_next_where_nothing_was_scrambled(self) -> None:
        for most, begins in ((0, 1), (1, 10), (9, 10), (10, 100), (99, 100), (999_999, 10**6)):
            assert may_begin(most) == Scrambling([piece(1)], KEYS).may_begin(most) == begins, most
        assert Scrambling([piece(1000)], KEYS).may_begin(150) == 151


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
        refused(SchemeError, "another one", Scrambling, pieces, {"k1": KEYS["k3"]}, reading=True)

    def test_another_key_under_the_name_is_refused_without_showing_it(self) -> None:
        error = refused(SchemeError, "another one", Scrambling, [piece(1)], {"k1": KEYS["k2"]})
        assert KEYS["k2"].decode() not in str(error)


class TestRefusals:
    def test_pieces_that_make_no_sense_are_refused(self) -> None:
        for pieces in (
            [],
            [piece(0)],
            [piece(10, limit=9)],
            [piece(1), piece(1)],
            [piece(100), piece(10)],
            [piece(1, limit=99), piece(1000)],
            [piece(1, limit=HIGHEST + 1)],
        ):
            assert refused(SchemeError, "", Scrambling, pieces, KEYS).setting == "scramble"

    def test_numbers_above_the_limit_are_refused(self) -> None:
        scrambling = Scrambling([piece(1, limit=777)], KEYS)
        assert scrambling.highest == 777
        refused(InvalidArgument, "", scrambling.scramble, 778)
        refused(NotDecodable, "", scrambling.unscramble, 778)
