"""`recover` comes out above what a replica or an old master holds that the present master has lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from issuer import Issuer, Recovery
from issuer.drivers import routes
from issuer.drivers.routes import Route, Talk, Talks
from issuer.keys import redis_key
from issuer.persistence.memory import MemoryStore
from tests.colours import Connect
from tests.servers.cluster import ClusterServers
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.covers("3.25")]

StartRedis = Callable[..., RedisServer]

TAG = "orders"
KEY = redis_key("issuer", TAG)

#: Who hangs has its share of this time: what is left is enough for the others on a machine that stands still a while.
SETTINGS: dict[str, Any] = {"scheduler": None, "timeout": 20, "redis_timeout": 4}

#: A server that turns into a replica closes its clients' connections.
AWAY = (redis.ConnectionError,)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether other nodes than the master are looked at."""
    if not request.param:
        monkeypatch.setattr(routes, "_attempted", nobody_answers)
    return bool(request.param)


#: Either colour with another protocol, and the mutation: the master alone is looked at.
EACH = pytest.mark.parametrize(
    ("connect", "protocol", "looks"),
    [("blocking", "2", True), ("asyncio", "3", True), ("blocking", "3", False)],
    indirect=["connect", "looks"],
    ids=["blocking", "asyncio", "mutation"],
)


def nobody_answers(route: Route, talk: Talk) -> Talks[Any]:
    """The mutation of `_attempted`."""
    return redis.ConnectionError(f"{talk.address} is not asked, {route!r}")
    yield


class Lost:
    """A tag of which the store, put back, and the master, which lost its data, know nothing more."""

    def __init__(self, another: Callable[[], Issuer], ids: Issuer, store: MemoryStore) -> None:
        self._another = another
        self._ids = ids
        self._store = store
        ids.create(TAG, step=100)
        self._backup = store.snapshot()
        self.numbers = ids.take(TAG, 150)
        self.top = ids.inspect(TAG).store.max

    def put_back(self) -> None:
        self._store.restore(self._backup)

    def recovered(self, *, looks: bool) -> Recovery:
        """Recover, and assert that no number comes twice; that they do if nobody but the master is looked at."""
        (planned,) = self._ids.recover(TAG, dry_run=True)
        (done,) = self._ids.recover(TAG)
        assert (planned.old, planned.new, done.new) == (0, *2 * (self.top if looks else 0,))
        with self._another() as fresh:  # this one would remember what it has issued
            assert (fresh.next(TAG) in self.numbers) is not looks
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


@EACH
def test_a_replica_that_has_not_yet_followed_its_master_into_oblivion(
    connect: Connect, start_redis: StartRedis, store: MemoryStore, *, looks: bool, protocol: str
) -> None:
    # The first copy goes out at once. The master that was started again waits with it.
    master, replica = start_redis("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "3600"), start_redis()
    with master.client() as client:
        client.config_set("repl-diskless-sync-delay", 0)
    replica.replicaof(master)
    another = partial(connect, redis=f"{master.url}?protocol={protocol}", store=store, **SETTINGS)
    with another() as ids:
        lost = Lost(another, ids, store)
        offset = master.replication()["master_repl_offset"]
        until(lambda: replica.replication()["slave_repl_offset"] >= offset)
        master.wipe()
        until(lambda: "slave0" in master.replication(), message=f"{replica!r} is back")
        lost.put_back()
        done = lost.recovered(looks=looks)
    if looks:
        assert (done.asked, done.unasked) == ((name(replica),), ())


@EACH
def test_a_replica_of_sentinels_that_is_cut_off(
    connect: Connect, sentinels: SentinelServers, store: MemoryStore, *, looks: bool, protocol: str
) -> None:
    group = sentinels
    master, (cut_off, hanging) = group.node(group.master()), group.replicas()
    url = group.url_of("mymaster", protocol=protocol)
    another = partial(connect, redis=url, store=store, **SETTINGS)
    with another() as ids:
        lost = Lost(another, ids, store)
        sever(cut_off, master)
        hanging.pause()
        with master.client() as client:
            client.flushall()
        lost.put_back()
        done = lost.recovered(looks=looks)
    if looks:
        assert done.asked == (name(cut_off),)
        assert [text.partition(": ")[0] for text in done.unasked] == [name(hanging)]


@EACH
def test_an_old_master_that_a_failover_left_behind(
    connect: Connect, sentinels: SentinelServers, store: MemoryStore, *, looks: bool, protocol: str
) -> None:
    group = sentinels
    another = partial(connect, redis=group.url_of("mymaster", protocol=protocol), store=store, **SETTINGS)
    with another() as ids:
        lost = Lost(another, ids, store)
        old = group.node(group.master())
        with old.client() as client:
            client.config_set("masterauth", "wrong")
        address = group.pause_master()
        group.failover()
        new = group.node(group.wait_for_master_other_than(address))
        old.resume()
        until(lambda: old.replication()["role"] == "slave", 30, f"{old!r} is a master no more", ignoring=AWAY)
        with new.client() as client:
            client.flushall()
        lost.put_back()
        done = lost.recovered(looks=looks)
    if looks:
        assert name(old) in done.asked


@EACH
def test_a_replica_of_a_cluster_that_is_cut_off(
    connect: Connect, cluster: ClusterServers, store: MemoryStore, *, looks: bool, protocol: str
) -> None:
    owner = cluster.node_of(KEY)
    replica = cluster.replica_of(owner)
    another = partial(connect, redis=cluster.url_of(*cluster.nodes, protocol=protocol), store=store, **SETTINGS)
    with another() as ids:
        lost = Lost(another, ids, store)
        sever(replica, owner)
        owner.ask("FLUSHALL")
        lost.put_back()
        done = lost.recovered(looks=looks)
    if looks:
        assert (done.asked, done.unasked) == ((name(replica),), ())


@pytest.mark.colours("blocking")
def test_an_old_owner_of_a_slot_that_is_dead_is_told(
    connect: Connect, cluster: ClusterServers, store: MemoryStore
) -> None:
    old = cluster.node_of(KEY)
    with connect(redis=cluster.url_of(*cluster.nodes), store=store, **SETTINGS) as ids:
        ids.create(TAG)
        assert ids.next(TAG) == 1
        old.kill()
        cluster.take_over(old)
    with connect(redis=cluster.url_of(*cluster.nodes), store=store, **SETTINGS) as ids:
        (done,) = ids.recover(TAG)
        assert [text.partition(": ")[0] for text in done.unasked] == [name(old)]
        assert ids.next(TAG) == done.new + 1


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
    with connect(redis=master.url, store=store, scheduler=None, timeout=8, redis_timeout=60) as ids:
        for number in range(20):
            ids.create(f"{TAG}-{number}")
        replica.pause()
        done = ids.recover()
        assert [text.partition(": ")[0] for each in done for text in each.unasked] == [name(replica)] * 20
