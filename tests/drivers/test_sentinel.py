"""Through Sentinel: the master may die, move, hang or come back; callers wait a little, and no number comes twice.

The Sentinels make another master when they are told to. That they do so by themselves is shown by `make soak`.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis

import issuer
from issuer.drivers.topology import Sentinels
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.colours import Connect
from tests.deadlines import ENDLESS, GRACE, refused
from tests.drawers import Drawers, assert_sound
from tests.schemes import Make
from tests.servers.redis import RedisServer
from tests.servers.sentinel import Sentinel, SentinelServers
from tests.waiting import until

StartSentinels = Callable[..., SentinelServers]


Trouble = Callable[[RedisServer], None]


#: A call waits so long at most: longer than any failover takes.
DEADLINE = 60.0


@pytest.fixture
def through(connect: Connect, sentinels: SentinelServers, store: MemoryStore) -> Make:
    """What connects to the master that the Sentinels name."""
    return partial(connect, redis=sentinels.url, store=store, **ENDLESS)


class TestServing:
    def test_every_call_reaches_the_master_that_the_sentinels_name(
        self, through: Make, sentinels: SentinelServers
    ) -> None:
        with through() as ids:
            ids.create("a", step=10)
            ids.warm("a")
            assert [ids.next("a"), *ids.take("a", 24)] == list(range(1, 26))
            seen = ids.inspect("a")
            assert seen.redis is not None
            assert seen.redis.fence == sentinels.node(sentinels.master()).replication()["master_replid"]
            assert [tag.tag for tag in ids.tags()] == ["a"]
            # A segment that was on its way is a gap.
            ids.configure("a", above=1000)
            assert 1000 < ids.next("a") < 1100
            floor = ids.recover("a")[0].new
            assert floor < ids.next("a") < floor + 100
            ids.delete("a")
            with pytest.raises(issuer.UnknownTag):
                ids.next("a")

    def test_the_url_says_who_asks_for_what_and_what_is_wrong_in_it_is_a_configuration_error(
        self, connect: Connect, sentinels: SentinelServers, store: MemoryStore
    ) -> None:
        for tag, protocol in (("a", "2"), ("b", "3")):
            with connect(redis=sentinels.url_of("mymaster", 3, protocol=protocol), store=store, **ENDLESS) as ids:
                ids.create(tag, start=2**60, step=7)
                assert ids.take(tag, 50) == list(range(2**60, 2**60 + 50))
        with sentinels.client() as client:
            assert client.info("keyspace").keys() == {"db3"}
        right = sentinels.url
        for url, named in (
            (right.replace("of-data", "wrong"), "."),
            (right.replace("of-sentinels", "wrong"), "."),
            (sentinels.url_of("nobody"), "nobody"),
        ):
            with (
                connect(redis=url, store=store, **ENDLESS) as ids,
                pytest.raises(issuer.ConfigurationError, match=named),
            ):
                ids.next("a", timeout=20)


def still_master(group: SentinelServers, address: tuple[str, int]) -> bool:
    """Ask the server itself; one that turns into a replica just now closes its clients' connections."""
    try:
        return bool(group.node(address).replication()["role"] == "master")
    except (redis.ConnectionError, redis.TimeoutError):
        return True


class TestFailover:
    def test_a_call_that_meets_a_dead_master_is_served_by_the_next_one(
        self, through: Make, sentinels: SentinelServers
    ) -> None:
        with through() as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 150)
            sentinels.kill_master()
            sentinels.failover()
            numbers += ids.take("a", 250)
        assert_increasing(numbers)
        # Two segments are lost at most: what the dead master's buffers held.
        assert numbers[150] - numbers[149] <= 200 + 1

    @pytest.mark.colours("asyncio")
    def test_a_planned_failover_is_no_more_than_a_pause(self, through: Make, sentinels: SentinelServers) -> None:
        with through() as ids:
            ids.create("a", step=1000)
            numbers = ids.take("a", 10)
            old = sentinels.failover()
            end = time.monotonic() + 2 * DEADLINE
            # Until the old master, which is alive all the time, is one no more, and the caller has noticed.
            while sentinels.master() == old or still_master(sentinels, old):
                numbers.append(ids.next("a"))
                assert time.monotonic() < end
            numbers += ids.take("a", 2000)
        assert_increasing(numbers)

    def test_a_deadline_shorter_than_the_failover_is_kept_and_later_calls_are_served(
        self, through: Make, sentinels: SentinelServers
    ) -> None:
        with through() as ids:
            ids.create("a", step=100)
            before = ids.next("a")
            sentinels.kill_master()
            refused(ids, "a", 0.3)
            sentinels.failover()
            assert ids.next("a") > before

    @pytest.mark.soak  # make test orders the failover
    @pytest.mark.parametrize("trouble", [RedisServer.kill, RedisServer.pause])
    def test_two_of_three_sentinels_notice_by_themselves(
        self, connect: Connect, start_sentinels: StartSentinels, store: MemoryStore, trouble: Trouble
    ) -> None:
        group = start_sentinels(ordered=False)
        with connect(redis=group.url, store=store, timeout=DEADLINE, redis_timeout=1) as ids:
            ids.create("a", step=100)
            numbers = ids.take("a", 10)
            trouble(group.sentinels[0])
            trouble(group.node(group.master()))
            numbers += ids.take("a", 250)
        assert_increasing(numbers)


