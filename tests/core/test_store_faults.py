"""The store goes away, or back in time, under a running issuer; processes die with numbers in hand."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import bson
import pytest
import redis

import issuer
from issuer import Issuer, RedisUnavailable, StoreUnavailable
from issuer.engine.base import OPEN_ENGINES
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import HIGHEST, Tag
from tests.audit import assert_increasing, repeats
from tests.colours import COLOURS, Connect
from tests.deadlines import refused_by_store
from tests.programs import PIPE, Program
from tests.refusals import refused
from tests.schemes import processes
from tests.servers.mongo import MongoServers
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until


@pytest.mark.covers("3.27", "0.16", "4.18")
def test_mongodb_killed_and_started_again_costs_no_number(redis_url: str, mongo_server: MongoServers) -> None:
    with issuer.connect(redis=redis_url, store=f"{mongo_server.url}/faults", timeout=40) as ids:
        ids.create("a", step=100)
        numbers = [ids.next("a")]
        mongo_server.kill()
        numbers += [ids.next("a") for _ in range(99)]
        assert numbers == list(range(1, 101))
        assert refused_by_store(ids, "a", 0.5).retry_after > 0
        mongo_server.start()
        numbers += ids.take("a", 300)
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)
        assert max(numbers) <= ids.inspect("a").store.max


@pytest.mark.covers("1.11", "N.6")
def test_a_restored_store_is_found_out_and_recover_goes_on_above(
    redis_url: str, redis_client: redis.Redis, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    with processes(issuer.connect, redis=redis_url, store=store, scheduler=None) as made:
        ids, fresh = made(), made()
        ids.create("a", step=100)
        backup = store.snapshot()
        numbers = [ids.next("a") for _ in range(250)]
        store.restore(backup)
        numbers += ids.take("a", 50)
        for one in (ids, fresh):
            error = refused(issuer.StoreBehind, "recover", one.next, "a")
            assert (error.tag, error.max) == ("a", 0)
            redis_client.hdel("issuer:{a}", "asked")  # so that the next needn't wait until this one's election lapses
        assert ids.inspect("a").store.halted
        for dry in (True, False):
            assert fresh.recover("a", dry_run=dry) == [issuer.values.Recovery("a", old=0, new=300, gap=0)]
        numbers += ids.take("a", 50) + fresh.take("a", 50)
        assert numbers == list(range(1, 401))
    assert "Traceback" not in caplog.text


def test_a_range_of_a_restored_store_is_refused_and_so_is_a_direct_number(store: MemoryStore) -> None:
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=100)
        backup = store.snapshot()
        numbers = [*ids.take("a", 50), *ids.reserve("a", 150)]
        store.restore(backup)
        refused(issuer.StoreBehind, "", ids.reserve, "a", 10)
        numbers += ids.take("a", 50)
        refused(issuer.StoreBehind, "", ids.next, "a")
        assert ids.recover("a", at_least=max(numbers))[0].new == max(numbers)
        numbers += ids.take("a", 100)
        assert repeats(numbers) == []


@pytest.mark.covers("1.24")
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_store_that_went_back_with_redis_emptied_is_found_out_by_what_a_process_has_seen(
    connect: Connect, redis_url: str, redis_client: redis.Redis, store: MemoryStore, forgotten: bool
) -> None:
    """`forgotten`: nobody used the tag for so long that the process no longer has it in its memory."""
    with connect(redis=redis_url, store=store, scheduler=None, idle_after=0 if forgotten else 600) as ids:
        ids.create("a", step=100)
        backup = store.snapshot()
        numbers = ids.take("a", 250)
        if forgotten:
            until(lambda: ids.tick() == 0 and "a" not in ids.engine.registry.combiners)
        store.restore(backup)
        redis_client.flushall()
        refused(issuer.StoreBehind, "", ids.next, "a")
        ids.recover("a", at_least=max(numbers))
        assert ids.next("a") > max(numbers)


class Staged(MemoryStore):
    """A store in which something happens just before a segment is reserved for Redis, once."""

    before: Callable[[], object] = int

    def reserve(self, tag: str, n: int | None, **rest: Any) -> Reservation:
        before, self.before = self.before, int
        before()
        return super().reserve(tag, n, **rest)


@pytest.mark.parametrize("behind", [False, True])
def test_a_store_that_lost_a_race_is_told_from_one_that_went_back(
    redis_url: str, redis_client: redis.Redis, behind: bool
) -> None:
    """Between the look at the hash and the reservation the tag is drained: hash and store stand at 25, rightly."""
    store = Staged()
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=100)
        assert ids.take("a", 25)[-1] == 25

        def drained() -> None:
            store._tags["a"] = replace(store._tags["a"], max=25)
            if not behind:
                redis_client.hset("issuer:{a}", mapping={"max": 25, "mark": 25, "born": "drained"})

        if behind:
            ids.take("a", 75)
        store.before = drained
        if behind:
            caught = refused(issuer.StoreBehind, "", ids.next, "a")
            assert (caught.max, caught.taken) == (25, 100)
        else:
            assert ids.tick() == 1
            assert ids.take("a", 50) == list(range(26, 76))
        assert ids.inspect("a").store.halted is behind


LOOP = """
import sys, issuer
with issuer.connect(redis="none", store=sys.argv[1], timeout=30) as ids:
    while True:
        print(ids.next("a"), flush=True)
