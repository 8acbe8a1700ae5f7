"""`verify` finds what was put in by hand, with who and when; without its checks it doesn't, and it cries no wolf."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer, gateway
from issuer.core import verification
from issuer.core.extend import known
from issuer.core.steps import Steps
from issuer.core.verification import Audit
from issuer.persistence.memory import MemoryStore
from issuer.persistence.records import LEDGER_KEPT, LedgerEntry, LedgerPage, Tag, now_ms
from tests.colours import Connect
from tests.contract.benches import TIMEOUT, Bench, MemoryBench, SQLiteBench
from tests.contract.conftest import mongo_bench_at

pytestmark = pytest.mark.usefixtures("patient")

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
        directory = request.getfixturevalue("tmp_path") / secrets.token_hex(4)
        directory.mkdir()
        sqlite = SQLiteBench(directory / "store.db")
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


@contextmanager
def scene_on(kind: str, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A sound tag on a store of that kind, and in an empty Redis."""
    url, client = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_client")
    client.flushdb()
    with bench_of(kind, request) as bench, issuer.connect(redis=url, store=bench.store, scheduler=None) as ids:
        ids.create(TAG, step=100)
        for _ in range(3):
            ids.take(TAG, 50)
        ids.tick()
        ids.configure(TAG, above=5000)
        for _ in range(3):
            ids.take(TAG, 50)
        ids.tick()
        assert ids.verify() == ids.verify(TAG) == []
        yield Scene(ids, bench, client)


@pytest.fixture(params=["memory", "sqlite", "mongodb"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """On each kind of store in turn, unless the test names one."""
    with scene_on(request.param, request) as made:
        yield made


in_memory = pytest.mark.parametrize("scene", ["memory"], indirect=True)


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


def forged(fields: dict[str, Any], kind: str, numbers: tuple[int, int], *told: str) -> Harm:
    """An entry of the ledger that somebody made up."""
    check = {"overlap": "_check_overlaps", "above store max": "_check_against_max"}[kind]
    return Harm(lambda scene: scene.bench.forge(**fields), kind, check, numbers, told)


def written(
    fields: dict[str, object], kind: str, check: str, *told: str, numbers: tuple[int, int] | None = None
) -> Harm:
    """Fields of the hash that somebody wrote; those that are None are missing."""

    def do(scene: Scene) -> None:
        for name, value in fields.items():
            if value is None:
                scene.client.hdel(KEY, name)
            else:
                scene.hset(**{name: value})

    return Harm(do, kind, check, numbers, told)


def damaged(problem: str, **fields: object) -> Harm:
    """Fields of the hash that can't be."""
    return replace(written(fields, "damaged hash", "damage", problem), blind=lambda _: None)


def wrong_type(scene: Scene) -> None:
    scene.client.delete(KEY)
    scene.client.set(KEY, "x")


#: The buffers of nobody's numbers, in the range that was skipped.
GAPPED = dict[str, object](next_cur=1000, next_mark=1020, next_max=1100, cur=800, mark=820, max=900)
OVERLAP = {"low": 50, "high": 150, "host": "intruder", "pid": 99, "time": THEN}
NO_NEXT: dict[str, object] = dict.fromkeys(["next_cur", "next_max", "next_mark"])
TOO_HIGH = ("Redis above store max", "_above_max")
BY_INTRUDER = "51..150 by intruder pid 99 (forged) at 1000000000000 ms"

HARMS: dict[str, Harm] = {
    "two overlapping entries": forged(OVERLAP, "overlap", (51, 100), "1..100 by", BY_INTRUDER),
    "the same entry twice": forged({"low": 0, "high": 100, "host": "twin"}, "overlap", (1, 100), "twin"),
    "an entry within another": forged({"low": 20, "high": 21}, "overlap", (21, 21)),
    "an entry above the store's max": forged(
        {"low": 100_000, "high": 100_500, "host": "ahead"},
        "above store max",
        (100_001, 100_500),
        *("the store's max is 5", "ahead pid 4711"),
    ),
    "buffer 2 above the store's max": written({"next_max": 9_000_000}, *TOO_HIGH, "next_max is 9000000"),
    "buffer 1 above the store's max": written({"max": 9_000_000, **NO_NEXT}, *TOO_HIGH, "max is 9000000"),
    "a used-up hash above the store's max": written(
        {"max": 9_000_000, "cur": 9_000_000, "mark": 9_000_000, **NO_NEXT}, *TOO_HIGH, "cur is 9000000"
    ),
    "buffers in no ledger entry": written(
        GAPPED, "not in the ledger", "_check_buffers", "buffer 1 holds 801..900", numbers=(801, 900)
    ),
    "a buffer that begins before its entry": written(
        {"cur": 4000, "mark": 5000}, "not in the ledger", "_check_buffers", "4001.."
    ),
    "a key that is no hash": Harm(wrong_type, "damaged hash", "_check_hash"),
    "another store's hash": written({"store": "abc" * 8}, "another store's hash", "_check_hash", "to store abcabc"),
    "a hash of no store": written({"store": ""}, "damaged hash", "_check_hash", "store is no store's id: ''"),
    "an entry whose low is above its high": Harm(
        lambda scene: scene.bench.forge(low=60, high=50), "damaged entry", "_note", None, ("high 50 is below low 60",)
    ),
    "cur above max": damaged("cur 8000000 is above max", cur=8_000_000),
    "mark above max": damaged("mark 8000000 is above max", mark=8_000_000),
    "text in cur": damaged("field cur is no whole number", cur="12a"),
    "text in next_mark": damaged("field next_mark is no whole number", next_mark="x"),
    "buffer 2 below buffer 1": damaged("is above next_cur 7", next_cur=7),
    "buffer 2 upside down": damaged("next_cur 10000 is above next_max 9000", next_cur=10_000, next_max=9_000),
    "buffer 2 empty": damaged("buffer 2 is empty", next_cur=9_000, next_max=9_000, next_mark=9_000),
    "next_mark too high": damaged("next_mark 8000000 is above next_max", next_mark=8_000_000),
} | {
    f"no {name}": damaged(f"field {name} is missing", **{name: None})
    for name in ("cur", "max", "mark", "next_cur", "next_max", "next_mark")
}


IN_LEDGER = {"two overlapping entries", "an entry above the store's max", "an entry whose low is above its high"}


@pytest.mark.covers("N.5")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "mongodb"])
def test_each_harm_is_found_and_without_its_check_it_is_not(kind: str, request: pytest.FixtureRequest) -> None:
    """On one store all; on the others one of each kind that is in the ledger."""
    for name, harm in HARMS.items():
        if kind != "memory" and name not in IN_LEDGER:
            continue
        with scene_on(kind, request) as scene, pytest.MonkeyPatch.context() as monkeypatch:
            harm.do(scene)
            for asked in (TAG, None):
                found = [finding for finding in scene.ids.verify(asked) if finding.kind == harm.kind]
                assert {finding.tag for finding in found} == {TAG}, name
                assert all(any(words in str(finding) for finding in found) for words in harm.told), name
                assert harm.numbers is None or harm.numbers in [finding.numbers for finding in found], name
            monkeypatch.setattr(Audit if hasattr(Audit, harm.check) else verification, harm.check, harm.blind)
            assert harm.kind not in scene.kinds(), name


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


