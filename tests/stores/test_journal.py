"""The journal: what it knows is exact, whatever was cut off is ignored, whatever is damaged is found."""

from __future__ import annotations

import io
import json
import operator
import os
import random
import shutil
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence import journal as journal_
from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Damaged, Misconfigured, Unconfirmed
from issuer_persistence.journal import Journal, Journals, about, decoded, encoded, read
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import TagChanges
from issuer_persistence.scheme_json import SCHEME_MOST
from tests.seeds import seeded
from tests.stores.benches import SCHEME, TIMEOUT, create, get, reserve
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer

    from issuer_persistence.contract import Store
    from issuer_persistence.ledger import Reservation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def store(path: Path) -> Journalled:
    return Journalled(MemoryStore(), path)


def taken_from(content: bytes) -> Journals:
    journals = Journals()
    journals.take(io.BytesIO(content), "journal")
    return journals


def tops(journals: Journals) -> dict[str, int]:
    return {tag: known.top for tags in journals.stores.values() for tag, known in tags.items()}


def scheme_in(content: bytes) -> object:
    (tags,) = taken_from(content).stores.values()
    return tags["orders"].record.scheme


def files(path: Path) -> list[Path]:
    """All that were rotated, the oldest first, and the present one."""
    old = sorted(path.parent.glob(f"{path.name}.*"), key=lambda each: int(each.suffix[1:]))
    return [*old, path]


def fill(store: Store, count: int = 5) -> None:
    create(store, step=10, order="trend")
    for _ in range(count - 1):
        reserve(store)


@pytest.mark.covers("3.29")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 20))])
@pytest.mark.parametrize("rotate_at", [1500, 1_000_000])
def test_it_knows_the_exact_max_of_every_tag_whatever_was_done(path: Path, seed: int, rotate_at: int) -> None:
    chance = random.Random(seeded(seed))
    memory = MemoryStore()
    store = Journalled(memory, path, rotate_at=rotate_at)
    names = ["orders", "users", "später {1}"]
    for tag in names:
        create(store, tag, above=chance.randrange(100), step=chance.randrange(1, 50))
    _use(store, names, chance)
    store.delete("users", timeout=TIMEOUT)
    expected = {tag: get(memory, tag).max for tag in names}
    assert tops(read([path])) == expected
    assert (len(files(path)) > 3) is (rotate_at < 10_000)
    for order in (files(path), files(path)[::-1], files(path) * 2):
        said = read(order).stores[memory.store_id(timeout=TIMEOUT)]
        # A hand back may meet a segment that is no longer remembered one by one: then it is too high, never too low.
        assert all(said[tag].top >= expected[tag] for tag in names)
    for tag, known in read(files(path)).stores[memory.store_id(timeout=TIMEOUT)].items():
        for name in ("step", "limit", "order", "lease", "ahead", "description", "deleted", "scheme"):
            assert getattr(known.record, name) == getattr(get(memory, tag), name)


def _use(store: Store, names: list[str], chance: random.Random) -> None:
    """Reserve, hand back, change and recover, at random."""
    held: dict[str, list[Reservation]] = {tag: [] for tag in names}
    for _ in range(150):
        tag = chance.choice(names)
        match chance.randrange(8):
            case 0:
                last = held.pop(tag)[-chance.randrange(1, 4) :]
                held[tag] = []
                if last:
                    store.hand_back(last, chance.randint(last[0].low, last[0].high), timeout=TIMEOUT)
            case 1:
                store.configure(tag, TagChanges(step=chance.randrange(1, 50)), timeout=TIMEOUT)
            case 2:
                store.configure(tag, TagChanges(raise_to=get(store, tag).max + chance.randrange(10)), timeout=TIMEOUT)
                held[tag] = []
            case 3:
                store.recover(tag, at_least=get(store, tag).max + chance.randrange(3), timeout=TIMEOUT)
                held[tag] = []
            case _:
                got = reserve(store, tag=tag)
                if held[tag] and held[tag][-1].high != got.low:
                    held[tag] = []
                held[tag].append(got)


