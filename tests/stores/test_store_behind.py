"""A store that was restored from an old copy, is lost, or lags: nothing is repeated, and the journal knows the max."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer import Issuer
from issuer.operations import tags
from issuer_persistence.errors import MaxBehind
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order, Tag, TagChanges
from tests.audit import repeats
from tests.colours import BOTH
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from issuer_persistence.ledger import Reservation
    from tests.colours import Connect

pytestmark = pytest.mark.colours("blocking")  # what a journal knows is decided in the core


class Served(MemoryStore):
    """Stands for a server, which forks and restarts of its users don't touch."""


def opened(connect: Connect, url: str, store: MemoryStore, journal: Path) -> Issuer:
    return connect(redis=url, store=store, scheduler=None, journal=str(journal))


@BOTH
@pytest.mark.parametrize("order", ["strict", "trend"])
def test_an_older_store_and_an_empty_redis_are_found_out_by_the_journal(
    connect: Connect, redis_client: redis.Redis, redis_url: str, tmp_path: Path, order: Order
) -> None:
    store, journal = Served(), tmp_path / "journal"
    with opened(connect, redis_url, store, journal) as ids:
        ids.create("a", step=10, order=order)
        ids.take("a", 5)
        backup = store.snapshot()
        issued = ids.take("a", 100)
    store.restore(backup)
    redis_client.flushall()
    with opened(connect, redis_url, store, journal) as ids:
        (finding,) = (each for each in ids.verify("a") if each.kind == "below the journal")
        assert finding.numbers is not None
        assert (finding.numbers[0], finding.numbers[1] >= issued[-1]) == (11, True)
        assert [each.level for each in ids.doctor() if each.check == "tag-store-behind"] == ["weak"]
        with pytest.raises(issuer.StoreBehind) as behind:
            ids.next("a")
        assert behind.value.taken is not None
        assert behind.value.taken >= issued[-1]
        with pytest.raises(issuer.StoreBehind):
            ids.next("a")
        ids.recover("a", from_journal=[str(journal)])
        assert ids.next("a") > issued[-1]
        assert ids.verify("a") == []
        assert "tag-store-behind" not in {each.check for each in ids.doctor()}


@BOTH
def test_a_tag_that_the_store_has_lost_is_not_made_again_from_its_beginning(
    connect: Connect, redis_client: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    store, journal = Served(), tmp_path / "journal"
    with opened(connect, redis_url, store, journal) as ids:
        backup = store.snapshot()
        ids.create("a", step=10)
        issued = ids.take("a", 30)
    store.restore(backup)
    redis_client.flushall()
    with opened(connect, redis_url, store, journal) as ids:
        with pytest.raises(issuer.StoreBehind):
            ids.create("a", step=10)
        ids.recover("a", from_journal=[str(journal)])
        assert ids.next("a") > issued[-1]


@BOTH
def test_what_was_handed_back_in_order_is_no_store_that_went_back(connect: Connect, tmp_path: Path) -> None:
    store, journal = Served(), tmp_path / "journal"
    numbers: list[int] = []
    for _ in range(4):
        with connect(redis="none", store=store, scheduler=None, journal=str(journal)) as ids:
            if not numbers:
                ids.create("a", step=10)
            numbers += ids.take("a", 3)
            assert ids.verify("a") == []
    assert numbers == list(range(1, 13))


class Place:
    """An SQLite file, its old copy, and a journal in another directory."""

    def __init__(self, home: Path) -> None:
        self.file = home / "store" / "ids.db"
        self.journal = home / "elsewhere" / "journal"
        self.journal.parent.mkdir()
        self.url = f"sqlite:///{self.file}"

    def lose(self) -> None:
        """Delete the file and what lies beside it."""
        for each in self.file.parent.glob(f"{self.file.name}*"):
            each.unlink()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.covers("3.29")
def test_an_old_copy_of_the_store_and_the_journal_repeat_nothing(connect: Connect, place: Place) -> None:
    own = {"redis": "none", "store": place.url, "journal": place.journal, "scheduler": None}
    with connect(**own) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 150)
    backup = shutil.copy(place.file, place.journal.with_name("backup"))
    with connect(**own) as ids:
        numbers += ids.take("a", 1234)
    place.lose()
    shutil.copy(backup, place.file)
    with connect(**own) as ids:
        before = ids.recover("a", from_journal=[place.journal], dry_run=True)
        assert before == [issuer.values.Recovery("a", old=150, new=1384, gap=1234)]
        assert ids.inspect("a").store.max == 150
        # Exactly the number that the store had lost, and twice is the same.
        assert ids.recover("a", from_journal=[place.journal]) == before
        assert ids.recover(from_journal=[place.journal]) == [issuer.values.Recovery("a", old=1384, new=1384, gap=0)]
        numbers += ids.take("a", 500)
    assert numbers == list(range(1, 1885))