class TestLostWrites:
    """A promoted replica may lack what the old master had issued: the fence sees that it rules another reign."""

    @pytest.mark.covers("N.1", "1.11")
    def test_numbers_that_no_replica_has_heard_of_are_not_issued_again(
        self, through: Make, sentinels: SentinelServers
    ) -> None:
        with through() as ids:
            ids.create("a", step=1000)
            numbers = ids.take("a", 10)
            master, replicas = sentinels.node(sentinels.master()), sentinels.replicas()
            with master.client(socket_timeout=60) as client:
                assert client.wait(2, 30_000) == 2
            master.cut_off(*replicas)
            numbers += ids.take("a", 200)
            master.kill()
            for replica in replicas:
                replica.resume()
            sentinels.failover()
            numbers += ids.take("a", 200)
        assert_increasing(numbers)


class TestTheOldMasterComesBack:
    @pytest.mark.parametrize(
        ("connect", "trouble"),
        [("blocking", SentinelServers.kill_master), ("asyncio", SentinelServers.pause_master)],
        indirect=["connect"],
        ids=["dead", "silent"],
    )
    def test_as_a_replica(
        self,
        through: Make,
        sentinels: SentinelServers,
        store: MemoryStore,
        trouble: Callable[[SentinelServers], tuple[str, int]],
    ) -> None:
        with through(redis_timeout=1) as ids:
            ids.create("a", step=100)
            with Drawers([ids], "a") as drawers:
                drawers.more(200)
                old = trouble(sentinels)
                sentinels.failover()
                sentinels.wait_for_master_other_than(old)
                drawers.more(200)
                sentinels.resume(old)
                sentinels.node(old).start()
                sentinels.wait_for_replica(old, DEADLINE)
                drawers.more(200)
            assert drawers.errors == []
        assert_sound(drawers, store)

    @pytest.mark.colours("blocking")
    def test_as_a_second_master_that_others_still_draw_from(
        self, connect: Connect, through: Make, sentinels: SentinelServers, store: MemoryStore
    ) -> None:
        first = sentinels.node(sentinels.master())
        both = {"timeout": DEADLINE, "redis_timeout": 1}
        with through(**both) as ids, connect(redis=first.url, store=store, **both) as stale:
            ids.create("a", step=100)
            with Drawers([ids, stale], "a") as drawers:
                drawers.more(200)
                old = sentinels.pause_master()
                sentinels.failover()
                sentinels.wait_for_master_other_than(old)
                for sentinel in sentinels.sentinels:
                    sentinel.pause()
                sentinels.resume(old)
                drawers.more(2000)
                assert first.replication()["role"] == "master"
        # Strict order ends where an old master goes on: that is what min-replicas-to-write is for.
        assert_sound(drawers, store, ordered=False)

    @pytest.mark.colours("blocking")
    @pytest.mark.parametrize("asks", [True, False], ids=["as it is", "mutation: the sentinels are not asked"])
    def test_as_a_master_to_whom_no_process_comes_that_slept_meanwhile(
        self, through: Make, sentinels: SentinelServers, monkeypatch: pytest.MonkeyPatch, *, asks: bool
    ) -> None:
        monkeypatch.setattr(Sentinels, "asks_before_connecting", asks)
        with through() as awake, through(scheduler=None) as asleep:
            awake.create("a", step=100)
            numbers = [asleep.next("a"), awake.next("a")]
            old = sentinels.kill_master()
            sentinels.failover()
            sentinels.wait_for_master_other_than(old)
            numbers += awake.take("a", 10)
            server = sentinels.node(old)
            # It would be a master for about a second, until a Sentinel tells it whose replica it is now.
            server.args = (*server.args, "--rename-command", "SLAVEOF", "")
            server.start()
            numbers += [asleep.next("a"), awake.next("a")]
        assert repeats(numbers) == []
        assert (numbers == sorted(numbers)) is asks


