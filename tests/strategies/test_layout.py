"""The bits of a snowflake number: widths, epoch, rack and worker; together and apart."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import ConfigurationError, InvalidArgument
from issuer.strategies.snowflake.layout import EPOCH, Layout, Parts
from tests.refusals import refused

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
