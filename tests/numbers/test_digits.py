"""Bases are read back as written; check digits tell the mistakes that they promise to tell."""

from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument, NotDecodable
from issuer.numbers.digits import (
    BASE36,
    BASE62,
    CHECK_WIDTHS,
    CHECKS,
    CROCKFORD32,
    DECIMAL,
    HEXADECIMAL,
    damm,
    luhn,
    mod97,
)
from issuer_persistence.records import HIGHEST
from tests.refusals import refused

BASES = [DECIMAL, HEXADECIMAL, BASE36, BASE62, CROCKFORD32]
DIGITS = st.text("0123456789", min_size=2, max_size=20)


def verify(check: str, text: str) -> bool:
    """Return whether the text ends with the check digits of the characters before them."""
    width = CHECK_WIDTHS[check]
    return len(text) > width and CHECKS[check](text[:-width]) == text[-width:]


class TestBases:
    @given(st.integers(0, HIGHEST), st.integers(1, 20))
    def test_what_is_written_is_read_back(self, number: int, width: int) -> None:
        for base in BASES:
            text = base.encode(number, width)
            assert base.decode(text) == number
            assert len(text) == max(width, len(base.encode(number)))
            assert set(text) <= set(base.signs)
            assert number == 0 or not base.encode(number).startswith("0")
        assert DECIMAL.encode(number) == str(number)
        assert HEXADECIMAL.encode(number) == f"{number:X}"
        assert int(BASE36.encode(number), 36) == number

    def test_known_numbers(self) -> None:
        assert BASE36.encode(HIGHEST) == "1Y2P0IJ32E8E7"
        assert BASE62.encode(HIGHEST) == "AzL8n0Y58m7"
        assert CROCKFORD32.encode(HIGHEST) == "7ZZZZZZZZZZZZ"
        assert [base.encode(0) for base in BASES] == ["0"] * 5
        assert CROCKFORD32.decode("1l0oIiLOabcxyz") == CROCKFORD32.decode("11001110ABCXYZ")

    def test_other_signs_are_refused_as_are_numbers_below_zero(self) -> None:
        crockford = [(CROCKFORD32, text) for text in ("", "U", "u", " 1", "1-2")]
        for base, text in [(DECIMAL, "1A"), (DECIMAL, "٣"), (BASE36, "a"), (BASE62, "-1"), *crockford]:
            assert refused(NotDecodable, "", base.decode, text).value == text
        refused(InvalidArgument, "below 0", BASE36.encode, -1)


class TestChecks:
    def test_published_numbers(self) -> None:
        assert luhn("7992739871") == "3"
        assert damm("572") == "4"
        assert mod97("5493001KJTIIGC8Y1R") == "12"  # a legal entity identifier
        assert mod97("794") == "44"  # the example of ISO 7064
        assert verify("mod97", "3214282912345698765432161182")  # an IBAN, rearranged
        assert not verify("luhn", "0")  # check digits alone are no number
        assert not verify("mod97", "97")
        # Signs that are no digits are passed over.
        assert luhn("BIZ-79-9273 9871é") == luhn("7992739871")
        assert damm("5.7.2") == "4"
        assert mod97("5493-001k jtii/GC8Y1R") == "12"

    @given(DIGITS, st.data())
    def test_they_tell_every_single_wrong_digit(self, text: str, data: st.DataObject) -> None:
        for check, digits in CHECKS.items():
            whole = text + digits(text)
            assert verify(check, whole)
            place = data.draw(st.integers(0, len(whole) - 1))
            wrong = data.draw(st.sampled_from([digit for digit in "0123456789" if digit != whole[place]]))
            assert not verify(check, whole[:place] + wrong + whole[place + 1 :]), check

    @given(DIGITS, st.data())
    def test_all_but_luhn_tell_neighbours_that_changed_places(self, text: str, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(text) - 2))
        for check in ("damm", "mod97"):
            whole = text + CHECKS[check](text)
            swapped = whole[:place] + whole[place + 1] + whole[place] + whole[place + 2 :]
            assert verify(check, swapped) == (swapped == whole), check

    @given(st.text("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=1, max_size=20), st.data())
    def test_mod97_tells_a_wrong_sign_among_letters(self, text: str, data: st.DataObject) -> None:
        whole = text + mod97(text)
        assert verify("mod97", whole)
        place = data.draw(st.integers(0, len(text) - 1))
        sign = data.draw(st.sampled_from("0123456789" if text[place].isdigit() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        other = whole[:place] + sign + whole[place + 1 :]
        assert verify("mod97", other) == (other == whole)
