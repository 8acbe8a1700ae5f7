"""What a host keeps of a fixed machine number, in a file: restarts, clocks that are set, locks that are removed."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest

from issuer.errors import ClockBehind, ConfigurationError, Unavailable
from issuer.strategies import Layout
from issuer.strategies.files import Properties
from issuer.strategies.local import Fixed
from tests.audit import repeats
from tests.strategies import MovedClock, Opener, each_ms, started


def restarted(desk: Opener, moved: MovedClock, *, crash: bool) -> tuple[list[int], list[int]]:
    """Numbers of a process, and of the next one with its machine number, whose clock is 2 s behind."""
    first = desk()
    before = first.take(10)
    if crash:
        # What a kill leaves: the file, and no lock.
        strategy: Any = first.serving.strategy
        strategy._machines._file.unlock()
    else:
        first.close()
    moved.step(-2000)
    second = desk()
    after: list[int] = []
    for _ in range(8):
        with suppress(Unavailable):
            after += second.take(10)
        moved.sleep(1)
        second.sweep()
    return before, after


@pytest.mark.covers("3.38")
@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_goes_on_above_the_last_timestamp_though_the_clock_went_back(
    desk: Opener, moved: MovedClock, crash: bool
) -> None:
    before, after = restarted(desk, moved, crash=crash)
    assert after
    assert min(after) > max(before)


def test_without_the_last_timestamp_a_restart_repeats(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.strategies.local.whole", lambda *_: 0)
    before, after = restarted(desk, moved, crash=False)
    assert min(after) < max(before)


@pytest.mark.covers("3.38")
def test_after_a_kill_the_next_process_waits_three_seconds_at_most_and_no_alarm_is_raised(
    desk: Opener, moved: MovedClock
) -> None:
    first = desk()
    before = first.take(10)
    strategy: Any = first.serving.strategy
    strategy._machines._file.unlock()
    second, slept = desk(), moved.slept
    with pytest.raises(ClockBehind):
        second.take(1, timeout=1)
    assert second.next() > max(before)
    assert 2.9 < moved.slept - slept <= 3.01
    assert second.alarms == []
    moved.step(-2000)
    with pytest.raises(ClockBehind):
        second.next()
    assert len(second.alarms) == 1


def set_back(desk: Opener, moved: MovedClock) -> tuple[list[int], list[int]]:
    """Numbers; the clock is set back, a heartbeat comes, the process is killed; numbers of the next one."""
    first = desk()
    before = first.take(10)
    for _ in range(100):
        moved.sleep(0.01)
        before.append(first.next())
    moved.step(-5500)
    moved.sleep(1.1)
    first.sweep()
    strategy: Any = first.serving.strategy
    strategy._machines._file.unlock()
    second = desk()
    return before, each_ms(second, moved.sleep)


@pytest.mark.covers("3.38")
def test_a_heartbeat_after_the_clock_was_set_back_forgets_nothing(desk: Opener, moved: MovedClock) -> None:
    before, after = set_back(desk, moved)
    assert after
    assert min(after) > max(before)


def test_if_the_ceiling_went_back_with_the_clock_a_restart_repeats(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Fixed._written
    monkeypatch.setattr(Fixed, "_written", lambda self, floor, _before: written(self, floor, floor))
    before, after = set_back(desk, moved)
    assert set(before) & set(after)


def test_the_ceiling_is_written_before_it_is_used(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    started(ids)
    for _ in range(5):
        moved.sleep(10)
        number = ids.next()
        (file,) = desk.directory.glob("*.properties")
        last = dict(line.split("=") for line in file.read_text().splitlines())["last"]
        assert Layout().decompose(number).timestamp <= int(last)


def test_a_file_that_cannot_be_written_stops_the_numbers(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    started(ids)
    (file,) = desk.directory.glob("*.properties")
    file.with_name(file.name + ".new").mkdir()
    moved.sleep(2)
    assert ids.next()
    moved.sleep(2)
    with pytest.raises(Unavailable, match="can't be written"):
        ids.next()
    file.with_name(file.name + ".new").rmdir()
    assert ids.next()


def test_two_with_one_fixed_number_on_a_host_are_told(desk: Opener) -> None:
    started(desk(machine=5))
    with pytest.raises(ConfigurationError, match="in use"):
        desk(machine=5).next()


def without_its_lock(desk: Opener, moved: MovedClock) -> list[int]:
    """Numbers of a process whose lock was removed, and of a twin that has come since."""
    first = desk()
    numbers = first.take(10)
    (lock,) = desk.directory.glob("*.lock")
    lock.unlink()
    second = desk()
    for _ in range(100):
        moved.sleep(0.1)
        for each in (first, second):
            with suppress(Unavailable, ConfigurationError):
                each.sweep()
                numbers += each.take(10)
    return numbers


def test_a_process_whose_lock_was_removed_stops_where_a_twin_begins(desk: Opener, moved: MovedClock) -> None:
    assert not repeats(without_its_lock(desk, moved))
    with pytest.raises(ConfigurationError, match="in use: another process of this host"):
        desk.opened[0].next()


def test_without_a_look_at_the_lock_twins_repeat(
    desk: Opener, moved: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Properties, "_check_lock", lambda _file: None)
    assert repeats(without_its_lock(desk, moved))


def test_a_lock_that_was_removed_is_taken_again_if_nobody_else_has(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    numbers = ids.take(10)
    (lock,) = desk.directory.glob("*.lock")
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
    (lock,) = desk.directory.glob("*.lock")
    os.utime(lock, (0, 0))
    moved.sleep(2)
    ids.sweep()
    assert lock.stat().st_mtime > 0