def test_each_line_is_synced_before_it_counts(store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", noting)
    fill(store, 2)
    # The new file before it has its name, its directory, the tag, the segment. Each line without its newline, which
    # says that it was synced.
    assert [content[-1:] for content in synced] == [b"", b"\n", b"}", b"}"]
    assert path.read_bytes() == synced[-1] + b"\n"
    assert tops(read([path])) == {"orders": 10}


@pytest.mark.covers("3.29")
def test_a_tail_torn_at_any_byte_is_ignored_and_the_next_line_stands_behind_it(store: Journalled, path: Path) -> None:
    fill(store, 3)
    content = path.read_bytes()
    ends = [at for at, byte in enumerate(content) if byte == ord("\n")]
    maxima = [{}, {"orders": 0}, {"orders": 10}, {"orders": 20}]
    for cut in range(1, len(content) + 1):
        # A line without its newline is whole: it may have been the last that a power cut let through.
        whole = sum(end <= cut for end in ends)
        assert tops(taken_from(content[:cut])) == (maxima[whole - 1] if whole else {})
    for cut in (*range(ends[-2] + 1, ends[-1], 23), ends[-1]):
        path.write_bytes(content[:cut])
        high = reserve(store).high
        assert tops(read([path])) == {"orders": high}
        assert path.read_bytes().startswith(content[: ends[-2] + 1])
        assert path.read_bytes().count(b"\n") == len(ends) + (cut == ends[-1])


def test_damage_at_any_byte_is_found_and_its_line_named(store: Journalled, path: Path) -> None:
    fill(store, 2)
    content = path.read_bytes()
    right = tops(taken_from(content))
    unnoticed, found = set(), []
    for at, byte in enumerate(content):
        # A bit of it flipped, and as the bytes that mean something.
        for other in {byte ^ 1, byte ^ 128, ord("\n"), ord("}"), ord("9")} - {byte}:
            try:
                assert tops(taken_from(content[:at] + bytes([other]) + content[at + 1 :])) == right
                unnoticed.add(at)
            except Damaged as error:
                found.append((content.count(b"\n", 0, at) + 1, error))
    # The newline of the last line: the line itself is whole.
    assert unnoticed == {len(content) - 1}
    assert all((told.path, told.line) == ("journal", line) and f"line {line}" in str(told) for line, told in found)


def test_a_line_that_nobody_writes_is_damage_too(store: Journalled, path: Path) -> None:
    fill(store, 2)
    content = path.read_bytes()
    good = next(iter(read([path]).stores.values()))["orders"].line()
    for line in (
        {"kind": "journal", "format": 1, "store": "x", "carried": 0},
        {**good, "kind": "unheard of"},
        {**good, "floor": 1.5},
        {**good, "floor": 2**63},
        {**good, "kind": "reserve", "high": -1, "id": "a"},
        {**good, "kind": "reserve", "high": 5},
        {**good, "kind": "hand back", "segments": [1]},
        {**good, "kind": "reserve", "tag": None},
        {**good, "step": 0},
        {**good, "scheme": 5},
        {**good, "scheme": {"a": 1.5}},
    ):
        path.write_bytes(content + encoded(line) + b"\n")
        with pytest.raises(Damaged, match="line 4"):
            read([path])


def test_a_file_that_is_no_journal_is_refused_and_left_alone(store: Journalled, path: Path) -> None:
    for content in ("my notes", "my notes\n", '{"kind":"journal"}\n', "\0" * 5000, '{"kind":"journal",' * 300):
        path.write_text(content)
        with pytest.raises(Misconfigured, match="not a journal"):
            create(store)
        assert path.read_text() == content
        assert store.tags(count=1000, timeout=TIMEOUT) == []
        with pytest.raises(Damaged, match="line 1"):
            read([path])


def test_a_newer_format_or_a_path_where_nothing_can_be_written_costs_no_number(tmp_path: Path) -> None:
    memory, newer = MemoryStore(), tmp_path / "newer"
    create(memory)
    newer.write_bytes(encoded({"kind": "journal", "format": 2, "store": "x"}) + b"\n")
    for path, message in ((tmp_path / "missing" / "journal", "journal"), (tmp_path, "journal"), (newer, "upgrade")):
        with pytest.raises(Misconfigured, match=message):
            reserve(Journalled(memory, path))
    for path, message in ((tmp_path / "missing", "can't be read"), (newer, "upgrade")):
        with pytest.raises(Misconfigured, match=message):
            read([path])
    assert get(memory).max == 0


def test_a_lock_that_is_held_costs_no_more_than_the_timeout(store: Journalled, path: Path) -> None:
    fill(store)
    before = path.read_bytes()
    with Journal(path)._locked(CallDeadline(TIMEOUT)):
        for _ in range(3):
            with pytest.raises(Unconfirmed, match=r"not journalled|not done within"):
                store.reserve("orders", None, purpose=Purpose("test"), timeout=0.05)
        assert path.read_bytes() == before
    # However often it is tried, it costs one segment; none, if the time was over before it was reserved.
    assert reserve(store).low <= 50


def test_who_waited_while_it_was_rotated_appends_to_the_new_file(store: Journalled, path: Path) -> None:
    fill(store)
    rotating = Journal(path)
    waiting = threading.Thread(target=lambda: reserve(store))
    with rotating._locked(CallDeadline(TIMEOUT)) as full:
        waiting.start()
        until(lambda: len(locks._descriptors) > 1, timeout=TIMEOUT)
        rotating._rotate(full, store.store_id(timeout=TIMEOUT))
    waiting.join(TIMEOUT)
    assert not waiting.is_alive()
    assert tops(read([path])) == {"orders": 50}
    assert tops(read(files(path)[:1])) == {"orders": 40}


def test_a_damaged_file_is_not_rotated_away_and_no_number_is_reserved(path: Path) -> None:
    memory = MemoryStore()
    store = Journalled(memory, path, rotate_at=1500)
    fill(store, 4)
    path.write_bytes(path.read_bytes().replace(b'"high":10', b'"high":90') + b"torn")
    for _ in range(3):
        with pytest.raises(Damaged, match="line 3"):
            reserve(store)
    assert get(memory).max == 30
    path.rename(path.with_name("damaged"))
    assert reserve(store).high == 40
    assert tops(read([path])) == {"orders": 40}


def test_many_tags_are_carried_over_once_not_at_every_line(path: Path) -> None:
    store = Journalled(MemoryStore(), path, rotate_at=4000)
    for number in range(30):
        create(store, f"tag {number}")
    before = len(files(path))
    for _ in range(20):
        reserve(store, tag="tag 0")
    assert len(files(path)) - before <= 3
    assert len(tops(read([path]))) == 30


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_doesnt_keep_the_lock_of_a_parent_that_died(store: Journalled, path: Path) -> None:
    fill(store)
    held = Journal(path)._locked(CallDeadline(TIMEOUT))
    descriptor = held.__enter__()
    never, never_written = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.read(never, 1)
        finally:
            os._exit(0)
    try:
        # What the kernel does for a process that is killed: it closes, without unlocking.
        os.close(descriptor)
        locks._descriptors.discard(descriptor)
        assert reserve(store).low == 40
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(never)
        os.close(never_written)


def test_it_knows_the_scheme_of_a_tag_after_each_change(path: Path) -> None:
    memory = MemoryStore()
    create(memory, step=10, scheme=SCHEME)
    store = Journalled(memory, path, rotate_at=1500)
    create(store, "users")
    assert scheme_in(path.read_bytes()) == SCHEME  # of the store for which it was begun
    for scheme in ({}, {"format": "x" * (SCHEME_MOST - 13)}, {"format": "\N{GEAR}"}, SCHEME):
        store.configure("orders", TagChanges(scheme=scheme), timeout=TIMEOUT)
        assert scheme_in(path.read_bytes()) == scheme
        mine = reserve(store)
        assert store.hand_back([mine], mine.low + 3, timeout=TIMEOUT)
        assert scheme_in(path.read_bytes()) == scheme == get(store).scheme
    store.delete("orders", timeout=TIMEOUT)
    assert scheme_in(path.read_bytes()) == SCHEME


def test_lines_of_a_program_that_knew_of_no_scheme_and_no_step_mode_are_of_plain_tags_and_change_neither(
    store: Journalled, path: Path
) -> None:
    def of_old(fields: dict[str, Any] | None) -> bytes:
        assert fields is not None
        return encoded({name: value for name, value in fields.items() if name not in {"scheme", "step_mode"}})

    def mode() -> str:
        (tags,) = read([path]).stores.values()
        return tags["orders"].record.step_mode

    fill(store, 2)
    head, *lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join(line + b"\n" for line in [head, *(of_old(decoded(line)) for line in lines)]))
    assert (scheme_in(path.read_bytes()), mode()) == ({}, "fixed")
    assert reserve(store).high == 20
    store.configure("orders", TagChanges(scheme=SCHEME, step_mode="auto"), timeout=TIMEOUT)
    with path.open("ab") as file:
        file.write(of_old(about(get(store), "tag", floor=20, segments={})) + b"\n")
    assert (scheme_in(path.read_bytes()), mode()) == (SCHEME, "auto")


