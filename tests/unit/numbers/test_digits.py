"""Bases are read back as written; check digits tell the mistakes that they promise to tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument, NotDecodable
from issuer.numbers.digits import BASE36, BASE62, CROCKFORD32, DECIMAL, HEXADECIMAL, Base, damm, luhn, mod97, verify
from persistence.records import HIGHEST

BASES = [DECIMAL, HEXADECIMAL, BASE36, BASE62, CROCKFORD32]
DIGITS = st.text("0123456789", min_size=2, max_size=20)


class TestBases:
    @pytest.mark.parametrize("base", BASES, ids=lambda base: str(base.size))
    @given(st.integers(0, HIGHEST), st.integers(1, 20))
    def test_what_is_written_is_read_back(self, base: Base, number: int, width: int) -> None:
        text = base.encode(number, width)
        assert base.decode(text) == number
        assert len(text) == max(width, len(base.encode(number)))
        assert set(text) <= set(base.signs)
        assert number == 0 or not base.encode(number).startswith("0")

    @given(st.integers(0, 2**40), st.integers(0, 2**40))
    def test_texts_of_equal_width_sort_as_their_numbers_do(self, one: int, other: int) -> None:
        for base in BASES:
            assert (base.encode(one, 40) < base.encode(other, 40)) == (one < other)

    @given(st.integers(0, HIGHEST))
    def test_they_agree_with_python(self, number: int) -> None:
        assert DECIMAL.encode(number) == str(number)
        assert HEXADECIMAL.encode(number) == f"{number:X}"
        assert int(BASE36.encode(number), 36) == number

    def test_known_numbers(self) -> None:
        assert BASE36.encode(HIGHEST) == "1Y2P0IJ32E8E7"
        assert BASE62.encode(HIGHEST) == "AzL8n0Y58m7"
        assert CROCKFORD32.encode(HIGHEST) == "7ZZZZZZZZZZZZ"
        assert [base.encode(0) for base in BASES] == ["0"] * 5

    def test_crockford_is_read_as_people_write_it(self) -> None:
        assert CROCKFORD32.decode("1l0oIiLO") == CROCKFORD32.decode("11001110")
        assert CROCKFORD32.decode("abcxyz") == CROCKFORD32.decode("ABCXYZ")

    @pytest.mark.parametrize(("base", "text"), [(DECIMAL, "1A"), (DECIMAL, "٣"), (BASE36, "a"), (BASE62, "-1")])
    def test_other_signs_are_refused(self, base: Base, text: str) -> None:
        with pytest.raises(NotDecodable) as caught:
            base.decode(text)
        assert caught.value.value == text

    @pytest.mark.parametrize("text", ["", "U", "u", " 1", "1-2"])
    def test_crockford_has_no_u_and_no_blanks(self, text: str) -> None:
        with pytest.raises(NotDecodable):
            CROCKFORD32.decode(text)

    def test_numbers_below_zero_are_refused(self) -> None:
        with pytest.raises(InvalidArgument):
            BASE36.encode(-1)


class TestChecks:
    def test_published_numbers(self) -> None:
        assert luhn("7992739871") == "3"
        assert damm("572") == "4"
        assert mod97("5493001KJTIIGC8Y1R") == "12"  # a legal entity identifier
        assert mod97("794") == "44"  # the example of ISO 7064
        assert verify("mod97", "3214282912345698765432161182")  # an IBAN, rearranged

    def test_signs_that_are_no_digits_are_passed_over(self) -> None:
        assert luhn("BIZ-79-9273 9871é") == luhn("7992739871")
        assert damm("5.7.2") == "4"
        assert mod97("5493-001k jtii/GC8Y1R") == "12"

    @pytest.mark.parametrize("check", ["luhn", "damm", "mod97"])
    @given(DIGITS, st.data())
    def test_they_tell_every_single_wrong_digit(self, check: str, text: str, data: st.DataObject) -> None:
        whole = text + {"luhn": luhn, "damm": damm, "mod97": mod97}[check](text)
        assert verify(check, whole)
        place = data.draw(st.integers(0, len(whole) - 1))
        wrong = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != whole[place]]))
        assert not verify(check, whole[:place] + wrong + whole[place + 1 :])

    @pytest.mark.parametrize("check", ["damm", "mod97"])
    @given(DIGITS, st.data())
    def test_they_tell_neighbours_that_changed_places(self, check: str, text: str, data: st.DataObject) -> None:
        whole = text + {"damm": damm, "mod97": mod97}[check](text)
        place = data.draw(st.integers(0, len(text) - 2))
        swapped = whole[:place] + whole[place + 1] + whole[place] + whole[place + 2 :]
        assert verify(check, swapped) == (swapped == whole)

    @given(st.text("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=20), st.data())
    def test_mod97_tells_a_wrong_sign_among_letters(self, text: str, data: st.DataObject) -> None:
        whole = text + mod97(text)
        assert verify("mod97", whole)
        place = data.draw(st.integers(0, len(text) - 1))
        sign = data.draw(st.sampled_from("0123456789" if text[place].isdigit() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        other = whole[:place] + sign + whole[place + 1 :]
        assert verify("mod97", other) == (other == whole)

    def test_a_check_digit_alone_is_no_number(self) -> None:
        assert not verify("luhn", "0")
        assert not verify("mod97", "97")
