"""The fault table of the design: what Redis may do to its state, with the fence and without it."""

from collections.abc import Callable, Mapping

import pytest

from tests.audit import repeats
from tests.lua.hashes import INTACT, mutated
from tests.lua.issuing import SmallIssuer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

Start = Callable[..., RedisServer]

#: `next` without its fence.
FENCE = (
    "if not fence or #fence ~= 40 or not string.find(info, '\\nmaster_replid:' .. fence .. '\\r', 1, true)"
    " then return {'fenced'} end\n"
)


class Pair:
    """A master, and a replica behind a link that can be cut, so that the replica lags."""

    def __init__(self, start: Start, link: FaultProxy, master: RedisServer) -> None:
        self.master = master
        self.replica = start()
        self._link = link
        host, port = link.address
        with self.replica.client() as client:
            client.execute_command("REPLICAOF", host, port)
        until(lambda: self.replica.replication().get("master_link_status") == "up", 60)

    def lag(self) -> None:
        """What was written so far has arrived; nothing does from now on."""
        offset = self.master.replication()["master_repl_offset"]
        until(lambda: self.replica.replication()["master_repl_offset"] >= offset, 60, "the replica has caught up")
        self._link.blackhole()


def kill_and_older_snapshot(start: Start, issuer: SmallIssuer) -> None:
    server = start()
    issuer.issue(server, 150)
    snapshot = server.snapshot()
    issuer.issue(server, 300)
    server.restore(snapshot)
    issuer.issue(server, 300)


def aof_tail_lost(start: Start, issuer: SmallIssuer) -> None:
    server = start(appendonly=True)
    issuer.issue(server, 150)
    before = server.aof_size()
    issuer.issue(server, 300)
    server.cut_aof(server.aof_size() - before)
    issuer.issue(server, 300)


def failover_to_a_lagging_replica(start: Start, issuer: SmallIssuer) -> None:
    master = start()
    with FaultProxy((master.host, master.port)) as link:
        pair = Pair(start, link, master)
        issuer.issue(master, 150)
        pair.lag()
        issuer.issue(master, 300)
        master.kill()
        pair.replica.promote()
        issuer.issue(pair.replica, 300)


def old_and_new_master_alive(start: Start, issuer: SmallIssuer) -> None:
    master = start()
    with FaultProxy((master.host, master.port)) as link:
        pair = Pair(start, link, master)
        issuer.issue(master, 150)
        pair.lag()
        pair.replica.promote()
        for _ in range(30):
            issuer.issue(master, 10)
            issuer.issue(pair.replica, 10)


def there_and_back_with_the_connection_kept(start: Start, issuer: SmallIssuer) -> None:
    """A -> B -> A, nobody having drawn from B: A follows B, forgets what it had not sent there, and is master again."""
    master = start()
    with FaultProxy((master.host, master.port)) as link:
        pair = Pair(start, link, master)
        issuer.issue(master, 150)
        pair.lag()
        issuer.issue(master, 300)
        pid, reign = master.pid, master.replication()["master_replid"]
        pair.replica.promote()
        master.replicaof(pair.replica)
        master.promote()
        assert master.pid == pid
        assert master.replication()["master_replid"] != reign
        issuer.issue(master, 300)


def there_and_back_after_draws_on_the_other_side(start: Start, issuer: SmallIssuer) -> None:
    master = start()
    with FaultProxy((master.host, master.port)) as link:
        pair = Pair(start, link, master)
        issuer.issue(master, 150)
        pair.lag()
        issuer.issue(master, 300)
        pair.replica.promote()
        issuer.issue(pair.replica, 100)
        master.replicaof(pair.replica)
        master.promote()
        issuer.issue(master, 300)


FAULTS = [
    kill_and_older_snapshot,
    aof_tail_lost,
    failover_to_a_lagging_replica,
    old_and_new_master_alive,
    there_and_back_with_the_connection_kept,
    there_and_back_after_draws_on_the_other_side,
]


def suffer(fault: Callable[[Start, SmallIssuer], None], start: Start, texts: Mapping[str, str]) -> SmallIssuer:
    issuer = SmallIssuer(texts)
    fault(start, issuer)
    assert not issuer.above
    return issuer


@pytest.mark.covers("N.1", "3.20")
@pytest.mark.parametrize("fault", FAULTS)
def test_with_the_fence_no_number_comes_twice_and_a_fault_costs_two_segments_at_most(
    fault: Callable[..., None], start_redis: Start
) -> None:
    issuer = suffer(fault, start_redis, INTACT)
    issued = issuer.issued
    assert len(issued) >= 750
    assert repeats(issued) == []
    # The first replica begins a reign too, and in the split and the returns there are three masters in turn.
    reigns = 1 if fault in (kill_and_older_snapshot, aof_tail_lost) else 4
    in_hand = 2 * issuer.store.step
    assert max(issued) - len(issued) <= reigns * 2 * issuer.store.step + in_hand
    # Across reigns numbers increase once the old master has stopped.
    if fault in (kill_and_older_snapshot, aof_tail_lost, failover_to_a_lagging_replica):
        assert issued == sorted(issued)


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("fault", FAULTS)
def test_without_the_fence_numbers_come_twice(fault: Callable[..., None], start_redis: Start) -> None:
    assert repeats(suffer(fault, start_redis, mutated(next=[(FENCE, "")])).issued)