"""


@pytest.mark.live
@pytest.mark.covers("2.13", "0.6")
def test_direct_processes_that_are_killed_lose_two_segments_each_at_most(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    with issuer.connect(redis="none", store=url, timeout=40) as ids:
        ids.create("a", step=50)
        numbers: list[int] = []
        for _ in range(3):
            pair = [Program(str(program), url, stdout=PIPE) for _ in range(2)]
            for process in pair:
                with process:
                    assert process.stdout is not None
                    numbers += [int(process.stdout.readline()) for _ in range(120)]
                    process.kill()
                    # What it had printed before it died counts as issued, but for a line that was cut.
                    numbers += [int(line) for line in process.stdout if line.endswith("\n")]
        numbers += ids.take("a", 10)
        assert repeats(numbers) == []
        assert max(numbers) - len(numbers) <= 6 * 2 * 50 + 2 * 50
        assert max(numbers) <= ids.inspect("a").store.max


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
@pytest.mark.parametrize(("colour", "lease"), [("blocking", 0), ("asyncio", 20)])
def test_no_number_in_hand_waits_for_a_mongodb_behind_a_dead_wire(
    redis_url: str, mongo_server: MongoServers, colour: str, lease: int
) -> None:
    """Whoever waited for it would do so for two minutes, which no caller has."""
    with FaultProxy(("127.0.0.1", mongo_server.port)) as proxy:
        url = f"mongodb://127.0.0.1:{proxy.port}/hanging?directConnection=true"
        with COLOURS[colour](redis=redis_url, store=url, lease=lease, store_timeout=120) as ids:
            ids.create("a", step=500, order="trend")
            numbers = ids.take("a", 120)
            until(lambda: getattr(ids.inspect("a").redis, "next_max", 0) == 1000, 60, "both segments are there")
            proxy.blackhole()
            numbers += ids.take("a", 880)
            assert numbers == list(range(1, 1001))  # exactly what was in hand
            refused_by_store(ids, "a", 0.3)
            proxy.pass_through()
            assert ids.next("a", timeout=120) > 1000


def command(name: str, collection: str) -> bytes:
    """What a command for that collection has in it, on MongoDB's wire."""
    return bson.encode({name: collection})[4:-1]


MADE, CHANGED = command("insert", "issuer_tags"), command("findAndModify", "issuer_tags")
Ask = Callable[[issuer.Issuer, float], object]
Done = type[issuer.IssuerError] | None

#: What is hit of an administrator's calls, one after the other, and what says that it was done before.
CALLS: list[tuple[bytes, Ask, Done]] = [
    (MADE, lambda ids, left: ids.create("a", step=10, timeout=left), issuer.TagExists),
    (CHANGED, lambda ids, left: ids.configure("a", step=7, limit=900, timeout=left), None),
    (CHANGED, lambda ids, left: ids.halt("a", timeout=left), None),
    (CHANGED, lambda ids, left: ids.recover("a", timeout=left), None),
    (CHANGED, lambda ids, left: ids.delete("a", timeout=left), issuer.UnknownTag),
    (CHANGED, lambda ids, left: ids.create("a", step=10, timeout=left), issuer.TagExists),
]


