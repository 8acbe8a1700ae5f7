"""Redis and the store go back in time, away, or empty while numbers are leased: gaps, and no repeats."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core.steps import Steps, sleep
from issuer.core.supply import supply
from issuer.core.supply.mode import Mode
from issuer.drivers.blocking.combiner import NOWHERE
from issuer.engine.scheduler import Scheduler
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore, Snapshot
from tests.audit import repeats
from tests.colours import COLOURS, Connect, connect_awaited, covering, run
from tests.core.test_leases import supply_of, until_held
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until


@pytest.fixture
def other(server: RedisServer, store: MemoryStore) -> Iterator[Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 10 000."""
    with issuer.connect(redis=server.url, store=store, scheduler=None) as made:
        made.create("a", step=10_000, order="trend")
        made.warm("a")
        yield made


@pytest.fixture
def leased(connect: Connect, server: RedisServer, store: MemoryStore) -> Make:
    return partial(connect, redis=server.url, store=store, lease=1000)


def rolled_back(server: RedisServer, _other: Issuer) -> None:
    """Redis dies and comes back as it was before the lease."""
    server.restore(server.directory / "snapshot")


def emptied(server: RedisServer, _other: Issuer) -> None:
    """All its keys are deleted; it goes on."""
    with server.client() as client:
        client.flushall()


def killed_and_empty(server: RedisServer, _other: Issuer) -> None:
    server.wipe()


def recovered(_server: RedisServer, other: Issuer) -> None:
    other.recover("a")


def assert_goes_on(ids: Issuer, other: Issuer, numbers: list[int]) -> None:
    numbers += other.take("a", 50) + ids.take("a", 1500)
    assert repeats(numbers) == []
    assert max(numbers) <= other.inspect("a").store.max


Event = Callable[[RedisServer, Issuer], None]