@in_memory
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


def check(
    connect: Connect, store: Staged, stage: Callable[[], object], mutation: tuple[str, Callable[..., Any]], kind: str
) -> None:
    """On that stage nothing is found; with the mutation of the audit a finding of that kind is."""
    with connect(redis="none", store=store, scheduler=None) as ids, pytest.MonkeyPatch.context() as monkeypatch:
        stage()
        assert ids.verify(TAG) == []
        monkeypatch.setattr(Audit, *mutation)
        stage()
        assert [finding.kind for finding in ids.verify(TAG)] == [kind]


def handed_back(store: Staged, held: Any) -> bool:
    return store.hand_back([held], held.low + 10, timeout=1)


def test_a_hand_back_between_two_pages_is_no_overlap(
    connect: Connect, staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "PAGE", 1)

    def stage() -> None:
        held = reserved(staged, 100)
        staged.after["segments"] = lambda: (handed_back(staged, held), reserved(staged, 20))

    check(connect, staged, stage, ("_again", unread), "overlap")


def test_a_hand_back_while_max_is_read_is_not_above_it(connect: Connect, staged: Staged) -> None:
    def reserved_meanwhile() -> None:
        held = reserved(staged, 100)
        staged.before["get"] = lambda: handed_back(staged, held)

    def stage() -> None:
        staged.before["segments"] = reserved_meanwhile

    check(connect, staged, stage, ("_again", unread), "above store max")


def test_a_reservation_after_max_was_read_is_not_above_it(connect: Connect, staged: Staged) -> None:
    def stage() -> None:
        staged.before["segments"] = lambda: reserved(staged, 100)

    def once(self: Audit) -> Steps[None]:
        """The mutation of `Audit._read_max`: once is enough."""
        if not self._max:
            record = yield from known(TAG)
            self._max, self._created = record.max, record.created

    reserved(staged, 5)
    check(connect, staged, stage, ("_read_max", once), "above store max")


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

    with issuer.connect(redis=redis_url, store=staged, scheduler=None) as ids:
        stage()
        assert ids.verify(TAG) == []
        monkeypatch.setattr(Audit, "_unmoved", moved)
        stage()
        assert kind in [finding.kind for finding in ids.verify(TAG)]


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
    with connect(redis=redis_url, store=staged, scheduler=None) as ids:
        assert ids.verify(TAG) == []
        monkeypatch.setattr(Audit, "_certain", lambda *_: True)
        assert [finding.kind for finding in ids.verify(TAG)] == ["not in the ledger"]


@in_memory
def test_buffers_of_a_reign_that_is_over_are_sound(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old snapshot may hold what a restored ledger doesn't; the fence keeps it from being drawn."""
    scene.hset(**GAPPED, fence="f" * 40)
    assert scene.kinds() == set()
    monkeypatch.setattr(gateway, "_info", lambda _: {"master_replid": "f" * 40})
    assert scene.kinds() == {"not in the ledger"}


def test_a_hole_below_a_young_entry_is_told_however_old_the_tag(
    connect: Connect, staged: Staged, redis_client: redis.Redis, redis_url: str
) -> None:
    with connect(redis=redis_url, store=staged, scheduler=None) as ids:
        for n in (10, 5):
            ids.take(TAG, n)
        ids.tick()
        tamper(staged, created=1)
        (entry,) = (each for each in staged._ledger.values() if each.low == 10)
        del staged._ledger[entry.id]
        assert redis_client.hget(KEY, "cur") == b"15"
        (finding,) = ids.verify(TAG)
        assert isinstance(finding, issuer.OutsideLedger)
        assert (finding.buffer, finding.low, finding.high) == (1, 15, 20)
