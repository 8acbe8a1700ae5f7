"""A store with a journal: what it writes is journalled first, and faults of either cost no number."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence import journal as journal_
from issuer_persistence.errors import MaxBehind, Misconfigured, Unconfirmed
from issuer_persistence.journal import read
from issuer_persistence.journalled import Journalled
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import TagChanges
from issuer_persistence.sqlite import SQLiteStore
from tests.seeds import seeded
from tests.stores.benches import TIMEOUT, before, check_contiguous, create, get, reserve
from tests.stores.processes import finish, kill, let_go, lines, segments, start_loaders
from tests.stores.test_journal import fill, tops

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def store(path: Path) -> Journalled:
    return Journalled(MemoryStore(), path)


def test_the_journal_of_another_store_is_refused_before_anything_is_asked(store: Journalled, path: Path) -> None:
    fill(store)
    before = path.read_bytes()
    memory = MemoryStore()
    create(memory, step=10)
    other = Journalled(memory, path)
    records = memory.snapshot()
    for change in (
        partial(reserve, other),
        partial(create, other, "users"),
        partial(other.configure, "orders", TagChanges(step=5), timeout=TIMEOUT),
        partial(other.delete, "orders", timeout=TIMEOUT),
        partial(other.recover, "orders", at_least=99, timeout=TIMEOUT),
    ):
        with pytest.raises(Misconfigured, match="another store"):
            change()
    assert memory.snapshot() == records
    assert path.read_bytes() == before


def _failing(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("disk", ["broken", "full"])
def test_a_disk_that_fails_costs_one_segment_however_often_it_is_tried(
    path: Path, monkeypatch: pytest.MonkeyPatch, disk: str
) -> None:
    memory, write = MemoryStore(), os.write
    store = Journalled(memory, path)
    fill(store, 3)
    before = path.read_bytes()

    def full(descriptor: int, line: bytes) -> int:
        """Write what there is room for, which is less than a line."""
        room = len(before) + 100 - os.fstat(descriptor).st_size
        if room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, line[:room])

    with monkeypatch.context() as broken:
        broken.setattr(*((os, "fsync", _failing) if disk == "broken" else (os, "write", full)))
        for _ in range(5):
            with pytest.raises(Unconfirmed, match=r"Input/output error|No space left"):
                reserve(store)
        assert get(memory).max == 30
        assert path.read_bytes() == before
    assert reserve(store).low == get(memory).max - 10
    assert tops(read([path])) == {"orders": get(memory).max}


def test_a_hand_back_that_cant_be_journalled_is_done_all_the_same_and_told(
    store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fill(store, 2)
    got = reserve(store)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", _failing)
        assert store.hand_back([got], 15, timeout=TIMEOUT)
    assert get(store).max == 15
    assert "hand back of tag 'orders' is not journalled" in caplog.text
    assert tops(read([path])) == {"orders": 20}


@pytest.mark.parametrize("raised", ["configure", "recover", "create"])
def test_numbers_that_a_raise_of_max_has_skipped_are_known_after_the_store_was_restored(
    path: Path, raised: str
) -> None:
    memory = MemoryStore()
    store = Journalled(memory, path)
    create(store, "other")
    if raised != "create":
        fill(store, 2)
    backup = memory.snapshot()
    match raised:
        case "configure":
            store.configure("orders", TagChanges(raise_to=500), timeout=TIMEOUT)
        case "recover":
            store.recover("orders", at_least=500, timeout=TIMEOUT)
        case _:
            create(store, above=500, step=10)
    memory.restore(backup)
    assert tops(read([path]))["orders"] == 500
    later = Journalled(memory, path)
    with pytest.raises(MaxBehind) as behind:
        reserve(later) if raised != "create" else create(later)
    assert (behind.value.at_least, behind.value.certain) == (500, True)


def test_a_hand_back_that_is_not_journalled_yet_is_no_store_that_went_back(
    store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's max goes down just before the journal says so: who compares in between looks again."""
    fill(store, 2)
    got = reserve(store)
    asking = Journalled(store._store, path)
    append, ready, said = store._append, threading.Event(), threading.Event()

    def late(*arguments: Any) -> None:
        ready.set()
        assert said.wait(TIMEOUT)
        append(*arguments)

    def looked(_: float) -> None:
        said.set()
        handing.join(TIMEOUT)

    handing = threading.Thread(target=lambda: store.hand_back([got], 15, timeout=TIMEOUT))
    with monkeypatch.context() as patched:
        patched.setattr(store, "_append", late)
        patched.setattr("issuer_persistence.journalled.time", SimpleNamespace(sleep=looked))
        handing.start()
        assert ready.wait(TIMEOUT)
        try:
            assert reserve(asking).low == 15
        finally:
            said.set()
            handing.join()