@pytest.mark.parametrize("lose", [FaultProxy.drop_requests, FaultProxy.drop_replies])
def test_what_an_administrator_asks_and_is_lost_on_the_way_is_done_wholly_or_not_and_can_be_asked_again(
    mongo_server: MongoServers, lose: Callable[[FaultProxy, bytes, int], None]
) -> None:
    with (
        FaultProxy(("127.0.0.1", mongo_server.port)) as proxy,
        closing(open_store(f"{mongo_server.url}/lost")) as there,
    ):
        url = f"mongodb://127.0.0.1:{proxy.port}/lost?directConnection=true"
        with issuer.connect(redis="none", store=url, scheduler=None) as ids:
            ids.tags()
            left: list[object] = []
            for request, ask, done in CALLS:
                before, hits = there.get("a", timeout=40), proxy.hits
                lose(proxy, request, 1)

                def hit(ask: Ask = ask, done: Done = done, hits: int = hits) -> bool:
                    with suppress(issuer.StoreUnavailable, *[done] if done else []):  # perhaps by the last time's
                        ask(ids, 0.5)
                    return proxy.hits > hits

                until(hit, 60, "the request was lost")  # a machine that stands still may send none within the 0.5 s
                proxy.pass_through()
                doubtful = there.get("a", timeout=40)
                with suppress(*[done] if done else []):
                    ask(ids, 40)
                after = there.get("a", timeout=40)
                assert settings(doubtful) in (settings(before), settings(after))
                left.append(settings(after))
            assert left == [
                (10, HIGHEST, False, False), (7, 900, False, False), (7, 900, True, False), (7, 900, False, False),
                (7, 900, False, True), (10, HIGHEST, False, False),
            ]  # fmt: skip
            assert ids.next("a") == 1


def settings(tag: Tag | None) -> object:
    return tag and (tag.step, tag.limit, tag.halted, tag.deleted)


@pytest.mark.covers("3.22", "4.18")
def test_a_process_that_starts_with_the_store_down_draws_what_is_in_redis_and_fails_clearly_after(
    redis_url: str, store: MemoryStore
) -> None:
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=10)
        ids.take("a", 5)
    dead = "mongodb://127.0.0.1:1/x"
    with issuer.connect(redis=redis_url, store=dead, timeout=40, store_timeout=0.5) as late:
        assert late.take("a", 5) == [6, 7, 8, 9, 10]
        refused_by_store(late, "a", 0.4)
        refused(issuer.StoreUnavailable, "", late.create, "b", timeout=0.4)


def test_issuers_that_are_closed_are_forgotten(connect: Connect) -> None:
    before = set(OPEN_ENGINES)
    for _ in range(20):  # closing while the scheduler starts a job must not kill its thread
        with connect(redis="none", store="memory://") as ids:
            ids.create("a")
            ids.next("a")
    assert set(OPEN_ENGINES) == before


def left(ids: Issuer, tag: str) -> list[int]:
    """Draw until the process has nothing left, and return that."""
    numbers: list[int] = []
    with suppress(RedisUnavailable, StoreUnavailable):  # the one that was needed first
        while True:
            numbers.append(ids.next(tag, timeout=0.5))
    return numbers


@pytest.mark.covers("3.32", "3.31")
@pytest.mark.parametrize("first", ["redis", "store"])
def test_with_both_killed_calls_fail_and_go_on_by_themselves_whichever_is_back_first(
    connect: Connect, server: RedisServer, mongo_server: MongoServers, tmp_path: Path, first: str
) -> None:
    settings = {"redis": server.url, "store": f"{mongo_server.url}/down", "journal": str(tmp_path / "journal")}
    with connect(**settings) as ids, ThreadPoolExecutor() as callers:
        ids.create("strict", step=100)
        ids.create("trend", step=100, order="trend", lease=10)
        strict, trend = [ids.next("strict")], [ids.next("trend")]
        server.kill()
        mongo_server.kill()
        assert left(ids, "strict") == []
        trend += left(ids, "trend")
        assert trend == [*range(1, 11)]
        with connect(**settings) as late:  # a process that starts now
            assert left(late, "strict") == left(late, "trend") == []
            refused(StoreUnavailable, "", late.create, "new", timeout=0.5)
        waiting = {tag: callers.submit(ids.next, tag, timeout=120) for tag in ("strict", "trend")}
        if first == "redis":
            server.start()
            for tag in waiting:  # Redis has begun a new term, and a new term needs a segment of the store
                refused_by_store(ids, tag, 0.5)
            assert not any(each.done() for each in waiting.values())
            mongo_server.start()
        else:
            mongo_server.start()
            trend += [waiting.pop("trend").result(), *ids.take("trend", 150)]
            refused(RedisUnavailable, "", ids.next, "strict", timeout=0.5)
            server.start()
        for tag, numbers in (("strict", strict), ("trend", trend)):
            waited = [each.result() for name, each in waiting.items() if name == tag]
            assert_increasing([*numbers, *waited, *ids.take(tag, 300)])
        assert ids.verify() == [], "no number is above the store's max, nor the journal's"
