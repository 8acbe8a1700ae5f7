"""Processes that share a journal, and die while they write to it. They are real ones."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest

from persistence.journal import read
from persistence.journalled import Journalled
from persistence.sqlite import SQLiteStore
from tests.contract.benches import check_contiguous, create, get, reserve
from tests.contract.processes import finish, kill, let_go, lines, segments, start_loaders
from tests.seeds import seeded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.live


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def store(tmp_path: Path, path: Path) -> Iterator[Journalled]:
    made = Journalled(SQLiteStore(tmp_path / "store.db"), path)
    create(made, step=10, order="trend")
    yield made
    made.close()


def known(path: Path) -> int:
    """The highest number that it knows of."""
    (tags,) = read([path]).stores.values()
    return tags["orders"].top


@pytest.mark.covers("3.29")
def test_processes_killed_while_they_append_leave_no_damage_and_every_segment_that_was_used(
    store: Journalled, path: Path
) -> None:
    chance = random.Random(seeded(4))
    used: list[tuple[int, int]] = []
    loaders = start_loaders(store.url, 4, 0, journal=str(path))
    let_go(loaders[:2])
    for count, victim in enumerate(loaders):
        used += segments(lines(victim, chance.randrange(5, 25)))
        used += kill(victim)
        assert known(path) >= max(high for _, high in used)
        let_go(loaders[count + 2 : count + 3])
    assert len({low for low, _ in used}) == len(used)
    assert max(high for _, high in used) <= known(path) <= get(store).max
    after = reserve(store)
    assert known(path) == after.high


def test_processes_lose_no_line_while_the_journal_is_rotated(store: Journalled, path: Path) -> None:
    loaders = start_loaders(store.url, 3, 50, journal=str(path))
    let_go(loaders)
    used = [segment for loader in loaders for segment in segments(finish(loader))]
    check_contiguous(used, 0, 3 * 50 * 10)
    old = sorted(path.parent.glob("journal.*"))
    assert len(old) >= 4
    assert known(path) == 1500
    written = [json.loads(line) for file in [*old, path] for line in file.read_text().splitlines()]
    assert sorted((line["low"], line["high"]) for line in written if line["kind"] == "reserve") == sorted(used)
