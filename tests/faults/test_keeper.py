"""A keeper learns from Redis which tags need a segment, for callers that only draw."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.care.keeper import aio as async_keeper
from issuer.care.keeper import blocking as keeper
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.integration.test_cluster import spread
from tests.servers.cluster import ClusterServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

#: A keeper's walk comes only after ten minutes, so what comes within this time was reported.
SOON = 60.0


class Drawer:
    """Draws with EVALSHA alone, and never loads."""

    def __init__(self, client: Any, tag: str) -> None:
        self._draw = client.register_script(script("next").text)
        self.key = redis_key("issuer", tag)
        self.numbers: list[int] = []
        self.statuses: set[bytes] = set()

    def once(self, n: int = 1) -> bool:
        """Draw once, and return whether any number came."""
        status, *rest = self._draw(keys=[self.key], args=[n, -1])
        self.statuses.add(status)
        if rest:
            self.numbers += range(int(rest[0]) + 1, int(rest[1]) + 1)
        return bool(status == b"ok")

    def draw(self, n: int) -> None:
        """Draw that many numbers, one by one, each as soon as there is one."""
        for _ in range(n):
            until(self.once, SOON)


@pytest.fixture
def ids(connect: Connect, redis_url: str, store: MemoryStore) -> Any:
    with connect(redis=redis_url, store=store, **ENDLESS) as made:
        yield made


def kept(ids: Issuer) -> None:
    """Keep the tags, until the first segment of each is there."""
    ids.keep()
    until(lambda: all((found := ids.inspect(each.tag).redis) and found.max for each in ids.tags()), SOON)


@pytest.mark.covers("N.9", "U.19")
def test_a_client_that_only_draws_gets_each_segment(ids: Issuer, redis_client: redis.Redis) -> None:
    ids.create("a", step=50)
    kept(ids)
    ids.create("late", step=50)
    for tag in ("a", "late"):
        drawer = Drawer(redis_client, tag)
        drawer.draw(500)
        assert drawer.numbers == list(range(1, 501))


@pytest.mark.covers("U.19")
def test_a_client_that_only_draws_goes_on_after_a_restart(
    connect: Connect, server: RedisServer, store: MemoryStore
) -> None:
    with connect(redis=server.url, store=store, **ENDLESS) as ids:
        ids.create("a", step=50)
        kept(ids)
        with server.client() as client:
            drawer = Drawer(client, "a")
            drawer.draw(60)
            server.snapshot()
        server.kill()
        server.start()
        with server.client() as client:
            again = Drawer(client, "a")
            again.draw(60)
        assert b"fenced" in again.statuses
        assert repeats([*drawer.numbers, *again.numbers]) == []
        assert_increasing([*drawer.numbers, *again.numbers])


def test_reports_that_were_lost_with_the_connection_are_made_up_for(
    connect: Connect, server: RedisServer, proxy: FaultProxy, store: MemoryStore
) -> None:
    with connect(redis=proxy.url, store=store, **ENDLESS) as ids, server.client() as client:
        ids.create("a", step=50)
        kept(ids)
        drawer = Drawer(client, "a")
        proxy.refuse()
        assert drawer.once(20)  # the mark is at 10
        proxy.pass_through()
        until(lambda: client.hget(drawer.key, "next_max") == b"100", SOON)


def test_a_slow_walk_finds_what_nobody_reported(
    ids: Issuer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in (keeper, async_keeper):
        monkeypatch.setattr(each, "WALK_EVERY", 0.1)
        monkeypatch.setattr(each, "PAGE", 2)
    for tag in "abcde":
        ids.create(tag, step=50)
    kept(ids)
    until(lambda: (found := ids.engine.care.keeper) and found.tags == 5, SOON)
    for tag in "ace":
        redis_client.hset(redis_key("issuer", tag), "cur", "20")
    until(lambda: all(redis_client.hget(redis_key("issuer", tag), "next_max") == b"100" for tag in "ace"), SOON)


@pytest.mark.covers("U.19")
def test_tags_from_which_nobody_draws_cost_no_commands(
    connect: Connect, redis_url: str, redis_client: redis.Redis, store: MemoryStore
) -> None:
    with connect(redis=redis_url, store=store, scheduler=None, **ENDLESS) as ids:
        for number in range(50):
            ids.create(f"tag-{number}", step=50)
        ids.keep()
        assert sum(ids.tick() for _ in range(3)) == 50
        drawer = Drawer(redis_client, "tag-7")
        ids.tick()
        redis_client.config_resetstat()
        for _ in range(20):
            ids.tick()
        commands: Any = redis_client.info("commandstats")
        assert "cmdstat_hmget" not in commands
        assert drawer.once(20)
        until(ids.tick, SOON)
        assert redis_client.hget(drawer.key, "next_max") == b"100"


def test_a_report_that_is_no_tags_does_nothing(ids: Issuer, redis_client: redis.Redis) -> None:
    ids.create("a", step=50)
    kept(ids)
    keys = ("", "garbage", "other:{a}", "issuer:{}", "issuer:{\x00}", "issuer:{%}", "issuer:{never made}")
    for key in keys:
        redis_client.publish("issuer:due", key)
    Drawer(redis_client, "a").draw(200)
    until(lambda: list(ids.engine.registry.combiners) == ["a"], SOON)


@pytest.mark.covers("U.19")
def test_twenty_keepers_reserve_each_segment_once(redis_url: str, redis_client: redis.Redis) -> None:
    store, step, segments = MemoryStore(), 20, 300
    with ExitStack() as ends:
        keepers = [ends.enter_context(issuer.connect(redis=redis_url, store=store, **ENDLESS)) for _ in range(20)]
        keepers[0].create("a", step=step)
        for each in keepers:
            each.keep()
        drawers = [Drawer(redis_client, "a") for _ in range(4)]
        with ThreadPoolExecutor(len(drawers)) as pool:
            list(pool.map(lambda drawer: drawer.draw(step * segments // len(drawers)), drawers))
        reserved = store.ledger("a", newest=10**6, timeout=60)
    drawn = sorted(number for drawer in drawers for number in drawer.numbers)
    assert drawn == list(range(1, step * segments + 1))  # so no segment was wasted
    assert len(reserved) <= segments + 2


@pytest.mark.covers("U.19")
def test_a_keeper_of_a_cluster_hears_of_each_tag(connect: Connect, cluster: ClusterServers, store: MemoryStore) -> None:
    with connect(redis=cluster.url, store=store, **ENDLESS) as ids:
        for tag in (tags := spread(cluster)):
            ids.create(tag, step=50)
        kept(ids)
        for tag, node in tags.items():
            with node.client() as client:
                Drawer(client, tag).draw(300)


def test_a_keeper_without_the_right_to_subscribe_is_refused(
    connect: Connect, server: RedisServer, store: MemoryStore
) -> None:
    rights = "~issuer:* resetchannels +@all -subscribe"
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "keeper", "on", ">secret", *rights.split())
    with connect(redis=server.url.replace("://", "://keeper:secret@"), store=store, **ENDLESS) as ids:
        ids.create("a")
        with pytest.raises(issuer.FenceError, match=r"\+subscribe"):
            ids.keep()
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "keeper", "+subscribe", "&issuer:due")
        ids.keep()
