"""Sentinel, Cluster and TLS servers that other tests lean on do what they say, as plain clients see it."""

import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.chaos.waiting import rest
from tests.servers.absent import absent
from tests.servers.binaries import find_servers
from tests.servers.cluster import ClusterServers, slot_of
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers
from tests.servers.tls import Certificates
from tests.waiting import until

StartSentinels = Callable[..., SentinelServers]
StartCluster = Callable[..., ClusterServers]
StartTls = Callable[..., RedisServer]

KEY = "issuer:{a}"
#: By default redis-py tries ten times, even where the password is wrong.
ONCE = Retry(NoBackoff(), 0)


def stranger_to(server: RedisServer) -> redis.Redis:
    """A client that has no password."""
    return redis.Redis(port=server.port, retry=ONCE)


@pytest.fixture(params=list(find_servers()) or ["none-found"])
def binary(request: pytest.FixtureRequest) -> Path:
    """Each server of this machine in turn."""
    return find_servers().get(request.param) or absent("a redis-server")


class TestSentinelServers:
    def test_a_killed_master_is_replaced_by_a_replica(self, start_sentinels: StartSentinels, binary: Path) -> None:
        group = start_sentinels(binary=binary)
        with group.client() as client:
            client.set("n", 1)
            assert client.wait(2, 5000) == 2
        old = group.kill_master()
        new = group.wait_for_master_other_than(old)
        assert new == group.master() != old
        assert group.client().get("n") == b"1"

    def test_sentinels_that_stood_still_promote_a_replica_soon_after(self, start_sentinels: StartSentinels) -> None:
        group = start_sentinels()
        for sentinel in group.sentinels:
            sentinel.pause()
        rest(2.5)
        for sentinel in group.sentinels:
            sentinel.resume()
        group.wait_for_master_other_than(group.kill_master(), timeout=20)

    def test_a_planned_failover_moves_the_master_and_loses_nothing(self, start_sentinels: StartSentinels) -> None:
        group = start_sentinels()
        with group.client() as client:
            client.set("n", 1)
            assert client.wait(2, 5000) == 2
        old = group.failover()
        group.wait_for_master_other_than(old)
        assert group.client().get("n") == b"1"
        group.wait_for_replica(old)

    def test_an_old_master_is_a_second_one_until_a_sentinel_makes_it_a_replica(
        self, start_sentinels: StartSentinels
    ) -> None:
        group = start_sentinels()
        old = group.pause_master()
        new = group.wait_for_master_other_than(old)
        for sentinel in group.sentinels:
            sentinel.pause()
        group.resume(old)
        for address in (old, new):
            assert group.node(address).replication()["role"] == "master"
        for sentinel in group.sentinels:
            sentinel.resume()
        group.wait_for_replica(old)
        group.node(old).kill()
        group.node(old).start()
        group.wait_for_replica(old)

    def test_passwords_are_asked_of_everybody_and_stand_in_the_url(self, start_sentinels: StartSentinels) -> None:
        group = start_sentinels(password="of-data", sentinel_password="of-sentinels", name="shop")
        for server in (*group.nodes, *group.sentinels):
            with stranger_to(server) as stranger, pytest.raises(redis.AuthenticationError):
                stranger.ping()
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
        assert group.url == f"redis+sentinel://:of-data@{hosts}/shop/0?sentinel_password=of-sentinels"
        assert group.url_of("other", 3, protocol="3").endswith("/other/3?protocol=3&sentinel_password=of-sentinels")
        group.wait_for_master_other_than(group.kill_master())
        assert group.client().ping()

    def test_a_sentinel_started_again_knows_the_master(self, start_sentinels: StartSentinels) -> None:
        group = start_sentinels()
        master = group.master()
        for sentinel in group.sentinels:
            sentinel.kill()
        with pytest.raises(AssertionError, match="no sentinel answers"):
            group.master()
        group.sentinels[0].start()
        assert group.master() == master

    def test_no_process_and_no_directory_is_left(self, start_sentinels: StartSentinels) -> None:
        group = start_sentinels()
        servers = [*group.nodes, *group.sentinels]
        processes = [server._process for server in servers]
        group.sentinels[0].pause()
        group.end()
        group.end()
        assert all(process is not None and process.poll() is not None for process in processes)
        assert not any(server.directory.exists() for server in servers)


