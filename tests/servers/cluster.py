"""A Redis Cluster of three masters with a replica each, ours alone: owners can be killed, slots moved half-way.

A slot that migrates answers ASK for keys that aren't there, when they have been moved for every key, and when it is
finished MOVED. A replica takes over by order in 0.01 s, by itself in 1 to 3. Every process is bound to loopback.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path
from typing import Any, Self

import redis
from redis.crc import key_slot

from tests.servers.pool import Configuration, Group, configuration, empty, query
from tests.servers.ports import LOOPBACK
from tests.servers.redis import TIMEOUT, RedisServer
from tests.waiting import until

_AWAY = (redis.ConnectionError, redis.TimeoutError)
_MASTERS = 3
_SLOTS = 16384
_START_TIMEOUT = 60.0
# Milliseconds. They meet the sooner the shorter it is.
_NODE_TIMEOUT, _MENDING, _FOR_EVER = 700, 3000, 3_600_000


class ClusterNode(RedisServer):
    """One node. Started again after a kill it finds its id, its slots and the others in its own nodes.conf."""

    def ask(self, *command: Any) -> Any:
        """Send a command; what redis-py leaves as bytes comes as text."""
        with self.client(decode_responses=True) as client:
            return client.execute_command(*command)

    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID"))

    def members(self) -> "list[Member]":
        """Return what this node believes of every node, itself included."""
        with self.client(decode_responses=True) as client:
            # redis-py would make a dictionary by address of it, which loses a node that hasn't got one yet.
            client.set_response_callback("CLUSTER NODES", str)
            return [Member.parsed(line) for line in client.execute_command("CLUSTER NODES").splitlines()]


@dataclass(frozen=True)
class Member:
    """One line of CLUSTER NODES."""

    id: str
    port: int
    flags: frozenset[str]
    master: str
    epoch: int
    linked: bool
    slots: tuple[range, ...]

    @classmethod
    def parsed(cls, line: str) -> Self:
        id, address, flags, master, _ping, _pong, epoch, link, *slots = line.split()
        port = int(address.split("@")[0].rpartition(":")[2])
        # [slot->-node] and [slot-<-node] tell of a migration, and not who owns it.
        ends = [slot.partition("-") for slot in slots if not slot.startswith("[")]
        owned = tuple(range(int(first), int(last or first) + 1) for first, _, last in ends)
        return cls(id, port, frozenset(flags.split(",")), master, int(epoch), link == "connected", owned)

    def owns(self, slot: int) -> bool:
        return any(slot in owned for owned in self.slots)

    @property
    def well(self) -> bool:
        return self.linked and not self.flags & {"fail", "fail?", "handshake", "noaddr"}


class Migration:
    """A slot that is on its way from one master to another, step by step; leaving the context takes those left."""

    def __init__(self, cluster: "ClusterServers", slot: int, source: ClusterNode, target: ClusterNode) -> None:
        self.slot = slot
        self.source = source
        self.target = target
        self._cluster = cluster
        self._finished = False
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id())
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._finished:
            self.finish()

    def move_keys(self) -> int:
        """MIGRATE every key of the slot, and return how many: from now on the source answers ASK for them."""
        moved = 0
        while keys := self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            login = ["AUTH", self.source.password] if self.source.password else []
            self.source.ask("MIGRATE", LOOPBACK, self.target.port, "", 0, 1000 * TIMEOUT // 2, *login, "KEYS", *keys)
            moved += len(keys)
        return moved

    def finish(self) -> None:
        """SETSLOT NODE, the target first, and return when every node that runs knows: now it is MOVED."""
        self.move_keys()
        self._finished = True
        for node in (self.target, self.source, *self._cluster.masters()):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id())
        self._cluster.wait_for_owner(self.slot, lambda owner: owner is self.target)


class ClusterServers(Group):
    """`args` go to the command line of every node. `ordered`: no replica becomes a master unless it is told to."""

    def __init__(
        self, binary: Path | str, *args: str, password: str = "", ordered: bool = False, masters: int = _MASTERS
    ) -> None:
        options = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT), *args]
        # A replica stands for election however long it has not heard of its master.
        options += ["--cluster-replica-validity-factor", "0"]
        self.nodes = [ClusterNode(binary, *options, password=password) for _ in range(2 * masters)]
        self._masters = masters
        self._password = password
        self._ordered = ordered
        self._configurations: list[Configuration] = []
        self._all = self.nodes

    @property
    def url(self) -> str:
        """The first two nodes as seeds."""
        return self.url_of(*self.nodes[:2])

    def url_of(self, *seeds: RedisServer | int, **parameters: str) -> str:
        """Return the URL with these seeds: nodes, or ports where perhaps nobody listens."""
        login = f":{self._password}@" if self._password else ""
        ports = [seed if isinstance(seed, int) else seed.port for seed in seeds]
        return f"redis+cluster://{login}{','.join(f'{LOOPBACK}:{port}' for port in ports)}{query(parameters)}"

    def node_of(self, key: str) -> ClusterNode:
        """Return the node that owns the key's slot, by its own word; dead ones have none."""
        return self._owner(slot_of(key))

    def another_master(self, key: str) -> ClusterNode:
        """Return a master that the key's slot could move to."""
        owner = self.node_of(key)
        return next(node for node in self.masters() if node is not owner)

    def replica_of(self, master: ClusterNode) -> ClusterNode:
        id = master.id()
        return self._by_port(next(member.port for member in master.members() if member.master == id))

    def masters(self) -> list[ClusterNode]:
        """Return the running nodes that own slots, by their own word."""
        return [node for node, me in self._selves() if "master" in me.flags and me.slots]

    def kill_owner(self, key: str) -> ClusterNode:
        """SIGKILL the node that owns the key's slot, and return it."""
        (owner := self.node_of(key)).kill()
        return owner

    def pause_owner(self, key: str) -> ClusterNode:
        """SIGSTOP the node that owns the key's slot, and return it."""
        (owner := self.node_of(key)).pause()
        return owner

    def take_over(self, old: ClusterNode) -> ClusterNode:
        """Order the replica of a master, dead or alive, to its place, and return it when every node that answers knows.

        Tests needn't wait then until the others have noticed that the master is gone.
        """
        [known] = {member for member in self._answering()[0].members() if member.port == old.port}
        [port] = {member.port for member in self._answering()[0].members() if member.master == known.id}
        replica = self._by_port(port)
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        return self.wait_for_owner(known.slots[0].start, lambda owner: owner is replica)

    def wait_for_new_owner(self, key: str, old: ClusterNode, timeout: float = 60.0) -> ClusterNode:
        """Return the new owner when every node that answers agrees on one, and is ready to serve."""
        return self.wait_for_owner(slot_of(key), lambda owner: owner is not old, timeout)

    def start_migration(self, key: str, to: ClusterNode) -> Migration:
        """Make the key's slot migrate: its owner still serves the keys that are there, and answers ASK for others."""
        return Migration(self, slot_of(key), self.node_of(key), to)

    def migrate_slot(self, key: str, to: ClusterNode) -> ClusterNode:
        """Move the key's slot and all of its keys, and return the node that had it."""
        with self.start_migration(key, to) as moving:
            return moving.source

    def wait_for_owner(self, slot: int, wanted: Callable[[ClusterNode], bool], timeout: float = 60.0) -> ClusterNode:
        """Return the slot's owner when every node that answers agrees on it, and it is `wanted`."""

        def agreed() -> ClusterNode | None:
            ports = set()
            for node in self._answering():
                ports |= {member.port for member in node.members() if member.owns(slot)}
                if _info(node)["cluster_state"] != "ok":
                    return None
            owner = self._by_port(ports.pop()) if len(ports) == 1 else None
            return owner if owner and wanted(owner) else None

        owner = until(agreed, timeout, f"slot {slot} of {self!r} has another owner", ignoring=_AWAY)
        assert owner
        return owner

    def clean(self) -> None:
        """Start and resume every node, and empty them; their slots and roles may be other ones than at first."""
        for node in self.nodes:
            node.resume()
            node.start()
        self._configure()
        # What a node has become it tells all others within half of this.
        self._allow(_MENDING)
        until(self._settled, message=f"{self!r} is sound again", ignoring=_AWAY)
        self._configure()
        # One that stood still in the meantime may have lost its slots before it was told not to.
        until(self._settled, message=f"{self!r} is still sound", ignoring=_AWAY)
        masters = self.masters()
        for node in self.nodes:
            empty(node, replicas=1 if node in masters else 0)

    def _start(self) -> None:
        for node in self.nodes:
            node.start()
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        share = -(-_SLOTS // self._masters)
        for number, master in enumerate(masters):
            # Before they meet: two masters of the same epoch would have to settle that first.
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            # ADDSLOTSRANGE came with Redis 7.
            master.ask("CLUSTER", "ADDSLOTS", *range(number * share, min((number + 1) * share, _SLOTS)))
        # A handshake that the machine stands still in is given up by Redis, and nobody begins it again.
        meetings = count()
        until(lambda: self._met(next(meetings)), _START_TIMEOUT, f"{self!r} have met", ignoring=_AWAY)
        for master, replica in zip(masters, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", master.id())
        until(self._settled, _START_TIMEOUT, f"{self!r} is ok", ignoring=_AWAY)
        while self._ordered:
            self._allow(_FOR_EVER)
            # If the machine has stood still before that, one may count as failed, and would for ever.
            if self._settled():
                break
            self._allow(_MENDING)
            until(self._settled, _START_TIMEOUT, f"{self!r} is ok again", ignoring=_AWAY)
        self._configurations = [configuration(node) for node in self.nodes]

    def _allow(self, milliseconds: int) -> None:
        """Let a node be silent for so long before it counts as failed."""
        for node in self.nodes:
            node.ask("CONFIG", "SET", "cluster-node-timeout", milliseconds)

    def _configure(self) -> None:
        """Take back what tests have configured."""
        for node, wanted in zip(self.nodes, self._configurations, strict=True):
            for name, value in wanted.items() - configuration(node).items():
                node.ask("CONFIG", "SET", name, value)

    def _met(self, look: int) -> bool:
        """Introduce each to each, at every hundredth look; gossip would do it too, in a second or two."""
        if look % 100 == 0:
            for one, other in permutations(self.nodes, 2):
                if one.port < other.port:
                    one.ask("CLUSTER", "MEET", LOOPBACK, other.port)
        return self._all_know(len(self.nodes))

    def _all_know(self, count: int) -> bool:
        views = [node.members() for node in self.nodes]
        return all(len(view) == count and all(member.well for member in view) for view in views)

    def _settled(self) -> bool:
        """Whether every node can serve, and knows of every master and its replica, which is in sync."""
        if not self._all_know(len(self.nodes)):
            return False
        for node in self.nodes:
            members = node.members()
            masters = {member.id for member in members if member.slots}
            replicas = [member.master for member in members if "slave" in member.flags]
            if (len(masters), sorted(replicas)) != (self._masters, sorted(masters)):
                return False
        # A replica that hasn't heard of the last epoch would take over in one that is no later than its master's.
        views = {(view["cluster_state"], view["cluster_current_epoch"]) for view in map(_info, self.nodes)}
        links = {node.replication().get("master_link_status", "up") for node in self.nodes}
        return len(views) == 1 and {state for state, _ in views} == {"ok"} and links == {"up"}

    def _answering(self) -> list[ClusterNode]:
        return [node for node, _ in self._selves()]

    def _selves(self) -> list[tuple[ClusterNode, Member]]:
        """Return each node that answers, and what it says of itself."""
        found = []
        for node in self.nodes:
            if node.running and not node.paused:
                found += [(node, member) for member in node.members() if "myself" in member.flags]
        return found

    def _owner(self, slot: int) -> ClusterNode:
        claims = [(me.epoch, node.port) for node, me in self._selves() if "master" in me.flags and me.owns(slot)]
        assert claims, f"nobody that answers owns slot {slot}"
        return self._by_port(max(claims)[1])

    def _by_port(self, port: int) -> ClusterNode:
        return next(node for node in self.nodes if node.port == port)


def slot_of(key: str) -> int:
    """Return the slot of a key: of the part between its braces, if it has any."""
    return int(key_slot(key.encode()))


def _info(node: ClusterNode) -> dict[str, str]:
    with node.client(decode_responses=True) as client:
        client.set_response_callback("CLUSTER INFO", str)
        return dict(line.split(":", 1) for line in client.execute_command("CLUSTER INFO").split())
