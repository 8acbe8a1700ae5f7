"""`verify` under load, `who`, `halt` and what `inspect` tells, from threads and tasks alike."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.care import verification
from issuer_persistence.contract import Store
from issuer_persistence.ledger import LedgerPage, Purpose, Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import TagSettings
from tests.colours import BOTH, Connect
from tests.core.test_extension import SlowStore, buffers
from tests.drawers import Drawers
from tests.servers.redis import RedisServer
from tests.stores.benches import TIMEOUT
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

#: Each colour and each store once: what a store answers is shown in tests/stores.
COLOUR_AND_STORE = pytest.mark.parametrize(
    ("connect", "store_url"), [("blocking", "mongodb"), ("asyncio", "sqlite")], indirect=True
)


UNSEEN = "Redis not looked at"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    found = open_store(store_url)
    yield found
    found.close()


def test_a_healthy_system_under_load_is_never_reported(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads draw, of strict and of leased numbers; another process hands back in the same tag."""
    monkeypatch.setattr(verification, "PAGE", 5)  # many borders of pages, where things go by unseen
    url = f"sqlite:///{tmp_path / 'ids.db'}"

    def hand_back() -> None:
        for _ in range(20):
            with issuer.connect(redis="none", store=url, scheduler=None) as other:
                other.take("bulk", 13)

    with (
        issuer.connect(redis=redis_url, store=url) as ids,
        issuer.connect(redis=redis_url, store=url, lease=7) as leased,
    ):
        ids.create("a", step=200)
        ids.create("bulk", order="trend", step=20)
        with Drawers([ids], "a"), Drawers([leased], "bulk"), ThreadPoolExecutor(1) as pool:
            handing_back = pool.submit(hand_back)
            while not handing_back.done():
                assert ids.verify() == []
            handing_back.result()
        assert ids.verify() == []


@COLOUR_AND_STORE
def test_who_finds_a_number_among_thousands_and_behind_empty_entries(
    connect: Connect, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "NEAR", 3)
    store.create("a", TagSettings(step=10, limit=10**9, order="trend"), timeout=TIMEOUT)

    def reserve(n: int) -> Reservation:
        return store.reserve("a", n, purpose=Purpose("test"), timeout=TIMEOUT)

    first = reserve(100)
    for _ in range(5):
        # Empty ones at 300, 200 and 100: handed back, newest first, while `max` follows.
        held = [reserve(100), reserve(100)]
        assert store.hand_back(held, 0, timeout=TIMEOUT)
    wide = reserve(1000)
    reserve(5)
    with connect(redis="none", store=store, scheduler=None) as ids:
        for number, entry in ((1, first), (100, first), (101, wide), (250, wide), (1100, wide)):
            found = ids.who("a", number)
            assert [each.id for each in found.entries] == [entry.entry]
        assert ids.who("a", 1106).entries == []
        assert ids.who("a", 101).below == ids.who("a", 1).entries[0]
        with pytest.raises(issuer.InvalidArgument):
            ids.who("a", 0)
        with pytest.raises(issuer.UnknownTag):
            ids.who("b", 1)


@COLOUR_AND_STORE
def test_with_redis_away_who_and_verify_ask_the_store_alone(connect: Connect, store: Store) -> None:
    store.create("a", TagSettings(step=10, limit=10**9, order="trend"), timeout=TIMEOUT)
    store.reserve("a", 10, purpose=Purpose("test"), timeout=TIMEOUT)
    with connect(redis="redis://127.0.0.1:1", store=store, scheduler=None) as ids:
        found = ids.who("a", 5)
        assert (found.in_redis, [entry.high for entry in found.entries]) == (None, [10])
        for tag in ("a", None):
            (unseen,) = ids.verify(tag)
            assert (unseen.tag, unseen.kind, unseen.values["key"]) == ("a", UNSEEN, "issuer:{a}")
            assert "127.0.0.1:1" in str(unseen.values["why"])
        with pytest.raises(issuer.UnknownTag):
            ids.verify("b")


class Staged(MemoryStore):
    """A store that lets something happen before it shows its ledger."""

    before: Callable[[], object] | None = None

    def segments(self, *arguments: Any, **options: Any) -> LedgerPage:
        if self.before is not None:
            self.before()
        return super().segments(*arguments, **options)


def test_with_redis_away_or_lost_on_the_way_the_ledger_is_held_against_the_store(
    connect: Connect, start_redis: Callable[..., RedisServer]
) -> None:
    server, store = start_redis(), Staged()
    with connect(redis=server.url, store=store, scheduler=None) as ids:
        ids.create("a", step=10)
        assert ids.next("a") == 1
        (entry,) = store._ledger.values()
        store._ledger["forged"] = replace(entry, id="forged")
        with server.client() as client:
            # In no entry, so that Redis is asked once more in the end.
            client.hset("issuer:{a}", mapping={"next_cur": 20, "next_mark": 22, "next_max": 30})
        assert {each.kind for each in ids.verify("a")} == {"overlap", "Redis above store max", "not in the ledger"}
        store.before = server.kill
        lost = ids.verify("a")
        assert {each.kind for each in lost} == {"overlap", "Redis above store max", UNSEEN}
        away = ids.verify("a")
        assert [each.kind for each in away] == [UNSEEN, "overlap"]


# ------------------------------------------------------------------------------------------------ halt


@COLOUR_AND_STORE
def test_a_halt_stops_reservations_and_leaves_what_is_reserved(connect: Connect, redis_url: str, store: Store) -> None:
    with (
        connect(redis=redis_url, store=store, scheduler=None) as ids,
        connect(redis=redis_url, store=store, scheduler=None) as other,
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
def test_waste_is_what_no_entry_holds(connect: Connect, store: Store) -> None:
    store.create("a", TagSettings(above=50, step=10, limit=10**9, order="trend"), timeout=TIMEOUT)
    with connect(redis="none", store=store, scheduler=None) as ids:
        assert ids.inspect("a").waste is None
        one = store.reserve("a", 100, purpose=Purpose("test"), timeout=TIMEOUT)
        before = ids.inspect("a")
        assert before.waste is not None
        assert (before.waste.numbers, before.waste.of) == (0, 100)
        assert before.last_extension == before.waste.since
        two = store.reserve("a", 100, purpose=Purpose("test"), timeout=TIMEOUT)
        assert not store.hand_back([one], 90, timeout=TIMEOUT)
        assert store.hand_back([two], 200, timeout=TIMEOUT)
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


@BOTH
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
