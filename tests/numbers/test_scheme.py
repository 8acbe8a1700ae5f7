"""Schemes: from the counter to the number and text that users see, and back; changes that repeat nothing."""

from contextlib import suppress
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from issuer.core.periods import PERIOD_BITS, Periods
from issuer.errors import FormatOverflow, InvalidArgument, LimitReached, NotDecodable, SchemeError
from issuer.numbers.codec import Scheme
from issuer.numbers.given import changed, made
from issuer.numbers.stride import Strides, StrideSpan
from issuer.numbers.stride import changed as followed
from issuer_persistence.records import HIGHEST, Order, Tag
from tests.refusals import refused

KEYS = {"k1": b"0123456789abcdef", "k2": b"fedcba9876543210", "k3": bytes(range(32))}
DAY = date(2026, 11, 21)


def record(scheme: dict[str, Any], *, max: int = 0, limit: int = HIGHEST, order: Order = "trend") -> Tag:
    return Tag(tag="a", max=max, step=1, limit=limit, order=order, created=0, timestamp=0, version="", scheme=scheme)


def make(limit: int = HIGHEST, above: int = 0, order: Order = "trend", **said: Any) -> dict[str, Any]:
    return made(said, tag="a", order=order, limit=limit, above=above, lease=None, keys=KEYS)[0]


def ready(scheme: dict[str, Any]) -> Scheme:
    return Scheme(record(scheme), KEYS)


class Issued:
    """A tag that issues numbers while its scheme is changed."""

    def __init__(self, above: int = 0, limit: int = HIGHEST, **said: Any) -> None:
        scheme, last = made(said, tag="a", order="trend", limit=limit, above=above, lease=None, keys=KEYS)
        self.record = record(scheme, max=above, limit=last)
        self.given: dict[int, int] = {}

    def issue(self, n: int) -> list[int]:
        scheme = Scheme(self.record, KEYS)
        last = min(self.record.max + n, self.record.limit)
        fresh = {counter: scheme.value(counter) for counter in range(self.record.max + 1, last + 1)}
        self.given |= fresh
        self.record = record(dict(self.record.scheme), max=last, limit=self.record.limit)
        return list(fresh.values())

    def change(self, limit: int | None = None, above: int | None = None, **said: Any) -> None:
        scheme, last = changed(self.record, said, limit=limit, above=above, keys=KEYS)
        self.record = record(scheme, max=self.record.max, limit=self.record.limit if last is None else last)

    def check(self) -> None:
        """Nothing came twice, all of it decodes, and the scheme of now says the same of it."""
        scheme = Scheme(self.record, KEYS)
        assert len(set(self.given.values())) == len(self.given)
        for counter, value in self.given.items():
            assert scheme.value(counter) == value
            assert scheme.decode(value).counter == counter
            assert scheme.parse(scheme.text(counter, today=DAY)).counter == counter


class TestPlain:
    def test_the_value_is_the_counter_and_a_format_alone_leaves_it_without_an_id(self) -> None:
        assert make() == {}
        assert (ready({}).value(1), ready({}).decode(7).counter, ready({}).parse("7").counter) == (1, 7, 7)
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
            with suppress(SchemeError):
                tag.change(**what)
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


TEMPLATES = [
    ("daily", "{date:%Y%m%d}-{seq:06d}"),
    ("daily", "{date:%Y%j}{seq:6b36}"),
    ("weekly", "{date:%G-W%V}/{seq}"),
    ("monthly", "{date:%Y-%m}-{seq:06d}{check}"),
    ("yearly", "{seq:5d}/{date:%Y}"),
]


class TestPeriods:
    @given(st.sampled_from(TEMPLATES), st.dates(date(2000, 1, 10), date(2099, 12, 1)), st.integers(1, 99_999))
    def test_every_text_says_counter_and_period(self, kind: tuple[str, str], day: date, number: int) -> None:
        restart, template = kind
        scheme = ready(make(order="strict", restart=restart, format=template))
        counter = Periods(restart).of(day) << PERIOD_BITS | number
        found = scheme.parse(scheme.text(counter, today=date(1999, 1, 1)))
        assert (found.counter, found.value, found.period) == (counter, number, scheme.period_name(counter))
        assert found.date == Periods(restart).begin(counter >> PERIOD_BITS)
        assert scheme.value(counter) == number
        assert scheme.decode(number).counter is None

    def test_scrambled_numbers_of_a_period_are_all_of_its_numbers_up_to_the_limit_of_each(self) -> None:
        said: dict[str, Any] = {"restart": "monthly", "format": "{date:%Y%m%d}-{seq}", "scramble": "k1"}
        scheme = ready(make(limit=500, order="strict", scramble_strict=True, **said))
        begin = Periods("monthly").of(DAY) << PERIOD_BITS
        assert sorted(scheme.value(begin + number) for number in range(1, 501)) == list(range(1, 501))
        assert scheme.parse(scheme.text(begin + 17, today=DAY)).counter == begin + 17
        refused(LimitReached, "", scheme.value, begin + 501)
        refused(NotDecodable, "", scheme.parse, "20261101-501")
        refused(NotDecodable, "first day", scheme.parse, "20261121-5")

    def test_a_day_is_that_of_the_zone(self) -> None:
        assert ready(make(timezone="Asia/Tokyo")).day(1_795_273_200_000) == date(2026, 11, 22)
        assert ready({}).day(1_795_273_200_000) == date(2026, 11, 21)


