"""What a host keeps of a fixed machine number, in a file: restarts, clocks that are set, locks that are removed."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import ClockBehind, ConfigurationError, Unavailable
from issuer.strategies import Layout
from issuer.strategies.files import Properties
from issuer.strategies.local import Fixed
from tests.audit import repeats
from tests.strategies import Desk, MovedClock, Opener, each_ms, started
from tests.unit.refusals import refused


def killed(desk: Desk) -> None:
    """What a kill leaves: the file, and no lock."""
    strategy: Any = desk.serving.strategy
    strategy._machines._file.unlock()


def the_file(desk: Opener, kind: str = "properties") -> Path:
    (found,) = desk.directory.glob(f"*.{kind}")
    return found


@pytest.mark.covers("3.38")
@pytest.mark.parametrize("end", [Desk.close, killed])
def test_a_restart_goes_on_above_the_last_timestamp_though_the_clock_went_back(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch, end: Any
) -> None:
    def restarted() -> tuple[list[int], list[int]]:
        """Numbers of a process, and of the next one with its machine number, whose clock is 2 s behind."""
        first = desk()
        before = first.take(10)
        end(first)
        moved.step(-2000)
        second, after = desk(), list[int]()
        for _ in range(8):
            with suppress(Unavailable):
                after += second.take(10)
            moved.sleep(1)
            second.sweep()
        second.close()
        return before, after

    before, after = restarted()
    assert min(after) > max(before)
    monkeypatch.setattr("issuer.strategies.local.whole", lambda *_: 0)
    before, after = restarted()
    assert min(after) < max(before)


@pytest.mark.covers("3.38")
def test_after_a_kill_the_next_process_waits_three_seconds_at_most_and_no_alarm_is_raised(
    desk: Opener, moved: MovedClock
) -> None:
    first = desk()
    before = first.take(10)
    killed(first)
    second, slept = desk(), moved.slept
    refused(ClockBehind, "", second.take, 1, timeout=1)
    assert second.next() > max(before)
    assert 2.9 < moved.slept - slept <= 3.01
    assert second.alarms == []
    moved.step(-2000)
    refused(ClockBehind, "", second.next)
    assert len(second.alarms) == 1


@pytest.mark.covers("3.38")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_heartbeat_after_the_clock_was_set_back_keeps_the_ceiling_without_which_a_restart_repeats(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        written = Fixed._written
        monkeypatch.setattr(Fixed, "_written", lambda self, floor, _before: written(self, floor, floor))
    first = desk()
    before = first.take(10)
    for _ in range(100):
        moved.sleep(0.01)
        before.append(first.next())
    moved.step(-5500)
    moved.sleep(1.1)
    first.sweep()
    killed(first)
    after = each_ms(desk(), moved.sleep)
    if guarded:
        assert min(after) > max(before)
    else:
        assert set(before) & set(after)


def test_the_ceiling_is_written_before_it_is_used(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    started(ids)
    for _ in range(5):
        moved.sleep(10)
        number = ids.next()
        last = dict(line.split("=") for line in the_file(desk).read_text().splitlines())["last"]
        assert Layout().decompose(number).timestamp <= int(last)


def test_a_file_that_cannot_be_written_stops_the_numbers(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    started(ids)
    file = the_file(desk)
    file.with_name(file.name + ".new").mkdir()
    moved.sleep(2)
    assert ids.next()
    moved.sleep(2)
    refused(Unavailable, "can't be written", ids.next)
    file.with_name(file.name + ".new").rmdir()
    assert ids.next()


def test_two_with_one_fixed_number_on_a_host_are_told(desk: Opener) -> None:
    started(desk(machine=5))
    refused(ConfigurationError, "in use", desk(machine=5).next)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_process_whose_lock_was_removed_stops_where_a_twin_begins_or_they_repeat(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(Properties, "_check_lock", lambda _file: None)
    first = desk()
    numbers = first.take(10)
    the_file(desk, "lock").unlink()
    second = desk()
    for _ in range(100):
        moved.sleep(0.1)
        for each in (first, second):
            with suppress(Unavailable, ConfigurationError):
                each.sweep()
                numbers += each.take(10)
    if guarded:
        assert not repeats(numbers)
        refused(ConfigurationError, "in use: another process of this host", first.next)
    else:
        assert repeats(numbers)


def test_a_lock_that_was_removed_is_taken_again_if_nobody_else_has(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    numbers = ids.take(10)
    lock = the_file(desk, "lock")
    lock.unlink()
    for _ in range(10):
        moved.sleep(1)
        ids.sweep()
        with suppress(Unavailable):
            numbers += ids.take(10)
    assert len(numbers) > 10
    assert not repeats(numbers)
    assert lock.exists()


def test_a_lock_that_is_held_looks_used(desk: Opener, moved: MovedClock) -> None:
    """What tidies up goes by the age of files."""
    ids = desk()
    started(ids)
    lock = the_file(desk, "lock")
    os.utime(lock, (0, 0))
    moved.sleep(2)
    ids.sweep()
    assert lock.stat().st_mtime > 0
