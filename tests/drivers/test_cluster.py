"""On a Cluster: tags live on different nodes, slots move, owners die; callers follow, and no number comes twice.

Replicas take over when they are told to. That they do so by themselves is shown by `make soak`.
"""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest
import redis

import issuer
from issuer.drivers.redis_errors import SETTLING
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing
from tests.colours import Connect
from tests.deadlines import ENDLESS, refused
from tests.drawers import Drawers, assert_sound
from tests.schemes import Make
from tests.servers.cluster import ClusterNode, ClusterServers, slot_of
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import ended, until

pytestmark = pytest.mark.live

StartCluster = Callable[..., ClusterServers]

#: A call waits so long at most: longer than any promotion takes.
DEADLINE = 60.0

KEY = redis_key("issuer", "a")

#: A server that turns into a replica may close its clients' connections, or stand still meanwhile.
AWAY = (redis.ConnectionError, redis.TimeoutError)


@pytest.fixture
def on(connect: Connect, cluster: ClusterServers, store: MemoryStore) -> Make:
    """What connects to the Cluster."""
    return partial(connect, redis=cluster.url, store=store, **ENDLESS)


def spread(cluster: ClusterServers) -> dict[str, ClusterNode]:
    """Return a tag for each master, with the master that owns its slot."""
    found: dict[ClusterNode, str] = {}
    for number in count():
        tag = f"tag-{number}"
        found.setdefault(cluster.node_of(redis_key("issuer", tag)), tag)
        if len(found) == 3:
            break
    return {tag: node for node, tag in found.items()}


