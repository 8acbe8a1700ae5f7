"""The proxy and the clock that other tests lean on do what they say.

What `make test` relies on besides, its own tests show: they would find no harm where a guard is taken out.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.servers.binaries import primary_server
from tests.servers.clocked import ClockedServer, clocked_binary
from tests.servers.cluster import ClusterServers
from tests.servers.mongo import MongoServers, needed_mongod
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until


@pytest.mark.soak
def test_a_clock_that_is_set_is_seen_at_once_by_scripts_too_and_nothing_else_changes(redis_server: RedisServer) -> None:
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


@pytest.fixture
def caller(redis_proxy: FaultProxy, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client that reaches the primary server through the proxy, once."""
    with redis_server.client(socket_timeout=4) as client:
        client.connection_pool.connection_kwargs["port"] = redis_proxy.port
        assert client.ping()
        yield client


@pytest.mark.soak
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


class TestCleaned:
    """Whatever a test did to it, the next one finds no more than a fresh one has."""

    def test_a_cluster(self, cluster: ClusterServers) -> None:
        for trouble in (cluster.kill_owner, cluster.pause_owner):
            node = cluster.node_of("{a}")
            with node.client() as client:
                client.set("{a}", 1)
                client.config_set("maxmemory", "100mb")
                client.config_set("masterauth", "wrong")
                sha = client.script_load("return 1")
            cluster.take_over(trouble("{a}"))
            cluster.clean()
            owner = cluster.node_of("{a}")
            assert owner is not node
            for each in (owner, node):
                with each.client() as client:
                    assert client.dbsize() == 0
                    assert client.config_get("maxmemory") == {"maxmemory": "0"}
                    assert client.script_exists(sha) == [False]

    def test_sentinels_and_those_that_were_changed_are_not_lent_again(self, sentinels: SentinelServers) -> None:
        with sentinels.client() as client:
            client.set("a", 1)
        sentinels.clean()
        with sentinels.client() as client:
            assert client.dbsize() == 0
            client.config_set("maxmemory", "100mb")
            with pytest.raises(AssertionError, match="changed"):
                sentinels.clean()
            client.config_set("maxmemory", "0")
        sentinels.clean()
        sentinels.kill_master()
        with pytest.raises(AssertionError, match="changed"):
            sentinels.clean()


FORK = multiprocessing.get_context("fork")


def test_no_two_processes_take_the_same_port() -> None:
    with ProcessPoolExecutor(3, FORK) as others:
        mine = [free_port() for _ in range(60)]  # more than a block has
        taken = [*mine, *(each.result() for each in [others.submit(free_port) for _ in range(200)])]
    assert len(taken) == len(set(taken)) == 260
    server = RedisServer("redis-server")  # does not run: only its port matters
    server.end()
    assert all(port + 10_000 < 32_000 for port in [*taken, server.port]), "or an outgoing connection could take it"


def start_servers(program: Path, told: Connection, its: Connection) -> None:
    """Start some, say what they are, and wait to be killed, or for the end of whoever has the other end."""
    its.close()
    binary = primary_server()
    assert binary
    paused = RedisServer(binary).start()
    paused.pause()
    mongo = MongoServers(program).start()
    servers: list[Any] = [RedisServer(binary).start(), paused, *mongo.members]
    told.send([(server._process.pid, server.directory) for server in servers])
    os.fork()  # a child that outlives it
    with contextlib.suppress(EOFError):
        told.recv()
    os._exit(0)


@pytest.mark.live
def test_nothing_is_left_of_a_process_that_is_killed() -> None:
    ours, its = FORK.Pipe()
    process = FORK.Process(target=start_servers, args=(needed_mongod(), its, ours))
    process.start()
    its.close()
    pids, folders = zip(*ours.recv(), strict=True)
    assert all(map(running, pids))
    assert all(folder.is_dir() for folder in folders)
    process.kill()
    process.join()
    until(lambda: not any(map(running, pids)))
    until(lambda: not any(folder.exists() for folder in folders))
    ours.close()


def running(pid: int) -> bool:
    """Whether it is there, and no zombie that whoever has inherited it doesn't wait for."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
