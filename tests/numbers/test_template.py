"""Templates: what is formatted is parsed again, what is too wide or could not be told apart is refused."""

import re
from datetime import date, timedelta
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from issuer.errors import FormatOverflow, InvalidArgument, NotDecodable, SchemeError
from issuer.numbers.dates import CODES, tells
from issuer.numbers.template import Parsed, Template
from issuer_persistence.records import HIGHEST
from tests.refusals import refused

DAY = date(2026, 11, 21)
BIZ = "BIZ{date:%y%m%d}-{seq:06d}{check}"
DAYS = st.dates(date(2000, 1, 1), date(2099, 12, 31))


class TestExamples:
    @pytest.mark.covers("U.7")
    def test_a_number_becomes_the_text_and_the_text_the_number(self) -> None:
        for template, text in {
            BIZ: "BIZ261121-0047116",
            "{seq}": "4711",
            "{seq:06d}": "004711",
            "{seq:06X}": "001267",
            "{seq:b36}": "3MV",
            "{seq:8b62}": "000001Dz",
            "{seq:7c32}{check:mod97}": "00004K787",
            "INV-{date:%Y/%j}-{seq:05d}{check:damm}/A": "INV-2026/325-047113/A",
            "{date:%G-W%V-%u}.{seq}": "2026-W47-6.4711",
            "{{{seq}}} 100%": "{4711} 100%",
            "{shard:02d}-{seq}": "07-4711",
            "{key}/{seq}": "site 9/4711",
        }.items():
            compiled = Template(template)
            assert compiled.format(seq=4711, date=DAY, shard=7, key="site 9") == text
            parsed = compiled.parse(text)
            assert parsed.seq == 4711
            assert parsed.shard == (7 if "shard" in compiled.fields else None)
            assert parsed.key == ("site 9" if "key" in compiled.fields else None)

    def test_the_date_is_the_first_day_that_shows_it(self) -> None:
        assert Template("{date:%Y}-{seq}").parse("2026-1").date == date(2026, 1, 1)
        assert Template("{date:%y%m}-{seq}").parse("2611-1").date == date(2026, 11, 1)
        assert Template("{date:%G%V}-{seq}").parse("202647-1").date == date(2026, 11, 16)
        assert Template("{date:%d}-{seq}").parse("21-1") == Parsed(1, None, {"%d": 21})


FIXED = st.sampled_from(["%Y", "%y", "%m", "%d", "%j", "%G", "%V", "%u"]).map(lambda code: f"{{date:{code}}}")
SEQ = st.sampled_from(["", "d", "019d", "20d", "16X", "X", "b36", "13b36", "b62", "11b62", "c32", "13c32"])
TEXT = st.text("AZ09-/.%{} é", max_size=3).map(lambda text: text.replace("{", "{{").replace("}", "}}"))


@st.composite
def templates(draw: st.DrawFn) -> str:
    """Anything that a user may write down, sensible or not."""
    fields = [f"{{seq:{draw(SEQ)}}}"]
    fields += draw(st.lists(FIXED, max_size=4))
    if draw(st.booleans()):
        fields.append(draw(st.sampled_from(["{shard}", "{shard:4d}", "{shard:b62}"])))
    if draw(st.booleans()):
        fields.append("{key}")
    fields = draw(st.permutations(fields))
    checks = draw(st.lists(st.sampled_from(["{check}", "{check:damm}", "{check:mod97}"]), max_size=2))
    return "".join(part for field in (*fields, *checks) for part in (draw(TEXT), field)) + draw(TEXT)


