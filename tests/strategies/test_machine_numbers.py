"""Machine numbers in files and in Redis, with a clock that only the test moves."""

import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from issuer.errors import ClockBehind, ConfigurationError, CorruptState, NoMachineNumber, RedisUnavailable
from issuer.strategies import Instance, Layout
from issuer.strategies.snowflake.files import Properties
from issuer.strategies.snowflake.machines import ROUNDS
from issuer_persistence.opening import open_store
from tests.refusals import refused
from tests.strategies.hosts import Desk, Host, each_ms

ONE: dict[str, Any] = {"worker_bits": 1, "rack_bits": 1}


def elsewhere(host: Host, name: str, tag: str = "orders", **options: Any) -> Desk:
    """A process of another name, which keeps no file."""
    options = {"machine": "redis", **options}
    return Desk("moved", options, tag=tag, redis=host.server.client(), instance=Instance(name))


def once_answered(desk: Desk, word: bytes, then: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do that once, when Redis has answered the first call that has this word."""
    do, todo = desk.runner.redis.do, [then]

    async def done(step: Any, *args: Any, **more: Any) -> Any:
        reply = await do(step, *args, **more)
        if todo and word in step.call.packed:
            todo.pop()()
        return reply

    monkeypatch.setattr(desk.runner.redis, "do", done)


@pytest.mark.covers("3.37")
def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / Instance("sequence-client", 8112, "192.168.0.222").file
    file = Properties(path)
    file.lock()
    assert file.read() == {}
    file.write({"machineId": 5, "workerId": 1, "rackId": 1})
    assert path.read_text() == "machineId=5\nworkerId=1\nrackId=1\n"
    assert Properties(path).read() == {"machineId": "5", "workerId": "1", "rackId": "1"}
    path.write_text("# by hand\n\n! too\nmachineId = 7\n")
    assert file.read() == {"machineId": "7"}
    path.write_text("machineId\n")
    refused(CorruptState, 'without "="', file.read)


@pytest.mark.covers("3.34", "3.37")
def test_a_leased_number_is_copied_into_the_file(host: Host) -> None:
    desk = host.start(found=True, rack_bits=2)
    machine = host.machine(desk)
    assert host.file.name == "sequence-client:8112:3232235742.properties"
    properties = Properties(host.file).read()
    assert properties["machineId"] == str(machine)
    assert Layout(worker_bits=8, rack_bits=2).machine(int(properties["workerId"]), int(properties["rackId"])) == machine
    desk.close()
    stopped = Properties(host.file).read()
    assert {**stopped, "last": properties["last"]} == properties
    assert int(stopped["last"]) == host.moved.ms


@pytest.mark.parametrize("change", ["boot another", "store another", "lock another", "token ", "machineId 5000"])
def test_with_redis_away_a_file_from_elsewhere_does_not_count(host: Host, change: str) -> None:
    desk = host.start(found=True)
    host.machine(desk)
    host.crash(desk)
    file = Properties(host.file)
    file.lock()
    file.write({**file.read(), **dict([change.split(" ")])})
    file.unlock()
    host.server.connected = False
    refused(RedisUnavailable, "", host.start().next)


def test_heartbeats_keep_numbers_far_beyond_their_leases_and_twins_of_one_name_have_one_each(host: Host) -> None:
    desks = [host.start(found=True), host.start(), host.start(port=8113)]
    machines = [host.machine(desk) for desk in desks]
    assert len(set(machines)) == 3
    for _ in range(100):
        host.pass_time(5)
        for desk in desks:
            desk.sweep()
            desk.next()
    assert [host.machine(desk) for desk in desks] == machines
    assert host.moved.slept < 501


@pytest.mark.parametrize("source", ["file", "redis"])
def test_without_a_scheduler_the_callers_renew_what_is_over(host: Host, source: str) -> None:
    desk = host.start(found=True, machine=source)
    machine = host.machine(desk)
    for _ in range(5):
        host.pass_time(35)
        assert host.machine(desk) == machine


@pytest.mark.covers("3.34", "3.38")
@pytest.mark.parametrize("below_the_floor", [False, True])
def test_the_copys_ceiling_stays_where_it_was_when_the_clock_is_set_back(host: Host, below_the_floor: bool) -> None:
    """The clock of a host with the only number is set back, the process is killed; another one goes on."""
    first = host.start(found=True, **ONE)
    before = [first.next()]
    for _ in range(100):
        host.pass_time(0.01)
        before.append(first.next())
    if below_the_floor:
        # The number goes to another process, on a host whose clock is a minute behind.
        first.close()
        host.opened.remove(first)
        host.pass_time(41)
        host.moved.step(-101_000)
        first = host.start(port=2, **ONE)
        refused(ClockBehind, "", first.next)
    else:
        host.moved.step(-5500)
    host.pass_time(1.1)
    first.sweep()
    host.crash(first)
    second = host.start(port=2 if below_the_floor else 8112, **ONE)
    if below_the_floor:
        with suppress(ClockBehind):
            second.next()
        host.pass_time(57)
    assert min(each_ms(second, host.pass_time)) > max(before)


def test_a_namespace_that_redis_may_have_forgotten_has_to_settle(host: Host) -> None:
    assert 39 < refused(NoMachineNumber, "none is leased for another 40 s", host.start().next).retry_after <= 40
    host.pass_time(40.1)
    assert host.start(port=1).next()


def test_a_tag_named_like_a_namespace_ends_no_waiting_there(host: Host) -> None:
    """Redis is emptied, and then somebody makes a tag that is named like the namespace of another one."""
    one, two = (elsewhere(host, f"y{n}", "y", namespace="snow") for n in range(2))
    refused(NoMachineNumber, "none is leased for", one.next)
    host.pass_time(41)
    one.next()
    host.server.client().flushall()
    with elsewhere(host, "snow", "snow") as snow:
        snow.found()  # and gives its number back
    refused(NoMachineNumber, "none is leased for", two.next)
    assert one.next()


def test_another_stores_tag_of_that_name_is_refused(host: Host) -> None:
    host.start(found=True, machine="redis").next()
    with Desk("moved", {"machine": "redis"}, redis=host.server.client(), store=open_store("memory://")) as other:
        refused(ConfigurationError, "belongs to another store", other.next)


def test_as_many_processes_of_one_name_as_there_are_numbers_get_one_each(host: Host) -> None:
    """Whoever has the name holds some already: they are no better than others."""
    options: dict[str, Any] = {"machine": "redis", "machine_bits": 5}
    desks = [host.start(found=not each, **options) for each in range(32)]
    assert {host.machine(desk) for desk in desks} == set(range(32))
    refused(NoMachineNumber, "", host.start(**options).next)


def test_one_that_is_free_is_found_though_others_are_quicker(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"machine": "redis", "machine_bits": 5}
    for each in range(15):
        host.start(found=not each, **options).next()
    slow = host.start(port=1, **options)
    once_answered(slow, b"HGETALL", lambda: [host.start(**options).next() for _ in range(16)], monkeypatch)
    assert slow.next()


def test_a_redis_that_shows_leased_numbers_as_free_is_asked_a_few_times_only(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in range(2):
        host.start(port=each, found=not each, machine_bits=1).next()
    late = host.start(port=2, machine_bits=1)
    do, outdated = late.runner.redis.do, []

    def done(step: Any, *args: Any, **more: Any) -> Any:
        if b"HGETALL" in step.call.packed:
            outdated.append(step)
            step = replace(step, call=replace(step.call, decode=lambda _: {}))
        return do(step, *args, **more)

    monkeypatch.setattr(late.runner.redis, "do", done)
    refused(NoMachineNumber, "all 2 machine numbers", late.next)
    assert len(outdated) == ROUNDS


def test_what_lapsed_is_taken_last_and_when_all_are_held_the_error_says_for_how_long(host: Host) -> None:
    lapsed = host.machine(host.start(found=True, machine_bits=1))
    host.pass_time(60)
    assert host.machine(host.start(port=1, machine_bits=1)) == 1 - lapsed
    assert host.machine(host.start(port=2, machine_bits=1)) == lapsed
    third = host.start(port=3, machine_bits=1)
    error = refused(NoMachineNumber, "all 2 machine numbers.*more machine bits", third.next)
    assert 30 < error.retry_after <= 41


@pytest.mark.parametrize("source", ["redis", "store"])
def test_of_millions_of_machine_numbers_no_list_is_made(host: Host, source: str) -> None:
    tracemalloc.start()
    try:
        host.start(found=True, machine=source, machine_bits=22, time_bits=40, sequence_bits=1).next()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_clock_ahead_of_the_servers_is_told(host: Host) -> None:
    host.moved.step(3_600_000)
    refused(NoMachineNumber, "clock is 1 h ahead of Redis's", host.start, found=True)


def test_a_lost_reply_leaves_the_number_to_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.start(port=1, found=True, machine_bits=1)
    first.next()
    second = host.start(port=2, machine_bits=1)

    def lost() -> None:
        raise RedisUnavailable("the reply was lost")

    once_answered(second, b"sequence-client.2", lost, monkeypatch)
    refused(RedisUnavailable, "the reply was lost", second.next)
    refused(NoMachineNumber, "all 2", second.next)
    host.pass_time(29)
    first.sweep()
    host.pass_time(12)
    assert {host.machine(first), host.machine(second)} == {0, 1}
