"""A Cluster: a replica can become the master and keep its master's replication id, so a hash names its node as well."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.lua.hashes import INTACT, TagHash, command, numbers
from tests.lua.test_fence import assert_fenced, hash_on
from tests.lua.test_machines import HOLD, NOW
from tests.lua.test_machines import hash_on as machines_on
from tests.servers.cluster import ClusterNode
from tests.servers.ports import LOOPBACK
from tests.servers.redis import RedisServer
from tests.waiting import until

#: The scripts of a caller that does not know of nodes: an older version, or a user without the right to CLUSTER MYID.
UNAWARE = {name: text.replace("redis.pcall('CLUSTER', 'MYID')", "false") for name, text in INTACT.items()}

OPTIONS = ("--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "60000")


def serves(node: ClusterNode) -> bool:
    return bool(node.ask("CLUSTER INFO")["cluster_state"] == "ok")


def known(node: ClusterNode) -> int:
    return sum(member.well for member in node.members())


@pytest.fixture(scope="module")
def nodes() -> Iterator[Callable[[Path], ClusterNode]]:
    """Start a master with all slots. It needs two seconds until it serves, so there is one for each kind of server."""
    with ExitStack() as ends:

        @cache
        def start(binary: Path) -> ClusterNode:
            node = ends.enter_context(ClusterNode(binary, *OPTIONS))
            node.ask("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: serves(node), message=f"{node!r} serves")
            return node

        yield start


@pytest.fixture
def node(any_redis: RedisServer, nodes: Callable[[Path], ClusterNode]) -> ClusterNode:
    node = nodes(Path(any_redis.binary))
    node.start()
    until(lambda: serves(node), message=f"{node!r} serves")
    node.client().flushall()
    return node


@contextmanager
def replica_of(master: ClusterNode) -> Iterator[ClusterNode]:
    with ClusterNode(master.binary, *OPTIONS) as replica:
        master.ask("CLUSTER", "MEET", LOOPBACK, replica.port)
        until(lambda: all(known(each) == 2 for each in (master, replica)), message="both nodes have met")
        replica.ask("CLUSTER", "REPLICATE", master.id())
        until(lambda: replica.replication().get("master_link_status") == "up", message=f"{replica!r} follows")
        until(lambda: serves(replica), message=f"{replica!r} knows the slots of its master")
        yield replica


def promoted(replica: ClusterNode, master: ClusterNode) -> None:
    """Lose the master, then promote the replica, which keeps the master's replication id.

    A node of another Cluster answers at the master's address, so the replica no longer has an address of its master.
    After a restart it has the replication id of its dump, and replicates nobody. So its promotion ends no replication.
    """
    reign, lost = master.replication()["master_replid"], master.id()
    replica.snapshot()
    replica.kill()
    master.kill()
    nodes = replica.directory / "nodes.conf"
    text = nodes.read_text()
    nodes.write_text(re.sub(rf"^{lost} \S+ (\S*master)", rf"{lost} :0@0 \1,noaddr", text, flags=re.MULTILINE))
    replica.start()
    assert replica.replication()["role"] == "master"
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    until(lambda: serves(replica), message=f"{replica!r} serves")
    assert replica.replication()["master_replid"] == reign


def filled(node: ClusterNode, texts: Mapping[str, str] = INTACT) -> TagHash:
    tag = TagHash(node.client(decode_responses=True), texts)
    _, reign, born, *_ = tag.open()
    assert tag.load(50, 100, reign=reign, born=born) == ["current"]
    assert tag.load(100, 200, reign=reign, born=born) == ["next"]
    return tag


def test_a_hash_of_an_older_version_goes_on_without_a_gap_and_gets_the_node_when_it_is_opened(
    node: ClusterNode,
) -> None:
    old = filled(node, UNAWARE)
    new = hash_on(node)
    drawn = [*numbers(old.next()), *numbers(new.next()), *numbers(new.lease()), *numbers(old.lease())]
    assert new.field("node") is None
    assert new.open()[3:5] == ["200", "54"]
    assert new.field("node") == node.id()
    drawn += [*numbers(new.next()), *numbers(old.next())]
    assert old.open()[3:5] == new.open()[3:5] == ["200", "56"]
    old.floor(10)
    drawn += [*numbers(new.next(9)), *numbers(old.next(9)), *numbers(new.next(99)), *numbers(old.next(99))]
    assert drawn == [*range(51, 200)]
    assert new.field("node") == node.id()


def test_without_the_right_to_read_the_node_everything_goes_on(node: ClusterNode) -> None:
    filled(node)
    command(node.client(), "ACL", "SETUSER", "drawer", "on", ">secret", "~issuer:*", "+@all", "-cluster")
    denied = TagHash(node.client(decode_responses=True, username="drawer", password="secret"))
    assert denied.next() == ["ok", "50", "51"]
    before = denied.fields()
    assert denied.open()[1:5] == [denied.reign(), before["born"], "200", "51"]
    assert denied.fields() == before
    assert denied.floor(250)[:3] == ["floored", "250", "250"]
    assert denied.load(300, 400) == ["current"]
    assert denied.field("node") == node.id()
    denied.put(1, 100, fence="0" * 40, node="f" * 40)
    # In another term the node of the hash says nothing. It must not stay, or users with the right were fenced for ever.
    assert denied.open()[3] == "100"
    assert denied.field("node") is None
    assert denied.load(100, 200) == ["current"]
    assert numbers(hash_on(node).next()) == range(101, 102)


def test_outside_of_a_cluster_no_node_is_kept_and_no_error_counted(tag: TagHash) -> None:
    command(tag.client, "CONFIG", "RESETSTAT")
    tag.open()
    tag.load(0, 100)
    assert tag.next() == ["ok", "0", "1"]
    assert tag.fields().keys() == {"cur", "max", "mark", "fence", "born", "store"}
    stats: dict[str, object] = tag.client.info("errorstats")
    assert not stats


def test_a_server_outside_of_a_cluster_never_keeps_its_masters_replication_id(any_redis: RedisServer) -> None:
    """Without a Cluster, only a server that replicates somebody takes the id of its dump, and leaving that ends it."""
    with RedisServer(any_redis.binary) as master, RedisServer(any_redis.binary) as replica:
        replica.replicaof(master)
        hash_on(master).put(50, 100)
        hash_on(master).replicated()
        reign = master.replication()["master_replid"]
        replica.snapshot()
        master.kill()
        replica.kill()
        replica.args = ("--replicaof", LOOPBACK, str(master.port))
        replica.start()
        assert (replica.replication()["role"], hash_on(replica).reign()) == ("slave", reign)
        replica.promote()
        assert hash_on(replica).next() == ["fenced"]
        replica.kill()
        replica.args = ()
        replica.start()
        assert hash_on(replica).field("cur") == "50"
        assert hash_on(replica).next() == ["fenced"]
        assert hash_on(replica).reign() != reign


def test_a_replica_that_is_promoted_with_its_masters_replication_id_is_fenced(node: ClusterNode) -> None:
    with replica_of(node) as replica:
        here = filled(node)
        machines = machines_on(node).at(NOW)
        machines.settled()
        assert machines.claim()[0] == "yours"
        here.replicated()
        promoted(replica, node)
        # A caller that cannot read the node's id is as safe as it was before. It shows what the field is for.
        assert numbers(TagHash(replica.client(decode_responses=True), UNAWARE).next()) == range(51, 52)
        assert_fenced(hash_on(replica))
        assert hash_on(replica).field("node") == replica.id()
        machines = machines_on(replica).at(NOW)
        assert machines.claim(6) == ["settling", str(HOLD)]
        assert machines.at(NOW + HOLD).claim(6)[0] == "yours"
