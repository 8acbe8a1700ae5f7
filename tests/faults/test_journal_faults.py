"""A store is restored from an old copy, or is lost with its Redis: with the journal no number comes twice."""

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.persistence import journal
from issuer.persistence.errors import Unavailable
from issuer.persistence.journalled import Journalled
from issuer.persistence.memory import MemoryStore
from issuer.persistence.records import now_ms
from tests import programs
from tests.audit import repeats
from tests.colours import Connect
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("patient")]


class Place:
    """An SQLite file, its old copy, and a journal in another directory."""

    def __init__(self, home: Path) -> None:
        self.file = home / "store" / "ids.db"
        self.journal = home / "elsewhere" / "journal"
        self.journal.parent.mkdir()
        self.url = f"sqlite:///{self.file}"
        self.copies = 0

    def back_up(self) -> Path:
        """Copy the closed file."""
        self.copies += 1
        return Path(shutil.copy(self.file, self.file.with_name(f"backup{self.copies}")))

    def lose(self) -> None:
        """Delete the file and what lies beside it."""
        for each in self.file.parent.glob(f"{self.file.name}*"):
            each.unlink()

    def restore(self, backup: Path) -> None:
        self.lose()
        shutil.copy(backup, self.file)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def _draw(connect: Connect, place: Place, count: int) -> list[int]:
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        return ids.take("a", count, timeout=20)


def _restored(connect: Connect, place: Place) -> list[int]:
    """Draw, take a backup, draw on, restore the backup; return what was drawn. Another process goes on from here."""
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 150)
    backup = place.back_up()
    numbers += _draw(connect, place, 1234)
    place.restore(backup)
    return numbers


@pytest.mark.covers("3.29")
def test_an_old_copy_of_the_store_and_the_journal_repeat_nothing(connect: Connect, place: Place) -> None:
    numbers = _restored(connect, place)
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        before = ids.recover("a", from_journal=[place.journal], dry_run=True)
        assert before == [issuer.Recovery("a", old=150, new=1384, gap=1234)]
        assert ids.inspect("a").store.max == 150
        # Exactly the number that the store had lost, and twice is the same.
        assert ids.recover("a", from_journal=[place.journal]) == before
        assert ids.recover(from_journal=[place.journal]) == [issuer.Recovery("a", old=1384, new=1384, gap=0)]
        numbers += ids.take("a", 500)
    assert numbers == list(range(1, 1885))


