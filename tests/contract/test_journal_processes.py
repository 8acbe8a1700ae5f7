"""Processes that share a journal, and die while they write to it. They are real ones."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from persistence.journal import read
from persistence.journalled import Journalled
from persistence.sqlite import SQLiteStore
from tests.contract.benches import check_contiguous, create, get, reserve
from tests.contract.processes import finish, let_go, run_python, segments

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).with_name("journaller.py")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def store(tmp_path: Path, path: Path) -> Iterator[Journalled]:
    made = Journalled(SQLiteStore(tmp_path / "store.db"), path)
    create(made, step=10, order="trend")
    yield made
    made.close()


def start(store: Journalled, path: Path, mode: str, count: int = 1) -> list[subprocess.Popen[str]]:
    """Start processes; they wait for a line."""
    started = [run_python([str(PROGRAM), store.url, str(path), mode]) for _ in range(count)]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    return started


def known(paths: list[Path]) -> int:
    """The highest number that they know of."""
    (tags,) = read(paths).stores.values()
    return tags["orders"].top


@pytest.mark.covers("3.29")
def test_processes_killed_while_they_append_leave_no_damage_and_every_segment_that_was_used(
    store: Journalled, path: Path
) -> None:
    chance = random.Random(4)
    used: list[tuple[int, int]] = []
    processes = start(store, path, "endless", 3)
    let_go(processes)
    for _ in range(6):
        victim = processes.pop(0)
        assert victim.stdout is not None
        for _ in range(chance.randrange(5, 25)):
            low, high = victim.stdout.readline().split()
            used.append((int(low), int(high)))
        victim.send_signal(signal.SIGKILL)
        rest, _ = victim.communicate()
        used += segments(rest[: rest.rfind("\n") + 1])
        assert known([path]) >= max(high for _, high in used)
        (fresh,) = start(store, path, "endless")
        let_go([fresh])
        processes.append(fresh)
    for process in processes:
        process.kill()
        rest, _ = process.communicate()
        used += segments(rest[: rest.rfind("\n") + 1])
    assert len({low for low, _ in used}) == len(used) > 60
    assert max(high for _, high in used) <= known([path]) <= get(store).max
    after = reserve(store)
    assert known([path]) == after.high


@pytest.mark.covers("3.29")
def test_a_process_killed_in_mid_write_leaves_a_line_that_the_next_one_cuts_off(store: Journalled, path: Path) -> None:
    reserve(store)
    whole = path.read_bytes()
    (dying,) = start(store, path, "dies-in-mid-write")
    let_go([dying])
    printed, _ = dying.communicate()
    assert (dying.returncode, printed) == (-signal.SIGKILL, "")
    assert len(path.read_bytes()) > len(whole)
    assert not path.read_bytes().endswith(b"\n")
    # Reserved in the store, used by nobody: a gap.
    assert (known([path]), get(store).max) == (10, 20)
    assert reserve(store).low == 20
    assert path.read_bytes().startswith(whole)
    assert path.read_bytes().count(b"\n") == whole.count(b"\n") + 1
    assert known([path]) == 30


def test_eight_threads_in_each_of_two_processes_lose_no_line_while_the_journal_is_rotated(
    store: Journalled, path: Path
) -> None:
    processes = start(store, path, "rotate", 2)
    used = [segment for process in processes for segment in segments(finish(process, "go\n"))]
    check_contiguous(used, 0, 2 * 8 * 25 * 10)
    old = sorted(path.parent.glob("journal.*"))
    assert len(old) >= 4
    assert known([path]) == 4000
    lines = [json.loads(line) for file in [*old, path] for line in file.read_text().splitlines()]
    assert sorted((line["low"], line["high"]) for line in lines if line["kind"] == "reserve") == sorted(used)


def test_on_a_full_disk_no_number_of_the_segment_is_used_and_one_segment_is_the_whole_gap(
    store: Journalled, tmp_path: Path
) -> None:
    path = tmp_path / "full"
    (process,) = start(store, path, "full")
    printed = finish(process, "go\n").splitlines()
    failed = [int(line.split()[1]) for line in printed if line.startswith("failed")]
    used = segments("\n".join(line for line in printed if not line.startswith("failed")))
    *before, after = used
    check_contiguous(before, 0, before[-1][1])
    assert failed == [before[-1][1] + 10] * 5
    assert after == (before[-1][1] + 10, before[-1][1] + 20)
    assert path.stat().st_size > 19_000
    assert known([path]) == after[1]
