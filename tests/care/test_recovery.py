"""What `recover` finds: on replicas and old masters, and in journals, of a scheme that was lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.drivers.topology import Exchange
from issuer.drivers.wire import RoundTrips
from issuer.gateway.keys import redis_key
from issuer.values import Recovery
from issuer_persistence.errors import Misconfigured
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore, Snapshot
from issuer_persistence.records import Tag, TagChanges, TagSettings, now_ms
from tests.colours import Connect
from tests.lua.hashes import GARBAGE
from tests.schemes import Make
from tests.servers.cluster import ClusterServers
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

StartRedis = Callable[..., RedisServer]


TAG = "orders"


KEY = redis_key("issuer", TAG)


#: Who hangs has its share of this time: what is left is enough for the others on a machine that stands still a while.
SETTINGS: dict[str, Any] = {"scheduler": None, "timeout": 40, "redis_timeout": 8}


#: A server that turns into a replica closes its clients' connections.
AWAY = (redis.ConnectionError, redis.TimeoutError)


async def nobody_answers(_: object, exchange: Exchange) -> Exception:
    """The mutation of `_attempted`: the master alone is looked at."""
    return redis.ConnectionError(f"{exchange.address} is not asked")


#: Either colour with another protocol.
EACH = pytest.mark.parametrize(
    ("connect", "protocol"), [("blocking", "2"), ("asyncio", "3")], indirect=["connect"], ids=["blocking", "asyncio"]
)


class Lost:
    """A tag of which the store, put back, and the master, which lost its data, know nothing more."""

    def __init__(self, connect: Connect, url: str, store: MemoryStore) -> None:
        self._another = partial(connect, redis=url, store=store, **SETTINGS)
        self._store = store
        with self._another() as ids:
            ids.create(TAG, step=100)
            self._backup = store.snapshot()
            self._numbers = ids.take(TAG, 150)
            self._top = ids.inspect(TAG).store.max

    def recovered(self, *, looks: bool = True) -> Recovery:
        """Recover, and assert that no number comes twice; that they do if nobody but the master is looked at."""
        self._store.restore(self._backup)
        with self._another() as ids:
            (planned,) = ids.recover(TAG, dry_run=True)
            (done,) = ids.recover(TAG)
            assert (planned.old, planned.new, done.new) == (0, *2 * (self._top if looks else 0,))
            assert (ids.next(TAG) in self._numbers) is not looks
        return done


def sever(replica: RedisServer, master: RedisServer) -> None:
    """Wait until the replica has it all; then keep it, which stays one, from its master: that has no such password."""
    offset = master.replication()["master_repl_offset"]
    until(lambda: replica.replication()["slave_repl_offset"] >= offset, message=f"{replica!r} has caught up")
    with replica.client() as client:
        client.config_set("masterauth", "wrong")
        client.execute_command("CLIENT", "KILL", "TYPE", "master")
    until(lambda: replica.replication()["master_link_status"] == "down", message=f"{replica!r} is cut off")


def name(server: RedisServer) -> str:
    return "{}:{}".format(*server.address)


@pytest.mark.covers("3.25")
@pytest.mark.live
@pytest.mark.parametrize("looks", [True, False], ids=["guarded", "mutation"])
@EACH
def test_a_replica_that_has_not_yet_followed_its_master_into_oblivion(
    connect: Connect,
    start_redis: StartRedis,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    looks: bool,
    protocol: str,
) -> None:
    if not looks:
        monkeypatch.setattr(RoundTrips, "_attempted", nobody_answers)
    # The first copy goes out at once. The master that was started again waits with it.
    master, replica = start_redis("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "3600"), start_redis()
    with master.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    replica.replicaof(master)
    lost = Lost(connect, f"{master.url}?protocol={protocol}", store)
    offset = master.replication()["master_repl_offset"]
    until(lambda: replica.replication()["slave_repl_offset"] >= offset)
    master.wipe()
    until(lambda: "slave0" in master.replication(), message=f"{replica!r} is back")
    done = lost.recovered(looks=looks)
    if looks:
        assert (done.asked, done.unasked) == ((name(replica),), ())


@pytest.mark.covers("3.25")
@pytest.mark.live
@EACH
def test_a_replica_of_sentinels_that_is_cut_off(
    connect: Connect, sentinels: SentinelServers, store: MemoryStore, protocol: str
) -> None:
    group = sentinels
    master, (cut_off, hanging) = group.node(group.master()), group.replicas()
    lost = Lost(connect, group.url_of("mymaster", protocol=protocol), store)
    sever(cut_off, master)
    hanging.pause()
    with master.client() as client:
        client.flushall()
    done = lost.recovered()
    assert done.asked == (name(cut_off),)
    assert [text.partition(": ")[0] for text in done.unasked] == [name(hanging)]


@pytest.mark.covers("3.25")
@pytest.mark.live
@EACH
def test_an_old_master_that_a_failover_left_behind(
    connect: Connect, sentinels: SentinelServers, store: MemoryStore, protocol: str
) -> None:
    group = sentinels
    lost = Lost(connect, group.url_of("mymaster", protocol=protocol), store)
    old = group.node(group.master())
    with old.client() as client:
        client.config_set("masterauth", "wrong")
    address = group.pause_master()
    group.failover()
    new = group.node(group.wait_for_master_other_than(address))
    old.resume()
    until(lambda: old.replication()["role"] == "slave", 60, f"{old!r} is a master no more", ignoring=AWAY)
    with new.client() as client:
        client.flushall()
    assert name(old) in lost.recovered().asked


@pytest.mark.covers("3.25")
@pytest.mark.live
@EACH
def test_a_replica_of_a_cluster_that_is_cut_off(
    connect: Connect, cluster: ClusterServers, store: MemoryStore, protocol: str
) -> None:
    owner = cluster.node_of(KEY)
    replica = cluster.replica_of(owner)
    lost = Lost(connect, cluster.url_of(*cluster.nodes, protocol=protocol), store)
    sever(replica, owner)
    owner.ask("FLUSHALL")
    done = lost.recovered()
    assert (done.asked, done.unasked) == ((name(replica),), ())


@pytest.mark.covers("3.25")
@pytest.mark.live
@pytest.mark.colours("blocking")
def test_an_old_owner_of_a_slot_that_is_dead_is_told(
    connect: Connect, cluster: ClusterServers, store: MemoryStore
) -> None:
    old = cluster.node_of(KEY)
    with connect(redis=cluster.url_of(*cluster.nodes), store=store, **SETTINGS) as ids:
        ids.create(TAG)
        old.kill()
        cluster.take_over(old)
    with connect(redis=cluster.url_of(*cluster.nodes), store=store, **SETTINGS) as ids:
        (done,) = ids.recover(TAG)
        assert [text.partition(": ")[0] for text in done.unasked] == [name(old)]


@pytest.mark.covers("3.25")
@pytest.mark.live
@pytest.mark.colours("asyncio")
def test_garbage_and_another_store_on_a_replica_are_no_witnesses(
    connect: Connect, start_redis: StartRedis, store: MemoryStore
) -> None:
    master, replica = start_redis(), start_redis("--replica-read-only", "no")
    replica.replicaof(master)
    with connect(redis=master.url, store=store, **SETTINGS) as ids, replica.client() as client:
        ids.create(TAG, step=100)
        assert ids.next(TAG) == 1
        until(lambda: client.hget(KEY, "cur") == b"1")
        client.hset(KEY, mapping={"cur": "9" * 30, "max": "-5", "mark": "400"})
        assert ids.recover(TAG)[0] == Recovery(TAG, 100, 400, 399, asked=(name(replica),))
        until(lambda: client.hget(KEY, "cur") == b"400")
        client.hset(KEY, mapping={"cur": "7000", "store": "0123456789abcdef01234567"})
        (done,) = ids.recover(TAG)
        assert (done.new, done.asked) == (400, ())
        assert "another store" in done.unasked[0]
        client.delete(KEY)
        client.set(KEY, "no hash")
        (done,) = ids.recover(TAG)
        assert (done.new, done.asked) == (400, ())
        assert "WRONGTYPE" in done.unasked[0]


@pytest.mark.covers("3.25")
@pytest.mark.live
def test_a_silent_replica_leaves_time_for_the_rest_and_is_not_waited_for_again(
    connect: Connect, start_redis: StartRedis, store: MemoryStore
) -> None:
    master, replica = start_redis(), start_redis()
    replica.replicaof(master)
    with connect(redis=master.url, store=store, scheduler=None, timeout=16, redis_timeout=60) as ids:
        for number in range(20):
            ids.create(f"{TAG}-{number}")
        replica.pause()
        done = ids.recover()
        assert [text.partition(": ")[0] for each in done for text in each.unasked] == [name(replica)] * 20


# ---------------------------------------------------------------------------------------------- schemes


TIMEOUT = 60.0


ONE = {"stride": [{"from": 1, "first": 1, "stride": 1}], "format": "A{seq}", "id": "a"}


#: The same values up to 99, every second one after.
TWO = {"stride": [*ONE["stride"], {"from": 100, "first": 100, "stride": 2}], "format": "B{seq}", "id": "b"}


def value(record: Tag, counter: int) -> int:
    """What users see of a counter."""
    pieces = record.scheme.get("stride") or [{"from": 1, "first": 1, "stride": 1}]
    piece = [each for each in pieces if each["from"] <= counter][-1]
    return int(piece["first"] + (counter - piece["from"]) * piece["stride"])


class World:
    """A store in memory with a journal beside it, and the values that were given."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.memory = MemoryStore()
        self.values: list[int] = []
        self.store = Journalled(self.memory, journal)

    def create(self, scheme: dict[str, Any]) -> None:
        self.store.create("a", TagSettings(step=50, order="trend", scheme=scheme), timeout=TIMEOUT)

    def give(self, segments: int) -> None:
        """Give all values of so many segments."""
        for _ in range(segments):
            got = self.store.reserve("a", None, purpose=Purpose("test"), timeout=TIMEOUT)
            self.values += [value(got.tag, counter) for counter in range(got.low + 1, got.high + 1)]

    def copied(self) -> Snapshot:
        """Return a backup from before all that comes after."""
        backup = self.memory.snapshot()
        until(lambda: now_ms() > max(each.timestamp for each in backup.tags.values()))
        return backup

    def record(self) -> Tag:
        found = self.memory.get("a", timeout=TIMEOUT)
        assert found is not None
        return found

    def recover(self, connect: Connect) -> None:
        with connect(redis="none", store=self.memory, scheduler=None) as ids:
            ids.recover("a", from_journal=[self.journal])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal")


