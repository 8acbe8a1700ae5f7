"""What a journal knows of a tag includes how its values are made."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from persistence import journal as journal_
from persistence.errors import Damaged
from persistence.journal import Journals, about, decoded, encoded, read
from persistence.journalled import Journalled
from persistence.memory import MemoryStore
from persistence.records import HIGHEST
from persistence.schemes import SCHEME_MOST
from tests.contract.benches import TIMEOUT, create, get, reserve

if TYPE_CHECKING:
    from pathlib import Path

SCHEME: dict[str, Any] = {
    "format": '京 {seq:06d}\n\0" }',
    "stride": [{"from": 1, "first": 3, "stride": 2}, {"from": HIGHEST, "first": -(2**63), "stride": 1}],
    "options": {"none": None, "yes": True, "deep": [[[]], {}], "crc": "00000000"},
    "id": "9f2c",
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def known_scheme(content: bytes) -> Any:
    journals = Journals()
    journals.take(io.BytesIO(content), "journal")
    return next(iter(journals.stores.values()))["orders"].record.scheme


@pytest.mark.parametrize("rotate_at", [1500, 1_000_000])
def test_it_knows_the_scheme_of_a_tag_after_each_change(path: Path, rotate_at: int) -> None:
    store = Journalled(MemoryStore(), path, rotate_at=rotate_at)
    create(store, step=10, scheme=SCHEME)
    for scheme in (SCHEME, {}, {"format": "x" * (SCHEME_MOST - 13)}, {"format": "\N{GEAR}"}, SCHEME):
        assert store.configure("orders", scheme=scheme, timeout=TIMEOUT).scheme == scheme
        assert known_scheme(path.read_bytes()) == scheme
        mine = reserve(store)
        assert store.hand_back([mine], mine.low + 3, timeout=TIMEOUT)
        assert known_scheme(path.read_bytes()) == scheme == get(store).scheme
    store.delete("orders", timeout=TIMEOUT)
    assert known_scheme(path.read_bytes()) == SCHEME


def test_a_new_journal_knows_the_schemes_of_the_store(path: Path) -> None:
    memory = MemoryStore()
    create(memory, scheme=SCHEME)
    create(Journalled(memory, path), "users")
    assert known_scheme(path.read_bytes()) == SCHEME


def test_a_tail_torn_at_any_byte_leaves_the_scheme_before(path: Path) -> None:
    store = Journalled(MemoryStore(), path)
    create(store, step=10, scheme={"format": "A{seq}"})
    before = len(path.read_bytes())
    store.configure("orders", scheme=SCHEME, timeout=TIMEOUT)
    content = path.read_bytes()
    for cut in range(before, len(content) + 1):
        # The line without its newline is whole.
        expected = SCHEME if cut >= len(content) - 1 else {"format": "A{seq}"}
        assert known_scheme(content[:cut]) == expected


def test_lines_of_a_program_that_knew_of_no_scheme_are_of_plain_tags_and_change_no_scheme(path: Path) -> None:
    store = Journalled(MemoryStore(), path)
    create(store, step=10)
    reserve(store)
    head, *lines = path.read_bytes().splitlines()
    old = []
    for line in lines:
        fields = decoded(line)
        assert fields is not None
        assert fields.pop("scheme") == {}
        old.append(encoded(fields))
    path.write_bytes(b"".join(line + b"\n" for line in [head, *old]))
    assert known_scheme(path.read_bytes()) == {}
    assert reserve(store).high == 20
    store.configure("orders", scheme=SCHEME, timeout=TIMEOUT)
    later = about(get(store), "tag", floor=20, segments={})
    del later["scheme"]
    with path.open("ab") as file:
        file.write(encoded(later) + b"\n")
    assert known_scheme(path.read_bytes()) == SCHEME


@pytest.mark.parametrize("scheme", [5, "x", [], {"a": 1.5}, {"a": 2**63}])
def test_a_line_with_what_is_no_scheme_is_damage(path: Path, scheme: object) -> None:
    create(Journalled(MemoryStore(), path))
    good = next(iter(read([path]).stores.values()))["orders"].line()
    with path.open("ab") as file:
        file.write(encoded({**good, "scheme": scheme}) + b"\n")
    with pytest.raises(Damaged, match=r"line 3.*scheme"):
        read([path])


def test_the_longest_scheme_fits_into_the_room_that_is_tried_for(path: Path) -> None:
    store = Journalled(MemoryStore(), path)
    create(store)
    for letter in ("x", "京", "\N{MUSICAL SYMBOL G CLEF}", "\0"):
        most = (SCHEME_MOST - 13) // len(encoded({"a": letter})) * 2
        while True:
            try:
                store.configure("orders", scheme={"format": letter * most}, timeout=TIMEOUT)
                break
            except ValueError:
                most -= 100
        reserve(store)
    assert max(map(len, path.read_bytes().splitlines())) < journal_._LINE_MOST
