"""Worlds behind Sentinels, in a Cluster, and on MongoDB, and the faults that only they have."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from time import sleep
from typing import TypeVar

import bson
from bson.int64 import Int64

from issuer.chaos.faults import WIRE, Fault
from issuer.chaos.world import STRICT, TREND, Terms, World
from issuer_persistence.records import fresh_version
from tests.proofs.chaos.more import LASTS, Pair, store_restored, store_restored_under_direct_segments
from tests.proofs.chaos.wire import go_direct
from tests.proofs.chaos.worker import Guarded
from tests.servers.cluster import ClusterServers
from tests.servers.mongo import MongoServers, needed_mongod
from tests.servers.proxy import FaultProxy
from tests.servers.sentinel import SentinelServers
from tests.waiting import until

#: What the calls of a store have in them, on MongoDB's wire.
STORE_CALLS = {"reserve": b"\x03$inc\x00", "ledger": b"insert", "get": b"\x02find\x00"}
#: What a hand-back sets, and nothing else does.
_SET = {"max": Int64(0), "version": fresh_version(), "timestamp": Int64(0)}
HAND_BACK = {
    "shorten": b"\x02update\x00\x10\x00\x00\x00issuer_segments\x00",
    # With the length of what is set, and its first field.
    "hand back": b"\x03$set\x00" + bson.encode(_SET)[:9],
}


class _Group(Guarded):
    """No proxies: Sentinels and Clusters tell their clients where to go."""

    @property
    def desk_url(self) -> str:
        return self.group_url

    def front_url(self, at: int) -> str:  # noqa: ARG002 - there is one
        return self.group_url

    group_url: str


class SentinelWorld(_Group):
    """A master, two replicas, three Sentinels."""

    def redis_began(self, binary: Path) -> None:
        self.fronts = []
        self.group = self._ends.enter_context(SentinelServers(binary))
        self.group_url = self.group.url


class ClusterWorld(_Group):
    """Three masters with a replica each; the tags lie on different ones."""

    def redis_began(self, binary: Path) -> None:
        self.fronts = []
        self.cluster = self._ends.enter_context(ClusterServers(binary))
        self.group_url = self.cluster.url


class MongoWorld(Pair):
    """The pair of servers on a MongoDB behind a proxy."""

    def __init__(self, folder: Path, binary: Path, terms: Terms) -> None:
        with ExitStack() as ends:
            self.mongo = ends.enter_context(MongoServers(needed_mongod()))
            self.store_proxy = ends.enter_context(FaultProxy(("127.0.0.1", self.mongo.port)))
            url = f"mongodb://127.0.0.1:{self.store_proxy.port}/chaos?directConnection=true"
            super().__init__(folder, binary, terms, url)
            self._servers = ends.pop_all()

    def __exit__(self, *rest: object) -> None:
        super().__exit__(None, None, None)
        self._servers.close()


W = TypeVar("W", bound=World)


def only(kind: type[W], strike: Callable[[W], None]) -> Callable[[World], None]:
    """What strikes worlds of that kind."""

    def struck(world: World) -> None:
        assert isinstance(world, kind)
        strike(world)

    return struck


def sentinel_failover(world: SentinelWorld) -> None:
    """The replicas lack the last draws when the master dies."""
    group = world.group
    master, replicas = group.node(group.master()), group.replicas()
    master.cut_off(*replicas)
    world.more()
    with world.fault("F3 failover by Sentinel", hits=len(world.crew.workers)):
        master.kill()
        for replica in replicas:
            replica.resume()
        group.wait_for_master_other_than(master.address)
    master.start()
    group.wait_for_replica(master.address)


def cluster_failover(world: ClusterWorld) -> None:
    # In turn: the trend tag alone would show nothing of a missing fence, as it is served direct meanwhile.
    cluster, key = world.cluster, world.key([STRICT, TREND][len(world.strikes) % 2])
    owner = cluster.node_of(key)
    # After the last failover the word may not have got round yet.
    until(
        lambda: any(member.master == owner.id() and member.well for member in owner.members()), 30, "it has a replica"
    )
    replica = cluster.replica_of(owner)
    owner.cut_off(replica)
    world.more()
    with world.fault("F3 failover by Cluster", hits=len(world.crew.workers)):
        owner.kill()
        replica.resume()
        cluster.wait_for_new_owner(key, owner)
    owner.start()
    until(
        lambda: owner.replication().get("master_link_status") == "up", 30, "the old owner follows", ignoring=(OSError,)
    )


def store_killed(world: MongoWorld) -> None:
    """A reservation is on its way when the store dies."""
    world.store_proxy.hold(STORE_CALLS["reserve"], times=1)
    until(lambda: world.store_proxy.held, world.crew.patience, "a reservation is on its way")
    with world.fault("F6 store killed", hits=len(world.crew.workers)):
        world.store_proxy.release()
        world.mongo.kill()
        world.store_proxy.pass_through()
        sleep(LASTS["else"])
        world.mongo.start()


def _on_the_wire(name: str, manner: str, times: int) -> Callable[[MongoWorld], None]:
    def strike(world: MongoWorld) -> None:
        for call, match in STORE_CALLS.items():
            before = world.store_proxy.hits
            with world.fault(f"{name} {manner}: {call}", hits=len(world.crew.workers), segments=4):
                WIRE[manner](world.store_proxy, match, times)
                until(lambda: world.store_proxy.hits > before, world.crew.patience, f"{call} is hit")  # noqa: B023
                world.store_proxy.pass_through()
            # Else the next call to be hit may be the one that was to bring the service back.
            world.more()

    return strike


#: How often they are sent away and brought back until one hands something back.
TRIES = 4


def hand_backs_hit(world: World, proxy: FaultProxy, calls: Mapping[str, bytes], family: str) -> None:
    """Processes that come back to Redis hand back what is left of their own segments."""
    for manner, hit in WIRE.items():
        for call, match in calls.items():
            before = proxy.hits
            for _ in range(TRIES):
                cut = go_direct(world)
                hit(proxy, match, 3)
                # Each that comes back may raise the floor above a segment that is on its way: its load is refused.
                with world.fault(f"{family} {manner}: {call}", hits=len(cut), segments=2 + len(cut)):
                    world.fronts[0].pass_through()
                    # Who has just used up its last segment has nothing to hand back.
                    with suppress(AssertionError):
                        until(lambda: proxy.hits > before, world.crew.patience / TRIES)  # noqa: B023
                    proxy.pass_through()
                if proxy.hits > before:
                    break
                world.more()
            else:
                raise AssertionError(f"{call} was not hit")
            # By now others may have reserved what was handed back.
            world.more()


def handing_back_hit(world: MongoWorld) -> None:
    hand_backs_hit(world, world.store_proxy, HAND_BACK, "F9k")


SENTINEL_FAULTS = [Fault("F3b", "failover by Sentinel, replication cut", only(SentinelWorld, sentinel_failover))]
CLUSTER_FAULTS = [Fault("F3c", "failover by Cluster, replication cut", only(ClusterWorld, cluster_failover))]
MONGO_FAULTS = [
    Fault("F6c", "the store killed in mid-reserve", only(MongoWorld, store_killed)),
    Fault("F6e", "MongoDB restored from an old copy, the issuers stopped", store_restored),
    Fault(
        "F6f",
        "MongoDB restored from an old copy, younger segments served direct, Redis wiped",
        store_restored_under_direct_segments,
    ),
    Fault("F9d", "a request to the store dropped", only(MongoWorld, _on_the_wire("F9d", "request dropped", 1))),
    Fault("F9e", "a reply of the store dropped", only(MongoWorld, _on_the_wire("F9e", "reply dropped", 1))),
    Fault("F9f", "replies of the store 300 ms late", only(MongoWorld, _on_the_wire("F9f", "300 ms late", 3))),
    Fault("F9k", "what hands a segment back dropped, its reply dropped, and late", only(MongoWorld, handing_back_hit)),
]
