"""A tag's hash in Redis that is older, of another term, damaged, or not the only one."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.advice import python
from issuer.care.discrepancies import AGAIN, Turns
from issuer.errors import LimitReached
from issuer.gateway.keys import redis_key
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.deadlines import ENDLESS
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.redis import RedisServer
from tests.waiting import until

KEY = redis_key("issuer", "a")
Aside = Callable[[redis.Redis], Callable[[], object]]


def copied(client: redis.Redis) -> Callable[[], object]:
    client.copy(KEY, "aside")
    return lambda: client.copy("aside", KEY, replace=True)


def renamed(client: redis.Redis) -> Callable[[], object]:
    client.rename(KEY, "aside")
    return lambda: client.rename("aside", KEY)


def restored(client: redis.Redis) -> Callable[[], object]:
    dumped = client.dump(KEY)
    assert isinstance(dumped, bytes)
    return lambda: client.restore(KEY, 0, dumped, replace=True)


DRAWS: dict[str, Callable[[Issuer], object]] = {
    "one": lambda ids: ids.next("a"),
    "one with a deadline": lambda ids: ids.next("a", timeout=20),
    "several": lambda ids: ids.take("a", 3),
    "of a key": lambda ids: ids.next("a", key=uuid4().hex),
    "of a key that comes again": lambda ids: ids.next("a", key="k"),
}


@pytest.mark.parametrize(("aside", "draw"), [(copied, each) for each in DRAWS] + [(renamed, "one"), (restored, "one")])
def test_a_strict_draw_at_or_below_what_this_process_had_seen_is_refused(
    make_live: Make, redis_client: redis.Redis, aside: Aside, draw: str
) -> None:
    ids = make_live(scheduler=None)
    ids.create("a", step=1000)
    numbers = ids.take("a", 20)
    back = aside(redis_client)
    numbers += [ids.next("a") for _ in range(30)]
    back()
    for _ in range(2):
        refused(issuer.CorruptState, r"run ids\.recover\('a'\)", DRAWS[draw], ids)
    ids.recover("a")
    numbers += [ids.next("a"), *ids.take("a", 30)]
    assert numbers == sorted(set(numbers))


def test_a_reply_that_elects_a_loader_is_refused_too(make_live: Make, redis_client: redis.Redis) -> None:
    ids = make_live()
    ids.create("a", step=100)
    assert ids.take("a", 19)[-1] == 19
    back = copied(redis_client)
    numbers = [ids.next("a") for _ in range(10)]
    until(lambda: redis_client.hexists(KEY, "next_max"))
    back()
    refused(issuer.CorruptState, r"run ids\.recover\('a'\)", ids.next, "a")
    assert numbers == [*range(20, 30)]


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    """A Redis that restarts with its data."""
    return start_redis(appendonly=True)


def test_peek_inspect_and_the_sweep_take_a_fenced_hash_for_an_empty_one(
    connect: Connect, server: RedisServer, store: MemoryStore
) -> None:
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
    connect: Connect, server: RedisServer, store: MemoryStore
) -> None:
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
    connect: Connect, server: RedisServer, store: MemoryStore, settings: dict[str, Any]
) -> None:
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


def weak(ids: Issuer) -> list[str]:
    return [each.tag or "" for each in ids.doctor() if (each.check, each.level) == ("tag-two-hashes", "weak")]


@pytest.mark.parametrize(("where", "prefix"), [("/5", "issuer"), ("/0", "other")], ids=["database", "prefix"])
def test_a_strict_tag_whose_segments_go_to_two_places_in_turns_is_told_with_who_draws_there(
    make_live: Make, redis_url: str, where: str, prefix: str
) -> None:
    ids = make_live(scheduler=None)
    others = make_live(redis=redis_url.removesuffix("/0") + where, prefix=prefix, scheduler=None)
    ids.create("strict", step=10)
    ids.create("alone", step=10)
    ids.create("trend", step=10, order="trend")
    numbers: list[int] = []
    for _ in range(2 * AGAIN + 3):
        numbers += [*ids.take("strict", 7), *others.take("strict", 7)]
        ids.take("trend", 10)
        others.take("trend", 10)
        ids.take("alone", 10)
    assert len(set(numbers)) == len(numbers)
    assert numbers != sorted(numbers)
    for each in (ids, others):
        (finding,) = [found for found in each.verify() if found.kind == "two hashes in Redis"]
        assert finding.tag == "strict"
        assert len({entry.born for entry in finding.entries}) == 2
        assert "the same Redis, database and prefix" in finding.told(python)
        assert weak(each) == ["strict"]


def test_a_redis_that_is_emptied_flooring_and_recovering_are_never_taken_for_two(
    make_live: Make, redis_client: redis.Redis, store: MemoryStore
) -> None:
    ids, others = make_live(scheduler=None), make_live(scheduler=None)
    ids.create("a", step=10)
    changes: list[Callable[[], object]] = [
        redis_client.flushall,
        lambda: ids.recover("a"),
        lambda: ids.configure("a", above=ids.inspect("a").store.max + 5),
    ]
    for change in changes * 4:
        for each in (ids, others):
            each.take("a", 7)
        change()
    assert len({entry.born for entry in store.ledger("a", newest=99, timeout=10)}) > 4
    assert ids.verify("a") == []
    assert weak(ids) == []


@pytest.mark.parametrize(
    ("borns", "told"),
    [
        ("AAAABBBBCCCC", False),
        ("AAABABBBB", False),  # a load that was on its way when the hash was armed anew
        ("A.A..B.A.B", False),
        ("ABABABAB", True),
        ("AABBAABBAABBAA", True),
        ("A.B.A.B.A.B.A", True),
    ],
)
def test_a_late_load_is_not_two_places_in_turns(borns: str, told: bool) -> None:
    entries = [
        LedgerEntry(tag="a", low=10 * at, high=10 * at + 10, reason="load", born=born.strip("."))
        for at, born in enumerate(borns)
    ]
    for order in (entries, entries[::-1]):
        turns = Turns()
        found = [both for each in order if (both := turns.found(each)) is not None]
        assert bool(found) is told
        assert all(one.high <= other.low for one, other in found)


@pytest.mark.colours("blocking")
def test_recover_listens_to_every_field_of_a_hash_that_can_be_read(
    make: Make, store: MemoryStore, fake_redis: redis.Redis
) -> None:
    ids = make()
    ids.create("a", step=100)
    ids.next("a")
    backup = store.snapshot()
    numbers = ids.take("a", 350)
    store.restore(backup)
    fake_redis.hset("issuer:{a}", "max", "x")
    fresh = make()
    fresh.recover("a")
    assert repeats(numbers + fresh.take("a", 200)) == []


@pytest.mark.colours("blocking")
def test_a_field_of_five_thousand_digits_is_corrupt(make: Make, fake_redis: redis.Redis) -> None:
    ids = make()
    ids.create("a", step=10)
    ids.next("a")
    fake_redis.hset("issuer:{a}", "cur", "9" * 5000)
    refused(issuer.CorruptState, "", ids.inspect, "a")
    assert ids.recover("a")[0].new == 10
    assert ids.next("a") == 11


@pytest.mark.colours("blocking")
def test_recover_of_all_goes_on_after_a_tag_that_fails(make: Make, fake_redis: redis.Redis) -> None:
    ids = make()
    for tag in ("a", "b", "c"):
        ids.create(tag, step=10)
        ids.next(tag)
    fake_redis.delete("issuer:{a}")
    fake_redis.set("issuer:{a}", "1")
    refused(issuer.CorruptState, "", ids.recover)
    assert [ids.next(tag) for tag in ("b", "c")] == [11, 11]
