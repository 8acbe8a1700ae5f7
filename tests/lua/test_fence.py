"""The fence on every server: what ends a reign, and what a server that is no master answers."""

from collections.abc import Callable, Iterator

import pytest

from tests.lua.hashes import BORN, KEY, Made, TagHash, command
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import until

Start = Callable[..., RedisServer]


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


def assert_fenced(tag: TagHash) -> None:
    """Draws and loads are refused and change nothing; then `open` keeps the top and drops the numbers."""
    before = tag.fields()
    assert tag.next() == ["fenced"]
    assert tag.lease() == ["fenced"]
    assert tag.load(200, 300, reign=before["fence"]) == ["stale", "reign"]
    assert tag.give_back(40, 50, reign=before["fence"]) == ["spent", "reign"]
    assert tag.give_back(40, 50) == ["spent", "reign"]
    assert tag.load(200, 300) == ["stale", "reign"]
    assert tag.fields() == before
    assert tag.open("fresh")[1:6] == [tag.reign(), Made("fresh"), "200", "200", "1"]
    assert tag.next() == ["exhausted"]
    assert tag.load(200, 300) == ["current"]
    assert tag.next() == ["ok", "200", "201"]


def test_a_restart_from_a_snapshot_ends_the_reign(server: RedisServer) -> None:
    hash_on(server).put(50, 100, (100, 200))
    server.restore(server.snapshot())
    assert_fenced(hash_on(server))


def test_an_orderly_restart_that_saved_everything_ends_it_too(any_redis: RedisServer) -> None:
    with RedisServer(any_redis.binary, appendonly=True) as server:
        hash_on(server).put(50, 100, (100, 200))
        server.restart()
        assert_fenced(hash_on(server))


def test_a_promotion_ends_the_reign_though_its_name_is_still_shown_second(
    server: RedisServer, other: RedisServer
) -> None:
    other.replicaof(server)
    master = hash_on(server)
    master.put(50, 100, (100, 200))
    master.client.wait(1, 5000)
    other.promote()
    assert other.replication()["master_replid2"] == master.reign()
    assert_fenced(hash_on(other))


def test_a_master_that_follows_another_one_and_comes_back_has_a_new_reign(
    server: RedisServer, other: RedisServer
) -> None:
    other.replicaof(server)
    here = hash_on(server)
    here.put(50, 100, (100, 200))
    here.client.wait(1, 5000)
    other.promote()
    server.replicaof(other)
    assert here.next() == ["notmaster"]
    server.promote()
    assert_fenced(here)


def test_the_first_replica_ends_the_reign_and_costs_a_gap_only(server: RedisServer, other: RedisServer) -> None:
    tag = hash_on(server)
    tag.put(50, 100, (100, 200))
    before = tag.reign()
    other.replicaof(server)
    assert tag.reign() != before
    assert_fenced(tag)


def test_a_flush_does_not_end_the_reign_and_starts_above_all(server: RedisServer) -> None:
    tag = hash_on(server)
    tag.put(50, 100)
    tag.client.flushall()
    assert tag.next() == ["empty"]


@pytest.mark.parametrize("read_only", ["yes", "no"])
def test_a_replica_answers_notmaster_and_stays_as_it_is_even_if_it_is_writable(
    server: RedisServer, other: RedisServer, read_only: str
) -> None:
    other.replicaof(server)
    master, replica = hash_on(server), hash_on(other)
    replica.client.config_set("replica-read-only", read_only)
    master.put(50, 100, (100, 200))
    master.client.wait(1, 5000)
    before = replica.fields()
    assert before == master.fields()
    assert replica.next() == ["notmaster"]
    assert replica.lease() == ["notmaster"]
    assert replica.give_back(40, 50) == ["notmaster"]
    for role in ("claim", "mine", "look"):
        assert replica.open("fresh", role=role) == ["notmaster"]
    assert replica.load(200, 300) == ["notmaster"]
    for manner in ("keep", "repair"):
        assert replica.floor(500, manner=manner) == ["notmaster"]
    assert replica.fields() == before
    assert master.next() == ["ok", "50", "51"]


def test_a_replica_arms_nothing(server: RedisServer, other: RedisServer) -> None:
    other.replicaof(server)
    replica = hash_on(other)
    replica.client.config_set("replica-read-only", "no")
    assert replica.open() == ["notmaster"]
    assert not replica.client.exists(KEY)


def test_scripts_that_a_replica_receives_leave_the_same_hash_there(server: RedisServer, other: RedisServer) -> None:
    other.replicaof(server)
    master = hash_on(server)
    _, reign, born, *_ = master.open()
    master.load(0, 100, reign=reign, born=born)
    master.next(30)
    master.load(100, 200, reign=reign, born=born)
    master.next(1000)
    master.next(7)
    assert master.lease(9)[:3] == ["ok", "107", "116"]
    assert master.give_back(110, 116, reign=reign, born=born) == ["back"]
    master.floor(150)
    master.client.wait(1, 5000)
    assert hash_on(other).fields() == master.fields()


def test_a_handover_by_the_failover_command_ends_the_reign_too(server: RedisServer, other: RedisServer) -> None:
    other.replicaof(server)
    master = hash_on(server)
    master.put(50, 100, (100, 200))
    master.client.wait(1, 5000)
    command(master.client, "FAILOVER", "TO", other.host, str(other.port))
    until(lambda: other.replication()["role"] == "master", 60, "the replica has taken over")
    assert_fenced(hash_on(other))
    until(lambda: server.replication()["role"] == "slave", 60, "the master has given up")
    assert master.next() == ["notmaster"]


@pytest.mark.parametrize("replid", ["", "0123", "none of your business, says the proxy"])
def test_a_server_that_shows_no_replid_arms_and_loads_nothing(fake_server: FencedFakeServer, replid: str) -> None:
    """It once was armed without a fence: each load was stale then, and each cost a segment."""
    tag = TagHash(fake_server.client(decode_responses=True))
    for missing in (True, False):
        if not missing:
            tag.put(50, 100, fence=replid)
        fake_server.master_replid = replid
        before = tag.fields()
        assert tag.next() == (["empty"] if missing else ["fenced"])
        assert tag.open() == ["notmaster"]
        assert tag.lease() == (["empty"] if missing else ["fenced"])
        assert tag.call("load", 100, 200, 120, replid, BORN) == ["notmaster"]
        assert tag.call("giveback", 40, 50, replid, BORN) == ["notmaster"]
        assert tag.floor(500, manner="repair") == ["notmaster"]
        assert tag.fields() == before