def test_the_longest_scheme_fits_into_the_room_that_is_tried_for(store: Journalled, path: Path) -> None:
    create(store)
    for letter in ("x", "京", "\N{MUSICAL SYMBOL G CLEF}", "\0"):
        most = (SCHEME_MOST - len('{"format":""}')) // (len(json.dumps(letter)) - 2)
        store.configure("orders", TagChanges(scheme={"format": letter * most}), timeout=TIMEOUT)
        reserve(store)
    assert max(map(len, path.read_bytes().splitlines())) < journal_._LINE_MOST


class Meddled(io.FileIO):
    """A file of which something happens once after the read that `when` picks by its length."""

    def __init__(self, path: Path, when: Callable[[int], bool], what: Callable[[], object]) -> None:
        super().__init__(path)
        self._when = when
        self._what: Callable[[], object] | None = what

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read, then let it happen."""
        length = super().readinto(buffer) or 0
        if self._what and self._when(length):
            what, self._what = self._what, None
            what()
        return length


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut off"])
def test_a_line_that_is_mended_between_two_reads_is_not_damage(
    store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch, *, ended: bool
) -> None:
    fill(store, 4)
    whole = shutil.copy(path, path.with_name("whole"))
    path.write_bytes(path.read_bytes()[: -1 if ended else -30])
    # The end of the file was read, so that the line is taken as it is, and then its newline comes; or it is cut off,
    # and the next line, which is longer, stands in its place.
    when, what = (operator.not_, partial(shutil.copy, whole, path)) if ended else (bool, partial(reserve, store))
    monkeypatch.setattr(Path, "open", lambda self, _: io.BufferedReader(Meddled(self, when, what)))
    assert tops(read([path])) == {"orders": 30 if ended else 40}


def test_an_empty_file_is_no_witness_and_a_pipe_is_read(store: Journalled, path: Path, tmp_path: Path) -> None:
    path.touch()
    fill(store, 2)
    assert sorted(tmp_path.iterdir()) == [path]  # it became the journal
    empty = tmp_path / "empty"
    empty.touch()
    for named in ([empty], [path, empty], [Path(os.devnull)]):
        with pytest.raises(Misconfigured, match="is empty"):
            read(named)
    empty.write_bytes(path.read_bytes()[:1])
    assert tops(read([path, empty])) == {"orders": 10}
    # A pipe has no size, and yet may bring a journal.
    reading, writing = os.pipe()
    os.write(writing, path.read_bytes())
    os.close(writing)
    assert tops(read([Path(f"/dev/fd/{reading}")])) == {"orders": 10}
    os.close(reading)