def test_the_journal_knows_what_a_process_holds_that_ends_without_a_word(connect: Connect, place: Place) -> None:
    store = MemoryStore()
    own = {"redis": "none", "store": store, "journal": place.journal, "scheduler": None}
    with connect(**own) as dying, connect(**own) as ids:
        dying.create("a", step=100)
        backup = store.snapshot()
        numbers = [dying.next("a") for _ in range(250)]
        store.restore(backup)
        assert ids.recover("a", from_journal=[place.journal])[0].new == 300
        assert repeats([*numbers, *ids.take("a", 300)]) == []


def test_a_full_disk_is_told_and_nothing_of_the_segment_is_issued(
    connect: Connect, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None, timeout=40) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 100)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", _no_space)

            def told() -> bool:
                """However often it is tried, it costs one segment."""
                with pytest.raises(issuer.StoreUnavailable) as caught:
                    ids.next("a", timeout=0.3)
                return "No space left" in str(caught.value)

            until(told, timeout=30)
        numbers += ids.take("a", 100)
    assert numbers == [*range(1, 101), *range(201, 301)]


def _no_space(_: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.covers("3.31", "3.29")
def test_redis_and_the_store_both_gone_are_made_again_from_the_journal(
    connect: Connect, place: Place, redis_url: str, redis_client: redis.Redis
) -> None:
    with connect(redis=redis_url, store=place.url, journal=place.journal, lease=20) as ids:
        ids.create("strict", step=50, limit=100_000, description="orders of the shop")
        ids.create("trend", step=70, order="trend", lease=10)
        ids.create("gone", order="trend")
        ids.create("never used", start=1000)
        strict, trend, gone = ids.take("strict", 333), ids.take("trend", 444), [ids.next("gone")]
        ids.delete("gone")
        trend += ids.reserve("trend", 1000)
    with connect(redis=redis_url, store=place.url, scheduler=None) as ids:  # now that nobody fetches ahead any more
        before = {record.tag: record for record in ids.tags()}
    place.lose()
    redis_client.flushall()
    # Its head names the store that is lost, so the new one can't use it.
    old = place.journal.rename(place.journal.with_name("old"))
    with connect(redis=redis_url, store=place.url, journal=place.journal, lease=20) as ids:
        planned = ids.recover(from_journal=[old], dry_run=True)
        assert [(each.tag, each.old) for each in planned] == [
            (tag, None) for tag in ("gone", "never used", "strict", "trend")
        ]
        assert ids.tags() == []
        assert ids.recover(from_journal=[old]) == planned
        for record in ids.tags():
            was = before[record.tag]
            assert (record.max, record.step, record.limit) == (was.max, was.step, was.limit)
            assert (record.order, record.lease, record.description) == (was.order, was.lease, was.description)
        assert len(before) == 3 == len(ids.tags())
        assert {each.gap for each in ids.recover(from_journal=[old])} == {0}
        strict += ids.take("strict", 333)
        trend += [*ids.take("trend", 444), *ids.reserve("trend", 1000)]
        with pytest.raises(issuer.UnknownTag):
            ids.next("gone")
        ids.create("gone")
        gone.append(ids.next("gone"))
        assert ids.next("never used") == 1000
        # Once more, when it has gone on: nothing is raised, nothing is refused.
        again = {each.tag: each for each in ids.recover(from_journal=[old])}
        assert again["strict"].old == again["strict"].new
    for numbers in (strict, trend, gone):
        assert repeats(numbers) == []
    assert strict == sorted(strict)


@pytest.fixture
def foreign(place: Place) -> Path:
    """The journal of another store: tags "a" at 40 and "b" at 10."""
    with issuer.connect(redis="none", store=MemoryStore(), journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=10)
        ids.reserve("a", 40)
        ids.create("b", step=10)
        ids.reserve("b", 10)
    return place.journal


def _records(ids: issuer.Issuer) -> list[tuple[str, int]]:
    return [(record.tag, record.max) for record in ids.tags()]


def test_the_journal_of_another_store_raises_no_tag_and_makes_none_beside_strangers(
    connect: Connect, foreign: Path
) -> None:
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        ids.create("c")
        with pytest.raises(issuer.ConfigurationError, match="'a', but not 'c'"):
            ids.recover(from_journal=[foreign])
        with pytest.raises(issuer.InvalidArgument, match="list of paths"):
            ids.recover(from_journal=str(foreign))
        with pytest.raises(issuer.ConfigurationError, match="can't be read"):
            ids.recover(from_journal=[foreign.with_name("missing")])
        assert _records(ids) == [("c", 0)]
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.reserve("a", 39)
        for tag in ("a", None):
            with pytest.raises(issuer.ConfigurationError, match="has max 39 in this store, but 40 in the journals"):
                ids.recover(tag, from_journal=[foreign])
        assert _records(ids) == [("a", 39)]
        assert ids.recover("a", at_least=40)[0].new == 40
        # Made from it, as far as one can see.
        made = [(each.tag, each.old, each.new) for each in ids.recover(from_journal=[foreign])]
        assert made == [("a", 40, 40), ("b", None, 10)]


@pytest.mark.parametrize("last", [50, 2**63 - 1])
def test_a_tag_that_had_reached_its_limit_is_full_when_it_is_made_again(
    connect: Connect, place: Place, last: int
) -> None:
    with connect(redis="none", store=MemoryStore(), journal=place.journal, scheduler=None) as ids:
        ids.create("a", above=last - 50, limit=last)
        ids.reserve("a", 50)
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        assert ids.recover("a", from_journal=[place.journal])[0].new >= last
        with pytest.raises(issuer.LimitReached):
            ids.next("a")


def test_a_tag_deleted_by_somebody_without_a_journal_stays_deleted(connect: Connect, place: Place) -> None:
    memory = MemoryStore()
    with connect(redis="none", store=memory, journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=10)
        last = ids.take("a", 30)[-1]
        with issuer.connect(redis="none", store=memory, journal="") as other:
            other.delete("a")
        for _ in range(2):
            assert ids.recover(from_journal=[place.journal])[0].new >= last
            assert ids.tags() == []


class Stale(MemoryStore):
    """Refuses the next reservations by a `max` of long ago."""

    times = 0

    def reserve(self, tag: str, n: int | None, **options: Any) -> Reservation:
        if self.times and options["at_least"]:
            self.times -= 1
            raise MaxBehind(tag, 0, options["at_least"])
        return super().reserve(tag, n, **options)


@BOTH
def test_a_stale_read_halts_no_tag_and_is_not_taken_for_a_restored_store(connect: Connect) -> None:
    store = Stale()
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=10, order="trend")
        numbers = ids.take("a", 10)
        store.times = 2
        numbers += ids.take("a", 10)
        assert numbers == list(range(1, 21))
        store.times = 10**6
        with pytest.raises(issuer.StoreUnavailable, match="returns outdated data"):
            ids.reserve("a", 5)
        store.times = 0
        assert ids.reserve("a", 5) == range(21, 26)
        assert not ids.inspect("a").store.halted
        # One that did go back is halted still.
        backup = store.snapshot()
        ids.reserve("a", 5)
        store.restore(backup)
        with pytest.raises(issuer.StoreBehind):
            ids.reserve("a", 5)
        assert ids.inspect("a").store.halted


