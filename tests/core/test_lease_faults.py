"""Redis and the store go back in time, away, or empty while numbers are leased: gaps, and no repeats."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.supply import supply
from issuer.core.supply.mode import Mode
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import COLOURS, Connect, covering, run
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def other(server: RedisServer, store: MemoryStore) -> Iterator[issuer.Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 10 000."""
    with issuer.connect(redis=server.url, store=store, scheduler=None) as made:
        made.create("a", step=10_000, order="trend")
        made.warm("a")
        yield made


def supply_of(ids: Any, tag: str = "a") -> supply.Supply:
    found: supply.Supply = ids.engine.registry.combiner(tag).supply
    return found


def rolled_back(server: RedisServer, _other: issuer.Issuer) -> None:
    """Redis dies and comes back as it was before the lease."""
    server.restore(server.directory / "snapshot")


def emptied(server: RedisServer, _other: issuer.Issuer) -> None:
    """All its keys are deleted; it goes on."""
    with server.client() as client:
        client.flushall()


def killed_and_empty(server: RedisServer, _other: issuer.Issuer) -> None:
    server.wipe()


def recovered(_server: RedisServer, other: issuer.Issuer) -> None:
    """Somebody runs recover."""
    other.recover("a")


Event = Callable[[RedisServer, issuer.Issuer], None]


@covering(
    "connect, event",
    [("blocking", rolled_back), ("asyncio", recovered), ("asyncio", killed_and_empty), ("blocking", emptied)],
    COLOURS,
    [rolled_back, emptied, killed_and_empty, recovered],
)
def test_what_was_leased_before_is_dropped_at_the_first_use_a_second_later_and_nothing_repeats(
    connect: Connect, server: RedisServer, other: issuer.Issuer, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.snapshot().rename(server.directory / "snapshot")
    with connect(redis=server.url, store=other.engine.config.store, lease=1000, scheduler=None) as ids:
        numbers: list[int] = [ids.next("a") for _ in range(3)]
        with monkeypatch.context() as within_the_second:  # however long the event takes
            within_the_second.setattr(supply, "CHECK_AFTER", 600.0)
            event(server, other)
            numbers.append(ids.next("a"))
        assert numbers == [1, 2, 3, 4]
        supply_of(ids)._checked_at -= 1.1
        numbers.append(ids.next("a"))
        assert numbers[-1] > 10_000
        numbers += other.take("a", 50) + ids.take("a", 1500)
        assert repeats(numbers) == []
        assert max(numbers) <= other.inspect("a").store.max


@covering("connect, event", [("blocking", recovered), ("asyncio", rolled_back)], COLOURS, [rolled_back, recovered])
def test_whoever_draws_from_what_lies_open_is_stopped_by_the_scheduler(
    connect: Connect, server: RedisServer, other: issuer.Issuer, event: Event
) -> None:
    server.snapshot().rename(server.directory / "snapshot")
    with connect(redis=server.url, store=other.engine.config.store, lease=100_000) as ids:
        numbers: list[int] = [ids.next("a") for _ in range(3)]
        event(server, other)

        def dropped() -> bool:
            numbers.append(ids.next("a"))
            return numbers[-1] > 10_000

        until(dropped, timeout=60)
        assert numbers == sorted(numbers)
        numbers += other.take("a", 50) + ids.take("a", 1500)
        assert repeats(numbers) == []
        assert max(numbers) <= other.inspect("a").store.max


def test_a_hash_that_was_put_back_within_its_term_costs_two_leases_and_is_an_error(
    connect: Connect, server: RedisServer, other: issuer.Issuer
) -> None:
    store, key = other.engine.config.store, redis_key("issuer", "a")
    with server.client() as client, connect(redis=server.url, store=store, lease=10, scheduler=None) as ids:
        numbers = [ids.next("a") for _ in range(100)]
        before = client.dump(key)
        assert isinstance(before, bytes)
        numbers += [ids.next("a") for _ in range(100)]
        client.restore(key, 0, before, replace=True)
        with pytest.raises(issuer.CorruptState, match="went back in time: it returned"):
            numbers += [ids.next("a") for _ in range(30)]
        assert repeats(numbers) == []


def test_processes_that_lease_a_tag_stop_soon_after_it_was_deleted(
    connect: Connect, server: RedisServer, other: issuer.Issuer
) -> None:
    with connect(redis=server.url, store=other.engine.config.store, lease=1000) as ids:
        stream = iter(ids.stream("a"))
        assert [ids.next("a"), next(stream), next(stream)] == [1, 2, 3]
        other.delete("a")

        def stopped() -> bool:
            try:
                ids.next("a")
            except issuer.UnknownTag:
                return True
            return False

        until(stopped, timeout=60)
        with pytest.raises(issuer.UnknownTag):
            next(stream)


def test_a_changed_lease_reaches_processes_that_reserve_nothing(
    connect: Connect, server: RedisServer, other: issuer.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cur() -> int:
        with server.client() as client:
            return int(client.hget("issuer:{a}", "cur") or 0)

    with connect(redis=server.url, store=other.engine.config.store, scheduler=None) as ids:
        assert [ids.next("a"), cur()] == [1, 1]
        for lease, ahead in ((50, 50), (0, 1), (7, 7)):
            other.configure("a", lease=lease)
            with monkeypatch.context() as overdue:
                overdue.setattr(supply, "LEARN_AFTER", -1.0)
                run(ids, "a", supply_of(ids).refresh(), Deadline(40))
            before = cur()
            numbers = [ids.next("a")]
            while numbers[-1] <= before:  # what is in hand is served to its end
                numbers.append(ids.next("a"))
            assert numbers[-1] == before + 1
            assert cur() == before + ahead


@pytest.mark.covers("3.21")
def test_with_redis_away_leases_are_served_to_their_end_then_segments_and_then_redis_again(
    connect: Connect, proxy: FaultProxy, other: issuer.Issuer
) -> None:
    with connect(redis=proxy.url, store=other.engine.config.store, lease=50) as ids:
        mine, theirs = [ids.next("a") for _ in range(12)], [other.next("a")]
        until(lambda: len(supply_of(ids).state.buffer.held) == 2, timeout=60)  # type: ignore[union-attr]  # it has one
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
            until(lambda: len(supply_of(ids).state.buffer.held) == 2, timeout=60)  # type: ignore[union-attr]  # it has one
        assert repeats(mine + theirs) == []
        assert mine == sorted(mine)
        assert theirs == sorted(theirs)


def test_a_quiet_line_is_not_looked_at_every_second_but_before_its_next_use(
    connect: Connect, proxy: FaultProxy, other: issuer.Issuer
) -> None:
    with connect(redis=proxy.url, store=other.engine.config.store, lease=1000) as ids:
        assert ids.next("a") == 1
        proxy.delay_replies(0, match=script("open").sha.encode())  # only counted
        for _ in range(5):
            run(ids, "a", supply_of(ids).sweep(None, Deadline(40)), Deadline(40))
        assert proxy.hits <= 1
        supply_of(ids)._checked_at -= 60
        before = proxy.hits
        for _ in range(5):
            run(ids, "a", supply_of(ids).sweep(None, Deadline(40)), Deadline(40))
        assert proxy.hits == before
        ids.engine.registry.combiner("a").rest()
        other.recover("a")
        assert ids.next("a") > 10_000
        assert proxy.hits > before
