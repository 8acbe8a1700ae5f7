"""Machine numbers from the store: time that is reserved once, whoever was paused, killed or came at the same moment."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from issuer import ClockBehind, Issuer, NoMachineNumber, StoreBehind
from issuer.clock import Deadline
from issuer.core.supply import direct
from issuer.errors import ConfigurationError, Unavailable
from issuer.strategies import Instance
from issuer.strategies.snowflake import stored
from issuer.strategies.snowflake.machines import Clock
from issuer.strategies.snowflake.stored import _candidates
from issuer.strategies.snowflake.strategy import Snowflake
from issuer_persistence.contract import Store
from issuer_persistence.facts import StoreFacts
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.audit import assert_increasing, repeats
from tests.refusals import refused
from tests.schemes import Make
from tests.strategies.hosts import Desk, MovedClock, from_store

TAG = "orders#machine-5"
with_three = pytest.mark.parametrize("hosts", [[5, 6, 7]], indirect=True)


class Hosts:
    """Processes on hosts with clocks of their own, which take their machine numbers from one store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> None:
        self.store: Store = MemoryStore()
        self.clocks: list[MovedClock] = []
        self.desks: list[Desk] = []
        from_store(monkeypatch, numbers, lambda context: self.clocks[context.instance.port - 1])
        monkeypatch.setattr("issuer.clock.sleep", self.pass_time)

    def open(self) -> Desk:
        """Start a process on another host, whose clock is the first one's."""
        self.clocks.append(MovedClock(self.clocks[0].ms if self.clocks else Clock().ms()))
        return self.restart(len(self.clocks))

    def restart(self, port: int) -> Desk:
        """Start a process again on the host that was the `port`th."""
        instance = Instance(port=port, ip="192.0.2.5")
        self.desks.append(Desk("stored", {}, store=self.store, instance=instance, timeout=40))
        return self.desks[-1]

    @property
    def reserved(self) -> int:
        """The moment up to which time is reserved, in ms."""
        record = self.store.get(TAG, timeout=10)
        assert record is not None
        return record.max

    def pass_time(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.sleep(seconds)


@pytest.fixture
def hosts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts(monkeypatch, getattr(request, "param", [5]))
    yield made
    for desk in made.desks:
        desk.close()


@pytest.mark.covers("3.34")
@pytest.mark.parametrize("clock_back", [0, 0.001, 300])
def test_a_process_that_was_paused_never_uses_the_time_of_whoever_came_after(hosts: Hosts, clock_back: float) -> None:
    first = hosts.open()
    numbers = first.take(10)
    hosts.pass_time(stored.LEASE + 1)
    second = hosts.open()
    numbers += second.take(10)
    hosts.clocks[0].step(-round(clock_back * 1000))
    for _ in range(3):
        with suppress(Unavailable):
            numbers += first.take(10)
    assert len(numbers) >= 20
    assert repeats(numbers) == []


def test_of_two_that_come_at_once_one_gets_the_number(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reserves the same time between this one's look at the machine number and its reservation."""
    reserve, others = direct.reserve, hosts.open()
    once, numbers = iter([others]), list[int]()

    def late(*args: Any, **options: Any) -> object:
        for desk in once:
            with ThreadPoolExecutor() as another:
                numbers.extend(another.submit(desk.take, 10).result(60))
        return reserve(*args, **options)

    monkeypatch.setattr(direct, "reserve", late)
    mine = hosts.open()
    refused(NoMachineNumber, "", mine.take, 10)
    assert len(numbers) == 10
    # And what this one had reserved behind it is given back.
    assert hosts.reserved <= hosts.clocks[0].ms + stored.LEASE * 1000


@pytest.mark.parametrize("seconds", [1, stored.LEASE / 2, stored.LEASE, stored.LEASE * 3])
def test_all_time_that_is_left_is_given_back_however_often_it_was_renewed(hosts: Hosts, seconds: float) -> None:
    first = hosts.open()
    numbers = first.take(10)
    for _ in range(round(seconds)):
        hosts.pass_time(1)
        first.sweep()
    numbers += first.take(10)
    first.close()
    assert hosts.reserved == hosts.clocks[0].ms
    again = hosts.restart(1)
    numbers += again.take(10)
    again.close()
    second = hosts.open()
    assert_increasing([*numbers, *second.take(10)])


def test_who_had_a_machine_number_is_found_behind_what_was_given_back_whole(hosts: Hosts) -> None:
    first = hosts.open()
    first.take(10)
    begun = hosts.clocks[0].ms
    hosts.pass_time(stored.LEASE / 2)
    first.sweep()
    first.close()
    second = hosts.restart(1)
    second.take(10)

    def told(seconds: float) -> str | None:
        found: str | None = second.run(stored.holder("orders", 5, begun + round(seconds * 1000)), Deadline(40))
        return found

    assert told(stored.LEASE - 100) == told(0) == f"{socket.gethostname()}, pid {os.getpid()}"
    assert told(stored.LEASE / 4) is None
    assert told(stored.LEASE * 2) is None


def test_a_renewal_that_comes_after_the_stop_leaves_the_number_to_others(hosts: Hosts) -> None:
    first = hosts.open()
    numbers = first.take(10)
    strategy = first.serving.strategy
    assert isinstance(strategy, Snowflake)
    machines, tenure = strategy._machines, strategy._ticks.tenure
    assert tenure is not None
    hosts.pass_time(1)
    first.close()
    assert first.run(machines.renew(tenure), Deadline(40)) is None
    numbers += hosts.restart(1).take(10)
    assert_increasing(numbers)


@with_three
@pytest.mark.covers("3.38")
def test_a_clock_that_is_behind_when_the_process_starts_again_is_refused_and_alarmed(hosts: Hosts) -> None:
    first = hosts.open()
    numbers = first.take(10)
    first.close()
    hosts.clocks[0].step(-5000)
    with hosts.restart(1) as again:
        caught = refused(ClockBehind, "", again.take, 10)
        assert 5000 <= caught.behind <= 5001
        refused(ClockBehind, "", again.take, 10)
        assert [type(each) for each in again.alarms] == [ClockBehind]
    # What had not been used was given back once more, and still says by whom.
    with hosts.restart(1) as last:
        refused(ClockBehind, "", last.take, 10)
        hosts.pass_time(5.1)
        numbers += last.take(10)
    assert_increasing(numbers)


@with_three
def test_a_clock_that_is_behind_whoever_else_had_the_number_is_none_of_this_process(hosts: Hosts) -> None:
    usual = {port: next(_candidates([5, 6, 7], Instance(port=port, ip="192.0.2.5").key)) for port in range(1, 9)}
    other = next(port for port in range(2, 9) if usual[port] == usual[1])
    one, *_, twin = [hosts.open() for _ in range(other)]
    numbers = twin.take(10)
    twin.close()
    hosts.clocks[0].ns = hosts.clocks[other - 1].ns - 5_000_000_000
    numbers += one.take(10)
    assert one.alarms == []
    assert not repeats(numbers)


def test_a_killed_holders_number_is_refused_until_its_time_is_over(hosts: Hosts) -> None:
    hosts.open().take(10)
    error = refused(NoMachineNumber, "", hosts.open().take, 1)
    assert stored.LEASE - 5 < error.retry_after <= stored.LEASE


def test_time_is_renewed_before_it_is_over_and_not_each_second(hosts: Hosts) -> None:
    desk = hosts.open()
    numbers = desk.take(10)
    for _ in range(3600):
        hosts.pass_time(1)
        desk.sweep()
    numbers += desk.take(10)
    assert_increasing(numbers)
    assert len(hosts.store.ledger(TAG, newest=100, timeout=10)) == 1 + 3600 // 200


def test_a_store_that_went_back_is_found_out_at_the_next_renewal(hosts: Hosts) -> None:
    desk = hosts.open()
    desk.take(10)
    copy = MemoryStore()
    copy.create(TAG, TagSettings(step=1, order="trend"), timeout=10)
    desk.runner.store = desk.runner.pool.store = copy
    hosts.pass_time(stored.LEASE / 2)
    refused(StoreBehind, "", desk.sweep)


def test_a_clock_far_ahead_of_the_stores_takes_no_number_out_of_use(hosts: Hosts) -> None:
    class Timed(MemoryStore):
        def examine(self, *, timeout: float) -> StoreFacts:
            assert timeout > 0
            return StoreFacts(kind="memory", time=Clock().ms())

    hosts.store = Timed()
    desk = hosts.open()
    hosts.pass_time(3600)
    refused(NoMachineNumber, "ahead of the store's", desk.take, 1)
    assert hosts.store.get(TAG, timeout=10) is None


@pytest.mark.live
def test_many_processes_that_start_at_once_share_the_numbers(tmp_path: Path) -> None:
    options = {"machine": "store", "machine_bits": 3, "sequence_bits": 19}
    begin = threading.Barrier(8)

    def opened(port: int) -> Desk:
        instance = Instance(port=port, ip="192.0.2.5")
        return Desk("snowflake", options, store=open_store(f"sqlite:///{tmp_path}/a.db"), instance=instance, timeout=30)

    desks = [opened(port) for port in range(9)]

    def drawn(desk: Desk) -> list[int]:
        begin.wait()
        return desk.take(1000)

    with ThreadPoolExecutor(8) as pool:
        numbers = [number for each in pool.map(drawn, desks[:8]) for number in each]
    assert repeats(numbers) == []
    refused(NoMachineNumber, "", desks[8].take, 1)
    for desk in desks:
        desk.close()
        desk.runner.store.close()


#: One machine number, 0.
NAMESPACE: dict[str, Any] = {"namespace": "x", "machine": "store", "machine_bits": 1, "sequence_bits": 8}
PART = "x#machine-"


def draw(ids: Issuer, key: str) -> int:
    return ids.issue("x", restart_key=key).value


def keyed(ids: Issuer) -> None:
    ids.create("x", keyed=True, order="trend", format="{key}/{seq}")


def snowflake(ids: Issuer) -> None:
    ids.create("flakes", strategy="snowflake", options=NAMESPACE)


@pytest.fixture
def ids(make: Make) -> Issuer:
    return make(redis="none", instance=Instance(application="tests", ip="192.0.2.5"))


def test_a_restart_key_that_names_a_machine_numbers_tag_is_refused_and_both_go_on(
    ids: Issuer, store: MemoryStore
) -> None:
    snowflake(ids)
    first = ids.next("flakes")
    keyed(ids)
    (machine,) = [each for each in store.tags(count=1000, timeout=5) if each.tag.startswith(PART)]
    refused(ConfigurationError, "another restart key", draw, ids, machine.tag.removeprefix("x#"))
    assert store.get(machine.tag, timeout=5) == machine
    assert draw(ids, "acme") == 1
    ids.delete("x")
    assert [each.tag for each in store.tags(count=1000, timeout=5)] == ["flakes", machine.tag]
    assert ids.next("flakes") > first


def test_a_machine_number_whose_tag_is_a_series_is_refused_and_both_go_on(ids: Issuer, store: MemoryStore) -> None:
    keyed(ids)
    numbers = [draw(ids, f"machine-{number}") for number in range(2)]
    before = [store.get(f"{PART}{number}", timeout=5) for number in range(2)]
    snowflake(ids)
    refused(ConfigurationError, "another namespace", ids.next, "flakes")
    assert [store.get(f"{PART}{number}", timeout=5) for number in range(2)] == before
    numbers += [draw(ids, f"machine-{number}") for number in range(2)]
    assert numbers == [1, 1, 2, 2]


@pytest.mark.parametrize("description", [True, False])
def test_machine_numbers_of_before_go_on_and_those_of_anybody_else_are_not_taken_for_some(
    ids: Issuer, store: MemoryStore, description: bool
) -> None:
    said = "timestamps, in ms since 1970, that the machine number may have used" if description else ""
    settings = TagSettings(step=1, order="trend", description=said, scheme={"part_of": "x"})
    for number in range(2):
        store.create(f"{PART}{number}", settings, timeout=5)
    snowflake(ids)
    if description:
        assert ids.next("flakes") < ids.next("flakes")
    else:
        refused(ConfigurationError, "another namespace", ids.next, "flakes")