class TestSentinelsInTrouble:
    pairs = pytest.mark.parametrize(
        ("connect", "trouble"),
        [("blocking", RedisServer.kill), ("asyncio", RedisServer.pause)],
        indirect=["connect"],
        ids=["dead", "silent"],
    )

    @pairs
    def test_one_that_answers_is_enough(self, through: Make, sentinels: SentinelServers, trouble: Trouble) -> None:
        with through() as ids:
            ids.create("a", step=100)
        for sentinel in sentinels.sentinels[:2]:
            trouble(sentinel)
        # Who is silent has a share of a call's time, 1 or 2 s, or keeps it for a minute.
        with through(timeout=6, redis_timeout=60) as ids:
            first = until(lambda: ids.next("a"), DEADLINE, ignoring=(issuer.Unavailable,))
            # The one that answers is known by now: nobody waits for the others.
            assert ids.take("a", 150, timeout=60) == list(range(first + 1, first + 151))

    @pytest.mark.colours("asyncio")
    def test_one_that_is_cut_off_and_names_the_old_master_for_ever_is_not_the_only_one_to_be_asked(
        self, connect: Connect, sentinels: SentinelServers, store: MemoryStore
    ) -> None:
        host, port = old = sentinels.failover()
        sentinels.wait_for_master_other_than(old)
        sentinels.wait_for_replica(old)
        # Without the servers' password it can't see what has become of them.
        watched = f"sentinel monitor {sentinels.name} {host} {port} 2"
        alone = Sentinel(sentinels.binary, [watched], password=sentinels.sentinels[0].password)
        try:
            url = sentinels.url.replace("@", f"@{host}:{alone.start().port},")
            with connect(redis=url, store=store, **ENDLESS) as ids:
                ids.create("a")
                assert ids.next("a") == 1
        finally:
            alone.stop()

    @pairs
    def test_without_any_a_strict_caller_gets_an_error_by_its_deadline_and_is_served_once_they_are_back(
        self, through: Make, sentinels: SentinelServers, trouble: Trouble
    ) -> None:
        with through() as ids:
            ids.create("a")
        for sentinel in sentinels.sentinels:
            trouble(sentinel)
        with through() as ids:
            for deadline in (0, 0.5):
                refused(ids, "a", deadline)
            for sentinel in sentinels.sentinels:
                sentinel.resume()
                sentinel.start()
            assert ids.next("a") >= 1

    @pytest.mark.colours("asyncio")
    def test_while_each_of_them_hangs_a_known_master_serves_who_has_to_connect_anew(
        self, through: Make, sentinels: SentinelServers
    ) -> None:
        master = sentinels.node(sentinels.master())
        # A quarter of it for each Sentinel, and one for the master: if that is late, nobody tells of it any more.
        with through(redis_timeout=16) as ids:
            ids.create("a", step=100)
            ids.next("a")
            for sentinel in sentinels.sentinels:
                sentinel.pause()
            with master.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
            assert_increasing([1, *ids.take("a", 50)])


# ------------------------------------------------------------ a failover of which no Sentinel tells


StartRedis = Callable[..., RedisServer]


def draws(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_strict_callers_wait_until_it_is_a_master_again_or_their_deadline_comes(
    connect: Connect, start_redis: StartRedis
) -> None:
    old, new = start_redis(), start_redis()
    with connect(redis=old.url, store="memory://", **ENDLESS) as ids, ThreadPoolExecutor(1) as pool:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        old.replicaof(new)
        # The time may be over before anybody was asked.
        until(lambda: "no longer a master" in str(refused(ids, "a", 0.5)), 60, "it is told why")
        before = draws(old)
        call = pool.submit(ids.next, "a")
        until(lambda: draws(old) > before + 1, timeout=60, message="it has been refused, and asks again")
        old.promote()
        numbers += [call.result(60), *ids.take("a", 150)]
    assert_increasing(numbers)


@pytest.mark.colours("asyncio")
def test_a_server_that_never_was_the_master_is_a_mistake_and_told_at_once(
    connect: Connect, start_redis: StartRedis
) -> None:
    new = start_redis()
    new.replicaof(start_redis())
    with connect(redis=new.url, store="memory://", **ENDLESS) as ids:
        ids.create("a", step=100)
        began = time.monotonic()
        with pytest.raises(issuer.FenceError, match="configure the address of the master"):
            ids.next("a")
        assert time.monotonic() - began < GRACE
