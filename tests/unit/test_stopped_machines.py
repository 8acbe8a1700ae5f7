"""What a kill and an orderly stop leave of a leased machine number, in Redis and in the file."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from issuer.clock import Deadline
from issuer.core.steps import Steps
from issuer.errors import ClockBehind, NoMachineNumber, RedisUnavailable
from issuer.strategies.local import Copied
from issuer.strategies.machines import Leased, Tenure
from tests.audit import repeats
from tests.strategies import Desk, Host
from tests.unit.refusals import refused
from tests.unit.test_machine_numbers import ONE, elsewhere


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
    monkeypatch.setattr("issuer.strategies.local.boot_id", iter(["one", "another"]).__next__)
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


@pytest.mark.parametrize("guarded", [True, False])
def test_a_number_that_an_orderly_stop_leaves_is_nobody_elses_or_numbers_are_repeated(
    host: Host, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """The only number is left by a stop; another process asks for it; then Redis is away, and the first restarts."""
    release = Copied.release

    def given_back(self: Copied, tenure: Tenure, used: int) -> Steps[None]:
        yield from release(self, tenure, used)
        yield from Leased.release(self, tenure, used)

    if not guarded:
        monkeypatch.setattr(Copied, "release", given_back)
    first = host.start(found=True, **ONE)
    numbers = first.take(10)
    first.close()
    with suppress(NoMachineNumber):
        numbers += elsewhere(host, "other", **ONE).take(10)
    host.server.connected = False
    numbers += host.start(**ONE).take(10)
    assert len(numbers) == (20 if guarded else 30)
    assert bool(repeats(numbers)) is not guarded


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
