"""Through Sentinel: the master may die, move, hang or come back; callers wait a little, and no number comes twice."""

import time
from collections.abc import Callable
from contextlib import suppress

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.drivers.routes import Sentinels
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.deadlines import GRACE, closely, refused
from tests.drawers import Drawers, assert_sound
from tests.property.test_machine import FENCE, without
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers

StartSentinels = Callable[..., SentinelServers]

#: A call waits so long at most. A failover takes 2 s, and 6 s when the Sentinels' votes were split.
DEADLINE = 10.0


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class TestServing:
    def test_every_call_reaches_the_master_that_the_sentinels_name(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store) as ids:
            ids.create("a", step=10)
            ids.warm("a")
            assert [ids.next("a"), *ids.take("a", 24)] == list(range(1, 26))
            seen = ids.inspect("a")
            assert seen.redis is not None
            assert seen.redis.fence == group.node(group.master()).replication()["master_replid"]
            assert [tag.tag for tag in ids.tags()] == ["a"]
            ids.configure("a", above=1000)
            assert ids.next("a") == 1001
            floor = ids.recover("a")[0].new
            assert ids.next("a") == floor + 1
            ids.delete("a")
            with pytest.raises(issuer.UnknownTag):
                ids.next("a")

    @pytest.mark.parametrize("protocol", ["2", "3"])
    def test_passwords_a_database_and_a_protocol_come_from_the_url_and_numbers_stay_exact(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore, protocol: str
    ) -> None:
        group = start_sentinels(password="of-data", sentinel_password="of-sentinels", name="shop")
        with connect(redis=group.url_of("shop", 3, protocol=protocol), store=store) as ids:
            ids.create("a", start=2**60, step=7)
            assert ids.take("a", 50) == list(range(2**60, 2**60 + 50))
        with group.client() as client:
            assert client.info("keyspace").keys() == {"db3"}

    def test_a_wrong_password_of_either_kind_is_a_configuration_error(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels(password="of-data", sentinel_password="of-sentinels")
        for right in ("of-data", "of-sentinels"):
            with connect(redis=group.url.replace(right, "wrong"), store=store) as ids:
                if not ids.tags():
                    ids.create("a")
                with pytest.raises(issuer.ConfigurationError):
                    ids.next("a")

    def test_a_master_that_no_sentinel_knows_is_a_configuration_error(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url_of("nobody"), store=store) as ids:
            ids.create("a")
            with pytest.raises(issuer.ConfigurationError, match="nobody"):
                closely(ids, "a", 2)


def still_master(group: SentinelServers, address: tuple[str, int]) -> bool:
    """Ask the server itself; one that turns into a replica just now closes its clients' connections."""
    try:
        return bool(group.node(address).replication()["role"] == "master")
    except redis.ConnectionError:
        return True


class TestFailover:
    def test_a_call_that_meets_a_dead_master_is_served_by_the_next_one_before_its_deadline(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 150)
            group.kill_master()
            numbers.append(closely(ids, "a", DEADLINE))
            numbers += ids.take("a", 250)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)
        # Two segments are lost at most: what the dead master's buffers held.
        assert numbers[150] - numbers[149] <= 200 + 1

    def test_a_second_failover_goes_as_the_first(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            for _ in range(2):
                old = group.kill_master()
                numbers += [closely(ids, "a", DEADLINE), *ids.take("a", 10)]
                group.wait_for_master_other_than(old)
                group.node(old).start()
                group.wait_for_replica(old)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)

    def test_a_planned_failover_is_no_more_than_a_pause(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=1000)
            numbers = ids.take("a", 10)
            old = group.failover()
            # 6.2's Sentinels may take 10 s to tell the old master.
            deadline = time.monotonic() + 30
            # Until the old master, which is alive all the time, is one no more, and the caller has noticed.
            while group.master() == old or still_master(group, old):
                numbers.append(closely(ids, "a", DEADLINE))
                assert time.monotonic() < deadline
            numbers += ids.take("a", 2000)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)

    def test_four_threads_and_a_killed_master_repeat_nothing(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(300)
                old = group.kill_master()
                drawers.more(300)
                group.wait_for_master_other_than(old)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_a_deadline_shorter_than_the_failover_is_kept_and_later_calls_are_served(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            group.kill_master()
            assert refused(ids, "a", 0.3).retry_after > 0
            assert closely(ids, "a", DEADLINE) > before

    def test_a_trend_tag_goes_on_without_waiting_for_the_new_master(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=3) as ids:
            ids.create("t", step=100, order="trend")
            numbers = ids.take("t", 10)
            old = group.kill_master()
            while group.master() == old:
                numbers.append(closely(ids, "t", 3))
            numbers += ids.take("t", 500)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)


class TestLostWrites:
    """A promoted replica may lack what the old master had issued: the fence sees that it rules another reign."""

    def lose_the_tail(self, group: SentinelServers, ids: Issuer) -> list[int]:
        """Draw, kill the master before its replicas hear of it, and draw from one of them."""
        ids.create("a", step=1000)
        numbers = ids.take("a", 10)
        master, replicas = group.node(group.master()), group.replicas()
        with master.client() as client:
            assert client.wait(2, 5000) == 2
        master.cut_off(*replicas)
        numbers += ids.take("a", 200)
        master.kill()
        for replica in replicas:
            replica.resume()
        group.wait_for_master_other_than(master.address)
        return numbers + ids.take("a", 200)

    @pytest.mark.covers("N.1", "1.11")
    def test_numbers_that_no_replica_has_heard_of_are_not_issued_again(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            numbers = self.lose_the_tail(group, ids)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)

    @pytest.mark.covers("N.1")
    def test_without_the_fence_they_are(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        without("next", FENCE, "false", monkeypatch)
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            assert repeats(self.lose_the_tail(group, ids))


class TestTheOldMasterComesBack:
    def test_as_a_replica(self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(200)
                old = group.pause_master()
                drawers.more(200)
                group.resume(old)
                group.wait_for_replica(old)
                drawers.more(200)
            assert drawers.errors == []
        assert_sound(drawers, store)

    def test_as_a_second_master_that_others_still_draw_from(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        first = group.node(group.master())
        with (
            connect(redis=group.url, store=store, timeout=DEADLINE) as ids,
            connect(redis=first.url, store=store, timeout=DEADLINE) as stale,
        ):
            ids.create("a", step=100)
            with Drawers([ids, stale], "a") as drawers:
                drawers.more(200)
                old = group.pause_master()
                group.wait_for_master_other_than(old)
                for sentinel in group.sentinels:
                    sentinel.pause()
                group.resume(old)
                drawers.more(2000)
                assert first.replication()["role"] == "master"
        # Strict order ends where an old master goes on: that is what min-replicas-to-write is for.
        assert_sound(drawers, store, ordered=False)

    def sleep_through(self, group: SentinelServers, connect: Connect, store: MemoryStore) -> list[int]:
        """Return what two processes draw in turn, one of which slept while a failover was, and its master came back."""
        with (
            connect(redis=group.url, store=store, timeout=DEADLINE) as awake,
            connect(redis=group.url, store=store, timeout=DEADLINE, scheduler=None) as asleep,
        ):
            awake.create("a", step=100)
            numbers = [asleep.next("a"), awake.next("a")]
            old = group.kill_master()
            group.wait_for_master_other_than(old)
            numbers += awake.take("a", 10)
            # It is a master for about a second, until a Sentinel tells it whose replica it is now.
            group.node(old).start()
            return [*numbers, asleep.next("a"), awake.next("a")]

    def test_as_a_master_to_whom_no_process_comes_that_slept_meanwhile(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        numbers = self.sleep_through(start_sentinels(), connect, store)
        assert numbers == sorted(set(numbers))

    def test_mutation_without_asking_the_sentinels_before_a_new_connection_one_comes(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(Sentinels, "asks_before_connecting", False)
        numbers = self.sleep_through(start_sentinels(), connect, store)
        assert repeats(numbers) == []
        assert numbers != sorted(numbers)

    def test_killed_and_started_again_empty_before_anybody_noticed(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels(down_after=5000)
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(200)
                old = group.kill_master()
                group.node(old).start()
                drawers.more(200)
                assert group.master() == old
        assert_sound(drawers, store)


def dead(server: RedisServer) -> None:
    server.kill()


def silent(server: RedisServer) -> None:
    server.pause()


class TestSentinelsInTrouble:
    @pytest.mark.parametrize("trouble", [dead, silent])
    def test_one_of_three_keeps_nobody_from_the_master(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        trouble: Callable[[RedisServer], None],
    ) -> None:
        group = start_sentinels()
        numbers: list[int] = []
        for sentinel in group.sentinels:
            trouble(sentinel)
            with connect(redis=group.url, store=store) as ids:
                if not numbers:
                    ids.create("a", step=100)
                numbers.append(closely(ids, "a", 5))
                numbers += ids.take("a", 150)
            sentinel.resume()
            sentinel.start()
        assert numbers == list(range(1, 3 * 151 + 1))

    @pytest.mark.parametrize("trouble", [dead, silent])
    def test_one_of_three_makes_no_call_overrun_its_deadline(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        trouble: Callable[[RedisServer], None],
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.node(group.master()).url, store=store) as ids:
            ids.create("a", step=100)
            ids.warm("a")
        trouble(group.sentinels[0])
        for deadline in (0, 0.2, 1):
            with connect(redis=group.url, store=store) as ids:
                began = time.monotonic()
                with suppress(issuer.RedisUnavailable):
                    ids.next("a", timeout=deadline)
                assert time.monotonic() - began < deadline + GRACE

    @pytest.mark.parametrize("trouble", [dead, silent])
    def test_two_of_three_are_enough_for_a_failover(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        trouble: Callable[[RedisServer], None],
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            trouble(group.sentinels[0])
            group.kill_master()
            numbers.append(closely(ids, "a", DEADLINE))
            numbers += ids.take("a", 10)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)

    def test_a_silent_master_is_left_as_soon_as_another_one_rules(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            group.pause_master()
            assert closely(ids, "a", DEADLINE) > before

    @pytest.mark.parametrize("trouble", [dead, silent])
    def test_without_any_a_strict_caller_gets_an_error_by_its_deadline(
        self,
        connect: Connect,
        start_sentinels: StartSentinels,
        store: MemoryStore,
        trouble: Callable[[RedisServer], None],
    ) -> None:
        group = start_sentinels()
        for sentinel in group.sentinels:
            trouble(sentinel)
        with connect(redis=group.url, store=store) as ids:
            ids.create("a", step=100)
            for deadline in (0, 0.5, 2):
                assert refused(ids, "a", deadline).retry_after > 0

    def test_without_any_a_master_that_is_known_goes_on_serving(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        with connect(redis=group.url, store=store) as ids:
            ids.create("a", step=10)
            ids.next("a")
            for sentinel in group.sentinels:
                sentinel.kill()
            assert ids.take("a", 50) == list(range(2, 52))
            for node in group.nodes:
                node.kill()
            refused(ids, "a", 1)

    def test_while_each_of_them_hangs_a_known_master_serves_who_has_to_connect_anew(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        master = group.node(group.master())
        with connect(redis=group.url, store=store, timeout=DEADLINE) as ids:
            ids.create("a", step=100)
            ids.next("a")
            for sentinel in group.sentinels:
                sentinel.pause()
            with master.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            assert ids.take("a", 50) == list(range(2, 52))

    def test_sentinels_that_come_back_are_asked_again(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore
    ) -> None:
        group = start_sentinels()
        for sentinel in group.sentinels:
            sentinel.kill()
        with connect(redis=group.url, store=store) as ids:
            ids.create("a", step=10)
            refused(ids, "a", 0.5)
            group.sentinels[2].start()
            assert closely(ids, "a", 5) == 1
