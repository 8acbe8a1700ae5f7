"""`verify` finds what was put in by hand, with who and when, and reports nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.care import verification
from issuer_persistence.contract import Store
from issuer_persistence.ledger import LEDGER_KEPT, LedgerPage, Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.records import Tag, TagSettings, now_ms
from tests.colours import Connect
from tests.drawers import Drawers
from tests.servers.redis import RedisServer
from tests.stores.benches import TIMEOUT, Bench, MemoryBench, SQLiteBench
from tests.stores.conftest import mongo_bench_at

TAG = "orders"


KEY = "issuer:{orders}"


#: When the forged entries were written: 2001-09-09, but not long ago enough for any test to have been pruned.
THEN = 1_000_000_000_000


@contextmanager
def bench_of(kind: str, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """An empty store of that kind."""
    if kind == "mongodb":
        yield from mongo_bench_at(request.getfixturevalue("mongo_url"))
    elif kind == "sqlite":
        sqlite = SQLiteBench(request.getfixturevalue("tmp_path") / "store.db")
        yield sqlite
        sqlite.close()
    else:
        yield MemoryBench()


@dataclass
class Scene:
    """A sound tag with both buffers full: 1..200 are issued up to 150, and 200..5000 was skipped."""

    ids: Issuer
    bench: Bench
    client: redis.Redis

    def hset(self, **fields: object) -> None:
        """Write fields of the hash; those that are None are missing then."""
        for name, value in fields.items():
            if value is None:
                self.client.hdel(KEY, name)
            else:
                self.client.hset(KEY, name, str(value))

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.ids.verify(TAG)}


@pytest.fixture
def scene(request: pytest.FixtureRequest, redis_url: str, redis_client: redis.Redis) -> Iterator[Scene]:
    """In an empty Redis, on a store in memory unless the test names another kind: `on_each`."""
    kind = getattr(request, "param", "memory")
    with bench_of(kind, request) as bench, issuer.connect(redis=redis_url, store=bench.store, scheduler=None) as ids:
        ids.create(TAG, step=100)
        for _ in range(3):
            ids.take(TAG, 50)
        ids.tick()
        ids.configure(TAG, above=5000)
        for _ in range(3):
            ids.take(TAG, 50)
        ids.tick()
        assert ids.verify() == ids.verify(TAG) == []
        yield Scene(ids, bench, redis_client)


on_each = pytest.mark.parametrize("scene", ["memory", "sqlite", "mongodb"], indirect=True)


# ------------------------------------------------------------------------------------------------ each kind of harm


@dataclass(frozen=True)
class Harm:
    """Damage put in by hand, and what `verify` must say."""

    do: Callable[[Scene], object]
    kind: str
    told: tuple[str, ...] = ()
    numbers: tuple[int, int] | None = None


def forged(kind: str, *told: str, numbers: tuple[int, int] | None = None, **fields: Any) -> Harm:
    """An entry of the ledger that somebody made up."""
    return Harm(lambda scene: scene.bench.forge(**fields), kind, told, numbers)


def written(kind: str, told: str, numbers: tuple[int, int] | None = None, **fields: Any) -> Harm:
    """Fields of the hash that somebody wrote."""
    return Harm(lambda scene: scene.hset(**fields), kind, (told,), numbers)


def damaged(problem: str, **fields: Any) -> Harm:
    """Fields of the hash that can't be."""
    return written("damaged hash", problem, **fields)


def wrong_type(scene: Scene) -> None:
    scene.client.delete(KEY)
    scene.client.set(KEY, "x")


#: The buffers of nobody's numbers, in the range that was skipped.
GAPPED = dict[str, Any](next_cur=1000, next_mark=1020, next_max=1100, cur=800, mark=820, max=900)


OVERLAP = {"low": 50, "high": 150, "host": "intruder", "pid": 99, "time": THEN}


NO_NEXT: dict[str, Any] = dict.fromkeys(["next_cur", "next_max", "next_mark"])


TOO_HIGH = "Redis above store max"


BY_INTRUDER = "51..150 by intruder pid 99 (forged) at 2001-09-09T01:46:40Z"


