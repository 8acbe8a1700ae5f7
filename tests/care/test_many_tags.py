"""`verify`, `recover` and `tags` of all tags at once find and do what they find and do for each tag alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from issuer import IssuerError, RedisUnavailable
from issuer.care import care
from issuer.drivers.topology import Exchange
from issuer.drivers.wire import RoundTrips
from issuer.gateway.keys import redis_key
from issuer.threads import finished
from issuer_persistence.contract import Store
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.records import Tag, TagSettings
from issuer_persistence.sqlite.store import SQLiteStore
from tests.colours import Connect
from tests.servers.cluster import ClusterServers
from tests.stores.benches import TIMEOUT
from tests.stores.conftest import mongo_bench_at
from tests.stores.heard import Heard

#: Three pages and a half.
TAGS = [f"t{number:03}" for number in range(70)]
PAGE = 20


@pytest.fixture(autouse=True)
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(care, "PAGE", PAGE)


@pytest.fixture(params=["memory", "sqlite", "mongodb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "mongodb":
        for bench in mongo_bench_at(request.getfixturevalue("mongo_url")):
            yield bench.store
        return
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield made
    made.close()


def at_random(store: Store, client: redis.Redis, random: Random) -> None:
    """Give each tag a state: never drawn, drawn, halted, deleted; lost or damaged in Redis; put back in the store."""
    store_id = store.made_id(timeout=TIMEOUT)
    fence = client.info("replication")["master_replid"]
    for tag in TAGS:
        store.create(tag, TagSettings(step=100, order=random.choice(["strict", "trend"])), timeout=TIMEOUT)
        for _ in range(random.randrange(3)):
            store.reserve(tag, 100, purpose=Purpose("load", born="b" * 24), timeout=TIMEOUT)
        top, key = store.get(tag, timeout=TIMEOUT).max, redis_key("issuer", tag)  # type: ignore[union-attr]  # it exists
        cur = random.randint(0, top)
        hash: dict[Any, Any] = {"cur": cur, "max": top, "mark": top, "fence": fence, "born": "b" * 24}
        if random.random() < 0.7:
            client.hset(key, mapping={**hash, "store": store_id})
        match random.randrange(8):
            case 0:
                store.halt(tag, timeout=TIMEOUT)
            case 1:
                store.delete(tag, timeout=TIMEOUT)
            case 2:
                client.set(key, "no hash")
            case 3:
                client.hset(key, mapping={**hash, "store": "another" * 4})
            case 4:
                client.hset(key, mapping={**hash, "store": store_id, "max": top + 500})
            case 5:
                client.hset(key, mapping={**hash, "store": store_id, "cur": "x"})


def outcome(call: Any, *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except IssuerError as error:
        return type(error), error.tag, error.args


@pytest.mark.covers("U.19", "3.25")
@pytest.mark.parametrize("seed", range(3))
def test_all_tags_at_once_are_verified_and_recovered_like_each_alone(
    connect: Connect, store: Store, redis_url: str, redis_client: redis.Redis, seed: int
) -> None:
    at_random(store, redis_client, Random(seed))
    with connect(store=store, redis=redis_url, scheduler=None) as ids:
        names = [record.tag for record in ids.tags()]
        assert 2 * PAGE < len(names) < len(TAGS)
        found = {name: outcome(ids.verify, name) for name in names}
        verified = _all(ids, "verified")
        assert list(verified) == names
        assert {
            name: each.result if each.error is None else _error(each.error) for name, each in verified.items()
        } == found
        planned = {name: outcome(ids.recover, name, dry_run=True) for name in names}
        assert sum(isinstance(each, tuple) for each in planned.values()) > 2
        assert _recovered(ids, dry_run=True) == planned
        done = _recovered(ids, dry_run=False)
        assert list(done) == names
        for name, plan in planned.items():
            assert done[name] == plan
            if isinstance(plan, list):
                record = store.get(name, timeout=TIMEOUT)
                assert isinstance(record, Tag)
                assert (record.max, record.halted) == (plan[0].new, False)
                assert redis_client.hmget(redis_key("issuer", name), "cur", "max") == [b"%d" % record.max] * 2
                assert ids.next(name) == record.max + 1


def _all(ids: Any, what: str, **options: Any) -> dict[str, Any]:
    """The outcomes of a loop over all tags, by tag."""

    async def listed() -> list[Any]:
        return [each async for each in await getattr(ids.engine.care, what)(None, timeout=None, **options)]

    return {each.tag: each for each in (ids.wait(listed()) if hasattr(ids, "wait") else finished(listed))}


def _recovered(ids: Any, *, dry_run: bool) -> dict[str, Any]:
    found = _all(ids, "recovered", dry_run=dry_run)
    return {name: _error(each.error) if each.error else [each.result] for name, each in found.items()}


def _error(error: IssuerError) -> Any:
    return type(error), error.tag, error.args


@pytest.mark.covers("U.19")
def test_all_tags_in_mongodb_need_a_few_requests_for_each_page(connect: Connect, mongo_url: str) -> None:
    for bench in mongo_bench_at(mongo_url):
        bench.store.create_many(dict.fromkeys(TAGS, TagSettings(step=10)), timeout=TIMEOUT)
        for tag in TAGS:
            bench.store.reserve(tag, 10, purpose=Purpose("load"), timeout=TIMEOUT)
        with Heard(bench.url) as heard, connect(store=MongoStore(heard.database), redis="none", scheduler=None) as ids:
            ids.tags()  # the first call also looks for the store
            for call in (ids.verify, partial(ids.recover, dry_run=True)):
                heard.commands.clear()
                call()
                assert len(heard.commands) <= 1 + 2 * -(-len(TAGS) // PAGE), heard.commands  # with a page of the names


@pytest.mark.live
def test_in_a_cluster_a_master_that_is_away_costs_only_its_own_tags(
    connect: Connect, cluster: ClusterServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(store=MemoryStore(), redis=cluster.url, scheduler=None) as ids:
        for tag in TAGS[:30]:
            ids.create(tag)
            ids.next(tag)
        ports = {tag: cluster.node_of(redis_key("issuer", tag)).port for tag in TAGS[:30]}
        away = ports[TAGS[0]]

        real = RoundTrips._asked

        async def asked(trips: RoundTrips, exchange: Exchange, *, trusts: bool) -> Any:
            if exchange.address.port == away:
                raise redis.ConnectionError("away")
            return await real(trips, exchange, trusts=trusts)

        with monkeypatch.context() as patch:
            patch.setattr(RoundTrips, "_asked", asked)
            found = _all(ids, "recovered", dry_run=False)
        failed = {tag for tag, each in found.items() if each.error is not None}
        assert failed == {tag for tag, port in ports.items() if port == away}
        assert 0 < len(failed) < len(found)
        assert all(isinstance(found[tag].error, RedisUnavailable) for tag in failed)
        assert all(each.error is None for each in _all(ids, "recovered", dry_run=False).values())
