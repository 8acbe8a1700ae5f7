"""`verify`, `recover`, `tags` of all tags do for each what they do for it alone, also beside a damaged record."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

import issuer
from issuer import IssuerError, RedisUnavailable
from issuer.care import care, keeper
from issuer.drivers.topology import Exchange
from issuer.drivers.wire import RoundTrips
from issuer.gateway.keys import redis_key
from issuer.threads import finished
from issuer_persistence.contract import Store
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.records import Tag, TagSettings
from issuer_persistence.sqlite import SQLiteStore
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.schemes import Make
from tests.servers.cluster import ClusterServers
from tests.stores.benches import TIMEOUT
from tests.stores.conftest import mongo_bench_at
from tests.stores.heard import Heard
from tests.waiting import until

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


# ---------------------------------------------------------------------------------------------- a damaged record


BESIDE = ("a", "orders", "z")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ids.db"


@pytest.fixture
def make_live(connect: Connect, redis_url: str, path: Path) -> Make:
    """Make issuers on a store with three tags, with 1..10 issued of each. The record of `orders` is damaged."""

    def made(**more: object) -> issuer.Issuer:
        return connect(redis=redis_url, store=SQLiteStore(path), **{**ENDLESS, **more})

    with made() as ids:
        for tag in BESIDE:
            ids.create(tag, step=100, order="strict")
            assert ids.take(tag, 10) == list(range(1, 11))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute("UPDATE tags SET step = 0 WHERE tag = 'orders'")
    return made


@pytest.mark.live
def test_it_is_a_finding_of_verify_and_of_the_doctor_and_the_others_are_sound(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        [found] = ids.verify()
        assert (found.tag, found.kind) == ("orders", "damaged record")
        assert "step" in found.problem
        seen = {each.check: each for each in ids.doctor()}
        assert seen["tag-damaged-record"].subject == "tag orders"
        assert seen["tag-damaged-record"].level == "weak"
        assert seen["tags-looked-at"].what == "all tags were examined: 3"


@pytest.mark.live
def test_the_server_is_ready_and_the_other_tags_are_recovered(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        assert ids.ready().store is None
        with pytest.raises(issuer.CorruptState, match=r"'orders'.*step"):
            ids.tags()
        with pytest.raises(issuer.CorruptState, match=r"'orders'.*step"):
            ids.recover(None)
        for tag in ("a", "z"):
            assert ids.next(tag) == 101  # above all that was reserved


@pytest.mark.live
def test_a_keeper_loads_segments_of_the_others(make_live: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "PAGE", 2)
    with make_live(scheduler=None) as ids, make_live() as kept:
        for tag in ("a", "z"):
            ids.take(tag, 85)
        kept.keep()
        until(lambda: all(ids.inspect(tag).store.max == 200 for tag in ("a", "z")), 60, "both have a next segment")


@pytest.mark.live
def test_a_damaged_part_is_told_when_its_tag_is_recovered_and_no_other_one(make_live: Make, path: Path) -> None:
    with make_live(scheduler=None) as ids:
        for tag in ("bills", "notes"):
            ids.create(tag, keyed=True, step=100)
            for part in ("x", "w", "z"):
                ids.issue(tag, restart_key=part)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute("UPDATE tags SET step = 0 WHERE tag = 'bills#x'")
            database.execute("UPDATE tags SET max = 0 WHERE tag = 'bills#z'")
        with pytest.raises(issuer.CorruptState, match="bills#x"):
            ids.recover("bills")
        for part in ("w", "z"):  # those before and after it were recovered
            assert ids.issue("bills", restart_key=part).value == 101
        with pytest.raises(issuer.CorruptState, match="bills#x"):
            ids.halt("bills")
        assert [ids.inspect(f"bills#{part}").store.halted for part in ("w", "z")] == [True, True]
        ids.recover("bills#w")
        ids.recover("bills#z")
        assert ids.issue("bills", restart_key="y").value == 1
        assert [each.tag for each in ids.recover("notes")] == ["notes", "notes#w", "notes#x", "notes#z"]


@pytest.mark.live
def test_machine_numbers_in_the_store_are_listed_beside_it(make_live: Make) -> None:
    with make_live(scheduler=None) as ids:
        ids.create("snow", strategy="snowflake", options={"machine": "store"})
        assert ids.next("snow")
        assert len(ids.machines("snow").used) == 1
