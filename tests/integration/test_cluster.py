"""On a Cluster: tags live on different nodes, slots move, owners die; callers follow, and no number comes twice."""

import threading
from collections.abc import Callable
from itertools import count

import pytest

import issuer
from issuer import Issuer
from issuer.keys import redis_key
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.deadlines import closely, refused
from tests.drawers import Drawers, assert_sound
from tests.property.test_machine import FENCE, without
from tests.servers.cluster import ClusterNode, ClusterServers
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

StartCluster = Callable[..., ClusterServers]
StartRedis = Callable[..., RedisServer]

#: A call waits so long at most. A promotion takes 1 to 3 s.
DEADLINE = 10.0

KEY = redis_key("issuer", "a")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def spread(cluster: ClusterServers) -> dict[str, ClusterNode]:
    """Return a tag for each master, with the master that owns its slot."""
    found: dict[ClusterNode, str] = {}
    for number in count():
        tag = f"tag-{number}"
        found.setdefault(cluster.node_of(redis_key("issuer", tag)), tag)
        if len(found) == 3:
            break
    return {tag: node for node, tag in found.items()}


def assert_increasing(numbers: list[int]) -> None:
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)


class TestServing:
    def test_each_tag_is_served_by_the_node_that_owns_its_slot(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        tags = spread(cluster)
        with connect(redis=cluster.url, store=store) as ids:
            for tag in tags:
                ids.create(tag, step=10)
                ids.warm(tag)
            drawn: dict[str, list[int]] = {tag: [] for tag in tags}
            for _ in range(25):
                for tag, numbers in drawn.items():
                    numbers.append(ids.next(tag))
            assert all(numbers == list(range(1, 26)) for numbers in drawn.values())
        for tag, node in tags.items():
            assert node.ask("KEYS", "*") == [redis_key("issuer", tag)]

    def test_tags_are_looked_at_changed_recovered_and_deleted_on_every_node(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        tags = spread(cluster)
        with connect(redis=cluster.url, store=store) as ids:
            for tag, node in tags.items():
                ids.create(tag, step=10)
                assert ids.next(tag) == 1
                seen = ids.inspect(tag)
                assert seen.redis_error is None
                assert seen.redis is not None
                assert seen.redis.fence == node.replication()["master_replid"]
                ids.configure(tag, above=1000)
                assert ids.next(tag) == 1001
            done = ids.recover()
            assert {each.tag for each in done} == set(tags)
            for each in done:
                assert ids.next(each.tag) == each.new + 1
                ids.delete(each.tag)
                with pytest.raises(issuer.UnknownTag):
                    ids.next(each.tag)

    def test_a_password_and_a_protocol_come_from_the_url_and_numbers_stay_exact(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster(password="secret")
        for protocol in ("2", "3"):
            url = cluster.url_of(cluster.nodes[0], protocol=protocol)
            with connect(redis=url, store=store) as ids:
                for tag in (f"{name}-{protocol}" for name in spread(cluster)):
                    ids.create(tag, start=2**60, step=7)
                    assert ids.take(tag, 50) == list(range(2**60, 2**60 + 50))
        wrong = cluster.url.replace("secret", "wrong")
        with connect(redis=wrong, store=store) as ids, pytest.raises(issuer.ConfigurationError):
            ids.next("tag-0-2")

    def test_a_server_that_is_in_no_cluster_is_a_configuration_error(
        self, connect: Connect, start_redis: StartRedis, store: MemoryStore
    ) -> None:
        url = start_redis().url.replace("redis://", "redis+cluster://").removesuffix("/0")
        with connect(redis=url, store=store) as ids:
            ids.create("a")
            with pytest.raises(issuer.ConfigurationError):
                closely(ids, "a", 2)

    def test_another_database_than_0_is_a_configuration_error(self, connect: Connect) -> None:
        with (
            pytest.raises(issuer.ConfigurationError, match="database"),
            connect(redis="redis+cluster://127.0.0.1:1/3", store="memory://"),
        ):
            pass  # pragma: no cover


class TestSlotsMove:
    def test_a_slot_that_has_moved_is_followed_there_and_back(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with connect(redis=cluster.url, store=store) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            first = cluster.node_of(KEY)
            second = cluster.another_master(KEY)
            for target in (second, first, second, first):
                cluster.migrate_slot(KEY, target)
                numbers += [closely(ids, "a", 5), *ids.take("a", 250)]
                assert target.ask("EXISTS", KEY) == 1
        assert_increasing(numbers)

    def test_every_step_of_a_migration_is_followed(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with connect(redis=cluster.url, store=store) as ids, connect(redis=cluster.url, store=store) as other:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                numbers += [closely(ids, "a", 5), closely(other, "a", 5)]  # the key is where it was
                assert moving.move_keys() == 1
                for _ in range(3):  # ASK
                    numbers += [closely(ids, "a", 5), closely(other, "a", 5), *ids.take("a", 150)]
                assert moving.source.ask("DBSIZE") == 0
            numbers += [closely(ids, "a", 5), closely(other, "a", 5), *ids.take("a", 150)]  # MOVED
        assert_increasing(numbers)

    def test_a_tag_that_is_first_used_while_its_slot_moves_is_made_where_the_slot_goes(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with connect(redis=cluster.url, store=store) as ids:
            ids.create("a", step=10)
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                numbers = [closely(ids, "a", 5), *ids.take("a", 50)]
                assert (moving.source.ask("DBSIZE"), moving.target.ask("DBSIZE")) == (0, 1)
            numbers += [closely(ids, "a", 5), *ids.take("a", 50)]
        assert numbers[:51] == list(range(1, 52))
        assert_increasing(numbers)

    def test_recover_and_inspect_follow_a_slot_that_is_on_its_way(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with connect(redis=cluster.url, store=store) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            with cluster.start_migration(KEY, cluster.another_master(KEY)) as moving:
                moving.move_keys()
                seen = ids.inspect("a")
                assert seen.redis is not None
                assert seen.redis.cur == 10
                floor = ids.recover("a")[0].new
                assert floor >= 100
                numbers += ids.take("a", 10)
                assert numbers[10] > floor
            numbers += ids.take("a", 10)
        assert_increasing(numbers)

    def test_four_threads_and_a_slot_on_the_move_repeat_nothing(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
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


class TestFailover:
    def test_a_call_that_meets_a_dead_owner_is_served_by_its_replica_before_its_deadline(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 150)
            cluster.kill_owner(KEY)
            numbers.append(closely(ids, "a", DEADLINE))
            numbers += ids.take("a", 250)
        assert_increasing(numbers)
        # Two segments are lost at most: what the dead owner's buffers held.
        assert numbers[150] - numbers[149] <= 200 + 1

    def test_tags_of_other_nodes_do_not_wait_for_the_promotion(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster("--cluster-require-full-coverage", "no")
        tags = spread(cluster)
        struck, *others = tags
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            for tag in tags:
                ids.create(tag, step=1000)
                assert ids.next(tag) == 1
            tags[struck].kill()
            waiting = threading.Thread(target=ids.next, args=(struck,))
            waiting.start()
            for tag in others:
                assert [ids.next(tag, timeout=1) for _ in range(20)] == list(range(2, 22))
            waiting.join(DEADLINE)
            assert not waiting.is_alive()

    def test_four_threads_and_a_killed_owner_repeat_nothing(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(300)
                old = cluster.kill_owner(KEY)
                drawers.more(300)
                old.start()
                until(lambda: old.replication()["role"] == "slave", timeout=20)
                drawers.more(300)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_an_owner_that_hangs_and_comes_back_repeats_nothing(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(200)
                old = cluster.pause_owner(KEY)
                drawers.more(200)
                old.resume()
                until(lambda: old.replication()["role"] == "slave", timeout=20)
                drawers.more(200)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_a_deadline_shorter_than_the_promotion_is_kept_and_later_calls_are_served(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store) as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            cluster.kill_owner(KEY)
            assert refused(ids, "a", 0.3).retry_after > 0
            assert closely(ids, "a", DEADLINE) > before

    def test_a_cluster_that_has_lost_most_of_its_masters_refuses_strict_callers_by_their_deadline(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store) as ids:
            ids.create("a", step=100)
            ids.next("a")
            for node in (cluster.node_of(KEY), cluster.another_master(KEY)):
                node.kill()
            for deadline in (0, 0.5, 2):
                refused(ids, "a", deadline)


class TestLostWrites:
    """A promoted replica may lack what the old owner had issued: the fence sees that it rules another reign."""

    def lose_the_tail(self, cluster: ClusterServers, ids: Issuer) -> list[int]:
        """Draw, kill the owner before its replica hears of it, and draw from the replica."""
        ids.create("a", step=1000)
        numbers = ids.take("a", 10)
        owner = cluster.node_of(KEY)
        replica = cluster.replica_of(owner)
        with owner.client() as client:
            assert client.wait(1, 5000) == 1
        owner.cut_off(replica)
        numbers += ids.take("a", 200)
        owner.kill()
        replica.resume()
        cluster.wait_for_new_owner(KEY, owner)
        return numbers + ids.take("a", 200)

    @pytest.mark.covers("N.1", "1.11")
    def test_numbers_that_the_replica_has_not_heard_of_are_not_issued_again(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            numbers = self.lose_the_tail(cluster, ids)
        assert_increasing(numbers)

    @pytest.mark.covers("N.1")
    def test_without_the_fence_they_are(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without("next", FENCE, "false", monkeypatch)
        cluster = start_cluster()
        with connect(redis=cluster.url, store=store, timeout=DEADLINE) as ids:
            assert repeats(self.lose_the_tail(cluster, ids))


class TestSeeds:
    def test_a_dead_or_silent_seed_keeps_nobody_from_the_others(
        self, connect: Connect, cluster: ClusterServers, store: MemoryStore
    ) -> None:
        replica = cluster.replica_of(cluster.node_of(KEY))
        replica.pause()
        try:
            with connect(redis=cluster.url_of(free_port(), replica, cluster.masters()[0]), store=store) as ids:
                ids.create("a", step=10)
                assert closely(ids, "a", 5) == 1
                assert ids.take("a", 50) == list(range(2, 52))
        finally:
            replica.resume()

    def test_no_seed_at_all_is_an_error_by_the_deadline(self, connect: Connect, store: MemoryStore) -> None:
        url = f"redis+cluster://127.0.0.1:{free_port()},127.0.0.1:{free_port()}"
        with connect(redis=url, store=store) as ids:
            ids.create("a")
            for deadline in (0, 0.5, 2):
                assert refused(ids, "a", deadline).retry_after > 0

    def test_the_only_seed_may_die_once_the_others_are_known(
        self, connect: Connect, start_cluster: StartCluster, store: MemoryStore
    ) -> None:
        cluster = start_cluster()
        seed = cluster.node_of(KEY)
        with connect(redis=cluster.url_of(seed), store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            seed.kill()
            numbers += [closely(ids, "a", DEADLINE), *ids.take("a", 250)]
            cluster.wait_for_new_owner(KEY, seed)
            cluster.migrate_slot(KEY, cluster.another_master(KEY))
            numbers += [closely(ids, "a", DEADLINE), *ids.take("a", 250)]
        assert_increasing(numbers)