def _restored(world: World) -> None:
    """Give values with one scheme, take a backup, give more with another one, and restore the backup."""
    world.create(ONE)
    world.give(1)
    backup = world.copied()
    world.give(1)
    world.store.configure("a", TagChanges(scheme=TWO, seen=world.record().version), timeout=TIMEOUT)
    world.give(4)
    world.memory.restore(backup)
    assert world.record().scheme == ONE


@pytest.mark.colours("blocking")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_restored_tag_gets_the_scheme_of_its_later_numbers_or_values_come_again(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr("issuer.care.recovery._has_lost_its_scheme", lambda *_: False)
    _restored(world)
    for _ in range(2):
        world.recover(connect)
        assert (world.record().scheme, world.record().max) == (TWO if guarded else ONE, 300)
    world.give(6)
    assert (len(set(world.values)) == len(world.values)) == guarded


@pytest.mark.colours("blocking")
@pytest.mark.parametrize("step", ["configure", "recover"])
def test_a_recovery_that_was_cut_off_is_done_again(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    _restored(world)

    def away(*_: object, **__: object) -> Tag:
        raise Misconfigured("away")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryStore, step, away)
        with pytest.raises(issuer.ConfigurationError, match="away"):
            world.recover(connect)
    world.recover(connect)
    assert (world.record().scheme, world.record().max) == (TWO, 300)


@pytest.mark.colours("blocking")
@pytest.mark.parametrize("deleted", [False, True])
def test_a_tag_whose_tombstone_was_restored_gets_the_scheme_that_came_of_it(
    connect: Connect, world: World, *, deleted: bool
) -> None:
    world.create(ONE)
    world.give(1)
    world.store.delete("a", timeout=TIMEOUT)
    backup = world.copied()
    world.create(ONE)
    world.give(1)
    world.store.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.give(2)
    if deleted:
        world.store.delete("a", timeout=TIMEOUT)
    world.memory.restore(backup)
    world.recover(connect)
    assert (world.record().scheme, world.record().max, world.record().deleted) == (TWO, 200, deleted)


@pytest.mark.colours("blocking")
def test_a_scheme_that_somebody_without_a_journal_has_set_stays(connect: Connect, world: World) -> None:
    world.create(ONE)
    world.give(2)
    world.memory.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.recover(connect)
    assert (world.record().scheme, world.record().max) == (TWO, 100)


@pytest.mark.colours("blocking")
@pytest.mark.parametrize("guarded", [True, False])
def test_a_journal_kept_with_a_fast_clock_puts_an_earlier_scheme_in_place_only_by_the_time_alone(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(
            "issuer.care.recovery._has_lost_its_scheme", lambda record, said: record.timestamp < said.record.timestamp
        )
    world.create(ONE)
    with monkeypatch.context() as fast:
        fast.setattr("issuer_persistence.records.now_ms", lambda: now_ms() + 60_000)
        world.give(2)
    world.memory.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.recover(connect)
    assert world.record().scheme == (TWO if guarded else ONE)


@pytest.mark.colours("blocking")
@pytest.mark.covers("3.9")
@pytest.mark.parametrize(
    "settings",
    [{}, {"order": "trend"}, {"stride": 2, "offset": 1}, {"restart": "daily", "format": "{date:%Y%m%d}-{seq:06d}"}],
    ids=["plain", "trend", "stride", "daily"],
)
def test_a_tag_goes_on_after_garbage_in_redis_and_a_recovery(
    make: Make, fake_server: FencedFakeServer, settings: dict[str, Any]
) -> None:
    ids = make()
    ids.create("a", **settings)
    before = ids.next("a")
    with fake_server.client() as client:
        for name, garbage in GARBAGE.items():
            client.hset("issuer:{a}", "scheme", garbage or "")
            with suppress(issuer.CorruptState):  # or it is put right by then
                before, last = ids.next("a"), before
                assert before > last, name
            ids.recover("a")
            before, last = ids.next("a"), before
            assert before > last, name
