"""Reads of many tags need one request to MongoDB. What a server or a document does not allow is read tag by tag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from issuer_persistence.errors import Corrupt, TagPresent
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import LedgerPage
from issuer_persistence.mongodb import MongoStore
from issuer_persistence.reads import ReadLedger, ReadSegments, ReadTag
from issuer_persistence.records import TagSettings
from tests.stores.benches import TIMEOUT, create, reserve
from tests.stores.heard import Heard
from tests.stores.test_batches import done

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from issuer_persistence.contract import Store
    from tests.stores.benches import MongoBench

TAGS = [f"t{number}" for number in range(9)]


@pytest.fixture
def heard(mongo_bench: MongoBench) -> Iterator[Heard]:
    """A client of a database with tags that have three ledger entries each."""
    for tag in TAGS:
        create(mongo_bench.store, tag, step=10)
        for _ in range(3):
            reserve(mongo_bench.store, tag=tag)
    with Heard(mongo_bench.url) as heard:
        yield heard


@pytest.mark.parametrize("journal", [False, True])
def test_each_kind_of_read_is_one_request_for_all_tags(heard: Heard, journal: bool, tmp_path: Path) -> None:
    store: Store = MongoStore(heard.database)
    store = Journalled(store, tmp_path / "journal") if journal else store
    store.store_id(timeout=TIMEOUT)
    for read in (ReadTag, lambda tag: ReadLedger(tag, 4), lambda tag: ReadSegments(tag, 1000)):
        heard.commands.clear()
        assert len(store.batch([read(tag) for tag in TAGS], timeout=TIMEOUT)) == len(TAGS)
        assert len(heard.commands) == 1


def test_pages_of_many_tags_hold_no_more_entries_than_a_page_of_one(heard: Heard) -> None:
    store = MongoStore(heard.database)
    pages = store.batch([ReadSegments(tag, 5) for tag in TAGS], timeout=TIMEOUT)
    assert [command["limit"] for name, command in heard.commands if command.get(name) == "issuer_segments"] == [5]
    assert [len(page.entries) for page in pages if isinstance(page, LedgerPage)] == [3, 2]
    assert [page.last is None for page in pages if isinstance(page, LedgerPage)] == [True, False]


NEWEST = [ReadLedger(tag, 2) for tag in TAGS]


def test_a_ledger_that_ends_a_request_too_early_is_read_again(heard: Heard) -> None:
    """16 entries of 8 tags: of the sixth tag, that is one of the two that are wanted."""
    store, reads = MongoStore(heard.database), NEWEST[:8]
    assert len(store.batch(reads, timeout=TIMEOUT)) == 5
    assert done(store, reads) == [read(store, TIMEOUT) for read in reads]


@pytest.fixture
def long(heard: Heard, mongo_bench: MongoBench) -> Heard:
    """The same, and the first tag has so many entries that the ledgers are not read as a whole."""
    for number in range(20):
        mongo_bench.forge(tag=TAGS[0], low=100 + number, high=101 + number)
    return heard


def test_the_newest_entries_of_long_ledgers_are_looked_up_by_one_request(long: Heard) -> None:
    store = MongoStore(long.database)
    expected = [read(store, TIMEOUT) for read in NEWEST]
    long.commands.clear()
    assert store.batch(NEWEST, timeout=TIMEOUT) == expected
    assert [name for name, _ in long.commands] == ["find", "aggregate"]


def test_without_the_index_each_long_ledger_is_read_alone(long: Heard) -> None:
    """With it the server jumps from tag to tag. Without it, it would read the whole ledger once for each tag."""
    store = MongoStore(long.database)
    before = done(store, NEWEST)
    long.database["issuer_segments"].drop_indexes()
    long.commands.clear()
    assert store.batch(NEWEST, timeout=TIMEOUT) == before[: len(long.commands) - 2]
    assert long.failed_commands == ["aggregate"]


@pytest.mark.parametrize("high", [7, 700])  # in the middle of their ledgers, and at the end
def test_another_programs_document_with_several_tags_is_reported_for_each_of_them(long: Heard, high: int) -> None:
    store = MongoStore(long.database)
    long.database["issuer_segments"].insert_one({"tag": ["t3", "t5"], "high": high})
    pages = done(store, [ReadSegments(tag, 1000) for tag in TAGS])
    assert [len(page.damaged) for page in pages if isinstance(page, LedgerPage)] == [0, 0, 0, 1, 0, 1, 0, 0, 0]
    failed = [tag for tag, ledger in zip(TAGS, done(store, NEWEST), strict=True) if isinstance(ledger, Corrupt)]
    assert failed == (["t3", "t5"] if high == 700 else [])


def test_the_tag_of_a_new_series_is_created_by_one_request(heard: Heard) -> None:
    store = MongoStore(heard.database)
    store.create("series#a", TagSettings(scheme={"part_of": "series"}), timeout=TIMEOUT)
    heard.commands.clear()
    store.create("series#b", TagSettings(scheme={"part_of": "series"}), timeout=TIMEOUT)
    assert [name for name, _ in heard.commands] == ["insert"]
    with pytest.raises(TagPresent):
        store.create("series#b", TagSettings(), timeout=TIMEOUT)
    store.delete("series#b", timeout=TIMEOUT)
    assert not store.create("series#b", TagSettings(), timeout=TIMEOUT).deleted
