"""What is kept of a machine number, in Redis and in files: kills, stops, clocks set, locks removed, copies."""

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.errors import ClockBehind, ConfigurationError, NoMachineNumber, RedisUnavailable, Unavailable
from issuer.strategies import Instance, Layout
from tests.audit import repeats
from tests.refusals import refused
from tests.strategies.hosts import Desk, Host, MovedClock, Opener, each_ms


def stopped(_host: Host, desk: Desk) -> None:
    desk.close()


def stopped_without_redis(host: Host, desk: Desk) -> None:
    host.server.connected = False
    desk.close()


def restarted(host: Host, end: Callable[[Host, Desk], None], meanwhile: Callable[[], None], **options: Any) -> Desk:
    """End a process and start the next one, which goes on with the machine number, above the numbers; return it."""
    desk = host.start(found=True, **options)
    machine, before = host.machine(desk), desk.take(10)
    end(host, desk)
    meanwhile()
    again = host.start(**options)
    assert host.machine(again) == machine
    assert min(again.take(10)) > max(before)
    return again


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("end", [Host.crash, stopped, stopped_without_redis])
@pytest.mark.parametrize("away", [False, True])
def test_a_restart_goes_on_with_the_same_number_also_while_redis_is_away(
    host: Host, end: Callable[[Host, Desk], None], away: bool
) -> None:
    def meanwhile() -> None:
        host.server.connected = not away
        host.pass_time(4)

    restarted(host, end, meanwhile)


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("end", [Host.crash, stopped])
def test_with_redis_away_the_file_counts_until_the_lease_may_have_passed_on(
    host: Host, end: Callable[[Host, Desk], None]
) -> None:
    def meanwhile() -> None:
        host.server.connected = False
        host.pass_time(599)

    again = restarted(host, end, meanwhile, lease=600)
    host.pass_time(1)
    refused(RedisUnavailable, "", again.next)
    end(host, again)
    refused(RedisUnavailable, "", host.start(lease=600).next)


def test_after_another_boot_the_number_that_has_lapsed_is_taken_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.strategies.snowflake.local.boot_id", iter(["one", "another"]).__next__)
    restarted(host, stopped, lambda: host.pass_time(41))


@pytest.mark.parametrize("source", ["file", "redis"])
def test_closing_with_redis_away_raises_nothing_and_the_number_lapses(host: Host, source: str) -> None:
    desk = host.start(found=True, machine=source, machine_bits=1)
    assert host.machine(desk) in {0, 1}
    host.server.connected = False
    desk.close()
    host.server.connected = True
    host.pass_time(41)
    assert {host.machine(host.start(port, machine="redis", machine_bits=1)) for port in (8112, 2)} == {0, 1}


def test_after_an_orderly_stop_the_last_timestamp_holds_though_the_clock_was_set_back(host: Host) -> None:
    desk = host.start(found=True)
    before = desk.take(10)
    desk.close()
    host.server.connected = False
    host.moved.step(-5000)
    again = host.start()
    refused(ClockBehind, "", again.take, 10)
    assert [type(each) for each in again.alarms] == [ClockBehind]
    host.pass_time(5.1)
    assert min(again.take(10)) > max(before)


def test_what_an_orderly_stop_leaves_lapses_by_itself(host: Host) -> None:
    desk = host.start(found=True, machine_bits=1)
    machine = host.machine(desk)
    desk.close()
    assert host.machine(host.start(2, machine_bits=1)) == 1 - machine
    refused(NoMachineNumber, "", host.start(3, machine_bits=1).next)
    host.pass_time(41)
    host.opened[1].sweep()
    assert host.machine(host.start(3, machine_bits=1)) == machine


def test_a_renewal_that_ends_after_the_stop_leaves_the_file_to_the_next_process(host: Host) -> None:
    first = host.start(found=True)
    host.machine(first)
    strategy: Any = first.serving.strategy
    machines, tenure = strategy._machines, strategy._ticks.tenure
    first.close()
    host.start().next()
    written = host.file.read_text()
    host.pass_time(5)
    assert first.run(machines.renew(tenure), Deadline(60)) is None
    assert host.file.read_text() == written


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
    desk: Opener, moved: MovedClock, end: Any
) -> None:
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
    assert min(after) > max(before)


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
def test_a_heartbeat_after_the_clock_was_set_back_keeps_the_ceiling(desk: Opener, moved: MovedClock) -> None:
    first = desk()
    before = first.take(10)
    for _ in range(100):
        moved.sleep(0.01)
        before.append(first.next())
    moved.step(-5500)
    moved.sleep(1.1)
    first.sweep()
    killed(first)
    assert min(each_ms(desk(), moved.sleep)) > max(before)


def test_the_ceiling_is_written_before_it_is_used(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    ids.next()
    for _ in range(5):
        moved.sleep(10)
        number = ids.next()
        last = dict(line.split("=") for line in the_file(desk).read_text().splitlines())["last"]
        assert Layout().decompose(number).timestamp <= int(last)


def test_a_file_that_cannot_be_written_stops_the_numbers(desk: Opener, moved: MovedClock) -> None:
    ids = desk()
    ids.next()
    file = the_file(desk)
    file.with_name(file.name + ".new").mkdir()
    moved.sleep(2)
    assert ids.next()
    moved.sleep(2)
    refused(Unavailable, "can't be written", ids.next)
    file.with_name(file.name + ".new").rmdir()
    assert ids.next()


def test_a_process_whose_lock_was_removed_stops_where_a_twin_begins(desk: Opener, moved: MovedClock) -> None:
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
    assert not repeats(numbers)
    refused(ConfigurationError, "in use: another process of this host", first.next)


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
    ids.next()
    lock = the_file(desk, "lock")
    os.utime(lock, (0, 0))
    moved.sleep(2)
    ids.sweep()
    assert lock.stat().st_mtime > 0


def test_a_copied_directory_gives_no_machine_number_twice(redis_url: str, tmp_path: Path) -> None:
    store, folders = f"sqlite:///{tmp_path / 'ids.db'}", [tmp_path / "one", tmp_path / "two"]
    numbers: list[int] = []
    known = {"application": "shop", "port": 80, "ip": "10.0.0.1"}
    first = Instance(**known, directory=str(folders[0]))  # type: ignore[arg-type]
    with issuer.connect(redis=redis_url, store=store, instance=first, scheduler=None) as one:
        one.create("s", strategy="snowflake", options={"machine": "file"})
        numbers += one.take("s", 100)
        shutil.copytree(folders[0], folders[1])
        second = Instance(**known, directory=str(folders[1]))  # type: ignore[arg-type]
        with issuer.connect(redis=redis_url, store=store, instance=second, scheduler=None) as two:
            for _ in range(50):
                numbers += one.take("s", 100) + two.take("s", 100)
    assert repeats(numbers) == []
    # What wasn't copied is believed: the first process's number, by the next of its name.
    with issuer.connect(redis=redis_url, store=store, instance=first, scheduler=None) as again:
        shown = [again.decode("s", each).fields or {} for each in (numbers[0], *again.take("s", 3))]
    assert len({each["machine"] for each in shown}) == 1
