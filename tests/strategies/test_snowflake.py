"""Snowflake numbers: their bits, and how they are made with a clock that stands still until it is moved."""

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise, repeat
from math import sqrt
from operator import mod
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import ClockBehind, ConfigurationError, InvalidArgument, Unavailable
from issuer.strategies import Instance
from issuer.strategies.snowflake.layout import EPOCH, Layout, Parts
from issuer.strategies.snowflake.machines import Tenure
from issuer.strategies.snowflake.ticks import OVER, Ticks
from tests.audit import repeats
from tests.refusals import refused
from tests.strategies.hosts import NEW_YEAR, Desk, MovedClock, Opener
from tests.together import together

USUAL = Layout()

#: 3.36: eight bits of worker, two of rack.
RACKS = Layout(worker_bits=8, rack_bits=2)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    time = draw(st.integers(1, 50))
    worker = draw(st.integers(1, min(20, 62 - time)))
    rack = draw(st.integers(0, min(6, 62 - time - worker)))
    sequence = draw(st.integers(1, 63 - time - worker - rack))
    return Layout(draw(st.integers(0, 2**42)), time, worker, rack, sequence)


@pytest.mark.covers("3.33")
def test_by_default_there_are_41_bits_of_time_10_of_machine_and_12_of_sequence_since_2020() -> None:
    assert (USUAL.time_bits, USUAL.machine_bits, USUAL.sequence_bits) == (41, 10, 12)
    assert datetime(2020, 1, 1, tzinfo=UTC).timestamp() * 1000 == EPOCH
    assert USUAL.compose(EPOCH + 1, 1, 1) == 1 << 22 | 1 << 12 | 1
    assert USUAL.compose(USUAL.ends - 1, 1023, 4095) == 2**63 - 1
    assert USUAL.decompose(2**63 - 1) == Parts(USUAL.ends - 1, 1023, 1023, 0, 4095)
    assert USUAL.compose(EPOCH, 1023, 4095) < USUAL.compose(EPOCH + 1, 0, 0)  # a later time is a greater number


@pytest.mark.covers("3.33")
@given(st.data(), layouts())
def test_what_is_put_together_comes_apart_again(data: st.DataObject, layout: Layout) -> None:
    timestamp = data.draw(st.integers(layout.epoch, layout.ends - 1))
    worker = data.draw(st.integers(layout.workers[0], layout.workers[-1])) if layout.workers else 0
    rack = data.draw(st.integers(layout.racks[0], layout.racks[-1]))
    sequence = data.draw(st.integers(0, 2**layout.sequence_bits - 1))
    value = layout.compose(timestamp, layout.machine(worker, rack), sequence)
    assert 0 <= value < 2**63
    found = layout.decompose(value)
    assert found == Parts(timestamp, worker << layout.rack_bits | rack, worker, rack, sequence)


@pytest.mark.covers("3.36")
def test_worker_and_rack_count_from_1_and_stand_one_behind_the_other() -> None:
    assert RACKS.machine(1, 1) == 0b0000000101
    assert RACKS.machine(255, 3) == 0b1111111111
    assert RACKS.decompose(RACKS.compose(EPOCH, RACKS.machine(7, 2))) == Parts(EPOCH, 0b11110, 7, 2, 0)
    assert (RACKS.workers, RACKS.racks) == (range(1, 256), range(1, 4))
    assert list(RACKS.machines(2)) == [RACKS.machine(worker, 2) for worker in RACKS.workers]
    assert list(USUAL.machines(0)) == list(range(1024))
    refused(InvalidArgument, r"worker must be 1..255, not 0", RACKS.machine, 0, 1)
    refused(InvalidArgument, r"rack must be 1..3, not 4", RACKS.machine, 1, 4)
    refused(InvalidArgument, r"rack must be 1..3, not 0", RACKS.decompose, USUAL.compose(EPOCH, 4))


def test_a_part_that_is_out_of_its_range_is_named_as_is_what_is_no_number_of_the_layout() -> None:
    for timestamp in (EPOCH - 1, EPOCH + 2**41, float(EPOCH)):
        refused(InvalidArgument, f"timestamp must be {EPOCH}", USUAL.compose, timestamp, 0, 0)
    for machine in (1024, -1, True):
        refused(InvalidArgument, "machine must be 0..1023, not", USUAL.compose, EPOCH, machine, 0)
    for sequence in (4096, -1):
        refused(InvalidArgument, "sequence must be 0..4095, not", USUAL.compose, EPOCH, 0, sequence)
    for value in (-1, 2**63, 1.5, "1", None, True):
        refused(InvalidArgument, "value must be", USUAL.decompose, value)
    narrow = Layout(time_bits=30, worker_bits=4, sequence_bits=6)
    assert narrow.decompose(2**40 - 1).sequence == 63
    refused(InvalidArgument, "value must be", narrow.decompose, 2**40)


