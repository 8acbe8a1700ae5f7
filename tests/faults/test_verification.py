"""`verify` finds what was put in by hand, with who and when; without its checks it doesn't, and it cries no wolf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer, gateway
from issuer.core import verification
from issuer.core.discrepancies import Discrepancy
from issuer.core.extend import known
from issuer.core.steps import Steps
from issuer.core.verification import Audit
from persistence.memory import MemoryStore
from persistence.records import LEDGER_KEPT, LedgerEntry, LedgerPage, Tag, now_ms
from tests.colours import Connect
from tests.contract.benches import TIMEOUT, Bench, MemoryBench, SQLiteBench
from tests.contract.conftest import mongo_bench_at

TAG = "orders"
KEY = "issuer:{orders}"

#: When the forged entries were written: 2001-09-09, but not long ago enough for any test to have been pruned.
THEN = 1_000_000_000_000


@pytest.fixture(params=["memory", "sqlite", "mongodb"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each kind of store in turn."""
    if request.param == "mongodb":
        yield from mongo_bench_at(request.getfixturevalue("mongo_url"))
    elif request.param == "sqlite":
        sqlite = SQLiteBench(tmp_path / "store.db")
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

    def hset(self, **fields: object) -> object:
        return self.client.hset(KEY, mapping={name: str(value) for name, value in fields.items()})

    def kinds(self) -> set[str]:
        return {finding.kind for finding in self.ids.verify(TAG)}


@pytest.fixture
def scene(bench: Bench, redis_client: redis.Redis, redis_url: str) -> Iterator[Scene]:
    with issuer.connect(redis=redis_url, store=bench.store, scheduler=None) as ids:
        ids.create(TAG, step=100)
        ids.take(TAG, 150)
        ids.tick()
        ids.configure(TAG, above=5000)
        ids.take(TAG, 150)
        ids.tick()
        assert ids.verify() == ids.verify(TAG) == []
        yield Scene(ids, bench, redis_client)


# ------------------------------------------------------------------------------------------------ each kind of harm


@dataclass(frozen=True)
class Harm:
    """Damage put in by hand, what `verify` must say, and how to blind the check that says it."""

    do: Callable[[Scene], object]
    kind: str
    check: str
    numbers: tuple[int, int] | None = None
    told: tuple[str, ...] = ()
    blind: Callable[..., Any] = field(default=lambda *_: iter(()))


def wrong_type(scene: Scene) -> None:
    scene.client.delete(KEY)
    scene.client.set(KEY, "x")


def gapped(scene: Scene) -> None:
    """The buffers of nobody's numbers, in the range that was skipped."""
    scene.hset(next_cur=1000, next_mark=1020, next_max=1100, cur=800, mark=820, max=900)


OVERLAP = {"low": 50, "high": 150, "host": "intruder", "pid": 99, "time": THEN}

HARMS: dict[str, Harm] = {
    "two overlapping entries": Harm(
        lambda scene: scene.bench.forge(**OVERLAP),
        "overlap",
        "_check_overlaps",
        (51, 100),
        ("1..100 by", "51..150 by intruder pid 99 (forged) at 1000000000000 ms"),
    ),
    "the same segment twice": Harm(
        lambda scene: scene.bench.forge(low=0, high=100, host="twin"), "overlap", "_check_overlaps", (1, 100), ("twin",)
    ),
    "an entry within another": Harm(
        lambda scene: scene.bench.forge(low=20, high=21), "overlap", "_check_overlaps", (21, 21)
    ),
    "an entry above the store's max": Harm(
        lambda scene: scene.bench.forge(low=100_000, high=100_500, host="ahead"),
        "above store max",
        "_check_against_max",
        (100_001, 100_500),
        ("the store's max is 5", "ahead pid 4711"),
    ),
    "buffer 2 above the store's max": Harm(
        lambda scene: scene.hset(next_max=9_000_000),
        "Redis above store max",
        "_above_max",
        None,
        ("next_max is 9000000",),
    ),
    "buffer 1 above the store's max": Harm(
        lambda scene: (scene.client.hdel(KEY, "next_cur", "next_max", "next_mark"), scene.hset(max=9_000_000)),
        "Redis above store max",
        "_above_max",
        None,
        ("max is 9000000",),
    ),
    "a used-up hash above the store's max": Harm(
        lambda scene: (
            scene.client.hdel(KEY, "next_cur", "next_max", "next_mark"),
            scene.hset(max=9_000_000, cur=9_000_000, mark=9_000_000),
        ),
        "Redis above store max",
        "_above_max",
        None,
        ("cur is 9000000",),
    ),
    "buffers in no ledger entry": Harm(
        gapped, "not in the ledger", "_check_buffers", (801, 900), ("buffer 1 holds 801..900",)
    ),
    "a buffer that begins before its entry": Harm(
        lambda scene: scene.hset(cur=4000, mark=5000), "not in the ledger", "_check_buffers", None, ("4001..",)
    ),
    "a key that is no hash": Harm(wrong_type, "damaged hash", "_check_hash"),
    "another store's hash": Harm(
        lambda scene: scene.hset(store="abc" * 8), "another store's hash", "_check_hash", None, ("to store abcabc",)
    ),
    "a hash of no store": Harm(
        lambda scene: scene.hset(store=""), "damaged hash", "_check_hash", None, ("store is no store's id: ''",)
    ),
    "an entry whose low is above its high": Harm(
        lambda scene: scene.bench.forge(low=60, high=50), "damaged entry", "_note", None, ("high 50 is below low 60",)
    ),
}  # fmt: skip

