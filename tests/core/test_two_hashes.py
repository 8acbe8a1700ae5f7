"""Services on two databases, servers or prefixes of Redis, with one store: a strict tag's order is broken, and told."""

import pytest
import redis

from issuer import Issuer
from issuer.advice import python
from issuer.care.discrepancies import AGAIN, Turns
from issuer_persistence.ledger import LedgerEntry
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect

pytestmark = pytest.mark.usefixtures("patient")


def weak(ids: Issuer) -> list[str]:
    return [each.tag or "" for each in ids.doctor() if (each.check, each.level) == ("tag-two-hashes", "weak")]


def opened(connect: Connect, url: str, store: MemoryStore, prefix: str = "issuer") -> Issuer:
    return connect(redis=url, store=store, scheduler=None, prefix=prefix, timeout=20)


@pytest.mark.parametrize(("where", "prefix"), [("/5", "issuer"), ("/0", "other")], ids=["database", "prefix"])
def test_a_strict_tag_whose_segments_go_to_two_places_in_turns_is_told_with_who_draws_there(
    connect: Connect, redis_url: str, where: str, prefix: str
) -> None:
    store, there = MemoryStore(), redis_url.removesuffix("/0") + where
    with opened(connect, redis_url, store) as ids, opened(connect, there, store, prefix) as others:
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
    connect: Connect, redis_client: redis.Redis, redis_url: str
) -> None:
    store = MemoryStore()
    with opened(connect, redis_url, store) as ids, opened(connect, redis_url, store) as others:
        ids.create("a", step=10)
        for at in range(12):
            for each in (ids, others):
                each.take("a", 7)
            if at % 3 == 0:
                redis_client.flushall()
            elif at % 3 == 1:
                ids.recover("a")
            else:
                above = ids.inspect("a").store.max + 5
                ids.configure("a", above=above)
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
