"""The fence on every server: what ends a reign, and what a server that is no master answers."""

from collections.abc import Iterator

import pytest

from tests.lua.hashes import BORN, KEY, Made, TagHash, command, unchanged
from tests.servers.fake import FencedFakeServer
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
