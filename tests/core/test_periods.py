"""Periods: they end when the zone's clocks first show the next one, for all issuers at once, by Redis's clock alone."""

import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from issuer import Issuer
from issuer.core.issued import Issued
from issuer.core.periods import PERIOD_BITS, SEQ_MOST, Periods
from issuer.core.supply import extend
from issuer.errors import InvalidArgument, LimitReached, SchemeError
from issuer.operations import numbers as issuing
from issuer_persistence import records
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.colours import BOTH
from tests.days import DAILY, DAY, EVE, Set, shown
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer

pytestmark = pytest.mark.colours("blocking")

KINDS = ("daily", "weekly", "monthly", "yearly")
ZONES = ["UTC", "Europe/Vienna", "Pacific/Apia", "Pacific/Kiritimati", "Australia/Lord_Howe", "America/Sao_Paulo"]


ZONES += ["America/St_Johns", "America/Toronto", "Asia/Kathmandu", "Africa/Casablanca", "America/Havana"]


HOUR = 3_600_000
LAST_MS = 4_102_444_800_000  # 2100-01-01


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def wall(zone: str, moment: int) -> date:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)).astimezone(ZoneInfo(zone)).date()


class TestEveryZone:
    @given(st.sampled_from(KINDS), st.sampled_from(ZONES), st.integers(0, LAST_MS))
    @example("daily", "Pacific/Apia", ms("2011-12-30 09:59:59"))
    @example("daily", "America/Sao_Paulo", ms("2018-11-04 02:59:59"))
    @example("daily", "America/St_Johns", ms("2006-10-29 02:45:00"))
    @example("daily", "America/St_Johns", ms("2006-10-29 02:30:30"))
    @example("daily", "America/Toronto", 0)
    def test_a_period_ends_at_the_first_moment_that_shows_the_next_one(self, kind: str, zone: str, moment: int) -> None:
        periods = Periods(kind, zone)
        index = periods.index(moment)
        end = periods.end_ms(index)
        assert moment < end
        assert wall(zone, end - 1) < periods.begin(index + 1) <= wall(zone, end)
        assert periods.index(end - 1) <= index < periods.index(end)
        assert periods.end_ms(index - 1) <= moment

    @given(st.sampled_from(KINDS), st.dates(date(1, 1, 8), date(9999, 12, 20)))
    def test_every_day_belongs_to_the_period_that_begins_at_or_before_it(self, kind: str, day: date) -> None:
        periods = Periods(kind)
        index = periods.of(day)
        assert periods.begin(index) <= day
        assert periods.of(periods.begin(index)) == index
        if day.year >= 1970:
            assert 0 < index < 2**22
            assert (index << PERIOD_BITS | SEQ_MOST) < (index + 1) << PERIOD_BITS <= HIGHEST


class TestCalendar:
    def test_periods_follow_it(self) -> None:
        for kind, moment, begins, ends in (
            ("daily", "2026-11-21 04:31:00", date(2026, 11, 21), "2026-11-22 00:00"),
            ("weekly", "2026-11-22 23:59:59", date(2026, 11, 16), "2026-11-23 00:00"),
            ("weekly", "2026-11-23 00:00:00", date(2026, 11, 23), "2026-11-30 00:00"),
            ("monthly", "2026-12-31 12:00:00", date(2026, 12, 1), "2027-01-01 00:00"),
            ("monthly", "2024-02-29 12:00:00", date(2024, 2, 1), "2024-03-01 00:00"),
            ("yearly", "2026-11-21 04:31:00", date(2026, 1, 1), "2027-01-01 00:00"),
        ):
            periods = Periods(kind)
            index = periods.index(ms(moment))
            assert (periods.begin(index), periods.end_ms(index)) == (begins, ms(ends)), (kind, moment)

    def test_days_last_as_long_as_the_zone_makes_them(self) -> None:
        days: dict[str, dict[date, float]] = {
            "Europe/Vienna": {date(2026, 3, 29): 23, date(2026, 10, 25): 25, date(2026, 10, 26): 24},
            "Australia/Lord_Howe": {date(2026, 4, 5): 24.5},
            "America/Sao_Paulo": {date(2018, 11, 4): 23, date(2018, 2, 17): 25},
            "Pacific/Apia": {date(2011, 12, 29): 24, date(2011, 12, 30): 0, date(2011, 12, 31): 24},
        }
        for zone, lengths in days.items():
            periods = Periods("daily", zone)
            for day, hours in lengths.items():
                index = periods.of(day)
                assert periods.end_ms(index) - periods.end_ms(index - 1) == hours * HOUR, (zone, day)

        # Toronto, 1919: at 23:30 the clocks were put to 00:30, and the day begins where the gap does.
        toronto = Periods("daily", "America/Toronto")
        assert toronto.end_ms(toronto.of(date(1919, 3, 30))) == ms("1919-03-31 04:30")


