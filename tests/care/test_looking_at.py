"""Pages of the ledger, readiness, and whether numbers have texts: what an edge looks at, in both colours."""

from collections.abc import Callable
from typing import Any

import pytest

import issuer
import issuer_persistence.errors
from issuer_persistence.memory import MemoryStore
from tests.colours import BOTH, Connect
from tests.schemes import Make
from tests.servers.redis import RedisServer

pytestmark = BOTH


def test_pages_of_the_ledger_show_each_segment_once_in_either_order(make: Make) -> None:
    ids = make()
    ids.create("a", step=10)
    for _ in range(95):
        ids.next("a")
    every = ids.segments("a", 1000)
    spans = [(entry.low, entry.high) for entry in every.entries]
    assert every.last is None
    assert spans[-1] == (0, 10)
    assert spans == sorted(spans, reverse=True)
    for upward in (False, True):
        seen, beyond = [], None
        while True:
            page = ids.segments("a", 3, beyond=beyond, upward=upward)
            assert len(page.entries) <= 3
            seen += [(entry.low, entry.high) for entry in page.entries]
            beyond = page.last
            if beyond is None:
                break
        assert seen == sorted(spans, reverse=not upward)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"count": 0}, "count must be 1..1000"),
        ({"count": 1001}, "count must be 1..1000"),
        ({"count": True}, "count must be a whole number"),
        ({"beyond": 5}, "beyond must be the `last` of a page"),
        ({"beyond": (5, 4)}, "beyond must be the `last` of a page"),
        ({"beyond": (5, 4, 3)}, "beyond must be the `last` of a page"),
        ({"beyond": (-1, 4, "x")}, "beyond must be 0.."),
        ({"beyond": (2**70, 4, "x")}, "beyond must be 0.."),
    ],
)
def test_a_page_that_there_can_t_be_is_refused(make: Make, arguments: dict[str, Any], says: str) -> None:
    ids = make()
    ids.create("a")
    with pytest.raises(issuer.InvalidArgument, match=says):
        ids.segments("a", **arguments)


def test_a_tag_that_isn_t_there_has_no_ledger(make: Make) -> None:
    ids = make()
    with pytest.raises(issuer.UnknownTag):
        ids.segments("a")
    ids.create("a")
    ids.delete("a")
    with pytest.raises(issuer.UnknownTag):
        ids.segments("a")
    with pytest.raises(issuer.InvalidArgument):
        ids.segments("")


def test_numbers_with_a_text_a_period_or_a_shard_are_told_from_plain_ones(make: Make) -> None:
    ids = make()
    ids.create("plain")
    ids.create("bills", format="B{seq:06d}")
    ids.create("shards", shards={"shard_bits": 1})
    ids.create("strided", stride=3, offset=1)
    found = {tag: ids.composed(tag) for tag in ("plain", "bills", "shards", "strided")}
    assert found == {"plain": False, "bills": True, "shards": True, "strided": False}
    assert ids.next("plain") == 1
    with pytest.raises(issuer.UnknownTag):
        ids.composed("nope")
    assert "nope" not in [each.tag for each in ids.tags()]


def test_what_is_asked_of_a_tag_follows_a_change_of_it(make: Make) -> None:
    ids = make()
    ids.create("a", step=1)
    assert (ids.next("a"), ids.composed("a")) == (1, False)
    ids.configure("a", format="A{seq}")
    ids.take("a", 5)
    assert ids.composed("a")


def test_readiness_names_halted_tags_and_a_store_that_is_away(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = make()
    ids.create("a")
    ids.create("b")
    assert ids.ready()
    ids.halt("b")
    found = ids.ready()
    assert (bool(found), found.halted, found.store, found.redis) == (False, ["b"], None, None)
    ids.recover("b")
    assert ids.ready()

    def away(*_: object, **__: object) -> list[issuer.values.Tag]:
        raise issuer_persistence.errors.Unconfirmed("gone")

    monkeypatch.setattr(MemoryStore, "tags", away)
    found = ids.ready()
    assert not found
    assert isinstance(found.store, issuer.StoreUnavailable)
    assert found.redis is None


def test_without_redis_none_is_missed(connect: Connect) -> None:
    with connect(redis="none", store="memory://", scheduler=None) as ids:
        assert ids.ready()


def test_a_redis_that_is_away_or_no_master_is_told(start_redis: Callable[..., RedisServer], connect: Connect) -> None:
    master, replica = start_redis(), start_redis()
    for server in (master, replica):
        with connect(redis=server.url, store="memory://", scheduler=None) as ids:
            assert ids.ready()
    with replica.client() as client, connect(redis=replica.url, store="memory://", scheduler=None) as ids:
        client.replicaof(master.host, master.port)
        found = ids.ready()
        assert isinstance(found.redis, issuer.IssuerError)
        assert found.store is None
    with connect(redis=master.url, store="memory://", scheduler=None) as ids:
        master.stop()
        found = ids.ready(timeout=1)
        assert isinstance(found.redis, issuer.RedisUnavailable)
        assert not found