def test_it_says_when_its_numbers_end() -> None:
    assert USUAL.exhausted == datetime(2089, 9, 6, 15, 47, 35, 552000, tzinfo=UTC)
    assert str(USUAL) == "41 bits time since 2020-01-01, 10 machine, 12 sequence; ends 2089-09-06"
    assert str(RACKS).endswith("8 + 2 machine, 12 sequence; ends 2089-09-06")
    assert "after the year 9999" in str(Layout(time_bits=50, worker_bits=1, sequence_bits=1))


def test_options_make_a_layout() -> None:
    for epoch in ("2020-01-01", "2020-01-01T01:00:00+01:00", EPOCH):
        assert Layout.of({"epoch": epoch}) == Layout.of({}) == USUAL, epoch
    assert Layout.of({"rack_bits": 2}) == Layout.of({"worker_bits": 8, "rack_bits": 2, "machine_bits": 10}) == RACKS
    assert Layout.of({"machine_bits": 6, "sequence_bits": 16}) == Layout(worker_bits=6, sequence_bits=16)
    assert Layout.of({"machine_bits": 6, "rack_bits": 2}) == Layout(worker_bits=4, rack_bits=2)


def test_options_that_make_none_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"time_bits": 42}, r"time_bits 42 \+ worker_bits 10 \+ rack_bits 0 \+ sequence_bits 12 make 64 bits"),
        ({"sequence_bits": 0}, r"sequence_bits must be a whole number 1..63, not 0"),
        ({"time_bits": "41"}, "time_bits"),
        ({"worker_bits": True}, "worker_bits"),
        ({"rack_bits": -1}, "rack_bits"),
        ({"machine_bits": 10, "worker_bits": 4}, "machine_bits 10 is not worker_bits 4"),
        ({"machine_bits": 2, "rack_bits": 2}, "machine_bits 2 is not worker_bits 1"),
        *(({"epoch": epoch}, "epoch must be ") for epoch in ("yesterday", -1, "1969-12-31", 1.5)),
    ]
    for options, problem in wrong:
        refused(ConfigurationError, problem, Layout.of, options)


def test_a_number_says_when_and_where_it_was_made_and_a_full_millisecond_waits_for_the_next_one(
    desk: Opener, moved: MovedClock
) -> None:
    ids = desk(machine=513)
    numbers = [ids.next()]
    left = 4095 - Layout().decompose(numbers[0]).sequence
    assert left >= 2048
    numbers += [ids.next() for _ in range(left)]
    made = {(Layout().decompose(number).timestamp, Layout().decompose(number).machine) for number in numbers}
    assert made == {(moved.ms, 513)}
    slept = moved.slept
    numbers.append(ids.next())
    assert 0 < moved.slept - slept <= 0.001
    assert Layout().decompose(numbers[-1]).timestamp == moved.ms
    numbers += ids.take(10_000)
    assert all(one < two for one, two in pairwise(numbers))
    assert len(numbers) == left + 2 + 10_000


@pytest.mark.covers("3.51")
def test_six_machine_bits_and_sixteen_of_sequence_give_65536_a_millisecond(desk: Opener, moved: MovedClock) -> None:
    ids = desk(machine=63, machine_bits=6, sequence_bits=16)
    layout = Layout(worker_bits=6, sequence_bits=16)
    first = ids.next()
    here = moved.ms
    left = 65_535 - layout.decompose(first).sequence
    assert left > 63_000
    numbers = [first, *ids.take(left)]
    assert moved.ms == here
    assert {layout.decompose(number).timestamp for number in numbers} == {here}
    assert len(set(numbers)) == left + 1
    assert layout.decompose(ids.next()).timestamp == here + 1


def test_a_call_without_time_left_is_refused_when_the_millisecond_is_full(desk: Opener) -> None:
    ids = desk()
    left = 4095 - Layout().decompose(ids.next()).sequence
    error = refused(Unavailable, "4096 numbers of this millisecond are used up", ids.take, 5000, timeout=0)
    assert len(error.drawn) == left


