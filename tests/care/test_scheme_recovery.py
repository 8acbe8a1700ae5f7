"""A scheme that was lost, went back to an earlier one, or was written over in Redis, and what `recover` makes of it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer_persistence.errors import Misconfigured
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore, Snapshot
from issuer_persistence.records import Tag, TagChanges, TagSettings, now_ms
from tests.colours import Connect
from tests.lua.hashes import GARBAGE
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")  # all is decided in the core

TIMEOUT = 60.0

ONE = {"stride": [{"from": 1, "first": 1, "stride": 1}], "format": "A{seq}", "id": "a"}
#: The same values up to 99, every second one after.
TWO = {"stride": [*ONE["stride"], {"from": 100, "first": 100, "stride": 2}], "format": "B{seq}", "id": "b"}


def value(record: Tag, counter: int) -> int:
    """What users see of a counter."""
    pieces = record.scheme.get("stride") or [{"from": 1, "first": 1, "stride": 1}]
    piece = [each for each in pieces if each["from"] <= counter][-1]
    return int(piece["first"] + (counter - piece["from"]) * piece["stride"])


class World:
    """A store in memory with a journal beside it, and the values that were given."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self.memory = MemoryStore()
        self.values: list[int] = []
        self.store = Journalled(self.memory, journal)

    def create(self, scheme: dict[str, Any]) -> None:
        self.store.create("a", TagSettings(step=50, order="trend", scheme=scheme), timeout=TIMEOUT)

    def give(self, segments: int) -> None:
        """Give all values of so many segments."""
        for _ in range(segments):
            got = self.store.reserve("a", None, purpose=Purpose("test"), timeout=TIMEOUT)
            self.values += [value(got.tag, counter) for counter in range(got.low + 1, got.high + 1)]

    def copied(self) -> Snapshot:
        """Return a backup from before all that comes after."""
        backup = self.memory.snapshot()
        until(lambda: now_ms() > max(each.timestamp for each in backup.tags.values()))
        return backup

    def record(self) -> Tag:
        found = self.memory.get("a", timeout=TIMEOUT)
        assert found is not None
        return found

    def recover(self, connect: Connect) -> None:
        with connect(redis="none", store=self.memory, scheduler=None) as ids:
            ids.recover("a", from_journal=[self.journal])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal")


def _restored(world: World) -> None:
    """Give values with one scheme, take a backup, give more with another one, and restore the backup."""
    world.create(ONE)
    world.give(1)
    backup = world.copied()
    world.give(1)
    world.store.configure("a", TagChanges(scheme=TWO, seen=world.record().version), timeout=TIMEOUT)
    world.give(4)
    world.memory.restore(backup)
    assert world.record().scheme == ONE


@pytest.mark.parametrize("guarded", [True, False])
def test_a_restored_tag_gets_the_scheme_of_its_later_numbers_or_values_come_again(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr("issuer.care.recovery._has_lost_its_scheme", lambda *_: False)
    _restored(world)
    for _ in range(2):
        world.recover(connect)
        assert (world.record().scheme, world.record().max) == (TWO if guarded else ONE, 300)
    world.give(6)
    assert (len(set(world.values)) == len(world.values)) == guarded


@pytest.mark.parametrize("step", ["configure", "recover"])
def test_a_recovery_that_was_cut_off_is_done_again(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    _restored(world)

    def away(*_: object, **__: object) -> Tag:
        raise Misconfigured("away")

    with monkeypatch.context() as broken:
        broken.setattr(MemoryStore, step, away)
        with pytest.raises(issuer.ConfigurationError, match="away"):
            world.recover(connect)
    world.recover(connect)
    assert (world.record().scheme, world.record().max) == (TWO, 300)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_tag_whose_tombstone_was_restored_gets_the_scheme_that_came_of_it(
    connect: Connect, world: World, *, deleted: bool
) -> None:
    world.create(ONE)
    world.give(1)
    world.store.delete("a", timeout=TIMEOUT)
    backup = world.copied()
    world.create(ONE)
    world.give(1)
    world.store.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.give(2)
    if deleted:
        world.store.delete("a", timeout=TIMEOUT)
    world.memory.restore(backup)
    world.recover(connect)
    assert (world.record().scheme, world.record().max, world.record().deleted) == (TWO, 200, deleted)


def test_a_scheme_that_somebody_without_a_journal_has_set_stays(connect: Connect, world: World) -> None:
    world.create(ONE)
    world.give(2)
    world.memory.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.recover(connect)
    assert (world.record().scheme, world.record().max) == (TWO, 100)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_journal_kept_with_a_fast_clock_puts_an_earlier_scheme_in_place_only_by_the_time_alone(
    connect: Connect, world: World, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(
            "issuer.care.recovery._has_lost_its_scheme", lambda record, said: record.timestamp < said.record.timestamp
        )
    world.create(ONE)
    with monkeypatch.context() as fast:
        fast.setattr("issuer_persistence.records.now_ms", lambda: now_ms() + 60_000)
        world.give(2)
    world.memory.configure("a", TagChanges(scheme=TWO), timeout=TIMEOUT)
    world.recover(connect)
    assert world.record().scheme == (TWO if guarded else ONE)


@pytest.mark.covers("3.9")
@pytest.mark.parametrize(
    "settings",
    [{}, {"order": "trend"}, {"stride": 2, "offset": 1}, {"restart": "daily", "format": "{date:%Y%m%d}-{seq:06d}"}],
    ids=["plain", "trend", "stride", "daily"],
)
def test_a_tag_goes_on_after_garbage_in_redis_and_a_recovery(
    make: Make, fake_server: FencedFakeServer, settings: dict[str, Any]
) -> None:
    ids = make()
    ids.create("a", **settings)
    before = ids.next("a")
    with fake_server.client() as client:
        for name, garbage in GARBAGE.items():
            client.hset("issuer:{a}", "scheme", garbage or "")
            with suppress(issuer.CorruptState):  # or it is put right by then
                before, last = ids.next("a"), before
                assert before > last, name
            ids.recover("a")
            before, last = ids.next("a"), before
            assert before > last, name