class TestClusterServers:
    def test_a_killed_owner_is_replaced_and_a_slot_moves(self, start_cluster: StartCluster, binary: Path) -> None:
        cluster = start_cluster(binary=binary)
        assert len(cluster.masters()) == 3
        owner = cluster.node_of(KEY)
        with owner.client() as client:
            client.set(KEY, "here")
            assert client.wait(1, 5000) == 1
        replica = cluster.replica_of(owner)
        assert cluster.kill_owner(KEY) is owner
        assert cluster.wait_for_new_owner(KEY, owner) is replica
        target = cluster.another_master(KEY)
        assert cluster.migrate_slot(KEY, target) is replica
        assert cluster.node_of(KEY) is target
        assert target.client().get(KEY) == b"here"

    def test_the_url_names_two_nodes_or_those_that_are_asked_for(self, start_cluster: StartCluster) -> None:
        cluster = start_cluster(password="secret")
        first, second, third, *_ = cluster.nodes
        with stranger_to(first) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert cluster.url == f"redis+cluster://:secret@127.0.0.1:{first.port},127.0.0.1:{second.port}"
        assert cluster.url_of(1, third, protocol="3") == (
            f"redis+cluster://:secret@127.0.0.1:1,127.0.0.1:{third.port}?protocol=3"
        )
        assert cluster.node_of(KEY).client().set(KEY, 1)
        cluster.migrate_slot(KEY, cluster.another_master(KEY))
        assert cluster.node_of(KEY).client().get(KEY) == b"1"

    def test_each_step_of_a_migration_is_seen_by_a_plain_client(self, cluster: ClusterServers) -> None:
        source, target = cluster.node_of(KEY), cluster.another_master(KEY)
        with source.client() as client, target.client() as other:
            client.set(KEY, "here")
            with pytest.raises(redis.exceptions.MovedError) as moved:
                other.get(KEY)
            assert (moved.value.slot_id, moved.value.port) == (slot_of(KEY), source.port)
            moving = cluster.start_migration(KEY, target)
            assert client.get(KEY) == b"here"
            with pytest.raises(redis.exceptions.AskError):
                client.get(f"absent:{KEY}")
            assert moving.move_keys() == 1
            with pytest.raises(redis.exceptions.AskError) as ask:
                client.get(KEY)
            assert (ask.value.slot_id, ask.value.port) == (slot_of(KEY), target.port)
            with pytest.raises(redis.exceptions.MovedError):
                other.get(KEY)
            asking = other.connection_pool.get_connection()
            asking.send_command("ASKING")
            assert asking.read_response() == b"OK"
            asking.send_command("GET", KEY)
            assert asking.read_response() == b"here"
            other.connection_pool.release(asking)
            moving.finish()
            assert other.get(KEY) == b"here"
            with pytest.raises(redis.exceptions.MovedError) as moved:
                client.get(KEY)
            assert moved.value.port == target.port

    def test_a_paused_owner_is_replaced_and_comes_back_as_a_replica(self, start_cluster: StartCluster) -> None:
        cluster = start_cluster()
        old = cluster.pause_owner(KEY)
        new = cluster.wait_for_new_owner(KEY, old)
        assert cluster.node_of(KEY) is new
        old.resume()
        until(lambda: old.replication()["role"] == "slave", timeout=20)
        assert cluster.node_of(KEY) is new

    def test_no_process_and_no_directory_is_left(self, start_cluster: StartCluster) -> None:
        cluster = start_cluster()
        processes = [node._process for node in cluster.nodes]
        cluster.nodes[0].pause()
        cluster.end()
        cluster.end()
        assert all(process is not None and process.poll() is not None for process in processes)
        assert not any(node.directory.exists() for node in cluster.nodes)


class TestTls:
    def test_a_client_that_trusts_the_authority_gets_in(self, start_tls: StartTls, certificates: Certificates) -> None:
        server = start_tls(password="secret")
        assert server.url.startswith(f"rediss://:secret@127.0.0.1:{server.port}/0?ssl_ca_certs=")
        assert server.client().ping()
        for untrusted in (
            server.url.replace(str(certificates.authority), str(certificates.stranger)),
            f"redis://127.0.0.1:{server.port}",
        ):
            with redis.Redis.from_url(untrusted, retry=ONCE) as stranger, pytest.raises(redis.ConnectionError):
                stranger.ping()

    def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(
        self, start_tls: StartTls, certificates: Certificates
    ) -> None:
        server = start_tls(client_certificates=True)
        assert "ssl_certfile=" in server.url
        assert server.client().ping()
        without = f"rediss://127.0.0.1:{server.port}/0?{certificates.query(client=False)}"
        with redis.Redis.from_url(without, retry=ONCE) as stranger, pytest.raises(redis.ConnectionError):
            stranger.ping()

    def test_the_certificates_stand_the_strictest_check(self, start_tls: StartTls, certificates: Certificates) -> None:
        context = ssl.create_default_context(cafile=certificates.authority)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        server = start_tls()
        with (
            socket.create_connection(server.address) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            assert secured.version() in {"TLSv1.2", "TLSv1.3"}
