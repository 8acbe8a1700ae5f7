"""Redis restarts with its data: nobody can draw from a tag's hash, and whoever reads the hash knows that."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from issuer.errors import LimitReached
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

Start = Callable[..., RedisServer]


def test_peek_inspect_and_the_sweep_take_a_fenced_hash_for_an_empty_one(
    connect: Connect, start_redis: Start, store: MemoryStore
) -> None:
    server = start_redis(appendonly=True)
    with connect(redis=server.url, store=store, scheduler=None, **ENDLESS) as ids:
        ids.create("a", step=100)
        assert ids.take("a", 10) == [*range(1, 11)]
        assert (ids.peek("a").value, ids.inspect("a").remaining) == (11, 90)
        server.restart()
        seen = ids.inspect("a")
        assert (ids.peek("a").value, seen.remaining) == (101, 0)
        assert seen.redis is not None
        assert (seen.redis.cur, seen.redis.max) == (None, None)
        assert ids.verify("a") == []
        # The tag is loaded before anybody draws: if the store were lost now, its numbers would last as long as ever.
        assert ids.tick() == 1
        assert (ids.peek("a").value, ids.inspect("a").remaining) == (101, 100)
        assert ids.next("a") == 101


def test_the_walk_of_a_keeper_loads_a_fenced_tag_that_nobody_reports(
    connect: Connect, start_redis: Start, store: MemoryStore
) -> None:
    server = start_redis(appendonly=True)
    with connect(redis=server.url, store=store, **ENDLESS) as other:
        for tag in ("a", "b"):
            other.create(tag, step=100)
        other.next("a")
    server.restart()
    with connect(redis=server.url, store=store, scheduler=None, **ENDLESS) as ids:
        ids.keep()
        until(ids.tick, message="a segment is loaded")
        with server.client() as client:
            assert client.hget(redis_key("issuer", "a"), "fence") == server.replication()["master_replid"].encode()
            assert not client.exists(redis_key("issuer", "b"))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"order": "trend", "lease": 10_000},
        {"step": 100_000},
        {"restart": "yearly", "format": "{date:%Y}-{seq:04d}"},
    ],
    ids=str,
)
def test_a_restart_costs_a_small_tag_a_small_part_of_its_numbers(
    connect: Connect, start_redis: Start, store: MemoryStore, settings: dict[str, Any]
) -> None:
    server = start_redis(appendonly=True)
    with connect(redis=server.url, store=store, scheduler=None, **ENDLESS) as ids:
        ids.create("a", limit=1000, **settings)
        numbers = ids.take("a", 30)
        ids.tick()
        server.restart()
        with suppress(LimitReached):
            while True:
                numbers += ids.take("a", 1)
        assert len(numbers) >= 800
        assert numbers == sorted(set(numbers))