def test_a_period_is_called_as_people_call_it() -> None:
    names = {"daily": "2027-01-03", "weekly": "2026-W53", "monthly": "2027-01", "yearly": "2027"}
    for kind, name in names.items():
        periods = Periods(kind)
        index = periods.of(date(2027, 1, 3))  # a Sunday, of the week that began in December
        assert periods.name(index) == name
        following = [periods.name(each) for each in range(index, index + 500)]
        assert following == sorted(set(following))


class TestRefusals:
    def test_what_is_no_time_zone_or_no_period_is_refused_by_name(self) -> None:
        for zone in ("", "Europe", "Europe/Wien", "../passwd", "/etc/passwd", "a\0b", "x" * 5000):
            error = refused(SchemeError, "", Periods, "daily", zone)
            assert (error.setting, error.value) == ("timezone", zone)
        for restart in ("never", "hourly", "", "Daily"):
            error = refused(SchemeError, "", Periods, restart)
            assert (error.setting, error.value) == ("restart", restart)

    def test_times_beyond_the_calendar_are_refused(self) -> None:
        for kind in KINDS:
            periods = Periods(kind)
            refused(InvalidArgument, "", periods.index, 2**63 - 1)
            for index in (-1, 2**22, 2**62):
                refused(InvalidArgument, "", periods.begin, index)
            refused(InvalidArgument, "", periods.end_ms, periods.of(date(9999, 12, 31)))


@BOTH
@pytest.mark.covers("U.6")
def test_at_midnight_numbers_begin_at_one_again_for_all_issuers(make: Make, daily: Make, at: Set) -> None:
    ids, other = daily("2026-11-20 23:59:00", step=5), make()
    eve = [shown(each.issue("a")) for each in (ids, other, ids, other, other, other, other)]
    at("2026-11-21 00:00:01")
    assert [shown(each.peek("a")) for each in (ids, other)] == [(DAY, 1)] * 2
    day = [shown(each.issue("a")) for each in (other, ids, ids)]
    assert shown(ids.peek("a")) == (DAY, 4)
    assert eve == [(EVE, number) for number in range(1, 8)]
    assert day == [(DAY, number) for number in range(1, 4)]
    assert ids.next("a") == 4
    assert other.take("a", 10) == list(range(5, 15))


@BOTH
@pytest.mark.covers("U.6")
def test_under_threads_at_the_border_no_text_comes_twice_and_none_is_missing(make: Make, at: Set) -> None:
    both = make(), make()
    # Not earlier: a clock that jumps by more than 4 s ends the election of who is loading, and its segment is a gap.
    at("2026-11-20 23:59:57")
    both[0].create("a", step=7, **DAILY)
    found: list[Issued] = []
    midnight = threading.Lock()  # once

    def draw(ids: Issuer) -> None:
        while len(found) < 120:
            found.append(ids.issue("a"))
            if len(found) >= 60 and midnight.acquire(blocking=False):
                at("2026-11-21 00:00:00")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(draw, both * 4))
    assert repeats(one.counter or 0 for one in found) == []
    texts = sorted(shown(one) for one in found)
    for day in (EVE, DAY):
        numbers = [number for shown_day, number in texts if shown_day == day]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 40