HARMS: dict[str, Harm] = {
    "two overlapping entries": forged("overlap", "1..100 by", BY_INTRUDER, numbers=(51, 100), **OVERLAP),
    "the same entry twice": forged("overlap", "twin", numbers=(1, 100), low=0, high=100, host="twin"),
    "an entry within another": forged("overlap", numbers=(21, 21), low=20, high=21),
    "an entry above the store's max": forged(
        "above store max",
        *("the store's max is 5", "ahead pid 4711"),
        numbers=(100_001, 100_500),
        low=100_000,
        high=100_500,
        host="ahead",
    ),
    "an entry whose low is above its high": forged("damaged entry", "high 50 is below low 60", low=60, high=50),
    "buffer 2 above the store's max": written(TOO_HIGH, "next_max is 9000000", next_max=9_000_000),
    "buffer 1 above the store's max": written(TOO_HIGH, "max is 9000000", max=9_000_000, **NO_NEXT),
    "a used-up hash above the store's max": written(
        TOO_HIGH, "cur is 9000000", max=9_000_000, cur=9_000_000, mark=9_000_000, **NO_NEXT
    ),
    "buffers in no ledger entry": written("not in the ledger", "buffer 1 holds 801..900", (801, 900), **GAPPED),
    "a buffer that begins before its entry": written("not in the ledger", "4001..", cur=4000, mark=5000),
    "a key that is no hash": Harm(wrong_type, "damaged hash"),
    "another store's hash": written("another store's hash", "to store abcabc", store="abc" * 8),
    "a hash of no store": damaged("store is not the id of a store: ''", store=""),
    "cur above max": damaged("cur 8000000 is above max", cur=8_000_000),
    "mark above max": damaged("mark 8000000 is above max", mark=8_000_000),
    "text in cur": damaged("field cur is not a whole number", cur="12a"),
    "text in next_mark": damaged("field next_mark is not a whole number", next_mark="x"),
    "buffer 2 below buffer 1": damaged("is above next_cur 7", next_cur=7),
    "buffer 2 upside down": damaged("next_cur 10000 is above next_max 9000", next_cur=10_000, next_max=9_000),
    "buffer 2 empty": damaged("buffer 2 is empty", next_cur=9_000, next_max=9_000, next_mark=9_000),
    "next_mark too high": damaged("next_mark 8000000 is above next_max", next_mark=8_000_000),
} | {
    f"no {name}": damaged(f"field {name} is missing", **{name: None})
    for name in ("cur", "max", "mark", "next_cur", "next_max", "next_mark")
}


@pytest.mark.covers("N.5")
@pytest.mark.parametrize("name", HARMS)
def test_each_harm_is_found(scene: Scene, name: str) -> None:
    harm = HARMS[name]
    harm.do(scene)
    for asked in (TAG, None):
        found = [finding for finding in scene.ids.verify(asked) if finding.kind == harm.kind]
        assert {finding.tag for finding in found} == {TAG}
        assert all(any(words in str(finding) for finding in found) for words in harm.told)
        assert harm.numbers is None or harm.numbers in [finding.numbers for finding in found]


@on_each
@pytest.mark.covers("N.5")
def test_an_overlap_is_told_with_who_and_when_of_both(scene: Scene) -> None:
    scene.bench.forge(**OVERLAP)
    first, second = (finding for finding in scene.ids.verify(TAG) if finding.kind == "overlap")
    assert {first.numbers, second.numbers} == {(51, 100), (101, 150)}
    for finding in (first, second):
        one, other = finding.entries
        assert (one.host, one.pid, one.reason, one.time, one.low, one.high) == ("intruder", 99, "forged", THEN, 50, 150)
        assert (other.reason, other.high - other.low) == ("load", 100)


def test_every_entry_below_one_that_covers_many_is_told(scene: Scene) -> None:
    scene.bench.forge(low=0, high=5150, host="giant")
    found = [finding for finding in scene.ids.verify(TAG) if finding.kind == "overlap"]
    segments = [entry for entry in scene.bench.store.ledger(TAG, newest=100, timeout=TIMEOUT) if entry.host != "giant"]
    assert len(found) == sum(entry.low < 5150 for entry in segments) >= 3
    assert all("giant" in str(finding) for finding in found)


def test_a_ledger_full_of_overlaps_ends_after_a_hundred(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "PAGE", 7)
    for _ in range(130):
        scene.bench.forge(low=0, high=90)
    assert len(scene.ids.verify(TAG)) == verification.MOST


