"""The fault table of the design: what Redis may do to its state, with the fence, and without each part of it."""

from collections.abc import Callable, Mapping

import pytest

from tests.audit import repeats
from tests.lua.hashes import INTACT, Change, mutated
from tests.lua.issuing import STEP, SmallIssuer
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

Start = Callable[..., RedisServer]
Fault = Callable[[Start, SmallIssuer], None]


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
    # While the disk is busy Redis keeps back what it has to write.
    server.cut_aof(until(lambda: server.aof_size() - before, 60, "the AOF has grown"))
    issuer.issue(server, 300)


def lagging(start: Start, issuer: SmallIssuer) -> tuple[RedisServer, RedisServer]:
    """Return a master that has issued 450 numbers, and a replica that has heard of the first 150."""
    master, replica = start(), start()
    replica.replicaof(master)
    issuer.issue(master, 150)
    issuer.hash(master).replicated()
    with replica.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", free_port())
    issuer.issue(master, 300)
    return master, replica


def failover_to_a_lagging_replica(start: Start, issuer: SmallIssuer) -> None:
    master, replica = lagging(start, issuer)
    master.kill()
    replica.promote()
    issuer.issue(replica, 300)


def old_and_new_master_alive(start: Start, issuer: SmallIssuer) -> None:
    master, replica = lagging(start, issuer)
    replica.promote()
    for _ in range(30):
        issuer.issue(master, 10)
        issuer.issue(replica, 10)


def there_and_back(start: Start, issuer: SmallIssuer, *, drawn: int = 0) -> None:
    """A -> B -> A: A follows B, forgets what it had not sent there, and is master again; its process is the same."""
    master, replica = lagging(start, issuer)
    pid = master.pid
    replica.promote()
    issuer.issue(replica, drawn)
    master.replicaof(replica)
    master.promote()
    assert master.pid == pid
    issuer.issue(master, 300)


def there_and_back_after_draws_on_the_other_side(start: Start, issuer: SmallIssuer) -> None:
    there_and_back(start, issuer, drawn=100)


def writable_replica(start: Start, issuer: SmallIssuer) -> None:
    """Some clients draw from a replica that may be written to, and shows its master's id."""
    master, replica = start(), start("--replica-read-only", "no")
    replica.replicaof(master)
    issuer.issue(master, 450)
    issuer.hash(master).replicated()
    for _ in range(10):
        issuer.draw(replica)
    issuer.issue(master, 300)


FAULTS = [
    kill_and_older_snapshot,
    aof_tail_lost,
    failover_to_a_lagging_replica,
    old_and_new_master_alive,
    there_and_back,
    there_and_back_after_draws_on_the_other_side,
    writable_replica,
]


def suffer(fault: Fault, start: Start, texts: Mapping[str, str]) -> list[int]:
    """Return all that was issued, in order."""
    issuer = SmallIssuer(texts)
    fault(start, issuer)
    return issuer.issued


@pytest.mark.covers("N.1", "3.20")
@pytest.mark.parametrize("fault", FAULTS)
def test_with_the_fence_no_number_comes_twice_and_a_fault_costs_two_segments_at_most(
    fault: Fault, start_redis: Start
) -> None:
    issued = suffer(fault, start_redis, INTACT)
    assert len(issued) >= 750
    assert repeats(issued) == []
    # The first replica begins a reign too, and in the split and the returns there are three masters in turn.
    reigns = 1 if fault in (kill_and_older_snapshot, aof_tail_lost) else 4
    in_hand = 2 * STEP
    assert max(issued) - len(issued) <= reigns * 2 * STEP + in_hand
    # Across reigns numbers increase once the old master has stopped.
    if fault in (kill_and_older_snapshot, aof_tail_lost, failover_to_a_lagging_replica):
        assert issued == sorted(issued)


FENCE = ("if fenced then\n", "if false then\n")
NOTMASTER = ("if not string.find(info, '\\nrole:master\\r', 1, true) then return {'notmaster'} end", "")
#: Why the fence is no run id: it outlives a change of masters and back.
INFO = "local info = redis.call('INFO', 'replication')\n"
RUN_ID = (
    INFO,
    INFO + "info = string.gsub(info, '\\nmaster_replid:%x+', "
    "'\\nmaster_replid:' .. string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'))\n",
)
ARM = "  redis.call('HSET', key, 'cur', at, 'max', at, 'mark', at, 'fence', reign, 'born', fresh, 'store', store_id,\n"
ARM_WITH_NUMBERS = (
    "  if not missing then return redis.call('HSET', key, 'fence', reign, 'born', fresh, 'store', store_id) end\n" + ARM
)

#: What is taken out, and a fault in which numbers come twice then.
LACKING: dict[str, tuple[Fault, dict[str, list[Change]]]] = {
    **{f"the fence, {fault.__name__}": (fault, {"next": [FENCE]}) for fault in FAULTS[:-1]},
    "role:master": (writable_replica, {"next": [NOTMASTER]}),
    "master_replid: before the id": (
        failover_to_a_lagging_replica,
        {"next": [("'\\nmaster_replid:' .. fence .. '\\r'", "fence")]},
    ),
    "the replid, not the run id": (there_and_back, {"next": [RUN_ID], "open": [RUN_ID], "load": [RUN_ID]}),
    "arming drops the numbers": (kill_and_older_snapshot, {"open": [(ARM, ARM_WITH_NUMBERS)]}),
}


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("lacking", LACKING)
def test_without_a_part_of_the_fence_numbers_come_twice(lacking: str, start_redis: Start) -> None:
    fault, changes = LACKING[lacking]
    assert repeats(suffer(fault, start_redis, mutated(**changes)))