@pytest.mark.parametrize("midnight", [False, True])
def test_who_begins_a_period_leaves_its_first_segment_to_who_is_elected_meanwhile(
    make: Make, daily: Make, at: Set, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, midnight: bool
) -> None:
    ids, other = daily("2026-11-20 23:59:57", step=100), make()
    if midnight:
        assert [each.next("a") for each in (ids, other)] == [1, 2]
        at("2026-11-21 00:00:00")
    begin, reserve, look = extend.begin_period, store.reserve, extend._opened
    drawing: list[Future[int]] = []
    elected, looked, go_on = threading.Event(), threading.Event(), threading.Event()

    def begun(*told: Any) -> Any:
        after = yield from begin(*told)
        if not drawing:
            drawing.append(elsewhere.submit(other.next, "a"))
            assert elected.wait(60)
        return after

    def opened(*told: Any, **how: Any) -> Any:
        answer = yield from look(*told, **how)
        if elected.is_set():
            looked.set()
        return answer

    def slowly(*told: Any, **how: Any) -> Any:
        if not elected.is_set():
            elected.set()
            assert go_on.wait(60)
        return reserve(*told, **how)

    monkeypatch.setattr(extend, "begin_period", begun)
    monkeypatch.setattr(extend, "_opened", opened)
    monkeypatch.setattr(store, "reserve", slowly)
    with ThreadPoolExecutor(2) as elsewhere:
        mine = elsewhere.submit(ids.next, "a")
        assert looked.wait(60)
        assert not mine.done()
        go_on.set()
        assert sorted((mine.result(), drawing[0].result())) == [1, 2]
    reserved = store.ledger("a", newest=9, timeout=10)
    assert len(reserved) == len({entry.low >> PERIOD_BITS for entry in reserved})


