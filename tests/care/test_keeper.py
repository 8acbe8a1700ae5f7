"""In the background a keeper loads segments of which Redis reports, and old ledger entries are deleted."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.care import keeper, pruning
from issuer.clock import monotonic
from issuer.drivers import channel
from issuer.drivers.topology import Address
from issuer.engine import scheduler
from issuer.engine.scheduler import Scheduler
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence import pruning as pages
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import LEDGER_KEPT, Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.pruning import Pruned
from issuer_persistence.records import Tag, TagSettings, now_ms
from tests.audit import assert_increasing, repeats
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.drivers.test_cluster import spread
from tests.servers.cluster import ClusterServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

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


def kept(ids: Issuer, client: redis.Redis) -> None:
    """Keep the tags, and report each, until its first segment is there."""
    ids.keep()
    for each in ids.tags():
        client.publish("issuer:due", redis_key("issuer", each.tag))
    until(lambda: all((found := ids.inspect(each.tag).redis) and found.max for each in ids.tags()), SOON)


@pytest.mark.covers("N.9", "U.19")
def test_a_client_that_only_draws_gets_each_segment(ids: Issuer, redis_client: redis.Redis) -> None:
    ids.create("a", step=50)
    kept(ids, redis_client)
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
        with server.client() as client:
            kept(ids, client)
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
        with connect(redis=server.url, store=store, **ENDLESS) as other:
            other.warm("a")  # the keeper itself does not look after the tag
        ids.keep()
        until(lambda: (found := ids.engine.upkeep.keeper) and found.tags == 1, SOON, "the first walk has ended")
        drawer = Drawer(client, "a")
        proxy.refuse()
        assert drawer.once(20)  # the mark is at 10
        proxy.pass_through()
        until(lambda: client.hget(drawer.key, "next_max") == b"100", SOON)


def test_a_keeper_that_found_no_thread_listens_later(
    connect: Connect, redis_url: str, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    background, asked = Scheduler.background, list[object]()

    def refuses_first(jobs: Scheduler, work: Callable[..., object], *given: object) -> bool:
        if "_listen" in repr((work, given)):
            asked.append(work)
            if len(asked) == 1:
                return False
        return background(jobs, work, *given)

    monkeypatch.setattr(Scheduler, "background", refuses_first)
    with connect(redis=redis_url, store=store, **ENDLESS) as ids:
        ids.keep()
        until(lambda: len(asked) > 1, 20)


def test_a_keeper_does_not_wait_for_a_redis_that_stands_still(
    connect: Connect, proxy: FaultProxy, store: MemoryStore
) -> None:
    settings = {**ENDLESS, "redis_timeout": 0.5}
    with connect(redis=proxy.url, store=store, scheduler=None, **settings) as ids, ThreadPoolExecutor(1) as thread:
        proxy.hold(match=b"SUBSCRIBE")
        starting = thread.submit(ids.keep)
        try:
            error = starting.exception(SOON)
        finally:
            proxy.release()
    assert isinstance(error, issuer.RedisUnavailable)


@pytest.mark.parametrize("fault", ["dropped", "moved"])
def test_a_keeper_that_hears_nothing_for_long_connects_again(
    connect: Connect, proxy: FaultProxy, store: MemoryStore, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall has dropped its connection, or its server is no longer a master."""
    now = [monotonic()]
    monkeypatch.setattr(channel, "monotonic", lambda: now[0])
    with connect(redis=proxy.url, store=store, scheduler=None, **ENDLESS) as ids:
        ids.keep()
        found = ids.engine.upkeep.keeper
        assert found
        heard, before = found._channel, found._channel._pubsub
        if fault == "moved":
            heard._address = Address("elsewhere", 1)
        proxy.hold(match=b"SUBSCRIBE")
        for _ in range(1 if fault == "moved" else 2):
            now[0] += channel.SILENCE + 61
            ids.tick()
        proxy.pass_through()
        proxy.release()
        ids.tick()
        assert heard._pubsub not in (None, before)


def test_a_slow_walk_finds_what_nobody_reported(
    ids: Issuer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "WALK_EVERY", 0.1)
    monkeypatch.setattr(keeper, "PAGE_EVERY", 0.1)
    monkeypatch.setattr(keeper, "PAGE", 2)
    for tag in "abcde":
        ids.create(tag, step=50)
    kept(ids, redis_client)
    until(lambda: (found := ids.engine.upkeep.keeper) and found.tags == 5, SOON)
    for tag in "ace":
        redis_client.hset(redis_key("issuer", tag), "cur", "20")
    until(lambda: all(redis_client.hget(redis_key("issuer", tag), "next_max") == b"100" for tag in "ace"), SOON)


@pytest.mark.parametrize(("page_every", "taken"), [(30.0, 240.0), (400.0, 400.0)])
def test_a_walk_after_the_first_one_takes_its_time(
    connect: Connect,
    redis_url: str,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    page_every: float,
    taken: float,
) -> None:
    """Five tags are three pages of two. A walk takes ten minutes, or `page_every` seconds a page."""
    now, pages, read = [1000.0], list[float](), store.tags
    monkeypatch.setattr(keeper, "monotonic", lambda: now[0])
    monkeypatch.setattr(keeper, "PAGE", 2)
    monkeypatch.setattr(keeper, "PAGE_EVERY", page_every)

    def tags(**asked: Any) -> list[Tag]:
        pages.append(now[0])
        return read(**asked)

    with connect(redis=redis_url, store=store, scheduler=None, **ENDLESS) as ids:
        for tag in "abcde":
            ids.create(tag, step=50)
        monkeypatch.setattr(store, "tags", tags)
        ids.keep()
        for _ in range(1100):
            ids.tick()
            now[0] += 1.0
        assert pages == [1000, 1001, 1002, 1600, 1600 + taken, *([1600 + 2 * taken] if taken < 250 else [])]