@covering(
    "connect, event",
    [("blocking", rolled_back), ("asyncio", recovered), ("asyncio", killed_and_empty), ("blocking", emptied)],
    COLOURS,
    [rolled_back, emptied, killed_and_empty, recovered],
)
def test_what_was_leased_before_is_dropped_at_the_first_use_a_second_later_and_nothing_repeats(
    leased: Make, server: RedisServer, other: Issuer, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.snapshot().rename(server.directory / "snapshot")
    with leased(scheduler=None) as ids:
        numbers: list[int] = [ids.next("a") for _ in range(3)]
        with monkeypatch.context() as within_the_second:  # however long the event takes
            within_the_second.setattr(supply, "CHECK_AFTER", 600.0)
            event(server, other)
            numbers.append(ids.next("a"))
        assert numbers == [1, 2, 3, 4]
        supply_of(ids)._checked_at -= 1.1
        numbers.append(ids.next("a"))
        assert numbers[-1] > 10_000
        assert_goes_on(ids, other, numbers)


@covering("connect, event", [("blocking", recovered), ("asyncio", rolled_back)], COLOURS, [rolled_back, recovered])
def test_whoever_draws_from_what_lies_open_is_stopped_by_the_scheduler(
    leased: Make, server: RedisServer, other: Issuer, event: Event
) -> None:
    server.snapshot().rename(server.directory / "snapshot")
    with leased(lease=100_000) as ids:
        numbers: list[int] = [ids.next("a") for _ in range(3)]
        event(server, other)

        def dropped() -> bool:
            numbers.append(ids.next("a"))
            return numbers[-1] > 10_000

        until(dropped, timeout=60)
        assert numbers == sorted(numbers)
        assert_goes_on(ids, other, numbers)


@pytest.mark.usefixtures("other")
def test_a_hash_that_was_put_back_within_its_term_costs_two_leases_and_is_an_error(
    leased: Make, server: RedisServer
) -> None:
    key = redis_key("issuer", "a")
    with server.client() as client, leased(lease=10, scheduler=None) as ids:
        numbers = [ids.next("a") for _ in range(100)]
        before = client.dump(key)
        assert isinstance(before, bytes)
        numbers += [ids.next("a") for _ in range(100)]
        client.restore(key, 0, before, replace=True)
        with pytest.raises(issuer.CorruptState, match="went back in time: it returned"):
            numbers += [ids.next("a") for _ in range(30)]
        assert repeats(numbers) == []


def test_processes_that_lease_a_tag_stop_soon_after_it_was_deleted(leased: Make, other: Issuer) -> None:
    with leased() as ids:
        stream = iter(ids.stream("a"))
        assert [ids.next("a"), next(stream), next(stream)] == [1, 2, 3]
        other.delete("a")
        with pytest.raises(issuer.UnknownTag):
            until(lambda: not ids.next("a"), timeout=60)
        refused(issuer.UnknownTag, "", next, stream)


def test_a_changed_lease_reaches_processes_that_reserve_nothing(
    leased: Make, server: RedisServer, other: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server.client() as client, leased(lease=0, scheduler=None) as ids:
        assert [ids.next("a"), cur(client)] == [1, 1]
        for lease, ahead in ((50, 50), (0, 1), (7, 7)):
            other.configure("a", lease=lease)
            with monkeypatch.context() as overdue:
                overdue.setattr(supply, "LEARN_AFTER", -1.0)
                run(ids, "a", supply_of(ids).refresh(), Deadline(40))
            before = cur(client)
            numbers = [ids.next("a")]
            while numbers[-1] <= before:  # what is in hand is served to its end
                numbers.append(ids.next("a"))
            assert numbers[-1] == before + 1
            assert cur(client) == before + ahead


@pytest.mark.covers("3.21")
def test_with_redis_away_leases_are_served_to_their_end_then_segments_and_then_redis_again(
    leased: Make, proxy: FaultProxy, other: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "AHEAD", 0)
    with leased(redis=proxy.url, lease=50) as ids:
        mine, theirs = [ids.next("a") for _ in range(12)], [other.next("a")]
        until_held(ids)
        for _ in range(2):
            leases = supply_of(ids).state.buffer.held  # type: ignore[union-attr]  # it has one
            left = sum(lease.high - lease.low for lease in leases) - (mine[-1] - leases[0].low)
            before = other.inspect("a").store.max
            proxy.refuse()
            rest = [ids.next("a") for _ in range(left)]
            assert rest[-1] == leases[-1].high
            assert other.inspect("a").store.max == before
            mine += rest + [ids.next("a") for _ in range(250)]
            assert mine[-1] > before
            theirs += other.take("a", 70)
            proxy.pass_through()
            until(lambda: ids.tick() >= 0 and supply_of(ids).origin.mode is not Mode.DIRECT, timeout=60)
            theirs += other.take("a", 70)
            mine += [ids.next("a") for _ in range(60)]
            theirs += other.take("a", 70)
            until_held(ids)
        assert repeats(mine + theirs) == []
        assert mine == sorted(mine)
        assert theirs == sorted(theirs)


def test_a_quiet_line_is_not_looked_at_every_second_but_before_its_next_use(
    leased: Make, proxy: FaultProxy, other: Issuer
) -> None:
    with leased(redis=proxy.url) as ids:
        assert ids.next("a") == 1
        proxy.delay_replies(0, match=script("open").sha.encode())  # only counted
        for most in (1, 0):
            before = proxy.hits
            for _ in range(5):
                run(ids, "a", supply_of(ids).sweep(None, Deadline(40)), Deadline(40))
            assert proxy.hits <= before + most
            supply_of(ids)._checked_at -= 60
        before = proxy.hits
        ids.engine.registry.combiner("a").rest()
        other.recover("a")
        assert ids.next("a") > 10_000
        assert proxy.hits > before


@pytest.fixture
def beside(make: Make) -> Issuer:
    """The same on the fake server."""
    made = make()
    made.create("a", step=10_000, order="trend")
    made.warm("a")
    return made


def cur(client: redis.Redis) -> int:
    return int(client.hget("issuer:{a}", "cur") or 0)


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.usefixtures("beside")
def test_whoever_deletes_a_tag_issues_none_of_its_numbers_afterwards(make: Make, made_again: bool) -> None:
    ids = make(lease=1000, scheduler="background")
    stream = iter(ids.stream("a"))
    assert [ids.next("a"), next(stream), next(stream)] == [1, 2, 3]
    ids.delete("a")
    if made_again:
        ids.create("a", order="trend")
        assert ids.next("a") > 10_000
        assert next(stream) > 10_000
        return
    refused(issuer.UnknownTag, "", ids.next, "a")
    refused(issuer.UnknownTag, "", next, stream)


@pytest.mark.parametrize("scheduler", [None, "background"])
def test_a_tag_made_again_as_strict_is_leased_no_more(
    make: Make, beside: Issuer, fake_redis: redis.Redis, scheduler: str | None
) -> None:
    def in_turn() -> bool:
        numbers = [each.next("a") for each in (beside, ids) * 2]
        return numbers == list(range(numbers[0], numbers[0] + 4)) and cur(fake_redis) == numbers[-1]

    ids = make(lease=1000, scheduler=scheduler)
    ids.take("a", 1000)  # nothing is left in hand, so nothing is checked
    beside.delete("a")
    beside.create("a", order="strict")
    if scheduler:
        # It may have fetched the next lease already: the scheduler drops it at its next look, in a second.
        until(in_turn, timeout=60)
    assert in_turn()


def test_a_tag_whose_record_cannot_be_read_again_is_drawn_from_without_leases(
    make: Make, beside: Issuer, fake_redis: redis.Redis, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make(lease=1000)
    ids.take("a", 1000)
    beside.recover("a")
    beside.warm("a")
    with monkeypatch.context() as away:
        away.setattr(type(store), "get", Mock(side_effect=Unconfirmed("switched off")))
        first = ids.next("a")
        assert [ids.next("a"), beside.next("a")] == [first + 1, first + 2]
        assert cur(fake_redis) == first + 2


def test_a_hash_put_back_within_one_reign_is_told_and_nothing_below_is_issued(
    make: Make, beside: Issuer, fake_redis: redis.Redis
) -> None:
    """Out of the fence's reach; it once made every caller spin for ever."""
    ids = make(lease=100)
    assert ids.take("a", 1000)[-1] == 1000
    fake_redis.hset("issuer:{a}", "cur", 300)
    refused(issuer.CorruptState, "recover", ids.next, "a")
    beside.recover("a")
    assert ids.next("a") > 10_000


@pytest.mark.colours("blocking")
@pytest.mark.parametrize(("came", "drawn"), [(True, [2, 3, 4]), (False, [1, 2])])
def test_a_number_drawn_from_redis_is_a_gap_once_a_lease_has_come_and_before_that_it_is_the_callers(
    make: Make, beside: Issuer, store: MemoryStore, came: bool, drawn: list[int]
) -> None:
    ids, numbers = make(), list[int]()
    assert [beside.next("a"), ids.next("a")] == [1, 2]
    line: Any = ids.engine.registry.combiner("a")
    node = line._node

    def leased_meanwhile(*args: Any) -> Any:
        reply = node.draw(*args)
        line.supply.origin.stream_lease = 1000  # as a stream of another thread does
        line.supply.origin.use(store.get("a", timeout=10))
        line._node = NOWHERE
        if came:
            with ThreadPoolExecutor(1) as thread:
                numbers.append(thread.submit(ids.next, "a").result())
        return reply

    line._node = SimpleNamespace(draw=leased_meanwhile)
    numbers += [ids.next("a"), ids.next("a")]
    assert [number - 2 for number in numbers] == drawn


def test_what_was_issued_from_leases_is_remembered_when_the_tag_is_leased_no_more(
    make: Make, beside: Issuer, fake_server: FencedFakeServer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, ids = store.snapshot(), make(lease=1000)
    ids.take("a", 1000)
    beside.configure("a", lease=0)
    monkeypatch.setattr(supply, "LEARN_AFTER", -1)
    run(ids, "a", supply_of(ids).refresh(), Deadline(40))
    fake_server.connected = False
    store.restore(Snapshot({"a": replace(backup.tags["a"], max=0, lease=0)}, {}))
    refused(issuer.StoreBehind, "", ids.next, "a")
    fake_server.connected = True


@pytest.mark.colours("blocking")
def test_a_lease_that_nobody_has_begun_to_fetch_is_not_fetched_after_close(
    make: Make, beside: Issuer, fake_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []

    def taken(_: Scheduler, work: Any, *args: Any) -> bool:
        """What a pool does whose threads are all at work."""
        jobs.append(partial(work, *args))
        return True

    monkeypatch.setattr(Scheduler, "background", taken)
    ids = make(lease=10, scheduler="background")
    assert [ids.next("a") for _ in range(4)] == [1, 2, 3, 4]
    [job] = jobs
    ids.close()
    job()
    assert cur(fake_redis) == 4
    assert beside.next("a") == 5


@pytest.mark.usefixtures("beside")
def test_callers_that_are_still_drawing_when_it_closes_take_nothing_with_them(
    make: Make, fake_redis: redis.Redis
) -> None:
    ids, numbers = make(lease=20, scheduler="background"), list[int]()

    def draw() -> None:
        while True:
            numbers.append(ids.next("a"))

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(draw) for _ in range(4)]
        until(lambda: len(numbers) > 500, 60)
        ids.close()
        assert all("closed" in str(call.exception(60)) for call in calls)
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert cur(fake_redis) == len(numbers)


@pytest.mark.live
def test_a_sweep_that_closing_cuts_short_makes_no_noise(
    fake_server: FencedFakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    def hangs(_: object, __: object) -> Steps[None]:
        begun.set()
        return sleep(60)

    with connect_awaited(redis=fake_server.async_client(), store="memory://") as ids:
        ids.create("a", order="trend")
        ids.next("a")
        swept: Any = supply_of(ids)
        swept.sweep = hangs
        assert begun.wait(30)
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