@pytest.mark.covers("N.5")
def test_a_store_that_went_back_shows_in_redis_and_recover_heals_it(scene: Scene) -> None:
    scene.bench.tamper(TAG, max=100)
    assert {"Redis above store max", "above store max"} <= scene.kinds()
    scene.ids.recover(TAG)
    assert scene.ids.verify(TAG) == []
    scene.ids.take(TAG, 10)
    assert scene.ids.verify(TAG) == []


# ------------------------------------------------------------------------------------------------ what is no harm


@on_each
def test_a_sound_tag_through_its_whole_life_is_never_reported(scene: Scene, redis_url: str) -> None:
    ids = scene.ids
    ids.create("bulk", order="trend", step=10)

    def direct() -> None:
        with issuer.connect(redis="none", store=scene.bench.open(), scheduler=None) as other:
            other.take("bulk", 12)
            other.take("bulk", 12)
            assert ids.verify() == []
            ids.reserve("bulk", 5)

    def leased() -> None:
        with issuer.connect(redis=redis_url, store=scene.bench.open(), scheduler=None, lease=7) as other:
            other.take("bulk", 12)
            assert ids.verify() == []

    for event in (
        lambda: ids.reserve("bulk", 25),
        leased,
        direct,
        lambda: ids.configure("bulk", above=1000, step=3),
        lambda: ids.take("bulk", 10),
        scene.client.flushall,
        lambda: (ids.take("bulk", 4), ids.recover("bulk", at_least=2000)),
        lambda: ids.halt("bulk"),
        lambda: (ids.recover("bulk"), ids.take("bulk", 4)),
        lambda: ids.delete("bulk"),
        lambda: ids.create("bulk"),
        lambda: ids.take("bulk", 4),
    ):
        event()
        assert ids.verify() == []


def test_what_was_pruned_is_no_finding(scene: Scene) -> None:
    assert scene.bench.store.prune(before=2**62, timeout=TIMEOUT).deleted >= 3
    # Both buffers are there still. The tag is young, so by the calendar its entries can't have been pruned.
    assert scene.kinds() == {"not in the ledger"}