@pytest.mark.covers("U.19")
def test_tags_from_which_nobody_draws_cost_no_commands_and_no_segment(
    connect: Connect, redis_url: str, redis_client: redis.Redis, store: MemoryStore
) -> None:
    with connect(redis=redis_url, store=store, scheduler=None, **ENDLESS) as ids:
        for number in range(50):
            ids.create(f"tag-{number}", step=50)
        ids.keep()
        assert sum(ids.tick() for _ in range(3)) == 0
        assert (found := ids.engine.upkeep.keeper)
        assert found.tags == 50
        drawer = Drawer(redis_client, "tag-7")
        assert not drawer.once()
        until(ids.tick, SOON)
        assert drawer.once()
        until(lambda: not ids.engine.registry.moving(), SOON)
        redis_client.config_resetstat()
        for _ in range(20):
            ids.tick()
        commands: Any = redis_client.info("commandstats")
        assert "cmdstat_hmget" not in commands
        assert drawer.once(20)
        until(ids.tick, SOON)
        assert redis_client.hget(drawer.key, "next_max") == b"100"
        assert [each.tag for each in ids.tags() if each.max] == ["tag-7"]


def test_a_report_that_is_no_tags_does_nothing(ids: Issuer, redis_client: redis.Redis) -> None:
    ids.create("a", step=50)
    kept(ids, redis_client)
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


def test_calls_of_keep_at_the_same_time_leave_no_connection_behind(
    connect: Connect, redis_url: str, store: MemoryStore, redis_client: redis.Redis
) -> None:
    prefix = uuid4().hex  # other tests may listen on the same server

    def subscribed() -> int:
        return int(redis_client.pubsub_numsub(f"{prefix}:due")[0][1])

    for _ in range(5):
        with connect(redis=redis_url, store=store, prefix=prefix, **ENDLESS) as ids, ThreadPoolExecutor(8) as threads:
            for each in [threads.submit(ids.keep) for _ in range(8)]:
                each.result()
            assert subscribed() == 1
        until(lambda: not subscribed(), SOON)


@pytest.mark.covers("U.19")
def test_a_keeper_of_a_cluster_hears_of_each_tag(connect: Connect, cluster: ClusterServers, store: MemoryStore) -> None:
    with connect(redis=cluster.url, store=store, **ENDLESS) as ids:
        for tag in (tags := spread(cluster)):
            ids.create(tag, step=50)
        with next(iter(tags.values())).client() as client:
            kept(ids, client)
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
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "keeper", "-subscribe")
            client.client_kill_filter(_type="pubsub")
        with pytest.raises(issuer.FenceError, match=r"\+subscribe"):
            until(ids.keep, SOON, ignoring=(issuer.RedisUnavailable,))


def test_a_keeper_tells_of_tags_whose_hash_another_store_has_prepared(
    connect: Connect, redis_url: str, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        connect(redis=redis_url, store=MemoryStore(), scheduler=None, **ENDLESS) as other,
        connect(redis=redis_url, store=store, scheduler=None, **ENDLESS) as ids,
    ):
        for each in (other, ids):
            each.create("a", step=50)
        other.next("a")
        ids.keep()
        ids.tick()
        assert "belongs to another store" in caplog.text


# ---------------------------------------------------------------------------------------------- pruning


ENTRIES = 9


class Failing(MemoryStore):
    """A store in which nothing can be deleted."""

    def prune(self, *, before: int, timeout: float) -> Pruned:
        raise Unconfirmed(f"no entry from before {before} was deleted within {timeout:g} s")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One page for each sweep, and sweeps that follow each other."""
    monkeypatch.setattr(scheduler, "SWEEP_EVERY", 0.05)
    monkeypatch.setattr(pruning, "SHARE", 0.0)
    monkeypatch.setattr(pages, "PAGE", 3)


@pytest.mark.usefixtures("often")
def test_it_goes_on_with_each_sweep_until_nothing_is_left(connect: Connect) -> None:
    store = MemoryStore()
    store.create("a", TagSettings(step=1, order="trend"), timeout=10)
    for _ in range(ENTRIES):
        store.reserve("a", None, purpose=Purpose("test"), timeout=10)
    long_ago = now_ms() - LEDGER_KEPT - 1
    store._ledger = {name: replace(entry, time=long_ago) for name, entry in store._ledger.items()}
    with connect(redis="none", store=store) as ids:
        assert ids.next("a") == ENTRIES + 1

        def old() -> int:
            return sum(each.time == long_ago for each in store.snapshot().ledger.values())

        assert until(lambda: old() == 0, 60)


@pytest.mark.usefixtures("often")
def test_a_failure_is_a_warning(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    with connect(redis="none", store=Failing()) as ids:
        ids.create("a", step=1)
        assert ids.next("a") == 1
        assert until(lambda: "old ledger entries could not be deleted" in caplog.text, 60)
    assert {each.levelname for each in caplog.records if "deleted" in each.message} == {"WARNING"}
