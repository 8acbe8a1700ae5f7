"""The fence: what ends a reign, what a server that is no master answers, and what comes of it without each part."""

from collections.abc import Callable, Iterator, Mapping
from itertools import count

import pytest
import redis

from tests.audit import repeats
from tests.lua.hashes import BORN, INTACT, KEY, Change, Made, TagHash, command, mutated, numbers, unchanged
from tests.servers.fake import FencedFakeServer
from tests.servers.ports import free_port
from tests.servers.redis import RedisServer
from tests.waiting import until


@pytest.fixture
def server(any_redis: RedisServer) -> Iterator[RedisServer]:
    """A server of each kind that belongs to the test alone."""
    with RedisServer(any_redis.binary) as own:
        yield own


@pytest.fixture
def other(any_redis: RedisServer) -> Iterator[RedisServer]:
    with RedisServer(any_redis.binary) as own:
        yield own


def hash_on(server: RedisServer) -> TagHash:
    return TagHash(server.client(decode_responses=True))


def in_use(server: RedisServer, replica: RedisServer | None = None) -> TagHash:
    """Return a hash that holds numbers, here and on the replica."""
    if replica:
        replica.replicaof(server)
    tag = hash_on(server)
    tag.put(50, 100, (100, 200))
    if replica:
        tag.replicated()
    return tag


def assert_fenced(tag: TagHash) -> None:
    """Draws and loads are refused and change nothing; then `open` keeps the top and drops the numbers."""
    fence = tag.field("fence") or ""
    with unchanged(tag):
        assert [tag.next(), tag.lease()] == [["fenced"]] * 2
        assert tag.call("read")[:2] == ["fenced", tag.field("cur")]
        for reign in (fence, tag.reign()):
            assert tag.load(200, 300, reign=reign) == ["stale", "reign"]
            assert tag.give_back(40, 50, reign=reign) == ["spent", "reign"]
    assert tag.open("fresh")[1:6] == [tag.reign(), Made("fresh"), "200", "200", "1"]
    assert tag.next() == ["exhausted"]
    assert tag.load(200, 300) == ["current"]
    assert tag.next() == ["ok", "200", "201"]
    assert tag.call("read")[:3] == ["current", "201", "300"]


def test_a_restart_from_a_snapshot_ends_the_reign(server: RedisServer) -> None:
    in_use(server)
    server.restore(server.snapshot())
    assert_fenced(hash_on(server))


def test_an_orderly_restart_that_saved_everything_ends_it_too(any_redis: RedisServer) -> None:
    with RedisServer(any_redis.binary, appendonly=True) as server:
        in_use(server)
        server.restart()
        assert_fenced(hash_on(server))


def test_a_promotion_ends_the_reign_here_and_on_a_master_that_follows_and_comes_back(
    server: RedisServer, other: RedisServer
) -> None:
    here = in_use(server, other)
    before = here.reign()
    other.promote()
    assert other.replication()["master_replid2"] == before
    assert_fenced(hash_on(other))
    other.client().flushall()
    in_use(other)
    server.replicaof(other)
    assert here.next() == ["notmaster"]
    server.promote()
    assert_fenced(here)


def test_the_first_replica_ends_the_reign_and_costs_a_gap_only(server: RedisServer, other: RedisServer) -> None:
    tag = in_use(server)
    before = tag.reign()
    other.replicaof(server)
    assert tag.reign() != before
    assert_fenced(tag)


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_replica_answers_notmaster_and_stays_as_it_is_even_if_it_is_writable(
    server: RedisServer, other: RedisServer, read_only: str
) -> None:
    master, replica = in_use(server, other), hash_on(other)
    replica.client.config_set("replica-read-only", read_only)
    assert replica.fields() == master.fields()
    with unchanged(replica):
        replies = [replica.next(), replica.lease(), replica.give_back(40, 50), replica.load(200, 300)]
        replies += [replica.open("fresh", role=role) for role in ("claim", "look")]
        replies += [replica.floor(500, manner=manner) for manner in ("keep", "repair")]
        assert replies == [["notmaster"]] * 8
    assert master.next() == ["ok", "50", "51"]
    master.client.delete(KEY)
    master.replicated()
    assert replica.open() == ["notmaster"]
    assert not replica.client.exists(KEY)


def test_a_handover_by_the_failover_command_ends_the_reign_too(server: RedisServer, other: RedisServer) -> None:
    master = in_use(server, other)
    command(master.client, "FAILOVER", "TO", other.host, str(other.port))
    until(lambda: other.replication()["role"] == "master", 60, "the replica has taken over")
    assert_fenced(hash_on(other))
    until(lambda: server.replication()["role"] == "slave", 60, "the master has given up")
    assert master.next() == ["notmaster"]


def test_a_server_that_shows_no_replid_arms_and_loads_nothing(fake_server: FencedFakeServer) -> None:
    """It once was armed without a fence: each load was stale then, and each cost a segment."""
    tag = TagHash(fake_server.client(decode_responses=True))
    for drawn in (["empty"], ["fenced"]):
        for replid in ("", "0123", "none of your business, says the proxy"):
            if drawn == ["fenced"]:
                tag.put(50, 100, fence=replid)
            fake_server.master_replid = replid
            with unchanged(tag):
                assert [tag.next(), tag.lease()] == [drawn] * 2
                replies = [tag.open(), tag.floor(500, manner="repair")]
                replies += [tag.call("load", 100, 200, 120, replid, BORN), tag.call("giveback", 40, 50, replid, BORN)]
                assert replies == [["notmaster"]] * 4


# ------------------------------------------------------------ a small issuer over the raw scripts


STEP = 100


_BORNS = count(1)


_ROUNDS = 50


class SmallIssuer:
    """Draws one number after another and extends when told to, as issuer/core/supply/extend.py does.

    `issued`: every number, in the order of its draw. `max`: up to which the store has reserved.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.max = 0
        self.issued: list[int] = []
        self._clients: dict[tuple[int, int | None], redis.Redis] = {}

    def hash(self, server: RedisServer) -> TagHash:
        """Return the tag's hash on that server, over a connection that is kept as long as the process lives."""
        client = self._clients.setdefault((server.port, server.pid), server.client(decode_responses=True))
        return TagHash(client, self.texts)

    def draw(self, server: RedisServer) -> str:
        reply = self.hash(server).next(1)
        if reply[0] == "ok":
            self.issued += numbers(reply)
            assert self.issued[-1] <= self.max
            return "extend" if len(reply) > 3 else "ok"
        return reply[0]

    def extend(self, server: RedisServer) -> None:
        hash = self.hash(server)
        opened = hash.open(born=f"b{next(_BORNS)}", window=0)
        assert opened[0] == "open", opened
        _, reign, born, _, _, due, _ = opened
        if due == "1":
            low, self.max = self.max, self.max + STEP
            hash.load(low, self.max, reign=reign, born=born)

    def issue(self, server: RedisServer, count: int) -> None:
        """Issue `count` numbers more."""
        wanted = len(self.issued) + count
        rounds = 0
        while len(self.issued) < wanted:
            status = self.draw(server)
            if status != "ok":
                self.extend(server)
            if status not in ("ok", "extend"):
                rounds += 1
                assert rounds < _ROUNDS, f"no numbers any more: {status}"


# ------------------------------------------------------------ what Redis may do to its state


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
