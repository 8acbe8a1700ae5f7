"""Machine numbers in files and in Redis, with a clock that only the test moves."""

import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from issuer.errors import (
    ClockBehind,
    ConfigurationError,
    CorruptState,
    NoMachineNumber,
    RedisUnavailable,
    Unavailable,
)
from issuer.machine_calls import machines_key
from issuer.persistence.opening import open_store
from issuer.strategies import Instance, Layout
from issuer.strategies.files import Properties
from issuer.strategies.local import Copied
from issuer.strategies.machines import mixed
from tests.audit import repeats
from tests.strategies import Desk, Host, each_ms
from tests.unit.refusals import refused

ONE: dict[str, Any] = {"worker_bits": 1, "rack_bits": 1}


def elsewhere(host: Host, name: str, tag: str = "orders", **options: Any) -> Desk:
    """A process of another name, which keeps no file."""
    options = {"machine": "redis", **options}
    return Desk("moved", options, tag=tag, redis=host.server.client(), instance=Instance(name))


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
    refused(CorruptState, "without `=`", file.read)


def test_one_at_a_time_has_the_lock(tmp_path: Path) -> None:
    one, two = Properties(tmp_path / "a"), Properties(tmp_path / "a")
    one.lock()
    one.lock()
    refused(ConfigurationError, "in use", two.lock)
    one.unlock()
    two.lock()


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


@pytest.mark.parametrize("change", [{"boot": "another"}, {"store": "another"}, {"token": ""}, {"machineId": "5000"}])
def test_with_redis_away_a_file_from_elsewhere_does_not_count(host: Host, change: dict[str, str]) -> None:
    desk = host.start(found=True)
    host.machine(desk)
    host.crash(desk)
    file = Properties(host.file)
    file.lock()
    file.write({**file.read(), **change})
    file.unlock()
    host.server.connected = False
    refused(RedisUnavailable, "", host.start().next)


def test_a_twin_of_the_same_name_has_a_number_of_its_own(host: Host) -> None:
    one = host.start(found=True)
    machine = host.machine(one)
    assert host.machine(host.start()) != machine
    assert host.machine(host.start(port=8113)) != machine


def test_a_heartbeat_keeps_the_number_far_beyond_its_lease(host: Host) -> None:
    desk = host.start(found=True)
    machine = host.machine(desk)
    for _ in range(100):
        host.pass_time(5)
        desk.sweep()
        desk.next()
    assert host.machine(desk) == machine
    assert host.moved.slept < 501


@pytest.mark.parametrize("source", ["file", "redis"])
def test_without_a_scheduler_the_callers_renew_what_is_over(host: Host, source: str) -> None:
    desk = host.start(found=True, machine=source)
    machine = host.machine(desk)
    for _ in range(5):
        host.pass_time(35)
        assert host.machine(desk) == machine


