"""Periods rise with time, end when the zone's clocks first show the next one, and are told by their first day."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from hypothesis import example, given
from hypothesis import strategies as st

from issuer.core.periods import PERIOD_BITS, SEQ_MOST, Periods
from issuer.errors import InvalidArgument, SchemeError
from issuer_persistence.records import HIGHEST
from tests.refusals import refused

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