DAMAGES: dict[str, tuple[dict[str, object], str]] = {
    "cur above max": ({"cur": 8_000_000}, "cur 8000000 is above max"),
    "mark above max": ({"mark": 8_000_000}, "mark 8000000 is above max"),
    "text in cur": ({"cur": "12a"}, "field cur is no whole number"),
    "text in next_mark": ({"next_mark": "x"}, "field next_mark is no whole number"),
    "buffer 2 below buffer 1": ({"next_cur": 7}, "is above next_cur 7"),
    "buffer 2 upside down": ({"next_cur": 10_000, "next_max": 9_000}, "next_cur 10000 is above next_max 9000"),
    "buffer 2 empty": ({"next_cur": 9_000, "next_max": 9_000, "next_mark": 9_000}, "buffer 2 is empty"),
    "next_mark too high": ({"next_mark": 8_000_000}, "next_mark 8000000 is above next_max"),
}
HARMS |= {
    name: Harm(
        lambda scene, fields=fields: scene.hset(**fields),  # type: ignore[misc]  # bound here, not later
        "damaged hash",
        "damage",
        None,
        (problem,),
        lambda _: None,
    )
    for name, (fields, problem) in DAMAGES.items()
}
HARMS |= {
    f"no {name}": Harm(
        lambda scene, name=name: scene.client.hdel(KEY, name),  # type: ignore[misc]  # the same
        "damaged hash",
        "damage",
        None,
        (f"field {name} is missing",),
        lambda _: None,
    )
    for name in ("cur", "max", "mark", "next_cur", "next_max", "next_mark")
}