@pytest.mark.covers("U.6")
@pytest.mark.parametrize("days", [-1, 1])
def test_a_process_whose_own_clock_is_a_day_off_changes_nothing(
    make: Make, daily: Make, at: Set, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    ids = daily("2026-11-20 23:59:00")
    off = timedelta(days=days) // timedelta(milliseconds=1)
    for module in (records, issuing):
        monkeypatch.setattr(module, "now_ms", lambda: 1_795_215_540_000 + off)
    other = make()
    assert [shown(each.issue("a")) for each in (other, ids, other)] == [(EVE, 1), (EVE, 2), (EVE, 3)]
    at("2026-11-21 00:00:00")
    assert [shown(each.issue("a")) for each in (other, ids, other)] == [(DAY, 1), (DAY, 2), (DAY, 3)]


@pytest.mark.covers("U.6")
def test_redis_whose_clock_goes_back_never_goes_back_a_period(
    make: Make, daily: Make, at: Set, fake_server: FencedFakeServer
) -> None:
    ids, other = daily("2026-11-21 00:00:10", step=3), make()
    found = [shown(ids.issue("a")) for _ in range(2)]
    at("2026-11-20 23:00:00")
    found += [shown(each.issue("a")) for each in (ids, other, ids, other, ids)]
    fake_server.wipe()
    found += [shown(each.issue("a")) for each in (ids, make())]
    assert {day for day, _ in found} == {DAY}
    assert found == sorted(set(found))


@BOTH
@pytest.mark.covers("U.6", "3.25")
def test_redis_wiped_in_mid_day_goes_on_above_within_the_day(
    make: Make, daily: Make, at: Set, fake_server: FencedFakeServer, store: MemoryStore
) -> None:
    ids = daily("2026-11-21 12:00:00", step=10)
    found = [shown(ids.issue("a")) for _ in range(4)]
    for lost in (fake_server.wipe, fake_server.new_reign):
        lost()
        found += [shown(each.issue("a")) for each in (ids, make())]
    assert [day for day, _ in found] == [DAY] * 8
    assert [number for _, number in found] == sorted({number for _, number in found})
    assert found[-1][1] <= store.snapshot().tags["a"].max & (1 << PERIOD_BITS) - 1 <= 100
    at("2026-11-22 00:00:00")
    assert shown(ids.issue("a")) == ("20261122", 1)


def test_days_without_numbers_are_skipped_and_leave_nothing_behind(
    daily: Make, at: Set, fake_server: FencedFakeServer, store: MemoryStore
) -> None:
    ids = daily("2026-11-20 12:00:00", step=5)
    ids.issue("a")
    with fake_server.client() as client:
        before = client.hlen("issuer:{a}")
        for day in (21, 22, 27, 30):
            at(f"2026-11-{day} 12:00:00")
            assert shown(ids.issue("a")) == (f"202611{day}", 1)
        assert client.keys("issuer:{*") == [b"issuer:{a}"]
        assert client.hlen("issuer:{a}") == before
    assert [tag.tag for tag in store.tags(count=1000, timeout=10)] == ["a"]


@pytest.mark.covers("4.17")
def test_a_tag_that_was_made_again_goes_on_within_its_day(daily: Make) -> None:
    ids = daily("2026-11-21 12:00:00", step=5)
    before = shown(ids.issue("a"))
    ids.delete("a")
    ids.create("a", step=5, **DAILY)
    after = shown(ids.issue("a"))
    assert before[0] == after[0] == DAY
    assert after[1] > before[1]


@pytest.mark.covers("U.6", "U.7")
@pytest.mark.parametrize(
    ("restart", "template", "texts"),
    [
        ("weekly", "{date:%G-W%V}/{seq}", ["2026-W52/1", "2026-W53/1", "2026-W53/2", "2026-W53/3", "2026-W53/4"]),
        ("monthly", "{date:%Y-%m}/{seq}", ["2026-12/1", "2026-12/2", "2026-12/3", "2027-01/1", "2027-01/2"]),
        ("yearly", "{date:%Y}/{seq}", ["2026/1", "2026/2", "2026/3", "2027/1", "2027/2"]),
    ],
)
def test_weeks_months_and_years(make: Make, at: Set, restart: str, template: str, texts: list[str]) -> None:
    ids = make()
    found: list[Issued] = []
    for moment in ("2026-12-27 23:59", "2026-12-28 00:00", "2026-12-31 23:59", "2027-01-01 00:00", "2027-01-03 23:59"):
        at(f"{moment}:00")
        if not found:
            ids.create("a", restart=restart, timezone="Europe/Vienna", format=template)  # type: ignore[arg-type]  # a name
        found.append(ids.issue("a"))
    assert [one.text for one in found] == texts
    for one in found:
        back = ids.decode("a", one.text)
        assert (back.counter, back.period) == (one.counter, one.period)


@pytest.mark.covers("U.6")
def test_a_series_for_each_key_that_begins_anew_each_day(make: Make, at: Set) -> None:
    ids, other = make(), make()
    at("2026-11-20 23:59:00")
    ids.create("a", **{**DAILY, "format": "{key}/{date:%Y%m%d}-{seq:04d}"}, keyed=True)
    keys = ["acme", "zeta", "acme"]
    eve = [ids.issue("a", restart_key=key).text for key in keys]
    at("2026-11-21 00:00:00")
    assert other.peek("a", restart_key="acme").text == "acme/20261121-0001"
    assert other.peek("a", restart_key="new").text == "new/20261121-0001"
    day = [other.issue("a", restart_key=key) for key in keys]
    assert eve == ["acme/20261120-0001", "zeta/20261120-0001", "acme/20261120-0002"]
    assert [one.text for one in day] == ["acme/20261121-0001", "zeta/20261121-0001", "acme/20261121-0002"]
    found = ids.decode("a", day[1].text)
    assert (found.key, found.counter, found.period, found.part) == ("zeta", day[1].counter, "2026-11-21", "a#zeta")


@BOTH
@pytest.mark.covers("N.3")
def test_a_callers_key_keeps_its_number_over_midnight(make: Make, daily: Make, at: Set) -> None:
    ids, other = daily("2026-11-20 23:59:00"), make()
    first = ids.issue("a", key="order-778", ttl=3600)
    at("2026-11-21 00:00:00")
    again = other.issue("a", key="order-778", ttl=3600)
    assert shown(again) == shown(first) == (EVE, 1)
    assert shown(other.issue("a", key="order-779")) == (DAY, 1)


def test_a_segment_that_would_reach_into_the_next_period_is_refused_as_it_would_begin_it(make: Make, at: Set) -> None:
    ids = make()
    at("2026-11-20 12:00:00")
    refused(InvalidArgument, "step", ids.create, "a", step=2**41, **DAILY)
    assert ids.tags() == []
    ids.create("a", **DAILY)
    for said in ({"step": 2**41}, {"step": 2**30, "ahead": 8}):
        refused(InvalidArgument, "step", ids.configure, "a", **said)
    ids.configure("a", step=2**30)
    refused(InvalidArgument, "step", ids.configure, "a", ahead=8)


def at_its_limit(ids: Issuer, limit: int) -> None:
    ended = refused(LimitReached, "", ids.next, "a")
    assert (ended.limit, ended.value) == (limit, limit)


@BOTH
def test_a_limit_that_is_set_raised_or_lowered_goes_on_with_the_next_number_for_all(
    make: Make, daily: Make, at: Set
) -> None:
    ids, other = daily("2026-11-20 12:00:00"), make()
    assert [each.next("a") for each in (ids, other, ids)] == [1, 2, 3]
    ids.configure("a", limit=50)
    assert [each.next("a") for each in (ids, other)] == [4, 5]
    other.configure("a", limit=500)
    assert ids.take("a", 45) == list(range(6, 51))
    assert [each.next("a") for each in (other, ids)] == [51, 52]
    other.configure("a", limit=54)
    assert [each.next("a") for each in (ids, other)] == [53, 54]
    for each in (other, ids):
        at_its_limit(each, 54)
    at("2026-11-21 12:00:00")
    assert [shown(each.issue("a")) for each in (other, ids)] == [(DAY, 1), (DAY, 2)]
    assert ids.take("a", 52)[-1] == 54
    for each in (ids, other, ids, other, ids):
        at_its_limit(each, 54)
    ids.configure("a", limit=56)
    assert [each.next("a") for each in (other, ids)] == [55, 56], "calls that fail take no number"


def test_a_reservation_that_comes_in_between_brings_none_beyond_the_limit(
    daily: Make, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = daily("2026-11-20 12:00:00", limit=10, step=4)
    reserve = store.reserve

    def after_another(tag: str, *said: Any, **more: Any) -> Any:
        reserve(tag, 3, at_least=0, purpose=Purpose("another"), timeout=10)
        return reserve(tag, *said, **more)

    monkeypatch.setattr(store, "reserve", after_another)
    assert ids.take("a", 4) == [4, 5, 6, 7]
    at_its_limit(ids, 10)


def test_a_period_near_its_limit_is_warned_of(
    make: Make, daily: Make, at: Set, caplog: pytest.LogCaptureFixture
) -> None:
    ids = daily("2026-11-20 12:00:00", limit=100, step=10)
    warned = "tag 'a': at least 90 % of the period's numbers are used, at most 10 are left up to its limit 100"
    for times, day in enumerate((EVE, DAY)):
        at(f"2026-11-{day[-2:]} 12:00:00")
        ids.take("a", 60)
        assert caplog.text.count("its limit") == times
        ids.take("a", 30)
        ids.take("a", 5)
        assert caplog.text.count(warned) == caplog.text.count("its limit") == times + 1
    at("2026-11-22 12:00:00")
    other = make()
    other.next("a")
    assert caplog.text.count("its limit") == 2, "the day before is over"


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ({}, "raise the limit with ids.configure('a', limit=N)"),
        (
            {"keyed": True, "format": "{key}/{date:%Y%m%d}-{seq}"},
            "it cannot be changed for parts of tag 'a', so create another tag and use it until the next period",
        ),
        (
            {"scramble": "k1", "scramble_strict": True},
            "with restart and scramble it cannot be changed, so create another tag and use it until the next period",
        ),
    ],
)
def test_the_error_at_the_limit_advises_what_is_possible(
    make: Make, at: Set, said: dict[str, Any], advice: str
) -> None:
    ids = make(keys={"k1": b"0123456789abcdef"})
    at("2026-11-20 12:00:00")
    ids.create("a", limit=2, **{**DAILY, **said})
    key: Any = {"restart_key": "acme"} if "keyed" in said else {}
    for _ in range(2):
        ids.issue("a", **key)
    ended = refused(LimitReached, "", ids.issue, "a", **key)
    assert str(ended).endswith(f"2 of 2 are reserved; {advice}")
    if said:
        refused(SchemeError, "limit", ids.configure, "a", limit=3)
        at("2026-11-21 12:00:00")
        assert ids.issue("a", **key).period == "2026-11-21"


@BOTH
def test_what_is_logged_of_a_tag_with_periods_says_the_number_and_the_period(
    daily: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ids = daily("2026-11-20 12:00:00", step=10)
    ids.create("plain", step=10)
    with caplog.at_level(logging.INFO, logger="issuer"):
        for tag in ("a", "plain"):
            ids.take(tag, 10)  # as many as a segment has
            ids.next(tag)
    told = [record.getMessage() for record in caplog.records if "loaded" in record.getMessage()]
    assert "tag 'a': segment 11..20 of 2026-11-20 loaded at number 10 of 2026-11-20" in told
    assert "tag 'plain': segment 11..20 loaded at number 10" in told
    assert not any(len(word.strip(",:")) > 15 for line in told for word in line.split() if word[0].isdigit())