@BOTH
@pytest.mark.parametrize("way", ["take", "reserve"])
def test_numbers_of_a_store_that_has_replaced_another_one_are_not_issued(connect: Connect, way: str) -> None:
    """Other processes still reserve in the old one. Its numbers may be the same."""
    store, other = MemoryStore(), MemoryStore()
    with connect(redis="none", store=other, scheduler=None) as ids:
        ids.create("a", above=1000, order="trend")
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=10, order="trend")
        draw = getattr(ids, way)
        assert [*draw("a", 10)] == list(range(1, 11))
        vars(store).update(vars(other))
        with pytest.raises(issuer.ConfigurationError, match="was replaced while it was in use"):
            draw("a", 5)


class Busy(MemoryStore):
    """Another process changes the tag before each change."""

    refused = 0

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        self.refused += 1
        super().configure(tag, TagChanges(description=str(self.refused)), timeout=timeout)
        return super().configure(tag, changes, timeout=timeout)


@BOTH
def test_a_change_of_a_tag_that_others_change_each_time_is_given_up(connect: Connect) -> None:
    store = Busy()
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", order="trend")
        with pytest.raises(issuer.StoreUnavailable, match="read the tag again"):
            ids.configure("a", limit=10**6)
    assert store.refused == tags.ATTEMPTS


@BOTH
def test_a_stale_read_halts_no_tag_on_redis_either(connect: Connect, redis_url: str) -> None:
    store = Stale()
    with connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=10)
        numbers = ids.take("a", 10)
        store.times = 1
        numbers += [ids.next("a") for _ in range(10)]
        assert numbers == list(range(1, 21))
        assert store.times == 0
        assert not ids.inspect("a").store.halted