@pytest.mark.covers("N.5")
@pytest.mark.parametrize("harm", HARMS.values(), ids=list(HARMS))
def test_each_harm_is_found_and_without_its_check_it_is_not(
    harm: Harm, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm.do(scene)
    for asked in (TAG, None):
        found = [finding for finding in scene.ids.verify(asked) if finding.kind == harm.kind]
        assert {finding.tag for finding in found} == {TAG}
        assert all(any(words in str(finding) for finding in found) for words in harm.told)
        assert harm.numbers is None or harm.numbers in [finding.numbers for finding in found]
    monkeypatch.setattr(Audit if hasattr(Audit, harm.check) else verification, harm.check, harm.blind)
    assert harm.kind not in scene.kinds()


@pytest.mark.covers("N.5")
def test_an_overlap_is_told_with_who_and_when_of_both(scene: Scene) -> None:
    scene.bench.forge(**OVERLAP)
    first, second = (finding for finding in scene.ids.verify(TAG) if isinstance(finding, issuer.Overlap))
    assert sorted([first.numbers, second.numbers]) == [(51, 100), (101, 150)]
    for finding in (first, second):
        one, other = finding.entries
        assert (one.host, one.pid, one.reason, one.time, one.low, one.high) == ("intruder", 99, "forged", THEN, 50, 150)
        assert (other.reason, other.high - other.low) == ("load", 100)


def test_every_entry_below_one_that_covers_many_is_told(scene: Scene) -> None:
    scene.bench.forge(low=0, high=5150, host="giant")
    found = [finding for finding in scene.ids.verify(TAG) if isinstance(finding, issuer.Overlap)]
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


def test_a_sound_tag_through_its_whole_life_is_never_reported(scene: Scene, redis_url: str) -> None:
    ids = scene.ids
    ids.create("bulk", order="trend", step=10)

    def sound() -> None:
        assert ids.verify() == []

    ids.reserve("bulk", 25)
    sound()
    with issuer.connect(redis=redis_url, store=scene.bench.open(), scheduler=None, lease=7) as other:
        other.take("bulk", 12)
        sound()
    sound()
    with issuer.connect(redis=None, store=scene.bench.open(), scheduler=None) as other:
        other.take("bulk", 12)
        other.take("bulk", 12)
        sound()
        ids.reserve("bulk", 5)
    sound()
    ids.configure("bulk", above=1000, step=3)
    sound()
    ids.take("bulk", 10)
    sound()
    scene.client.flushall()
    sound()
    ids.take("bulk", 4)
    ids.recover("bulk", at_least=2000)
    sound()
    ids.halt("bulk")
    sound()
    ids.recover("bulk")
    ids.take("bulk", 4)
    ids.delete("bulk")
    sound()
    ids.create("bulk")
    sound()
    ids.take("bulk", 4)
    sound()


def test_what_was_pruned_is_no_finding(scene: Scene) -> None:
    assert scene.bench.store.prune(before=2**62, timeout=TIMEOUT) >= 3
    # Both buffers are there still. The tag is young, so by the calendar its entries can't have been pruned.
    assert scene.kinds() == {"not in the ledger"}


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
        if "store_id" not in self.after:
            self.before.pop("get", int)()
        return super().get(tag, timeout=timeout)

    def store_id(self, *, timeout: float) -> str:
        self.after.pop("store_id", int)()
        return super().store_id(timeout=timeout)


@pytest.fixture
def staged() -> Staged:
    store = Staged()
    store.create(TAG, above=0, step=10, limit=10**6, order="trend", description="", timeout=1)
    return store


def tamper(store: Staged, **fields: Any) -> None:
    store._tags[TAG] = replace(store._tags[TAG], **fields)


def reserved(store: Staged, n: int) -> Any:
    return store.reserve(TAG, n, reason="test", timeout=1)


def unread(self: Audit, entries: Any) -> Steps[dict[str, LedgerEntry]]:
    """The mutation of `Audit._again`: what was read first is believed."""
    return {entry.id: entry for entry in entries}
    yield self


def alarms(
    connect: Connect,
    store: Staged,
    patch: tuple[pytest.MonkeyPatch, str, Callable[..., Any]],
    redis: str | None = None,
) -> Iterator[list[Discrepancy]]:
    """What is found as the code is, then with the mutation. The test sets the stage before each."""
    monkeypatch, name, mutation = patch
    with connect(redis=redis, store=store, scheduler=None) as ids:
        yield ids.verify(TAG)
        monkeypatch.setattr(Audit, name, mutation)
        yield ids.verify(TAG)


def test_a_hand_back_between_two_pages_is_no_overlap(
    connect: Connect, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PAGE", 1)

    def stage() -> None:
        held = reserved(staged, 100)

        def handed_back_and_reserved_again() -> None:
            assert staged.hand_back([held], held.low + 10, timeout=1)
            reserved(staged, 20)

        staged.after["segments"] = handed_back_and_reserved_again

    found = alarms(connect, staged, (monkeypatch, "_again", unread))
    stage()
    assert next(found) == []
    stage()
    assert [type(finding) for finding in next(found)] == [issuer.Overlap]


def test_a_hand_back_while_max_is_read_is_not_above_it(
    connect: Connect, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage() -> None:
        def reserved_meanwhile() -> None:
            held = reserved(staged, 100)

            def handed_back() -> None:
                assert staged.hand_back([held], held.low + 10, timeout=1)

            staged.before["get"] = handed_back

        staged.before["segments"] = reserved_meanwhile

    found = alarms(connect, staged, (monkeypatch, "_again", unread))
    stage()
    assert next(found) == []
    stage()
    assert [type(finding) for finding in next(found)] == [issuer.AboveMax]


def test_a_reservation_after_max_was_read_is_not_above_it(
    connect: Connect, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stage() -> None:
        staged.before["segments"] = lambda: reserved(staged, 100)

    def once(self: Audit) -> Steps[None]:
        """The mutation of `Audit._read_max`: once is enough."""
        if not self._max:
            record = yield from known(TAG)
            self._max, self._created = record.max, record.created

    reserved(staged, 5)
    found = alarms(connect, staged, (monkeypatch, "_read_max", once))
    stage()
    assert next(found) == []
    stage()
    assert [type(finding) for finding in next(found)] == [issuer.AboveMax]


def moved(self: Audit, key: str) -> Steps[bool]:
    """The mutation of `Audit._unmoved`: the hash is not read again."""
    return bool(key) and self is not None
    yield


@pytest.mark.parametrize("drained_at", [("store_id", "Redis above store max"), ("segments", "not in the ledger")])
def test_a_tag_that_is_drained_meanwhile_is_sound(
    drained_at: tuple[str, str],
    staged: Staged,
    redis_client: redis.Redis,
    redis_url: str,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drained: the hash is floored at cur, then the ledger entry is shortened, then max goes down."""
    where, kind = drained_at

    def stage() -> None:
        with issuer.connect(redis=redis_url, store=staged, scheduler=None) as other:
            cur = other.take(TAG, 1)[0]
        (entry,) = (each for each in staged._ledger.values() if each.holds(cur))

        def drained() -> None:
            redis_client.hset(KEY, mapping={"max": cur, "mark": cur, "born": f"drained at {cur}"})
            staged._ledger[entry.id] = replace(entry, high=cur)
            tamper(staged, max=cur)

        (staged.before if where == "segments" else staged.after)[where] = drained

    found = alarms(issuer.connect, staged, (monkeypatch, "_unmoved", moved), redis=redis_url)
    stage()
    assert next(found) == []
    stage()
    assert kind in [finding.kind for finding in next(found)]


def test_a_buffer_whose_entry_may_have_been_pruned_is_sound(
    connect: Connect, staged: Staged, redis_client: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag that is hardly used: its first segment is 91 days old, the second one was fetched then."""
    with connect(redis=redis_url, store=staged, scheduler=None) as other:
        other.take(TAG, 3)
        other.tick()
    assert redis_client.hget(KEY, "next_max") == b"20"
    long_ago = now_ms() - LEDGER_KEPT - 24 * 3600 * 1000
    tamper(staged, created=long_ago)
    staged._ledger = {name: replace(entry, time=long_ago) for name, entry in staged._ledger.items()}
    assert staged.prune(before=now_ms() - LEDGER_KEPT, timeout=1) == 1
    found = alarms(connect, staged, (monkeypatch, "_certain", lambda *_: True), redis=redis_url)
    assert next(found) == []
    assert [finding.kind for finding in next(found)] == ["not in the ledger"]


def test_buffers_of_a_reign_that_is_over_are_sound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old snapshot may hold what a restored ledger doesn't; the fence keeps it from being drawn."""
    gapped(scene)
    scene.hset(fence="f" * 40)
    assert scene.kinds() == set()
    monkeypatch.setattr(gateway, "_info", lambda _: {"master_replid": "f" * 40})
    assert scene.kinds() == {"not in the ledger"}


def test_a_hole_below_a_young_entry_is_told_however_old_the_tag(
    connect: Connect, staged: Staged, redis_client: redis.Redis, redis_url: str
) -> None:
    with connect(redis=redis_url, store=staged, scheduler=None) as ids:
        ids.take(TAG, 15)
        ids.tick()
        tamper(staged, created=1)
        (entry,) = (each for each in staged._ledger.values() if each.low == 10)
        del staged._ledger[entry.id]
        assert redis_client.hget(KEY, "cur") == b"15"
        (finding,) = ids.verify(TAG)
        assert isinstance(finding, issuer.OutsideLedger)
        assert (finding.buffer, finding.low, finding.high) == (1, 15, 20)