def test_the_very_first_number_is_not_0(moved: MovedClock) -> None:
    ticks = Ticks(Layout(epoch=moved.ms, sequence_bits=1), moved.clock)
    assert ticks.begin(Tenure(0, moved.ms - 1, moved.ms))
    assert next(ticks) == 1


@pytest.mark.covers("N.15")
def test_numbers_at_a_low_rate_fill_all_partitions_evenly(moved: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number each 2 ms. A block of 2048 numbers begins with each of the 2048 sequence numbers once."""
    monkeypatch.setattr("issuer.strategies.snowflake.ticks.shuffle", Random(7).shuffle)
    ticks = Ticks(Layout(), moved.clock)
    assert ticks.begin(Tenure(5, moved.ms - 1, moved.ms + 10**6))
    numbers = []
    for _ in range(5 * 2048):
        numbers.append(next(ticks))
        moved.sleep(0.002)
    assert numbers == sorted(numbers)
    for n in (2, 8, 64, 1024):
        assert set(Counter(number % n for number in numbers).values()) == {len(numbers) // n}
    for n in (3, 7, 10, 60, 99):
        counts = Counter(number % n for number in numbers)
        assert max(counts.values()) < 1.5 * len(numbers) / n
        assert len(counts) == n


@pytest.mark.covers("N.15")
def test_each_remainder_is_as_frequent_as_the_others(moved: MovedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number each 2 ms. For most divisors a chi-square test, in the form of Wilson and Hilferty, is the bar."""
    monkeypatch.setattr("issuer.strategies.snowflake.ticks.shuffle", Random(46).shuffle)
    ticks = Ticks(USUAL, moved.clock)
    assert ticks.begin(Tenure(5, moved.ms - 1, moved.ms + 10**6))
    numbers = []
    for _ in range(100_000):
        numbers.append(next(ticks))
        moved.sleep(0.002)
    assert all(one < two for one, two in pairwise(numbers))
    assert max(USUAL.decompose(number).sequence for number in numbers) < 2**11, "half of the millisecond is left"
    for n in range(2, 1025):
        counts, even = Counter(map(mod, numbers, repeat(n))), len(numbers) / n
        assert len(counts) == n
        if n < 100 or n.bit_count() == 1:
            assert 0.8 * even <= min(counts.values()) <= max(counts.values()) <= 1.2 * even, n
        else:
            spread, wide = sum((count - even) ** 2 / even for count in counts.values()), 2 / (9 * (n - 1))
            # 4.5 sigma: by chance, a thousand divisors exceed this once in 300 seeds.
            assert (spread / (n - 1)) ** (1 / 3) < 1 - wide + 4.5 * sqrt(wide), n


def test_a_time_outside_of_the_layout_is_a_configuration_error(desk: Opener, moved: MovedClock) -> None:
    refused(ConfigurationError, "outside the layout.*ends 2020-01-01", desk, time_bits=10)
    refused(ConfigurationError, "outside the layout", desk, epoch=NEW_YEAR + 1)
    ids = desk(epoch=NEW_YEAR - 1000, time_bits=11)
    ids.next()
    moved.sleep(1.5)
    ids.sweep()
    refused(ConfigurationError, "outside the layout", ids.next)


@pytest.mark.covers("3.38")
def test_a_clock_that_went_back_is_refused_and_alarmed_until_it_has_caught_up(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    before = ids.next()
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
    before = ids.next()
    moved.step(-90)
    slept = moved.slept
    assert ids.next() > before
    assert moved.slept - slept == pytest.approx(0.091, abs=0.002)
    assert len(ids.alarms) == 1
    moved.step(-150)
    refused(ClockBehind, "", ids.next)
    ids = desk(machine=2, max_wait=60_000)
    ids.next()
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
            assert Layout.of(bits).decompose(ids.next()).machine == machine, host


def test_the_longest_tags_have_files_of_their_own(tmp_path: Path) -> None:
    instance = Instance("tests", 0, "192.0.2.5", machine=1, directory=str(tmp_path))
    for tag in ("\u8ba2" * 65 + "a", "\u8ba2" * 65 + "b", "a/../b", ".."):
        with Desk("snowflake", {}, tag=tag, instance=instance) as ids:
            assert ids.next()
    assert len(list(tmp_path.glob("*.properties"))) == 4