class TestShards:
    @pytest.mark.covers("4.7")
    @given(st.integers(1, 2**49 - 1), st.integers(0, 63), st.integers(0, 255))
    def test_the_value_has_sequence_shard_and_application(self, sequence: int, shard: int, app: int) -> None:
        scheme = ready(make(shards={"app": app}))
        value = scheme.sharded(sequence, shard)
        assert value == sequence << 14 | shard << 8 | app
        found = scheme.decode(value)
        assert (found.counter, found.shard, found.app, found.part) == (sequence, shard, app, f"a#{shard}")
        assert scheme.parse(scheme.text(sequence, today=DAY, shard=shard)) == found

    @pytest.mark.covers("4.4")
    def test_numbers_of_another_application_are_none_of_the_tags(self) -> None:
        one, other = ready(make(shards={"app": 1})), ready(make(shards={"app": 2}))
        refused(NotDecodable, "application 1", other.decode, one.sharded(5, 3))
        refused(SchemeError, "256 doesn't fit", make, shards={"app": 256})
        for sequence, shard in ((2**49, 0), (1, 64), (1, -1), (-1, 0)):
            refused(InvalidArgument, "", one.sharded, sequence, shard)
        shown = ready(make(shards=True, format="{shard:02d}-{seq}"))
        for text in ("64-5", f"03-{2**49}", "03-0"):
            refused(NotDecodable, "", shown.parse, text)


@given(st.from_regex(r"[abcXYZ09_äß]([abcXYZ 09_äß]{0,18}[abcXYZ09_äß])?", fullmatch=True), st.integers(1, 9999))
def test_a_text_tells_the_key_and_whose_counter_it_is(key: str, counter: int) -> None:
    scheme = ready(make(keyed=True, format="{key}-{seq:04d}"))
    found = scheme.parse(scheme.text(counter, today=DAY, key=key))
    assert (found.key, found.counter, found.part) == (key, counter, f"a#{key}")


CLASS = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


class TestSeries:
    @pytest.mark.covers("1.12")
    def test_two_sites_give_the_odd_and_the_even_numbers(self) -> None:
        assert Issued(stride=2, offset=1).issue(3) == [1, 3, 5]
        assert Issued(stride=2, offset=2).issue(3) == [2, 4, 6]

    @pytest.mark.covers("2.2")
    @given(st.lists(st.tuples(st.integers(0, 200), CLASS), min_size=1, max_size=5), st.integers(1, 3000))
    def test_whatever_strides_follow_each_other_each_keeps_its_class_and_what_was_given_decodes_and_nothing_else(
        self, changes: list[tuple[int, tuple[int, int]]], limit: int
    ) -> None:
        pieces: tuple[StrideSpan, ...] = ()
        counter, values = 0, list[int]()
        for n, (stride, offset) in changes:
            pieces = followed(pieces, counter, stride, offset)
            fresh = [Strides(pieces).value(counter + k) for k in range(1, n + 1)]
            assert all(value % stride == offset % stride for value in fresh)
            assert {after - before for before, after in pairwise(fresh)} <= {stride}
            values += fresh
            counter += n
        strides = Strides(pieces)
        assert values == sorted(set(values)) == [strides.value(each) for each in range(1, counter + 1)]
        assert [strides.counter(value) for value in values] == list(range(1, counter + 1))
        for value in sorted(set(range(1, max(values, default=0))) - set(values))[:100]:
            refused(NotDecodable, "", strides.counter, value)
        highest = strides.highest(limit)
        assert strides.value(highest + 1) > limit
        assert highest == 0 or strides.value(highest) <= limit


def test_a_stride_keeps_the_values_within_the_limit() -> None:
    tag = Issued(0, 1000, stride=3, offset=2)
    assert tag.issue(3000)[-1] == 998
    tag.change(limit=2000)
    assert tag.issue(3000)[-1] == 2000
    tag.change(stride=4, offset=1)
    assert tag.issue(3000) == []


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
        sites.append(Issued(stride=3, offset=3, above=border))
        widened = {2}
        for which in order:
            if which < 2:
                sites[which].issue(7)
                sites[which].change(stride=3, offset=which + 1, above=border)
                widened.add(which)
            for each, n in load[:10]:
                if each in widened:
                    sites[each].issue(n)
        together = [value for site in sites for value in (*site.given.values(), *site.issue(300))]
        assert len(together) == len(set(together))

    def test_a_site_that_has_passed_the_border_is_refused(self) -> None:
        site = Issued(stride=2, offset=1)
        site.issue(100)
        error = refused(SchemeError, "up to 199", site.change, stride=3, offset=1, above=198)
        assert error.setting == "above"
        site.change(stride=3, offset=1, above=199)
        assert site.issue(2) == [202, 205]


def test_pieces_that_would_repeat_are_refused() -> None:
    alone = [[StrideSpan(0, 1, 2)], [StrideSpan(10, 9, 2)], [StrideSpan(1, HIGHEST + 1, 2)]]
    after_one = [
        [StrideSpan(1, 1, 2), second]
        for second in (StrideSpan(1, 100, 2), StrideSpan(11, 19, 3), StrideSpan(0, 100, 1))
    ]
    for pieces in (*alone, *after_one):
        assert refused(SchemeError, "", Strides, pieces).setting == "stride"