class TestInverse:
    @pytest.mark.covers("U.7")
    @given(
        templates(),
        st.lists(st.tuples(st.integers(0, HIGHEST), DAYS, st.integers(0, 9999)), min_size=2, max_size=2),
        st.text("ab09-/.%{} é", min_size=1, max_size=5),
    )
    @example("{key}A{seq}-{shard}", [(1, DAY, 1), (11, DAY, 1)], "b-1")
    @example("{seq}{date:%y}-{key}", [(1, DAY, 1), (11, DAY, 1)], "26-1")
    @example("{seq}{key}", [(1, DAY, 1), (11, DAY, 1)], "1")
    def test_whatever_a_template_takes_it_gives_back(
        self, text: str, numbers: list[tuple[int, date, int]], key: str
    ) -> None:
        try:
            template = Template(text)
        except SchemeError:
            return
        shown = set()
        for seq, day, shard in numbers:
            try:
                formatted = template.format(seq=seq, date=day, shard=shard, key=key)
            except (FormatOverflow, InvalidArgument):
                continue  # too wide, or a key with the sign that ends it
            parsed = template.parse(formatted)
            assert parsed.seq == seq
            assert parsed.codes == {code: CODES[code].of(day) for code in template.codes}
            assert parsed.shard == (shard if "shard" in template.fields else None)
            assert parsed.key == (key if "key" in template.fields else None)
            if tells(template.codes, "daily"):
                assert parsed.date == day
            shown.add((formatted, seq))
        assert len({formatted for formatted, _ in shown}) == len(shown)

    @given(st.sampled_from([BIZ, "{seq:6b36}{check:mod97}", "{key}-{seq}", "{date:%Y%m%d}{seq:04d}"]), st.data())
    def test_what_is_parsed_is_formatted_to_the_same_text(self, text: str, data: st.DataObject) -> None:
        template = Template(text)
        candidate = data.draw(st.one_of(st.from_regex(template._pattern, fullmatch=True), st.text(max_size=20)))
        try:
            parsed = template.parse(candidate)
        except NotDecodable:
            return
        assert template.format(seq=parsed.seq, date=parsed.date, key=parsed.key) == candidate


class TestOverflow:
    @pytest.mark.covers("U.7")
    def test_a_number_too_wide_is_an_error_and_never_a_longer_text(self) -> None:
        highest = {"06d": 10**6 - 1, "2X": 255, "6b36": 36**6 - 1, "8b62": 62**8 - 1, "7c32": 32**7 - 1, "d": HIGHEST}
        for spec, most in highest.items():
            template = Template(f"A{{seq:{spec}}}")
            assert template.parse(template.format(seq=most)).seq == most, spec
            if most < HIGHEST:
                assert len(template.format(seq=most)) == len(template.format(seq=0)), spec
                assert refused(FormatOverflow, "", template.format, seq=most + 1).value == most + 1

    def test_a_text_of_another_width_does_not_decode(self) -> None:
        for text in ("A0000001", "A00001", "A1000000", "A-00001", "A000001\n", "A00000\u0661"):
            refused(NotDecodable, "", Template("A{seq:06d}").parse, text)
        for text in ("A07", "A" + str(HIGHEST + 1), "A", ""):
            refused(NotDecodable, "", Template("A{seq}").parse, text)

    def test_what_is_no_number_no_key_or_not_given_is_refused(self) -> None:
        for seq in (-1, HIGHEST + 1, 1.0, "1", None):
            refused(InvalidArgument, "", Template("{seq}").format, seq=seq)
        for key in ("", "a-b", "x" * 257, "a\nb", None):
            refused(InvalidArgument, "", Template("{key}-{seq}").format, seq=1, key=key)
        for template in ("{date:%Y}-{seq}", "{shard}-{seq}", "{key}-{seq}"):
            refused(InvalidArgument, "", Template(template).format, seq=1)
        for year in (1999, 2100):  # two digits are for one century
            refused(InvalidArgument, "2000 to 2099", Template(BIZ).format, seq=1, date=date(year, 1, 1))


