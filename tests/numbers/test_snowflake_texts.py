"""Texts that show the parts of a snowflake number: each is read back, none belongs to two numbers."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from issuer.errors import NotDecodable, SchemeError
from issuer.numbers.codec import Scheme
from issuer.numbers.dates import TIMES
from issuer.numbers.given import changed
from issuer.strategies import Layout, Parts
from tests.colours import BOTH
from tests.numbers.test_scheme import DAY, KEYS, make, record
from tests.refusals import refused
from tests.schemes import Make

LAYOUT = Layout()

#: 2026-11-21 09:30:05.042 in UTC.
AT = round(datetime(2026, 11, 21, 9, 30, 5, 42_000, UTC).timestamp() * 1000)

#: In Vienna, 02:30 comes twice on 2026-10-25: first at 00:30 in UTC, then at 01:30.
TWICE = [round(datetime(2026, 10, 25, hour, 30, tzinfo=UTC).timestamp() * 1000) for hour in (0, 1)]

#: Local times, without a zone: some days before the first number of the layout, and after the last one.
START, END = (datetime.fromisoformat(each) for each in ("2019-12-30", "2089-09-08"))

PLAIN = "{date:%Y%m%d%H%M%S%L}-{machine:04d}-{sequence:04d}"


def texts(format: str, timezone: str = "UTC", layout: Layout = LAYOUT) -> Scheme:
    scheme = make(strategy="snowflake", format=format, timezone=timezone)
    return Scheme(record(scheme), KEYS, packing=layout)


@pytest.mark.parametrize(
    ("format", "timezone", "text"),
    [
        (PLAIN, "UTC", "20261121093005042-0005-0017"),
        ("{date:%Y%m%d%H%M%S%L%z}-{machine}-{sequence}", "Europe/Vienna", "20261121103005042+0100-5-17"),
        ("{date:%Y-%m-%dT%H:%M:%S.%L%z}/{machine}/{sequence}", "America/St_Johns", "2026-11-21T06:00:05.042-0330/5/17"),
        ("{machine:2X}{sequence:2b36}{date:%y%j%H%M%S%L}{check:mod97}", "UTC", "050H2632509300504269"),
        ("{date:%G-W%V-%u %H%M%S%L} {sequence:04d}{machine:04d}{check}", "UTC", "2026-W47-6 093005042 001700053"),
        ("{date:%y%m%d}-{seq}", "Asia/Tokyo", "261121-{value}"),
        ("{date:%Y%m%d%H%M}-{seq}-{machine}", "Asia/Tokyo", "202611211830-{value}-5"),
    ],
)
def test_a_text_shows_the_parts_of_the_number_and_not_the_present(format: str, timezone: str, text: str) -> None:
    value = LAYOUT.compose(AT, 5, 17)
    scheme, text = texts(format, timezone), text.replace("{value}", str(value))
    assert scheme.text_of(value, today=DAY.replace(year=2031)) == text
    found = scheme.parse(text)
    assert (found.value, found.date) == (value, DAY)


@st.composite
def formats(draw: st.DrawFn) -> str:
    day = draw(st.sampled_from(["%Y%m%d", "%y%m%d", "%Y%j", "%y%j", "%G%V%u", "%Y-%m-%d %u", "%Y%m%d %y"]))
    clock = "".join(draw(st.permutations(["%H", "%M", "%S", "%L", "%z"])))
    numbers = [
        f"{{{name}:{draw(st.sampled_from(['', 'b36', '20d', '13b62', 'X']))}}}" for name in ("machine", "sequence")
    ]
    fields = draw(st.permutations([f"{{date:{day}}}", f"{{date:{clock}}}", *numbers]))
    return draw(st.sampled_from(["-", "/"])).join(fields) + draw(st.sampled_from(["", "{check:mod97}"]))


class TestInverse:
    @pytest.mark.covers("U.7")
    @given(
        formats(),
        st.sampled_from(["UTC", "Europe/Vienna", "Asia/Kathmandu", "Pacific/Marquesas", "America/New_York"]),
        st.lists(
            st.tuples(st.integers(LAYOUT.epoch, LAYOUT.ends - 1), st.integers(0, 1023), st.integers(0, 4095)),
            min_size=2,
            max_size=2,
        ),
    )
    @example("{date:%Y%m%d%H%M%S%L%z}/{machine}/{sequence}", "Europe/Vienna", [(at, 5, 17) for at in TWICE])
    def test_whatever_is_shown_is_read_back(self, format: str, zone: str, parts: list[tuple[int, int, int]]) -> None:
        scheme, shown = texts(format, zone), dict[str, int]()
        for timestamp, machine, sequence in parts:
            value = LAYOUT.compose(timestamp, machine, sequence)
            if not value:
                continue
            text = scheme.text_of(value, today=DAY)
            found = scheme.parse(text)
            assert found.value == value
            moment = datetime.fromtimestamp(timestamp // 1000, UTC).astimezone(ZoneInfo(zone))
            assert found.date == moment.date()
            assert shown.setdefault(text, value) == value

    @given(
        st.datetimes(START, END),
        st.sampled_from("+-"),
        st.integers(0, 25),
        st.integers(0, 61),
    )
    @example(START.replace(year=1), "+", 23, 59)
    @example(END.replace(year=9999), "-", 23, 59)
    @example(START.replace(year=2026), "-", 0, 0)
    def test_what_is_read_is_the_moment_of_the_text(self, at: datetime, sign: str, hours: int, minutes: int) -> None:
        scheme = texts(PLAIN.replace("%L", "%L%z"))
        ms, offset = at.microsecond // 1000, f"{sign}{hours:02}{minutes:02}"
        shown = f"{at.year:04}{at:%m%d%H%M%S}"
        try:
            value = scheme.parse(f"{shown}{ms:03}{offset}-0005-0017").value
        except NotDecodable:
            assert at.year < 2021 or at.year > 2088 or hours > 23 or minutes > 59 or offset == "-0000"
        else:
            moment = datetime.strptime(f"{shown}{offset}", "%Y%m%d%H%M%S%z")
            assert LAYOUT.decompose(value) == Parts(round(moment.timestamp()) * 1000 + ms, 5, 5, 0, 17)

    def test_other_texts_are_none_of_the_tag(self) -> None:
        scheme = texts("{date:%Y%m%d%H%M%S%L%z}-{machine}-{sequence:04d}")
        good = "20261121093005042+0000-5-0017"
        assert scheme.parse(good).value == LAYOUT.compose(AT, 5, 17)
        wrong = [
            *("20261321093005042+0000-5-0017", "20260230093005042+0000-5-0017", "20261121243005042+0000-5-0017"),
            *("20261121096005042+0000-5-0017", "20261121093060042+0000-5-0017", "20261121093005042+2400-5-0017"),
            *("20261121093005042-0000-5-0017", "20261121093005042+0060-5-0017", "20261121093005042 0000-5-0017"),
            *("20101121093005042+0000-5-0017", "21261121093005042+0000-5-0017", "20261121093005042+0000-1024-0017"),
            *("20261121093005042+0000-5-4096", "20261121093005042+0000-05-0017", "20261121093005042+0000-5-00017", "x"),
        ]
        for text in wrong:
            assert refused(NotDecodable, "", scheme.parse, text).value == text
        refused(
            NotDecodable, "two different dates", texts("{date:%H}-" + PLAIN).parse, "10-20261121093005042-0005-0017"
        )
        refused(NotDecodable, "contradict", texts(PLAIN.replace("%d", "%d%u")).parse, "202611211093005042-0005-0017")


#: What lacks in formats of a snowflake tag, by what the error names.
LACKING = {
    "add {sequence}; or": ["{date:%Y%m%d%H%M%S%L}-{machine}"],
    "add {machine}; or": ["{date:%Y%m%d%H%M%S%L}-{sequence}"],
    "add %L; or": ["{date:%Y%m%d%H%M%S}-{machine}-{sequence}"],
    "add %H, %S; or": ["{date:%Y%m%d%M%L}-{machine}-{sequence}"],
    "add %M; or": ["{date:%y%j%H%S%L}-{machine}-{sequence}"],
    "add a day such as %Y%m%d; or": [
        f"{{date:{day}%H%M%S%L}}-{{machine}}-{{sequence}}" for day in ("", "%m%d", "%Y%V")
    ],
    "add {machine}, {sequence}, a day such as %Y%m%d, %M, %S, %L; or": ["{date:%H}"],
}


class TestRefusals:
    def test_a_format_that_does_not_determine_the_number_names_what_it_lacks(self) -> None:
        for says, formats in LACKING.items():
            for format in formats:
                error = refused(SchemeError, re.escape(f"does not determine the number: {says}"), texts, format)
                assert (error.setting, error.value) == ("format", format)
                texts(format + "-{seq}")

    def test_a_local_time_that_can_come_twice_needs_its_offset(self) -> None:
        says = re.escape("add %z (when clocks in Europe/Vienna go back, an hour comes twice); or add {seq}")
        refused(SchemeError, says, texts, PLAIN, "Europe/Vienna")
        texts(PLAIN + "-{seq}", "Europe/Vienna")
        before = record(make(strategy="snowflake", format=PLAIN))
        change: dict[str, Any] = {"timezone": "Europe/Vienna"}
        refused(SchemeError, says, changed, before, change, limit=None, keys=KEYS)
        changed(before, {**change, "format": PLAIN.replace("%L", "%L%z")}, limit=None, keys=KEYS)

    @pytest.mark.parametrize(
        "others",
        [{}, {"strategy": "mine"}, {"shards": True}, {"stride": 2, "offset": 1}, {"keyed": True}, {"restart": "daily"}],
    )
    def test_only_snowflake_tags_have_these_fields(self, others: dict[str, Any]) -> None:
        key = "{key}/" if "keyed" in others else ""
        for field in ("machine", "sequence", *TIMES):
            shown = f"{{date:{field}}}" if field in TIMES else f"{{{field}}}"
            for format in (f"{key}{{date:%Y%m%d}}-{{seq}}-{shown}", f"{key}{{date:%Y%m%d}}-{shown}"):
                order = "strict" if "restart" in others else "trend"
                says = f"contains {field}, which only a tag with the strategy snowflake has"
                error = refused(SchemeError, says, make, order=order, format=format, **others)
                assert error.setting == "format"

    def test_digits_that_check_come_behind_what_they_check(self) -> None:
        parts = ("{date:%Y%m%d%H%M%S%L}", "{machine}", "{sequence}")
        refused(SchemeError, "after {machine} and {sequence}", texts, "{}-{}{{check}}-{}".format(*parts))
        refused(SchemeError, "{machine} twice", texts, "-".join((*parts, "{machine}")))
        refused(SchemeError, "ambiguous", texts, "".join(parts))


@BOTH
def test_an_issuer_shows_and_reads_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("issuer.operations.numbers.now_ms", lambda: AT + 10**11)  # the wall clock of another year
    ids = make()
    ids.create("events", strategy="snowflake", format=PLAIN)
    numbers = []
    for _ in range(3):
        issued = ids.issue("events")
        found = ids.decode("events", issued.text)
        assert replace(found, date=None) == ids.decode("events", issued.value)
        assert found.fields is not None
        at = datetime.fromtimestamp(found.fields["timestamp"] // 1000, UTC)
        assert issued.text.startswith(f"{at:%Y%m%d%H%M%S}{found.fields['timestamp'] % 1000:03d}-")
        numbers.append(issued.text)
    assert numbers == sorted(set(numbers))
    refused(NotDecodable, "not a text of tag 'events'", ids.decode, "events", "20261121093005042-1024-0000")
    refused(SchemeError, "does not determine", ids.configure, "events", format="{date:%Y}-{machine}")
    ids.configure("events", format="{date:%Y}-{machine}-{seq}")
    ids = make()
    text = ids.issue("events").text
    assert ids.decode("events", text).value == int(text.rpartition("-")[2])
