"""Snowflake numbers with a clock that stands still until it is moved."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import ClockBehind, ConfigurationError, Unavailable
from issuer.strategies import Instance, Layout, Snowflake
from issuer.strategies.snowflake.machines import Tenure
from issuer.strategies.snowflake.ticks import OVER, Ticks
from tests.audit import repeats
from tests.refusals import refused
from tests.strategies.hosts import NEW_YEAR, Desk, MovedClock, Opener, started
from tests.together import together


def snowflake(desk: Desk) -> Snowflake:
    found = desk.serving.strategy
    assert isinstance(found, Snowflake)
    return found


def test_a_number_says_when_and_where_it_was_made_and_a_full_millisecond_waits_for_the_next_one(
    desk: Opener, moved: MovedClock
) -> None:
    ids = desk(machine=513)
    numbers = [started(ids), *(ids.next() for _ in range(4095))]
    made = {(Layout().decompose(number).timestamp, Layout().decompose(number).machine) for number in numbers}
    assert made == {(moved.ms, 513)}
    slept = moved.slept
    numbers.append(ids.next())
    assert 0 < moved.slept - slept <= 0.001
    assert Layout().decompose(numbers[-1]).sequence == 0
    numbers += ids.take(10_000)
    assert all(one < two for one, two in pairwise(numbers))
    assert len(numbers) == 4097 + 10_000


@pytest.mark.covers("3.51")
def test_six_machine_bits_and_sixteen_of_sequence_give_65536_a_millisecond(desk: Opener, moved: MovedClock) -> None:
    ids = desk(machine=63, machine_bits=6, sequence_bits=16)
    layout = Layout(worker_bits=6, sequence_bits=16)
    first = started(ids)
    here = moved.ms
    numbers = [first, *ids.take(65_535)]
    assert moved.ms == here
    assert {layout.decompose(number).timestamp for number in numbers} == {here}
    assert len(set(numbers)) == 65_536
    assert layout.decompose(ids.next()).timestamp == here + 1


def test_a_call_without_time_left_is_refused_when_the_millisecond_is_full(desk: Opener) -> None:
    ids = desk()
    started(ids)
    error = refused(Unavailable, "4096 numbers of this millisecond are used up", ids.take, 5000, timeout=0)
    assert len(error.drawn) == 4095


def test_the_very_first_number_is_not_0(moved: MovedClock) -> None:
    ticks = Ticks(Layout(epoch=moved.ms), moved.clock)
    assert ticks.begin(Tenure(0, moved.ms - 1, moved.ms))
    assert next(ticks) == 1


def test_a_time_outside_of_the_layout_is_a_configuration_error(desk: Opener, moved: MovedClock) -> None:
    refused(ConfigurationError, "outside the layout.*ends 2020-01-01", desk, time_bits=10)
    refused(ConfigurationError, "outside the layout", desk, epoch=NEW_YEAR + 1)
    ids = desk(epoch=NEW_YEAR - 1000, time_bits=11)
    started(ids)
    moved.sleep(1.5)
    ids.sweep()
    refused(ConfigurationError, "outside the layout", ids.next)


@pytest.mark.covers("3.38")
def test_a_clock_that_went_back_is_refused_and_alarmed_until_it_has_caught_up(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    before = started(ids)
    moved.step(-3000)
    error = refused(ClockBehind, "", ids.next)
    assert 3000 <= error.behind <= 3001
    assert error.retry_after == pytest.approx(3, abs=0.01)
    refused(ClockBehind, "", ids.next)
    assert [type(alarm) for alarm in ids.alarms] == [ClockBehind]
    moved.sleep(error.retry_after)
    ids.sweep()
    assert ids.next() > before
    moved.step(-5000)
    refused(ClockBehind, "", ids.next)
    assert len(ids.alarms) == 2


@pytest.mark.covers("3.38")
def test_a_small_step_back_is_waited_for(desk: Opener, moved: MovedClock) -> None:
    ids = desk(max_wait=100)
    before = started(ids)
    moved.step(-90)
    slept = moved.slept
    assert ids.next() > before
    assert moved.slept - slept == pytest.approx(0.091, abs=0.002)
    assert len(ids.alarms) == 1
    moved.step(-150)
    refused(ClockBehind, "", ids.next)
    ids = desk(machine=2, max_wait=60_000)
    started(ids)
    moved.step(-9000)
    slept = moved.slept
    refused(ClockBehind, "", ids.take, 1, timeout=2)  # nobody waits beyond the deadline
    assert moved.slept == slept


@pytest.mark.covers("3.38")
def test_a_clock_that_goes_back_and_forth_repeats_nothing(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    numbers = ids.take(4096)
    moved.step(-2)
    for _ in range(4):
        try:
            numbers += ids.take(2000, timeout=0)
        except Unavailable as error:
            numbers += error.drawn
        moved.step(1)
    assert not repeats(numbers)


def test_threads_get_every_number_once_and_each_sees_them_rise(desk: Opener) -> None:
    class Ticking:
        """Goes on by 2 us a look."""

        ns = NEW_YEAR * 1_000_000

        def wall(self) -> int:
            self.ns += 2000
            return self.ns

    ticks = Ticks(Layout(sequence_bits=4), desk.moved.clock)
    ticks._now = Ticking().wall
    assert ticks.begin(Tenure(3, 0, 2 * NEW_YEAR))

    def draw() -> list[int]:
        mine: list[int] = []
        while len(mine) < 2000:
            with suppress(StopIteration):
                mine += [next(ticks)] if len(mine) % 3 else ticks.take(5)
        return mine

    found = together(*[draw] * 8)
    assert not repeats(number for mine in found for number in mine)
    assert all(one < two for mine in found for one, two in pairwise(mine))


def ticks_at(moved: MovedClock, *, ceiling: int, until: float) -> Ticks:
    ticks = Ticks(Layout(), moved.clock)
    assert ticks.begin(Tenure(1, moved.ms - 1, ceiling, until=until))
    return ticks


def test_nothing_above_the_ceiling_or_after_the_lease(moved: MovedClock) -> None:
    ticks = ticks_at(moved, ceiling=moved.ms + 1, until=moved.seconds + 10)
    assert [next(ticks), next(ticks)]
    moved.step(1)
    assert next(ticks)
    moved.step(1)
    assert (next(ticks, None), ticks.turn()) == (None, OVER)
    ticks = ticks_at(moved, ceiling=moved.ms + 60_000, until=moved.seconds + 10)
    moved.sleep(9.9)
    assert next(ticks)
    moved.sleep(0.1)
    assert (next(ticks, None), ticks.turn()) == (None, OVER)


def test_another_tenure_goes_on_above_the_numbers_of_the_one_before(moved: MovedClock) -> None:
    ticks = Ticks(Layout(), moved.clock)
    assert ticks.begin(Tenure(900, moved.ms - 1, moved.ms + 1000))
    before = next(ticks)
    assert ticks.begin(Tenure(3, 0, moved.ms + 1000))
    assert next(ticks, None) is None
    moved.step(1)
    assert next(ticks) > before


def test_what_is_closed_or_forked_gives_nothing_any_more(moved: MovedClock) -> None:
    for end in (Ticks.close, Ticks.after_fork, Ticks.drop):
        ticks = ticks_at(moved, ceiling=moved.ms + 1000, until=2000.0)
        assert next(ticks)
        end(ticks)
        assert (next(ticks, None), ticks.take(5), ticks.turn()) == (None, [], OVER)


def test_an_option_that_makes_no_sense_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    instance = Instance(application="tests", ip="192.0.2.5", machine=7)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"machines": "redis"}, "no option 'machines'; its options are epoch, lease, machine"),
        ({"machine": "zookeeper"}, "machine must be one of redis, store, file, ordinal, fixed, not 'zookeeper'"),
        ({"machine": "redis"}, "leases numbers in Redis, but no Redis is configured"),
        ({"machine": 5}, "machine must be a text"),
        ({"lease": 1}, r"lease must be a number 5..2.592e\+06, not 1"),
        ({"namespace": ""}, "namespace must be a valid tag name: .* must have 1 to 200 bytes, not 0"),
        ({"namespace": 5}, "namespace must be a valid tag name: a tag must be a string, not int"),
        ({"namespace": "x" * 300}, "must have 1 to 200 bytes, not 300"),
        ({"namespace": "shared", "lease": 60}, "lease cannot be set for tags that share a namespace: it is 30 s"),
        ({"max_wait": -1}, r"max_wait must be a whole number 0..60000, not -1"),
        ({"machine": "ordinal"}, "does not end with a number"),
        ({"machine_bits": 2, "machine": "fixed"}, r"the instance's machine \(ISSUER_MACHINE\) must be 0\.\.3, not 7"),
    ]
    for options, problem in wrong:
        refused(ConfigurationError, problem, Desk, "snowflake", options, instance=instance)


def test_a_machine_that_the_layout_has_no_place_for_is_named_by_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "orders-2000")
    racks, ordinal = {"rack_bits": 2}, {"machine": "ordinal"}
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"machine": 2000}, {}, r"the instance's machine \(ISSUER_MACHINE\) must be 0\.\.1023, not 2000"),
        ({"machine": -1}, {}, r"machine \(ISSUER_MACHINE\) must be 0\.\.1023, not -1"),
        ({"machine": 0, "rack": 1}, racks, r"machine \(ISSUER_MACHINE\) must be 1\.\.255, not 0"),
        ({"machine": 1, "rack": 4}, racks, r"the instance's rack \(ISSUER_RACK\) must be 1\.\.3, not 4"),
        ({"machine": 1, "rack": 1}, {}, r"the instance's rack \(ISSUER_RACK\) must be 0\.\.0, not 1"),
        ({}, ordinal, r"the host's ordinal must be 0\.\.1023, not 2000"),
        ({"rack": 1}, {**ordinal, **racks}, r"the host's ordinal must be 0\.\.254, not 2000"),
    ]
    for placed, options, problem in wrong:
        instance = Instance(application="tests", ip="192.0.2.5", **placed)
        refused(ConfigurationError, problem, Desk, "snowflake", options, instance=instance)


def test_a_stateful_set_numbers_its_machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    racks: dict[str, Any] = {"rack_bits": 2}
    for host, bits, machine in (("orders-0", {}, 0), ("orders-17.orders.svc", {}, 17), ("orders-0", racks, 0b111)):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        named = Instance(application="tests", ip="192.0.2.5", directory=str(tmp_path), rack=3 if bits else None)
        with Desk("snowflake", {**bits, "machine": "ordinal"}, instance=named) as ids:
            ids.next()
            assert snowflake(ids).machine == machine, host


def test_the_longest_tags_have_files_of_their_own(tmp_path: Path) -> None:
    instance = Instance("tests", 0, "192.0.2.5", machine=1, directory=str(tmp_path))
    for tag in ("\u8ba2" * 65 + "a", "\u8ba2" * 65 + "b", "a/../b", ".."):
        with Desk("snowflake", {}, tag=tag, instance=instance) as ids:
            assert ids.next()
    assert len(list(tmp_path.glob("*.properties"))) == 4
