"""Calls that are sent together: each gets its own reply, from the server that has its key, even if others fail."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import redis

import issuer
from issuer.clock import Deadline
from issuer.core.steps import pipeline
from issuer.drivers import topology
from issuer.errors import CorruptState, RedisUnavailable
from issuer.gateway import tag_scripts
from issuer.gateway.commands import RedisCall
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect, run
from tests.servers.cluster import ClusterServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.live, pytest.mark.colours(*COLOURS)]

#: More than are sent at once.
MANY = 250


def sent(ids: issuer.Issuer, calls: Sequence[RedisCall[Any]], seconds: float = 30, *, probe: bool = True) -> list[Any]:
    return run(ids, "tag-0", pipeline(calls, probe=probe), Deadline(seconds))


def made(ids: issuer.Issuer, count: int) -> list[str]:
    """Make tags that have each issued one number, and return the keys of their hashes."""
    for number in range(count):
        ids.create(f"tag-{number}", step=number + 10)
        ids.next(f"tag-{number}")
    return [ids.engine.config.key(f"tag-{number}") for number in range(count)]


def test_each_call_gets_its_own_reply_also_beside_rejected_ones(
    connect: Connect, redis_url: str, redis_client: redis.Redis
) -> None:
    with connect(redis=redis_url, store=MemoryStore()) as ids:
        keys = made(ids, MANY)
        redis_client.delete(keys[7])
        redis_client.set(keys[7], "no hash")
        redis_client.delete(keys[130])
        replies = sent(ids, [tag_scripts.read_hash(key) for key in keys])
        assert isinstance(replies.pop(130), tag_scripts.Hash)
        refused = replies.pop(7)
        assert isinstance(refused, CorruptState)
        assert keys[7] in str(refused)
        left = [number for number in range(MANY) if number not in (7, 130)]
        assert [(reply.cur, reply.max) for reply in replies] == [(1, number + 10) for number in left]
        assert sent(ids, []) == []


def test_a_script_that_the_server_does_not_have_is_loaded(
    connect: Connect, redis_url: str, redis_client: redis.Redis
) -> None:
    with connect(redis=redis_url, store=MemoryStore()) as ids:
        keys = made(ids, 20)
        redis_client.script_flush()
        drawn = sent(ids, [tag_scripts.draw(key, 1, None) for key in keys])
        assert [(each.low, each.high) for each in drawn] == [(1, 2)] * 20


def test_in_a_cluster_they_go_to_the_owner_of_each_key_and_follow_a_slot_that_has_moved(
    connect: Connect, cluster: ClusterServers
) -> None:
    # Without a scheduler: nobody else loads a segment into the hash that has moved.
    with connect(redis=cluster.url, store=MemoryStore(), timeout=60, scheduler=None) as ids:
        keys = made(ids, 60)
        calls = [tag_scripts.read_hash(key) for key in keys]
        assert len({cluster.node_of(key).port for key in keys}) == 3
        assert [reply.max for reply in sent(ids, calls)] == list(range(10, 70))
        cluster.migrate_slot(keys[0], cluster.another_master(keys[0]))
        moved, *others = sent(ids, calls)
        # The other node answers with the hash. It was made on the first node, and so its numbers cannot be drawn.
        assert (moved.max, moved.top) == (None, 10)
        assert [reply.max for reply in others] == list(range(11, 70))


def test_over_tls_they_go_through_redis_py(connect: Connect, start_tls: Callable[..., RedisServer]) -> None:
    with connect(redis=start_tls().url, store=MemoryStore(), timeout=60) as ids:
        keys = made(ids, 12)
        assert [reply.max for reply in sent(ids, [tag_scripts.read_hash(key) for key in keys])] == list(range(10, 22))


def test_a_server_that_does_not_answer_fails_all_and_no_reply_is_taken_for_another_calls(
    connect: Connect, redis_proxy: FaultProxy
) -> None:
    with connect(redis=redis_proxy.url, store=MemoryStore(), timeout=60, redis_timeout=0.2) as ids:
        keys = made(ids, 30)
        calls = [tag_scripts.read_hash(key) for key in keys]
        redis_proxy.blackhole()
        with pytest.raises(RedisUnavailable):
            sent(ids, calls, 0.3)
        redis_proxy.pass_through()
        assert ids.next("tag-0") == 2
        assert [reply.max for reply in sent(ids, calls)] == list(range(10, 40))


def test_calls_that_are_no_probe_leave_a_silent_server_alone(
    connect: Connect, redis_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topology, "FORGOTTEN", 10**6)
    with connect(redis=redis_proxy.url, store=MemoryStore(), timeout=60, redis_timeout=0.5, scheduler=None) as ids:
        calls = [tag_scripts.read_hash(key) for key in made(ids, 3)]
        redis_proxy.blackhole()
        with pytest.raises(RedisUnavailable):
            sent(ids, calls)
        redis_proxy.pass_through()
        time.sleep(0.3)  # longer than the pause before a trial: a probe would be sent
        with pytest.raises(RedisUnavailable):
            sent(ids, calls, probe=False)
        assert len(sent(ids, calls)) == len(sent(ids, calls, probe=False)) == 3