def test_mutation_without_the_journal_numbers_come_twice(
    connect: Connect, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = _restored(connect, place)
    monkeypatch.setattr(Journalled, "_compare", lambda *_, **__: None)
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        assert ids.recover("a") == [issuer.Recovery("a", old=150, new=150, gap=0)]
        numbers += ids.take("a", 500)
    assert len(repeats(numbers)) == 500


DYING = """
import os, signal, sys, issuer
from issuer.persistence.journalled import Journalled
if sys.argv[3] == "mutation":
    Journalled._append = lambda *_: None  # it would do so after the return; the kill comes first
ids = issuer.connect(redis="none", store=sys.argv[1], journal=sys.argv[2], scheduler=None)
for _ in range(250):
    print(ids.next("a"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("order", ["before", "mutation"])
def test_a_line_after_the_return_instead_of_before_it_is_one_too_few_when_the_process_is_killed(
    place: Place, order: str
) -> None:
    with issuer.connect(redis="none", store=place.url, journal=place.journal) as ids:
        ids.create("a", step=100)
    backup = place.back_up()
    program = place.journal.with_name("dying.py")
    program.write_text(DYING)
    dying = programs.run(str(program), place.url, str(place.journal), order)
    numbers = [int(line) for line in dying.stdout.splitlines()]
    assert (dying.returncode, len(numbers)) == (-9, 250)
    place.restore(backup)
    with issuer.connect(redis="none", store=place.url, journal=place.journal) as ids:
        ids.recover("a", from_journal=[place.journal])
        numbers += ids.take("a", 300)
    assert (repeats(numbers) == []) is (order == "before")


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


def test_mutation_with_a_lost_line_ignored_the_numbers_of_a_full_disk_repeat(
    connect: Connect, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journalled._append

    def careless(self: Journalled, *arguments: Any) -> None:
        with suppress(Unavailable):
            append(self, *arguments)

    monkeypatch.setattr(Journalled, "_append", careless)
    monkeypatch.setattr(journal, "_try_to_write", lambda _: None)
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=100)
    backup = place.back_up()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", _no_space)
        numbers = _draw(connect, place, 200)
    place.restore(backup)
    with connect(redis="none", store=place.url, journal=place.journal, scheduler=None) as ids:
        ids.recover("a", from_journal=[place.journal])
        numbers += ids.take("a", 200)
    assert len(repeats(numbers)) == 200


# ------------------------------------------------------------------------------------------------ both of them gone


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


# ------------------------------------------------------------------------------------------- what is not for recovery


@pytest.fixture
def foreign(place: Place) -> Path:
    """The journal of another store: tags "a" at 40 and "b" at 10."""
    with issuer.connect(redis="none", store=MemoryStore(), journal=place.journal) as ids:
        ids.create("a", step=10)
        ids.reserve("a", 40)
        ids.create("b", step=10)
        ids.reserve("b", 10)
    return place.journal


def _records(ids: issuer.Issuer) -> list[tuple[str, int]]:
    return [(record.tag, record.max) for record in ids.tags()]


def test_the_journal_of_another_store_raises_no_tag_that_is_there(connect: Connect, foreign: Path) -> None:
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.reserve("a", 39)
        for tag in ("a", None):
            with pytest.raises(issuer.ConfigurationError, match="stands at max 39 here and at 40 there"):
                ids.recover(tag, from_journal=[foreign])
        assert _records(ids) == [("a", 39)]
        assert ids.recover("a", at_least=40)[0].new == 40
        # Made from it, as far as one can see.
        assert [(each.tag, each.old, each.new) for each in ids.recover(from_journal=[foreign])] == [
            ("a", 40, 40),
            ("b", None, 10),
        ]


def test_the_journal_of_another_store_makes_no_tags_beside_strangers(connect: Connect, foreign: Path) -> None:
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        ids.create("c")
        with pytest.raises(issuer.ConfigurationError, match="'a' and not 'c'"):
            ids.recover(from_journal=[foreign])
        assert _records(ids) == [("c", 0)]


def test_a_damaged_journal_is_an_error_that_names_the_line_and_changes_nothing(connect: Connect, foreign: Path) -> None:
    foreign.write_bytes(foreign.read_bytes().replace(b'"high":40', b'"high":20'))
    with connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        with pytest.raises(issuer.JournalDamaged, match="line 3") as error:
            ids.recover(from_journal=[foreign])
        assert (error.value.path, error.value.line) == (str(foreign), 3)
        assert _records(ids) == []
        with pytest.raises(issuer.InvalidArgument, match="list of paths"):
            ids.recover(from_journal=str(foreign))
        with pytest.raises(issuer.ConfigurationError, match="can't be read"):
            ids.recover(from_journal=[foreign.with_name("missing")])


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


def test_a_tag_deleted_after_the_backup_was_taken_goes_on_above_when_it_is_made_again(
    connect: Connect, place: Place
) -> None:
    memory = MemoryStore()
    with connect(redis="none", store=memory, journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=10)
        ids.delete("a")
        backup = memory.snapshot()
        ids.create("a", step=10)
        numbers = ids.take("a", 30)
        ids.delete("a")
        memory.restore(backup)
        assert ids.recover("a", from_journal=[place.journal])[0].new >= 30
        with pytest.raises(issuer.UnknownTag):
            ids.next("a")
        ids.create("a")
        assert ids.next("a") > max(numbers)


def test_a_tag_made_again_after_the_backup_of_its_tombstone_lives(connect: Connect, place: Place) -> None:
    memory = MemoryStore()
    with connect(redis="none", store=memory, journal=place.journal, scheduler=None) as ids:
        ids.create("a", step=10)
        ids.delete("a")
        backup = memory.snapshot()
        until(lambda: now_ms() > backup.tags["a"].timestamp)
        ids.create("a", step=20)
        numbers = ids.take("a", 30)
        memory.restore(backup)
        assert ids.recover(from_journal=[place.journal])[0].old == 0
        assert [(record.tag, record.step) for record in ids.tags()] == [("a", 20)]
        assert ids.next("a") > max(numbers)


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
