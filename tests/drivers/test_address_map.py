"""Servers whose addresses lead nowhere from here, as behind NAT: each is reached by the address of the map."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from issuer import RedisUnavailable
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.refusals import refused
from tests.servers.cluster import ClusterServers
from tests.servers.ports import LOOPBACK
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.sentinel import SentinelServers

TAGS = [f"t{number}" for number in range(12)]


@contextmanager
def behind_nat(nodes: Sequence[RedisServer]) -> Iterator[tuple[dict[str, str], list[FaultProxy]]]:
    """Yield the map, and the proxy before each node."""
    with ExitStack() as ends:
        proxies = [ends.enter_context(FaultProxy((LOOPBACK, each.port))) for each in nodes]
        pairs = zip(nodes, proxies, strict=True)
        yield {f"{LOOPBACK}:{node.port}": f"{LOOPBACK}:{proxy.port}" for node, proxy in pairs}, proxies


def assert_only_through(proxies: Sequence[FaultProxy], call: object) -> None:
    """No call comes past the proxies."""
    for each in proxies:
        each.refuse()
    refused(RedisUnavailable, "", call, timeout=0.5)  # type: ignore[arg-type]


def test_a_cluster_behind_nat(connect: Connect, cluster: ClusterServers) -> None:
    with behind_nat(cluster.nodes) as (addresses, proxies):
        seed = cluster.url_of(proxies[0].port)
        with connect(redis=seed, store=MemoryStore(), redis_address_map=addresses, **ENDLESS) as ids:
            ids.create_many({tag: {"step": 10} for tag in TAGS})
            numbers = {tag: ids.take(tag, 15) for tag in TAGS}
            key = "issuer:{t0}"
            cluster.migrate_slot(key, cluster.another_master(key))  # MOVED
            for tag in TAGS:
                numbers[tag] += ids.take(tag, 15)
                assert numbers[tag] == sorted(set(numbers[tag]))
            for tag in TAGS:
                ids.recover(tag)  # asks the replicas
            assert all(each.accepted for each in proxies)
            assert_only_through(proxies, lambda timeout: ids.next("t0", timeout=timeout))


def test_a_slot_that_moves_behind_nat(connect: Connect, cluster: ClusterServers) -> None:
    key = "issuer:{a}"
    with behind_nat(cluster.nodes) as (addresses, proxies):
        seed = cluster.url_of(proxies[0].port)
        with connect(redis=seed, store=MemoryStore(), redis_address_map=addresses, **ENDLESS) as ids:
            ids.create("a", step=100)
            assert ids.next("a") == 1
            with cluster.start_migration(key, cluster.another_master(key)) as moving:
                moving.move_keys()
                assert ids.next("a") > 1  # ASK


def test_sentinels_that_report_addresses_behind_nat(connect: Connect, sentinels: SentinelServers) -> None:
    with behind_nat(sentinels.nodes) as (addresses, proxies):
        given = {"redis": sentinels.url, "store": MemoryStore(), "redis_address_map": addresses}
        with connect(**given, **ENDLESS) as ids:
            ids.create("a", step=10)
            numbers = ids.take("a", 15)
            sentinels.failover()
            numbers += ids.take("a", 15)
            assert numbers == sorted(set(numbers))
            ids.recover("a")  # asks the replicas
            assert all(each.accepted for each in proxies)
            assert_only_through(proxies, lambda timeout: ids.next("a", timeout=timeout))