def test_a_journal_of_a_new_store_begins_with_its_id(path: Path) -> None:
    """A store has no id before its first write, and the journal is written first."""
    inner = SQLiteStore(path.with_name("new.db"))
    create(Journalled(inner, path), above=70)
    assert read([path]).stores[inner.store_id(timeout=TIMEOUT)]["orders"].top == 70
    inner.close()


def test_a_new_journal_knows_the_tags_that_nobody_uses_any_more(path: Path) -> None:
    memory = MemoryStore()
    create(memory, "quiet", above=4000, step=10)
    create(memory, step=10)
    reserve(memory)
    reserve(Journalled(memory, path))
    assert tops(read([path])) == {"quiet": 4000, "orders": 20}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_journal_that_is_moved_away_is_followed_by_one_that_knows_as_much(
    store: Journalled, path: Path, when: str
) -> None:
    fill(store)
    create(store, "quiet", above=99)
    moved = path.with_name("moved")
    if when == "before":
        path.rename(moved)
    # After: the store is asked, and then the journal goes.
    with before(MemoryStore, "reserve", lambda: when == "after" and path.rename(moved), once=True):
        assert reserve(store).low == 40
    assert tops(read([path])) == {"orders": 50, "quiet": 99}
    assert tops(read([moved])) == {"orders": 40, "quiet": 99}


@pytest.fixture
def shared(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journalled]:
    monkeypatch.setattr(journal_, "_READ_LOCK", TIMEOUT)  # how long a line that is half written is waited for
    made = Journalled(SQLiteStore(tmp_path / "store.db"), path)
    create(made, step=10, order="trend")
    yield made
    made.close()


@pytest.mark.live
@pytest.mark.covers("3.29")
def test_processes_killed_while_they_append_leave_no_damage_and_every_segment_that_was_used(
    shared: Journalled, path: Path
) -> None:
    chance = random.Random(seeded(4))
    used: list[tuple[int, int]] = []
    loaders = start_loaders(shared.url, 4, 0, journal=str(path))
    let_go(loaders[:2])
    for count, victim in enumerate(loaders):
        used += segments(lines(victim, chance.randrange(5, 25)))
        used += kill(victim)
        assert tops(read([path]))["orders"] >= max(high for _, high in used)
        let_go(loaders[count + 2 : count + 3])
    assert len({low for low, _ in used}) == len(used)
    assert max(high for _, high in used) <= tops(read([path]))["orders"] <= get(shared).max
    after = reserve(shared)
    assert tops(read([path]))["orders"] == after.high


@pytest.mark.live
def test_processes_lose_no_line_while_the_journal_is_rotated(shared: Journalled, path: Path) -> None:
    loaders = start_loaders(shared.url, 3, 50, journal=str(path))
    let_go(loaders)
    used = [segment for loader in loaders for segment in segments(finish(loader))]
    check_contiguous(used, 0, 3 * 50 * 10)
    old = sorted(path.parent.glob("journal.*"))
    assert len(old) >= 4
    assert tops(read([path]))["orders"] == 1500
    written = [json.loads(line) for file in [*old, path] for line in file.read_text().splitlines()]
    assert sorted((line["low"], line["high"]) for line in written if line["kind"] == "reserve") == sorted(used)