@pytest.mark.parametrize("guarded", [True, False])
def test_a_file_counts_no_longer_than_the_lease_or_numbers_are_repeated(
    host: Host, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """A process with a file is killed, its only number passes on, and with Redis away it starts again."""
    read = Properties.read

    def for_ever(self: Properties) -> dict[str, str]:
        known = read(self)
        return {**known, "lease": "1000000000", "ceiling": str(2**62)} if "lease" in known else known

    if not guarded:
        monkeypatch.setattr(Properties, "read", for_ever)
    first = host.start(found=True, **ONE)
    host.machine(first)
    host.crash(first)
    host.pass_time(45)
    numbers = elsewhere(host, "other", **ONE).take(10)
    host.server.connected = False
    again = host.start(**ONE)
    if guarded:
        refused(RedisUnavailable, "", again.take, 10)
    else:
        assert set(again.take(10)) & set(numbers)


@pytest.mark.covers("3.34", "3.38")
@pytest.mark.parametrize("below_the_floor", [False, True])
@pytest.mark.parametrize("guarded", [True, False])
def test_the_copys_ceiling_stays_where_it_was_when_the_clock_is_set_back_or_a_restart_repeats(
    host: Host, monkeypatch: pytest.MonkeyPatch, below_the_floor: bool, guarded: bool
) -> None:
    """The clock of a host with the only number is set back, the process is killed; another one goes on."""
    if not guarded:
        written = Copied._written
        monkeypatch.setattr(Copied, "_written", lambda self, floor, _before: written(self, floor, 0))
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
    after = each_ms(second, host.pass_time)
    if guarded:
        assert min(after) > max(before)
    else:
        assert set(before) & set(after)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_process_whose_lock_was_removed_leaves_its_number_to_the_twin_or_they_repeat(
    host: Host, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(Properties, "_check_lock", lambda _file: None)
        monkeypatch.setattr(Properties, "identity", "any")  # else the twin believes no file beside another lock
    first = host.start(found=True)
    numbers = first.take(10)
    (lock,) = host.folder.glob("*/*.lock")
    lock.unlink()
    second = host.start()
    for _ in range(100):
        host.pass_time(0.1)
        for each in (first, second):
            with suppress(Unavailable):
                each.sweep()
                numbers += each.take(10)
    assert len(numbers) > 1000
    assert bool(repeats(numbers)) is not guarded


def test_a_namespace_that_redis_may_have_forgotten_has_to_settle(host: Host) -> None:
    assert 39 < refused(NoMachineNumber, "none is leased for 40 s more", host.start().next).retry_after <= 40
    host.pass_time(40.1)
    assert host.start(port=1).next()


@pytest.mark.parametrize("guarded", [True, False])
def test_a_tag_named_like_a_namespace_ends_no_waiting_there_or_numbers_are_repeated(
    host: Host, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Redis is emptied, and then somebody makes a tag that is named like the namespace of another one."""
    if not guarded:
        own = "issuer.strategies.snowflake.machines_key"
        monkeypatch.setattr(own, lambda prefix, tag, shared: machines_key(prefix, shared or tag, None))
    bits = {"machine_bits": 1, "sequence_bits": 21}
    desks = [elsewhere(host, f"y{n}", "y", namespace="snow", **bits) for n in range(3)]
    with suppress(NoMachineNumber):
        desks[0].next()
    host.pass_time(41)
    numbers = desks[0].take(10)
    host.server.client().flushall()
    with elsewhere(host, "snow", "snow", **bits) as snow:
        snow.found()  # and gives its number back
    for desk in desks[1:]:
        with suppress(NoMachineNumber):
            numbers += desk.take(10)
    numbers += desks[0].take(10)
    assert bool(repeats(numbers)) is not guarded
    assert len(numbers) == 20 or not guarded


def unequal_leases(host: Host) -> list[int]:
    """Two tags share the only machine number, one with a long lease; then Redis is emptied."""
    long, short = (
        elsewhere(host, tag, tag, namespace="both", lease=lease, **ONE) for tag, lease in (("long", 120), ("short", 5))
    )
    with suppress(NoMachineNumber):
        long.next()
    host.pass_time(131)
    numbers = long.take(10)
    host.server.client().flushall()
    for seconds in (0, 16):
        host.pass_time(seconds)
        with suppress(NoMachineNumber):
            numbers += short.take(10)
    return numbers + long.take(10)


def test_tags_that_share_a_namespace_have_one_lease(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(ConfigurationError, "lease can't be set where tags share a namespace", unequal_leases, host)
    monkeypatch.setattr("issuer.strategies.snowflake.shared_namespace", lambda options: options["namespace"])
    assert repeats(unequal_leases(host))


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
    slow, once = host.start(port=1, **options), ["seen"]
    look = slow.runner.redis.call

    def looked(call: Any, *args: Any, **more: Any) -> Any:
        reply = look(call, *args, **more)
        if once and b"HGETALL" in call.packed:
            once.clear()
            for _ in range(16):
                host.start(**options).next()
        return reply

    monkeypatch.setattr(slow.runner.redis, "call", looked)
    assert slow.next()


def test_what_lapsed_is_taken_last(host: Host) -> None:
    options: dict[str, Any] = {"machine": "redis", "machine_bits": 1}
    lapsed = host.machine(host.start(found=True, **options))
    host.pass_time(60)
    assert host.machine(host.start(port=1, **options)) == 1 - lapsed
    assert host.machine(host.start(port=2, **options)) == lapsed


@pytest.mark.parametrize("source", ["redis", "store"])
def test_of_millions_of_machine_numbers_no_list_is_made(host: Host, source: str) -> None:
    tracemalloc.start()
    try:
        host.start(found=True, machine=source, machine_bits=22, time_bits=40, sequence_bits=1).next()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_mixed_numbers_are_all_of_them_once() -> None:
    for size in (1, 2, 3, 12, 255, 1024):
        assert sorted(mixed(range(size))) == list(range(size))


def test_when_all_numbers_are_held_the_error_says_for_how_long(host: Host) -> None:
    host.start(port=1, found=True, machine_bits=1).next()
    host.start(port=2, machine_bits=1).next()
    third = host.start(port=3, machine_bits=1)
    error = refused(NoMachineNumber, "all 2 machine numbers.*more machine bits", third.next)
    assert 30 < error.retry_after <= 41


def test_a_clock_ahead_of_the_servers_is_told(host: Host) -> None:
    host.moved.step(3_600_000)
    refused(NoMachineNumber, r"clock is 3\.6e\+03 s ahead of Redis's", host.start, found=True)


def test_a_lost_reply_leaves_the_number_to_nobody(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    first = host.start(port=1, found=True, machine_bits=1)
    first.next()
    second = host.start(port=2, machine_bits=1)
    claimed = second.runner.redis.call

    losing = ["a claim"]

    def lost(call: Any, *args: Any, **options: Any) -> Any:
        reply = claimed(call, *args, **options)
        if losing and b"sequence-client.2" in call.packed:
            losing.clear()
            raise RedisUnavailable("the reply was lost")
        return reply

    monkeypatch.setattr(second.runner.redis, "call", lost)
    refused(RedisUnavailable, "the reply was lost", second.next)
    refused(NoMachineNumber, "all 2", second.next)
    host.pass_time(29)
    first.sweep()
    host.pass_time(12)
    assert {host.machine(first), host.machine(second)} == {0, 1}


def test_redis_by_its_own_client_is_fine(fake_redis: redis.Redis) -> None:
    with Desk("snowflake", {}, redis=fake_redis) as desk:
        desk.found()
        assert desk.take(3)