#: Templates that can't be read back, by what the error says.
REFUSED = {
    "1 to 200": ["", "x" * 201],
    "printable": ["a\n{seq}"],
    "has no {seq}": ["BIZ", "{date:%Y}"],
    "braces": ["{seq", "seq}"],
    "twice": ["{seq}{seq}", "{key}-{seq}-{key}"],
    "unknown field": ["{number}", "{}", "{seq.real}"],
    "!r": ["{seq!r}"],
    "isn't understood": ["{seq:6f}", "{seq:b64}", "{seq:65d}", "{seq:>6d}", "{seq:{shard}}"],
    "contains no part of a date": ["{date:%f}{seq}", "{date}{seq}"],
    "isn't one of": ["{date:%Y%f}{seq}", "{date:%Y%}{seq}"],
    "a key cannot be formatted": ["{key:5}-{seq}"],
    "use one of luhn": ["{seq}{check:crc}"],
    "after {seq}": ["{check}{seq}"],
    "mod97": ["{seq:6b36}{check}", "{seq:6X}{check:damm}"],
    "border between {seq} and {key}": ["{seq}{key}"],
    "border between {key} and {seq}": ["{key}{seq}"],
    "border between {seq} and {shard}": ["{seq}{date:%Y}{shard}", "{seq}12{shard}", "{seq:c32}o{shard}"],
}


def test_they_are_refused_at_once_and_the_field_is_named() -> None:
    for says, templates in REFUSED.items():
        for template in templates:
            error = refused(SchemeError, re.escape(says), Template, template)
            assert (error.setting, error.value) == ("format", template)


class TestDates:
    def test_dates_that_never_were_do_not_decode(self) -> None:
        wrong = {"%Y%m%d": "20260231", "%Y%m": "202613", "%Y%j": "2026366", "%G%V": "202654", "%G%V%u": "2026478"}
        for codes, text in {**wrong, "%Y%m%d%u": "202611217", "%Y": "0000", "%Y%m%d%Y": "202611212025"}.items():
            refused(NotDecodable, "", Template(f"{{date:{codes}}}-{{seq}}").parse, text + "-1")

    @given(DAYS)
    def test_codes_show_what_strftime_shows(self, day: date) -> None:
        for code in CODES:
            assert CODES[code].show(day) == day.strftime(code)


KINDS = ("daily", "weekly", "monthly", "yearly")


def first_days(restart: str) -> list[date]:
    """Return the first day of each period of 28 years, in which the days of the week come round."""
    begins = {"daily": "", "weekly": "Monday", "monthly": "-01 ", "yearly": "-01-01 "}[restart]
    days = [date(2000, 1, 1) + timedelta(days=n) for n in range(28 * 366)]
    return [day for day in days if begins in f"{day:%Y-%m-%d %A}"]


class TestShowsPeriod:
    def test_the_codes_must_tell_the_periods_apart(self) -> None:
        every = ("%Y%m%d", "%y%j", "%G%V%u")
        few = {"%G%V": ["weekly"], "%Y%V": ["yearly"], "%y%m": ["monthly", "yearly"], "%Y": ["yearly"]}
        for codes in (*every, *few, "%m%d", "%j", "%G"):
            template = Template(f"{{date:{codes}}}-{{seq}}")
            telling = KINDS if codes in every else few.get(codes, ())
            assert [each for each in KINDS if tells(template.codes, each)] == [*telling], codes

    @pytest.mark.parametrize("restart", KINDS)
    def test_where_they_do_no_two_periods_look_alike(self, restart: str) -> None:
        days = first_days(restart)
        shown = {code: [CODES[code].of(day) for day in days] for code in CODES}
        telling: list[set[str]] = []
        for count in range(len(CODES) + 1):
            for codes in map(set, combinations(CODES, count)):
                # What tells them apart does so with more codes beside it.
                if tells(codes, restart) and not any(fewer <= codes for fewer in telling):
                    telling.append(codes)
                    assert len(set(zip(*(shown[code] for code in codes), strict=True))) == len(days), codes
        assert telling
