"""Schemes: from the counter to the number and text that users see, and back; changes that touch no number given."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from issuer.core.periods import PERIOD_BITS, Periods
from issuer.errors import FormatOverflow, InvalidArgument, LimitReached, NotDecodable, SchemeError
from issuer.numbers.given import changed, made
from issuer.numbers.scheme import Scheme
from issuer.persistence.records import HIGHEST, Order, Tag
from tests.unit.refusals import refused

KEYS = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210", "k3": bytes(range(32))}
DAY = date(2026, 11, 21)


def record(scheme: dict[str, Any], *, max: int = 0, limit: int = HIGHEST, order: Order = "trend") -> Tag:
    return Tag(tag="a", max=max, step=1, limit=limit, order=order, created=0, timestamp=0, version="", scheme=scheme)


def make(limit: int = HIGHEST, above: int = 0, order: Order = "trend", **said: Any) -> dict[str, Any]:
    return made(said, tag="a", order=order, limit=limit, above=above, lease=None, keys=KEYS)[0]


def ready(scheme: dict[str, Any]) -> Scheme:
    return Scheme.of(record(scheme), KEYS)


class Issued:
    """A tag that issues numbers while its scheme is changed."""

    def __init__(self, above: int = 0, limit: int = HIGHEST, **said: Any) -> None:
        scheme, last = made(said, tag="a", order="trend", limit=limit, above=above, lease=None, keys=KEYS)
        self.record = record(scheme, max=above, limit=last)
        self.given: dict[int, int] = {}

    def issue(self, n: int) -> list[int]:
        scheme = Scheme.of(self.record, KEYS)
        last = min(self.record.max + n, self.record.limit)
        fresh = {counter: scheme.value(counter) for counter in range(self.record.max + 1, last + 1)}
        self.given |= fresh
        self.record = record(dict(self.record.scheme), max=last, limit=self.record.limit)
        return list(fresh.values())

    def change(self, limit: int | None = None, **said: Any) -> None:
        scheme, last = changed(self.record, said, limit=limit, keys=KEYS)
        self.record = record(scheme, max=self.record.max, limit=self.record.limit if last is None else last)

    def try_to_change(self, **said: Any) -> str:
        """Return the setting that was refused, "" if none was."""
        try:
            self.change(**said)
        except SchemeError as error:
            return error.setting
        return ""

    def check(self) -> None:
        """Nothing came twice, all of it decodes, and the scheme of now says the same of it."""
        scheme = Scheme.of(self.record, KEYS)
        assert len(set(self.given.values())) == len(self.given)
        for counter, value in self.given.items():
            assert scheme.value(counter) == value
            assert scheme.decode(value).counter == counter
            assert scheme.parse(scheme.text(counter, today=DAY)).counter == counter


class TestPlain:
    def test_the_value_is_the_counter(self) -> None:
        assert make() == {}
        scheme = ready({})
        assert (scheme.value(1), scheme.decode(7).counter, scheme.text(7, today=DAY)) == (1, 7, "7")
        assert scheme.parse("7").counter == 7
        assert scheme.period_name(7) is None

    def test_a_format_alone_leaves_it_without_an_id(self) -> None:
        scheme = make(format="A{seq:04d}")
        assert scheme == {"format": "A{seq:04d}"}
        assert ready(scheme).text(7, today=DAY) == "A0007"
        refused(FormatOverflow, "", ready(scheme).text, 10_000, today=DAY)

    def test_what_is_no_number_of_the_tag_does_not_decode(self) -> None:
        for text in ("", "07", "-7", "a", "٣", "0", str(HIGHEST + 1), "9" * 5000):
            refused(NotDecodable, "", ready({}).parse, text)
        for said in ({}, {"stride": 2, "offset": 1}, {"scramble": "k1"}, {"shards": True}):
            for value in (0, -1, HIGHEST + 1, True):
                refused(NotDecodable, "", ready(make(**said)).decode, value)
            if "shards" not in said:
                refused(NotDecodable, "", ready(make(format="A{seq:04d}", **said)).parse, "A0000")


STEPS = st.lists(
    st.tuples(
        st.integers(0, 150),
        st.one_of(
            st.sampled_from(sorted(KEYS)).map(lambda key: {"scramble": key}),
            st.tuples(st.integers(1, 10_000), st.sampled_from(sorted(KEYS))).map(
                lambda one: {"scramble": [(1, "k1"), one]}
            ),
            st.integers(2000, 30_000).map(lambda limit: {"limit": limit}),
        ),
    ),
    max_size=6,
)


class TestChanges:
    @settings(max_examples=50)
    @given(st.integers(0, 300), st.booleans(), STEPS)
    def test_whatever_keys_and_limits_follow_each_other_nothing_repeats(
        self, above: int, plain: bool, steps: list[tuple[int, dict[str, Any]]]
    ) -> None:
        tag = Issued(above, 50_000, **({} if plain else {"scramble": "k1"}))
        for n, what in steps:
            tag.issue(n)
            assert tag.try_to_change(**what) in ("", "scramble", "limit")
        tag.issue(300)
        tag.check()
        assert all(above < value <= tag.record.limit for value in tag.given.values())

    @settings(max_examples=15)
    @given(st.lists(st.tuples(st.integers(1, 200), st.sampled_from(sorted(KEYS)), st.integers(1, 300)), max_size=4))
    def test_a_whole_range_is_used_once_whatever_the_changes(self, steps: list[tuple[int, str, int]]) -> None:
        tag, limit = Issued(0, 777, scramble="k1"), 777
        for n, key, more in steps:
            tag.issue(n)
            limit += more
            tag.change(limit=limit)
            if tag.record.max < 700:
                tag.change(scramble=key)
        tag.issue(limit)
        tag.check()
        assert sorted(tag.given.values()) == list(range(1, limit + 1))

    @given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 50), st.integers(1, 6)), max_size=5), st.data())
    def test_whatever_strides_follow_each_other_nothing_repeats(
        self, above: int, steps: list[tuple[int, int]], data: st.DataObject
    ) -> None:
        tag = Issued(above, stride=2, offset=1)
        for n, stride in steps:
            tag.issue(n)
            offset = data.draw(st.integers(1, stride))
            skip = data.draw(st.sampled_from([{}, {"stride_above": 2000}, {"stride_above": 9000}]))
            said = tag.try_to_change(stride=stride, offset=offset, **skip)
            assert said in ("", "stride_above")
            assert said or all(value % stride == offset % stride for value in tag.issue(5))
        tag.check()
        assert all(value > above for value in tag.given.values())

    @given(st.integers(1, 40), st.integers(1, 2000), st.integers(1, 2000), st.data())
    def test_a_stride_keeps_the_values_within_the_limit(
        self, stride: int, limit: int, other: int, data: st.DataObject
    ) -> None:
        tag = Issued(0, limit, stride=stride, offset=data.draw(st.integers(1, stride)))
        tag.issue(3000)
        if other > limit:
            tag.change(limit=other)
            tag.issue(3000)
        tag.check()
        assert all(value <= max(limit, other) for value in tag.given.values())
        assert len(tag.given) in (max(limit, other) // stride, max(limit, other) // stride + 1)

    def test_a_change_of_the_stride_keeps_the_limit_of_the_values(self) -> None:
        tag = Issued(0, stride=2, offset=1)
        tag.change(stride=3, offset=1)
        tag.change(stride=1)
        assert (tag.record.scheme.get("limit", HIGHEST), tag.record.limit) == (HIGHEST, HIGHEST)
        other = Issued(0, 1000, stride=2, offset=1)
        other.issue(10)
        other.change(stride=10, offset=3)
        assert max(other.issue(1000)) == 993


class TestBorders:
    """Where `changed` lets a key or a limit begin; anywhere lower numbers come again."""

    def test_a_key_that_begins_below_the_border_repeats_and_is_refused(self) -> None:
        tag = Issued(scramble="k1")
        shown = tag.issue(150)
        first, second = make(scramble="k1")["scramble"][0], make(scramble="k2")["scramble"][0]
        wrong = ready({"scramble": [first, {**second, "from": 151}]})
        assert set(shown) & {wrong.value(counter) for counter in range(151, 1000)}
        error = refused(SchemeError, "begin at 1000", tag.change, scramble=[(1, "k1"), (151, "k2")])
        assert error.setting == "scramble"
        tag.change(scramble=[(1, "k1"), (1000, "k2")])
        assert [piece["from"] for piece in tag.record.scheme["scramble"]] == [1, 1000]

    def test_a_raised_limit_has_a_piece_of_its_own_without_which_numbers_repeat(self) -> None:
        tag = Issued(0, 777, scramble="k1")
        shown = tag.issue(300)
        tag.change(limit=5000)
        tag.change(scramble=[(1, "k1"), (2000, "k2")])
        pieces = tag.record.scheme["scramble"]
        assert [piece["from"] for piece in pieces] == [1, 778, 2000]
        wrong = ready({"scramble": [{**pieces[0], "limit": 5000}, pieces[2]]})
        assert set(shown) & {wrong.value(counter) for counter in range(301, 1000)}
        tag.issue(4700)
        tag.check()
        assert sorted(tag.given.values()) == list(range(1, 5001))


TEMPLATES = [
    ("daily", "{date:%Y%m%d}-{seq:06d}"),
    ("daily", "{date:%Y%j}{seq:6b36}"),
    ("weekly", "{date:%G-W%V}/{seq}"),
    ("monthly", "{date:%Y-%m}-{seq:06d}{check}"),
    ("yearly", "{seq:5d}/{date:%Y}"),
]


class TestPeriods:
    @given(
        st.sampled_from(TEMPLATES),
        st.dates(date(2000, 1, 10), date(2099, 12, 1)),
        st.integers(1, 99_999),
    )
    def test_every_text_says_counter_and_period(self, kind: tuple[str, str], day: date, number: int) -> None:
        restart, template = kind
        scheme = ready(make(order="strict", restart=restart, format=template))
        counter = Periods(restart).of(day) << PERIOD_BITS | number
        found = scheme.parse(scheme.text(counter, today=date(1999, 1, 1)))
        assert (found.counter, found.value, found.period) == (counter, number, scheme.period_name(counter))
        assert found.date == Periods(restart).begin(counter >> PERIOD_BITS)
        assert scheme.value(counter) == number
        assert scheme.decode(number).counter is None

    def test_texts_show_the_first_day_of_their_period(self) -> None:
        scheme = ready(make(order="strict", restart="monthly", format="{date:%Y%m%d}-{seq}"))
        counter = Periods("monthly").of(DAY) << PERIOD_BITS | 5
        assert scheme.parse(scheme.text(counter, today=DAY)).counter == counter
        refused(NotDecodable, "first day", scheme.parse, "20261121-5")

    def test_a_limit_holds_in_each_period(self) -> None:
        scheme = ready(make(limit=999, order="strict", restart="daily", format="{date:%Y%m%d}-{seq}"))
        begin = Periods("daily").of(DAY) << PERIOD_BITS
        assert scheme.value(begin + 999) == 999
        refused(LimitReached, "", scheme.value, begin + 1000)
        refused(NotDecodable, "", scheme.parse, "20261121-1000")

    def test_scrambled_numbers_of_a_day_are_all_numbers_of_that_day(self) -> None:
        said: dict[str, Any] = {"restart": "daily", "format": "{date:%Y%m%d}-{seq}", "scramble": "k1"}
        scheme = ready(make(limit=500, order="strict", scramble_strict=True, **said))
        begin = Periods("daily").of(DAY) << PERIOD_BITS
        assert sorted(scheme.value(begin + number) for number in range(1, 501)) == list(range(1, 501))
        text = scheme.text(begin + 17, today=DAY)
        assert scheme.parse(text).counter == begin + 17

    def test_a_day_is_that_of_the_zone(self) -> None:
        assert ready(make(timezone="Asia/Tokyo")).day(1_795_273_200_000) == date(2026, 11, 22)
        assert ready({}).day(1_795_273_200_000) == date(2026, 11, 21)


class TestCycle:
    def test_after_the_limit_the_values_begin_anew_at_the_start(self) -> None:
        scheme = ready(make(limit=103, above=99, cycle=True))
        assert [scheme.value(counter) for counter in range(100, 110)] == [100, 101, 102, 103] * 2 + [100, 101]
        assert scheme.decode(103).counter is None
        for value in (99, 104):
            refused(NotDecodable, "", scheme.decode, value)

    @pytest.mark.parametrize("above", [0, 149])
    def test_a_scrambled_cycle_uses_each_number_once_a_round(self, above: int) -> None:
        scheme = ready(make(limit=500, above=above, cycle=True, scramble="k1"))
        size = 500 - above
        rounds = [[scheme.value(above + size * n + counter) for counter in range(1, size + 1)] for n in range(3)]
        assert rounds[0] == rounds[1] == rounds[2]
        assert sorted(rounds[0]) == list(range(above + 1, 501))


class TestShards:
    @pytest.mark.covers("4.7")
    @given(st.integers(1, 2**49 - 1), st.integers(0, 63), st.integers(0, 255))
    def test_the_value_has_sequence_shard_and_application(self, sequence: int, shard: int, app: int) -> None:
        scheme = ready(make(shards=True, app=app))
        value = scheme.sharded(sequence, shard)
        assert value == sequence << 14 | shard << 8 | app
        found = scheme.decode(value)
        assert (found.counter, found.shard, found.app, found.part) == (sequence, shard, app, f"a#{shard}")
        assert scheme.parse(scheme.text(sequence, today=DAY, shard=shard)) == found

    @pytest.mark.covers("4.4")
    def test_numbers_of_another_application_are_none_of_the_tags(self) -> None:
        one, other = ready(make(shards=True, app=1)), ready(make(shards=True, app=2))
        refused(NotDecodable, "application 1", other.decode, one.sharded(5, 3))
        values = [
            scheme.sharded(number, shard) for scheme in (one, other) for number in range(1, 40) for shard in range(64)
        ]
        assert len(set(values)) == len(values)
        refused(SchemeError, "256 doesn't fit", make, shards=True, app=256)

    @pytest.mark.covers("4.7")
    def test_fields_that_do_not_fit_are_refused(self) -> None:
        scheme = ready(make(shards=True, app=17, format="{shard:02d}-{seq}"))
        for sequence, shard in ((2**49, 0), (1, 64), (1, -1), (-1, 0)):
            refused(InvalidArgument, "", scheme.sharded, sequence, shard)
        for text in ("64-5", f"03-{2**49}", "03-0"):
            refused(NotDecodable, "", scheme.parse, text)
        assert scheme.parse(scheme.text(5, today=DAY, shard=41)).value == 5 << 14 | 41 << 8 | 17


class TestKeyed:
    @given(st.from_regex(r"[abcXYZ09_äß]([abcXYZ 09_äß]{0,18}[abcXYZ09_äß])?", fullmatch=True), st.integers(1, 9999))
    def test_a_text_tells_the_key_and_whose_counter_it_is(self, key: str, counter: int) -> None:
        scheme = ready(make(keyed=True, format="{key}-{seq:04d}"))
        found = scheme.parse(scheme.text(counter, today=DAY, key=key))
        assert (found.key, found.counter, found.part) == (key, counter, f"a#{key}")