def test_what_was_reserved_and_loaded_after_max_was_read_is_no_finding(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = scene.bench.store
    loaded: list[int] = []

    def witnessed(*, timeout: float) -> dict[str, int]:  # it is called after max was read, and before the hash is
        if not loaded:
            got = store.reserve(TAG, 100, purpose=Purpose("load"), timeout=timeout)
            loaded.append(got.high)
            scene.hset(next_cur=got.low, next_max=got.high, next_mark=got.high)
        return {}

    monkeypatch.setattr(store, "witnessed", witnessed)
    assert scene.ids.verify(TAG) == []
    assert loaded


class Staged(MemoryStore):
    """A memory store that lets something happen just before it answers, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], object]] = {}
        self.after: dict[str, Callable[[], object]] = {}

    def segments(self, *arguments: Any, **options: Any) -> LedgerPage:
        self.before.pop("segments", int)()
        page = super().segments(*arguments, **options)
        self.after.pop("segments", int)()
        return page

    def get(self, tag: str, *, timeout: float) -> Tag | None:
        if "witnessed" not in self.before:
            self.before.pop("get", int)()
        return super().get(tag, timeout=timeout)

    def witnessed(self, *, timeout: float) -> Mapping[str, int]:
        """It is called after max was read, and before the hash is."""
        self.before.pop("witnessed", int)()
        return super().witnessed(timeout=timeout)


@pytest.fixture
def staged() -> Staged:
    store = Staged()
    store.create(TAG, TagSettings(step=10, limit=10**6, order="trend"), timeout=10)
    return store


def tamper(store: Staged, **fields: Any) -> None:
    store._tags[TAG] = replace(store._tags[TAG], **fields)


def reserved(store: Staged, n: int) -> Any:
    return store.reserve(TAG, n, purpose=Purpose("test"), timeout=10)


def handed_back(store: Staged, held: Any) -> bool:
    return store.hand_back([held], held.low + 10, timeout=10)


def a_hand_back_between_two_pages(store: Staged) -> None:
    held = reserved(store, 100)
    store.after["segments"] = lambda: (handed_back(store, held), reserved(store, 20))


def a_hand_back_while_max_is_read(store: Staged) -> None:
    def reserved_meanwhile() -> None:
        held = reserved(store, 100)
        store.before["get"] = lambda: handed_back(store, held)

    store.before["segments"] = reserved_meanwhile


def a_reservation_after_max_was_read(store: Staged) -> None:
    store.before["segments"] = lambda: reserved(store, 100)


@pytest.mark.parametrize(
    "stage", [a_hand_back_between_two_pages, a_hand_back_while_max_is_read, a_reservation_after_max_was_read]
)
def test_what_changes_while_it_is_read_is_no_finding(
    staged: Staged, monkeypatch: pytest.MonkeyPatch, stage: Callable[[Staged], None]
) -> None:
    monkeypatch.setattr(verification, "PAGE", 1)
    with issuer.connect(redis="none", store=staged, scheduler=None) as ids:
        ids.reserve(TAG, 5)
        stage(staged)
        assert ids.verify(TAG) == []
        assert not staged.before
        assert not staged.after


@pytest.mark.parametrize("where", ["get", "segments"])
def test_a_tag_that_is_drained_meanwhile_is_sound(
    where: str, staged: Staged, redis_client: redis.Redis, redis_url: str
) -> None:
    """Drained: the hash is floored at cur, then the ledger entry is shortened, then max goes down."""
    with issuer.connect(redis=redis_url, store=staged, scheduler=None) as ids:
        cur = ids.next(TAG)
        (entry,) = (each for each in staged._ledger.values() if each.holds(cur))

        def loaded() -> None:
            held = reserved(staged, 10)
            redis_client.hset(KEY, mapping={"next_cur": held.low, "next_max": held.high, "next_mark": held.high})

        def drained() -> None:
            redis_client.hset(KEY, mapping={"max": cur, "mark": cur, "born": f"drained at {cur}"})
            redis_client.hdel(KEY, "next_cur", "next_max", "next_mark")
            staged._ledger[entry.id] = replace(entry, high=cur)
            staged._ledger = {name: each for name, each in staged._ledger.items() if each.low <= cur}
            tamper(staged, max=cur)

        staged.before[where] = drained
        if where == "get":
            staged.before["witnessed"] = loaded
        assert ids.verify(TAG) == []
        assert not staged.before


def test_a_buffer_whose_entry_may_have_been_pruned_is_sound(
    staged: Staged, redis_client: redis.Redis, redis_url: str
) -> None:
    """A tag that is hardly used: its first segment is 91 days old, the second one was fetched then."""
    with issuer.connect(redis=redis_url, store=staged, scheduler=None) as ids:
        ids.take(TAG, 3)
        ids.tick()
        assert redis_client.hget(KEY, "next_max") == b"20"
        long_ago = now_ms() - LEDGER_KEPT - 24 * 3600 * 1000
        tamper(staged, created=long_ago)
        staged._ledger = {name: replace(entry, time=long_ago) for name, entry in staged._ledger.items()}
        assert staged.prune(before=now_ms() - LEDGER_KEPT, timeout=10).deleted == 1
        assert ids.verify(TAG) == []


def test_buffers_of_a_reign_that_is_over_are_sound(scene: Scene) -> None:
    """An old snapshot may hold what a restored ledger doesn't; the fence keeps it from being drawn."""
    scene.hset(**GAPPED, fence="f" * 40)
    assert scene.kinds() == set()


def test_a_hole_below_a_young_entry_is_told_however_old_the_tag(
    staged: Staged, redis_client: redis.Redis, redis_url: str
) -> None:
    with issuer.connect(redis=redis_url, store=staged, scheduler=None) as ids:
        for n in (10, 5):
            ids.take(TAG, n)
        ids.tick()
        tamper(staged, created=1)
        (entry,) = (each for each in staged._ledger.values() if each.low == 10)
        del staged._ledger[entry.id]
        assert redis_client.hget(KEY, "cur") == b"15"
        (finding,) = ids.verify(TAG)
        assert finding.kind == "not in the ledger"
        assert (finding.values["buffer"], finding.numbers) == (1, (16, 20))


# ---------------------------------------------------------------------------------------------- load, and no Redis


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


@pytest.mark.colours("blocking")
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
        store.before["segments"] = server.kill
        assert {each.kind for each in ids.verify("a")} == {"overlap", "Redis above store max", UNSEEN}
        assert [each.kind for each in ids.verify("a")] == [UNSEEN, "overlap"]
