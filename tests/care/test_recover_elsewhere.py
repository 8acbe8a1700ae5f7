"""`recover` comes out above what a replica or an old master holds that the present master has lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from issuer.drivers.topology import Exchange
from issuer.drivers.wire import RoundTrips
from issuer.gateway.keys import redis_key
from issuer.values import Recovery
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.servers.cluster import ClusterServers
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("patient"), pytest.mark.live, pytest.mark.covers("3.25")]

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
