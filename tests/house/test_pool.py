"""One way to a server: lent clean, on a port that nobody else takes, and gone with the process that started it."""

import contextlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.servers.binaries import primary_server
from tests.servers.cluster import ClusterServers
from tests.servers.mongo import MongoServers, needed_mongod
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.waiting import until


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
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


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