class TestServing:
    def test_each_tag_is_drawn_from_and_kept_on_the_node_that_owns_its_slot(
        self, on: Make, cluster: ClusterServers
    ) -> None:
        tags = spread(cluster)
        with on() as ids:
            for tag in tags:
                ids.create(tag, step=10)
                ids.warm(tag)
            drawn = [[ids.next(tag) for tag in tags] for _ in range(25)]
            assert drawn == [[number] * 3 for number in range(1, 26)]
            for tag, node in tags.items():
                assert node.ask("KEYS", "issuer:{*") == [redis_key("issuer", tag)]
                seen = ids.inspect(tag)
                assert seen.redis_error is None
                assert seen.redis is not None
                assert seen.redis.fence == node.replication()["master_replid"]
                ids.configure(tag, above=1000)
                assert 1000 < ids.next(tag) < 1100  # a segment that was on its way is a gap
            done = ids.recover()
            assert {each.tag for each in done} == set(tags)
            for each in done:
                assert each.new < ids.next(each.tag) < each.new + 100
                ids.delete(each.tag)
                with pytest.raises(issuer.UnknownTag):
                    ids.next(each.tag)

    def test_a_protocol_comes_from_the_url_and_what_is_wrong_in_it_is_a_configuration_error(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore, redis_url: str
    ) -> None:
        for protocol in ("2", "3"):
            with connect(redis=cluster.url_of(cluster.nodes[0], protocol=protocol), store=store, **ENDLESS) as ids:
                for tag in (f"{name}-{protocol}" for name in spread(cluster)):
                    ids.create(tag, start=2**60, step=7)
                    assert ids.take(tag, 50) == list(range(2**60, 2**60 + 50))
        no_cluster = redis_url.replace("redis://", "redis+cluster://").removesuffix("/0")
        for wrong in (cluster.url.replace("of-data", "wrong"), no_cluster):
            with connect(redis=wrong, store=store, **ENDLESS) as ids, pytest.raises(issuer.ConfigurationError):
                ids.next("tag-0-2", timeout=20)

    @pytest.mark.parametrize("protocol", ["2", "3"])
    def test_a_cluster_that_prefers_hostnames_and_has_none_is_used_by_its_addresses(
        self,
        connect: Connect,
        cluster: ClusterServers,
        store: MemoryStore,
        protocol: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        looked_up, look_up = list[Any](), socket.getaddrinfo

        def noting(host: Any, *more: Any, **options: Any) -> Any:
            looked_up.append(host)
            return look_up(host, *more, **options)

        monkeypatch.setattr(socket, "getaddrinfo", noting)
        for node in cluster.nodes:
            node.ask("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
        with connect(redis=cluster.url_of(cluster.nodes[0], protocol=protocol), store=store, **ENDLESS) as ids:
            for tag in spread(cluster):
                ids.create(tag, step=7)
                assert ids.take(tag, 50) == list(range(1, 51))
            ids.create("a", step=7)
            assert ids.take("a", 10) == list(range(1, 11))
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                moving.move_keys()
                numbers = ids.take("a", 50)  # ASK
            assert_increasing([10, *numbers, *ids.take("a", 50)])  # MOVED
        assert "?" not in looked_up


class TestSlotsMove:
    def test_every_step_of_a_migration_is_followed(self, on: Make, cluster: ClusterServers) -> None:
        with on() as ids, on() as other:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                numbers += [ids.next("a"), other.next("a")]  # the key is where it was
                assert moving.move_keys() == 1
                for _ in range(3):  # ASK
                    numbers += [ids.next("a"), other.next("a"), *ids.take("a", 150)]
                assert moving.source.ask("DBSIZE") == 0
            numbers += [ids.next("a"), other.next("a"), *ids.take("a", 150)]  # MOVED
        assert_increasing(numbers)

    @staticmethod
    def told_of_the_move(ids: issuer.Issuer) -> issuer.RedisUnavailable | None:
        """Return the error of a key that waits for the move; None if the node was slow to say so."""
        with pytest.raises(issuer.RedisUnavailable) as error:
            ids.next("a", key="order 2", timeout=0.5)
        return error.value if "the Cluster is moving this slot" in str(error.value) else None

    def test_a_new_key_waits_until_its_slot_has_moved(self, on: Make, cluster: ClusterServers) -> None:
        with on() as ids, ThreadPoolExecutor(1) as pool:
            ids.create("a", step=100)
            assert ids.next("a", key="order 1") == 1
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                moving.move_keys()
                assert ids.next("a", key="order 1") == 1
                told = until(lambda: self.told_of_the_move(ids))
                assert told is not None
                assert told.retry_after >= SETTLING
                waits = pool.submit(ids.next, "a", key="order 2", timeout=DEADLINE)
            assert ids.next("a", key="order 2") == waits.result() > 1

    @pytest.mark.colours("blocking")
    def test_a_tag_that_is_first_used_while_its_slot_moves_is_made_where_the_slot_goes(
        self, on: Make, cluster: ClusterServers
    ) -> None:
        with on() as ids:
            ids.create("a", step=10)
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                assert ids.take("a", 51) == list(range(1, 52))
                assert (moving.source.ask("DBSIZE"), moving.target.ask("DBSIZE")) == (0, 1)
            assert_increasing([51, *ids.take("a", 51)])

    @pytest.mark.colours("asyncio")
    def test_four_tasks_and_a_slot_on_the_move_repeat_nothing(
        self, on: Make, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with on() as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                for _ in range(3):
                    drawers.more(100)
                    with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                        drawers.more(100)
                        moving.move_keys()
                        drawers.more(100)
                drawers.more(100)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_nodes_that_redirect_to_each_other_are_left_after_a_few_redirects(
        self, on: Make, cluster: ClusterServers
    ) -> None:
        other = cluster.another_master(KEY)
        # The end of the migration puts it right. To take the slot back would leave it to nobody now and then.
        with cluster.start_migration(KEY, other) as moving:
            moving.source.ask("CLUSTER", "SETSLOT", slot_of(KEY), "NODE", other.id())  # the other one names the source
            with on() as ids:
                ids.create("a")
                told = ended(lambda: until(lambda: "to each other" in str(refused(ids, "a", 0.5))))
                assert told


class TestFailover:
    @pytest.mark.colours("blocking")
    def test_tags_of_other_nodes_do_not_wait_for_the_promotion(self, on: Make, cluster: ClusterServers) -> None:
        tags = spread(cluster)
        struck, *others = tags
        with on() as ids:
            for tag in tags:
                ids.create(tag, step=1000)
                assert ids.next(tag) == 1
            tags[struck].kill()
            waiting = threading.Thread(target=ids.next, args=(struck,))
            waiting.start()
            for tag in others:
                assert [ids.next(tag) for _ in range(20)] == list(range(2, 22))
            assert waiting.is_alive()
            cluster.take_over(tags[struck])
            waiting.join(DEADLINE)
            assert not waiting.is_alive()

    @pytest.mark.parametrize(
        ("connect", "trouble"),
        [("blocking", RedisServer.kill), ("asyncio", RedisServer.pause)],
        indirect=["connect"],
        ids=["dead", "silent"],
    )
    def test_four_threads_and_an_owner_that_goes_and_comes_back_repeat_nothing(
        self, on: Make, cluster: ClusterServers, store: MemoryStore, trouble: Callable[..., None]
    ) -> None:
        with on(redis_timeout=1) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(200)
                old = cluster.node_of(KEY)
                trouble(old)
                cluster.take_over(old)
                drawers.more(200)
                old.resume()
                old.start()
                until(lambda: old.replication()["role"] == "slave", DEADLINE, ignoring=AWAY)
                drawers.more(200)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_a_deadline_shorter_than_the_promotion_is_kept_and_later_calls_are_served(
        self, on: Make, cluster: ClusterServers
    ) -> None:
        with on() as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            old = cluster.kill_owner(KEY)
            refused(ids, "a", 0.3)
            cluster.take_over(old)
            assert ids.next("a") > before

    @pytest.mark.colours("asyncio")
    def test_a_slot_that_nobody_serves_is_refused_by_the_deadline(self, on: Make, cluster: ClusterServers) -> None:
        owner, slot = cluster.node_of(KEY), slot_of(KEY)
        with on() as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            owner.ask("CLUSTER", "DELSLOTS", slot)
            try:
                for deadline in (0, 0.5):
                    refused(ids, "a", deadline)
                # Not at the first call: its time may be over before a node has answered.
                until(lambda: "can't serve now" in str(refused(ids, "a", 0.5)), 60)
            finally:
                owner.ask("CLUSTER", "ADDSLOTS", slot)
            assert ids.next("a") > before

    @pytest.mark.soak  # make test orders the promotion, and takes the slot from its owner
    def test_replicas_take_over_by_themselves_as_long_as_most_masters_live(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster(ordered=False)
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 150)
            old = cluster.kill_owner(KEY)
            numbers += ids.take("a", 250)
            assert_increasing(numbers)
            old.start()
            until(lambda: old.replication()["role"] == "slave", DEADLINE, ignoring=AWAY)
            for node in (cluster.node_of(KEY), cluster.another_master(KEY)):
                node.kill()
            for deadline in (0, 0.5, 5):
                refused(ids, "a", deadline)


class TestSeeds:
    @pytest.mark.colours("blocking")
    def test_a_dead_or_silent_seed_keeps_nobody_from_the_others(self, on: Make, cluster: ClusterServers) -> None:
        replica = cluster.replica_of(cluster.node_of(KEY))
        replica.pause()
        with on(redis=cluster.url_of(free_port(), replica, cluster.masters()[0]), redis_timeout=1) as ids:
            ids.create("a", step=10)
            assert_increasing(ids.take("a", 51))

    @pytest.mark.colours("asyncio")
    def test_no_seed_at_all_is_an_error_by_the_deadline(self, connect: Connect, store: MemoryStore) -> None:
        url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        with connect(redis=url, store=store, **ENDLESS) as ids:
            ids.create("a")
            for deadline in (0, 0.5):
                refused(ids, "a", deadline)

    @pytest.mark.colours("blocking")
    def test_the_only_seed_may_die_once_the_others_are_known(self, on: Make, cluster: ClusterServers) -> None:
        seed = cluster.node_of(KEY)
        with on(redis=cluster.url_of(seed)) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            seed.kill()
            cluster.take_over(seed)
            numbers += ids.take("a", 250)
            cluster.migrate_slot(KEY, cluster.another_master(KEY))
            numbers += ids.take("a", 250)
        assert_increasing(numbers)
