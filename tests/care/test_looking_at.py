"""What is shown of a tag: ledger pages, readiness, texts, `who`, `halt`, and what `inspect` tells."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import issuer
import issuer_persistence.errors
from issuer.care import verification
from issuer_persistence.contract import Store
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.colours import Connect
from tests.core.test_extension import SlowStore, buffers
from tests.schemes import Make
from tests.servers.redis import RedisServer
from tests.stores.benches import TIMEOUT
from tests.waiting import until


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


#: Each colour and each store once: what a store answers is shown in tests/stores.
COLOUR_AND_STORE = pytest.mark.parametrize(
    ("connect", "store_url"), [("blocking", "mongodb"), ("asyncio", "sqlite")], indirect=True
)


@pytest.fixture
def shared(store_url: str) -> Iterator[Store]:
    found = open_store(store_url)
    yield found
    found.close()


@COLOUR_AND_STORE
def test_who_finds_a_number_among_thousands_and_behind_empty_entries(
    connect: Connect, shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "NEAR", 3)
    shared.create("a", TagSettings(step=10, limit=10**9, order="trend"), timeout=TIMEOUT)

    def reserve(n: int) -> Reservation:
        return shared.reserve("a", n, purpose=Purpose("test"), timeout=TIMEOUT)

    first = reserve(100)
    for _ in range(5):
        # Empty ones at 300, 200 and 100: handed back, newest first, while `max` follows.
        held = [reserve(100), reserve(100)]
        assert shared.hand_back(held, 0, timeout=TIMEOUT)
    wide = reserve(1000)
    reserve(5)
    with connect(redis="none", store=shared, scheduler=None) as ids:
        for number, entry in ((1, first), (100, first), (101, wide), (250, wide), (1100, wide)):
            found = ids.who("a", number)
            assert [each.id for each in found.entries] == [entry.entry]
        assert ids.who("a", 1106).entries == []
        assert ids.who("a", 101).below == ids.who("a", 1).entries[0]
        with pytest.raises(issuer.InvalidArgument):
            ids.who("a", 0)
        with pytest.raises(issuer.UnknownTag):
            ids.who("b", 1)


# ------------------------------------------------------------------------------------------------ halt


@COLOUR_AND_STORE
def test_a_halt_stops_reservations_and_leaves_what_is_reserved(connect: Connect, redis_url: str, shared: Store) -> None:
    with (
        connect(redis=redis_url, store=shared, scheduler=None) as ids,
        connect(redis=redis_url, store=shared, scheduler=None) as other,
    ):
        ids.create("a", step=10)
        numbers = ids.take("a", 4) + other.take("a", 1)
        in_redis = ids.inspect("a").remaining
        assert in_redis is not None
        for _ in range(2):
            ids.halt("a")
        assert ids.inspect("a").store.halted
        numbers += [number for _ in range(in_redis) for number in other.take("a", 1)]
        assert numbers == list(range(1, 6 + in_redis))
        for one in (ids, other):
            with pytest.raises(issuer.StoreBehind, match=r"halted at max .* by `halt`.*recover\('a'\)") as error:
                one.next("a")
            assert error.value.taken is None
        assert ids.verify("a") == []
        assert ids.recover("a")[0].gap == 0
        assert other.next("a") == 6 + in_redis
        with pytest.raises(issuer.UnknownTag):
            ids.halt("b")


# ------------------------------------------------------------------------------------------------ inspect


@COLOUR_AND_STORE
def test_waste_is_what_no_entry_holds(connect: Connect, shared: Store) -> None:
    shared.create("a", TagSettings(above=50, step=10, limit=10**9, order="trend"), timeout=TIMEOUT)
    with connect(redis="none", store=shared, scheduler=None) as ids:
        assert ids.inspect("a").waste is None
        one = shared.reserve("a", 100, purpose=Purpose("test"), timeout=TIMEOUT)
        before = ids.inspect("a")
        assert before.waste is not None
        assert (before.waste.numbers, before.waste.of) == (0, 100)
        assert before.last_extension == before.waste.since
        two = shared.reserve("a", 100, purpose=Purpose("test"), timeout=TIMEOUT)
        assert not shared.hand_back([one], 90, timeout=TIMEOUT)
        assert shared.hand_back([two], 200, timeout=TIMEOUT)
        ids.configure("a", above=1000)
        seen = ids.inspect("a").waste
        assert seen is not None
        # 91..150 came back too late, 151..200 were used, 201..1000 were skipped.
        assert (seen.numbers, seen.of) == (60 + 800, 950)
        ids.reserve("a", 5)
        later = ids.inspect("a")
        assert later.waste is not None
        assert (later.waste.numbers, later.waste.of) == (860, 955)
        assert later.last_extension is not None
        assert later.last_extension >= before.last_extension


@pytest.mark.covers("1.18")
def test_step_buffers_last_change_and_waiting_callers_can_be_looked_at_while_it_runs(
    connect: Connect, redis_url: str
) -> None:
    store = SlowStore()
    with connect(redis=redis_url, store=store) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 50)
        until(lambda: buffers(ids) == (50, 100, 200), 60)
        seen = ids.inspect("a")
        assert (seen.store.step, seen.waiting) == (100, 0)
        assert seen.store.created <= seen.store.timestamp
        store.gate.clear()
        numbers += ids.take("a", 150)
        with ThreadPoolExecutor(5) as pool:
            drawing = [pool.submit(ids.next, "a") for _ in range(5)]
            until(lambda: ids.inspect("a").waiting == len(drawing), 60)
            store.gate.set()
            numbers += [each.result() for each in drawing]
        assert ids.inspect("a").waiting == 0
        assert sorted(numbers) == list(range(1, 206))
