"""Templates: what is formatted is parsed again, what is too wide or could not be told apart is refused."""

from datetime import date, timedelta
from itertools import combinations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from issuer.errors import FormatOverflow, InvalidArgument, NotDecodable, SchemeError
from issuer.numbers import template as template_module
from issuer.numbers.dates import CODES, tells
from issuer.numbers.template import Parsed, Template
from persistence.records import HIGHEST

DAY = date(2026, 11, 21)
BIZ = "BIZ{date:%y%m%d}-{seq:06d}{check}"
DAYS = st.dates(date(2000, 1, 1), date(2099, 12, 31))


class TestExamples:
    @pytest.mark.covers("U.7")
    @pytest.mark.parametrize(
        ("template", "text"),
        [
            (BIZ, "BIZ261121-0047116"),
            ("{seq}", "4711"),
            ("{seq:d}", "4711"),
            ("{seq:06d}", "004711"),
            ("{seq:6}", "004711"),
            ("{seq:06X}", "001267"),
            ("{seq:b36}", "3MV"),
            ("{seq:6b36}", "0003MV"),
            ("{seq:8b62}", "000001Dz"),
            ("{seq:7c32}", "00004K7"),
            ("{seq:7c32}{check:mod97}", "00004K787"),
            ("INV-{date:%Y/%j}-{seq:05d}{check:damm}/A", "INV-2026/325-047113/A"),
            ("{date:%G-W%V-%u}.{seq}", "2026-W47-6.4711"),
            ("{{{seq}}} 100%", "{4711} 100%"),
            ("{shard:02d}-{seq}", "07-4711"),
            ("{key}/{seq}", "site 9/4711"),
        ],
    )
    def test_a_number_becomes_the_text_and_the_text_the_number(self, template: str, text: str) -> None:
        compiled = Template(template)
        assert compiled.format(seq=4711, date=DAY, shard=7, key="site 9") == text
        parsed = compiled.parse(text)
        assert parsed.seq == 4711
        assert parsed.shard == (7 if "shard" in compiled.fields else None)
        assert parsed.key == ("site 9" if "key" in compiled.fields else None)

    def test_crockford_is_read_as_people_write_it(self) -> None:
        template = Template("C-{seq:7c32}{check:mod97}")
        text = template.format(seq=1_107_296_322)
        assert text == "C-1100022" + text[-2:]
        for written in ("ll00022", "1IOo022", "11ooO22"):
            assert template.parse("C-" + written + text[-2:]).seq == 1_107_296_322

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

    @given(st.integers(0, 999_999), st.integers(0, 15), st.sampled_from("0123456789"))
    def test_a_digit_that_was_copied_wrongly_is_told(self, seq: int, place: int, digit: str) -> None:
        template = Template(BIZ)
        text = template.format(seq=seq, date=DAY)
        wrong = text[:place] + digit + text[place + 1 :]
        if wrong != text:
            with pytest.raises(NotDecodable):
                template.parse(wrong)

    def test_the_date_of_the_last_number_is_not_the_date_of_the_next(self) -> None:
        template = Template(BIZ)
        for n in range(6):
            day = DAY + timedelta(days=n // 2)
            assert template.parse(template.format(seq=n, date=day)).date == day


class TestOverflow:
    @pytest.mark.covers("U.7")
    @pytest.mark.parametrize(
        ("spec", "most"),
        [
            ("06d", 10**6 - 1),
            ("2X", 255),
            ("6b36", 36**6 - 1),
            ("8b62", 62**8 - 1),
            ("7c32", 32**7 - 1),
            ("d", HIGHEST),
        ],
    )
    def test_a_number_too_wide_is_an_error_and_never_a_longer_text(self, spec: str, most: int) -> None:
        template = Template(f"A{{seq:{spec}}}")
        assert template.parse(template.format(seq=most)).seq == most
        if most < HIGHEST:
            assert len(template.format(seq=most)) == len(template.format(seq=0))
            with pytest.raises(FormatOverflow) as caught:
                template.format(seq=most + 1)
            assert caught.value.value == most + 1

    def test_a_text_of_another_width_does_not_decode(self) -> None:
        template = Template("A{seq:06d}")
        for text in ("A0000001", "A00001", "A1000000", "A-00001", "A000001\n", "A00000\u0661"):
            with pytest.raises(NotDecodable):
                template.parse(text)
        for text in ("A07", "A" + str(HIGHEST + 1), "A", ""):
            with pytest.raises(NotDecodable):
                Template("A{seq}").parse(text)

    @pytest.mark.parametrize("seq", [-1, HIGHEST + 1, 1.0, "1", None])
    def test_what_is_no_number_is_refused(self, seq: int) -> None:
        with pytest.raises(InvalidArgument):
            Template("{seq}").format(seq=seq)


class TestRefusedFormats:
    @pytest.mark.parametrize(
        ("template", "names"),
        [
            ("", "1 to 200"),
            ("x" * 201, "1 to 200"),
            ("a\n{seq}", "printable"),
            ("BIZ", "seq"),
            ("{date:%Y}", "seq"),
            ("{seq", "braces"),
            ("seq}", "braces"),
            ("{seq}{seq}", "twice"),
            ("{key}-{seq}-{key}", "twice"),
            ("{number}", "{number}"),
            ("{}", "{}"),
            ("{seq.real}", "{seq.real}"),
            ("{seq!r}", "!r"),
            ("{seq:6f}", "{seq:6f}"),
            ("{seq:b64}", "{seq:b64}"),
            ("{seq:65d}", "64 places"),
            ("{seq:>6d}", "{seq:>6d}"),
            ("{seq:{shard}}", "{seq:{shard}}"),
            ("{date:%H}{seq}", "nothing of a date"),
            ("{date:%Y%H}{seq}", "%H"),
            ("{date:%Y%}{seq}", "%"),
            ("{date}{seq}", "nothing of a date"),
            ("{key:5}-{seq}", "{key:5}"),
            ("{seq}{check:crc}", "{check:crc}"),
            ("{check}{seq}", "after {seq}"),
            ("{seq:6b36}{check}", "mod97"),
            ("{seq:6X}{check:damm}", "mod97"),
            ("{seq}{key}", "where {seq} ends and {key} begins"),
            ("{key}{seq}", "where {key} ends and {seq} begins"),
            ("{seq}{date:%Y}{shard}", "where {seq} ends and {shard} begins"),
            ("{seq}12{shard}", "where {seq} ends and {shard} begins"),
            ("{seq:b36}Z{shard}", "where {seq} ends and {shard} begins"),
            ("{seq:c32}o{shard}", "where {seq} ends and {shard} begins"),
        ],
    )
    def test_they_are_refused_at_once_and_the_field_is_named(self, template: str, names: str) -> None:
        with pytest.raises(SchemeError) as caught:
            Template(template)
        assert names in str(caught.value)
        assert (caught.value.setting, caught.value.value) == ("format", template)

    def test_without_the_check_of_neighbours_two_numbers_have_one_text(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The mutation: 1 in shard 11 looks as 11 in shard 1."""
        monkeypatch.setattr(template_module, "_end", lambda _between, _taken: "")
        template = Template("{seq}{shard}")
        assert template.format(seq=1, shard=11) == template.format(seq=11, shard=1)

    @pytest.mark.parametrize("key", ["", "a-b", "x" * 257, "a\nb", None])
    def test_a_key_that_could_not_be_read_back_is_refused(self, key: str | None) -> None:
        with pytest.raises(InvalidArgument):
            Template("{key}-{seq}").format(seq=1, key=key)

    def test_what_the_template_shows_must_be_given(self) -> None:
        for template in ("{date:%Y}-{seq}", "{shard}-{seq}", "{key}-{seq}"):
            with pytest.raises(InvalidArgument):
                Template(template).format(seq=1)

    @pytest.mark.parametrize("year", [1999, 2100])
    def test_two_digits_of_a_year_are_for_one_century(self, year: int) -> None:
        with pytest.raises(InvalidArgument, match="2000 to 2099"):
            Template(BIZ).format(seq=1, date=date(year, 1, 1))


class TestDates:
    @pytest.mark.parametrize(
        ("codes", "text"),
        [
            ("%Y%m%d", "20260231"),
            ("%Y%m", "202613"),
            ("%Y%j", "2026366"),
            ("%G%V%u", "2026541"),
            ("%G%V%u", "2026478"),
            ("%Y%m%d%u", "202611217"),
            ("%Y", "0000"),
            ("%Y%m%d%Y", "202611212025"),
        ],
    )
    def test_dates_that_never_were_do_not_decode(self, codes: str, text: str) -> None:
        template = Template(f"{{date:{codes}}}-{{seq}}")
        with pytest.raises(NotDecodable):
            template.parse(text + "-1")

    @given(DAYS)
    def test_codes_show_what_strftime_shows(self, day: date) -> None:
        for code in CODES:
            assert CODES[code].show(day) == day.strftime(code)


def of_a_century(code: str, restart: str) -> list[int]:
    """Return what the code shows of the first day of each period."""
    days = [date(2000, 1, 1) + timedelta(days=n) for n in range(36_525)]
    begins = {
        "daily": days,
        "weekly": [day for day in days if day.weekday() == 0],
        "monthly": [day for day in days if day.day == 1],
        "yearly": [day for day in days if day.timetuple().tm_yday == 1],
    }[restart]
    return [CODES[code].of(day) for day in begins]


class TestShowsPeriod:
    @pytest.mark.parametrize(
        ("codes", "periods"),
        [
            ("%Y%m%d", {"daily", "weekly", "monthly", "yearly"}),
            ("%y%j", {"daily", "weekly", "monthly", "yearly"}),
            ("%G%V%u", {"daily", "weekly", "monthly", "yearly"}),
            ("%G%V", {"weekly"}),
            ("%Y%V", {"yearly"}),
            ("%y%m", {"monthly", "yearly"}),
            ("%Y", {"yearly"}),
            ("%m%d", set()),
            ("%j", set()),
            ("%G", set()),
        ],
    )
    def test_the_codes_must_tell_the_periods_apart(self, codes: str, periods: set[str]) -> None:
        template = Template(f"{{date:{codes}}}-{{seq}}")
        assert {each for each in ("daily", "weekly", "monthly", "yearly") if template.shows_period(each)} == periods
        assert not Template("{seq}").shows_period("yearly")

    @pytest.mark.parametrize("restart", ["daily", "weekly", "monthly", "yearly"])
    def test_where_they_do_no_two_periods_of_a_century_look_alike(self, restart: str) -> None:
        shown = {code: of_a_century(code, restart) for code in CODES}
        for count in range(len(CODES) + 1):
            for codes in combinations(CODES, count):
                if tells(codes, restart):
                    days = list(zip(*(shown[code] for code in codes), strict=True))
                    assert len(set(days)) == len(days), codes
