"""A journal is read while others append to it, and mend it: what the reader meets is not damage."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistence import journal as journal_
from persistence.errors import Damaged, Misconfigured
from persistence.journal import Journals, read
from persistence.journalled import Journalled
from persistence.memory import MemoryStore
from tests.contract.benches import create, reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import WriteableBuffer


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def store(path: Path) -> Journalled:
    made = Journalled(MemoryStore(), path)
    create(made, step=10, order="trend")
    return made


def meddle(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> Callable[[Path], int]:
    """Return what reads a journal's highest number, while that happens between two reads of the file."""

    def known(path: Path) -> int:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "open", lambda self, _: io.BufferedReader(Meddled(self, bool, what)))
            (tags,) = read([path]).stores.values()
        return tags["orders"].top

    return known


def test_a_line_that_is_ended_between_two_reads_is_not_damaged(store: Journalled, path: Path) -> None:
    reserve(store)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))

    def more() -> None:
        with path.open("ab") as file:
            file.write(b"\n")

    journals = Journals()
    # The end of the file was read, so that the line is taken as it is; then its newline came.
    with io.BufferedReader(Meddled(path, lambda length: length == 0, more)) as file:
        journals.take(file, str(path))
    (tags,) = journals.stores.values()
    assert tags["orders"].top == 10


def test_a_torn_line_that_is_cut_off_between_two_reads_is_not_damage(
    store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tear(store, path)
    assert meddle(monkeypatch, lambda: reserve(store))(path) == 40


def test_mutation_without_the_lock_a_torn_line_that_is_cut_off_is_taken_for_damage(
    store: Journalled, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tear(store, path)
    monkeypatch.setattr(journal_, "_READ_LOCK", 0.01)
    with path.open("rb") as holder:

        def cut_off_and_stop() -> None:
            reserve(store)
            fcntl.flock(holder, fcntl.LOCK_EX)

        with pytest.raises(Damaged, match="line 5"):
            meddle(monkeypatch, cut_off_and_stop)(path)
    assert meddle(monkeypatch, lambda: None)(path) == 40


def tear(store: Journalled, path: Path) -> None:
    """Leave the last line torn: the next one, which is longer, will stand in its place."""
    for _ in range(3):
        reserve(store)
    torn = path.read_bytes()[:-30]
    path.write_bytes(torn)


def _known(*paths: Path) -> list[int]:
    return [known.top for tags in read(paths).stores.values() for known in tags.values()]


def test_an_empty_file_tells_nothing_and_is_refused_as_a_witness(store: Journalled, path: Path, tmp_path: Path) -> None:
    high = reserve(store).high
    empty = tmp_path / "empty"
    empty.touch()
    for named in ([empty], [path, empty], [Path(os.devnull)]):
        with pytest.raises(Misconfigured, match="is empty"):
            read(named)
    empty.write_bytes(path.read_bytes()[:1])
    assert _known(path, empty) == [high]


def test_a_journal_may_come_through_a_pipe(store: Journalled, path: Path) -> None:
    high = reserve(store).high
    reading, writing = os.pipe()
    os.write(writing, path.read_bytes())
    os.close(writing)
    assert _known(Path(f"/dev/fd/{reading}")) == [high]
    os.close(reading)
