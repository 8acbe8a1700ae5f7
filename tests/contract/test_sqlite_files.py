"""An SQLite store whose files have two names, or are taken away while it is open: it refuses, and repeats nothing."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from issuer.persistence.errors import Misconfigured
from issuer.persistence.sqlite import SQLiteStore
from tests.contract.benches import TIMEOUT
from tests.programs import run
from tests.servers.absent import absent
from tests.servers.disks import find_mounting

SETTINGS = {"above": 0, "step": 10, "limit": 10**6, "order": "trend", "description": ""}

#: Reserves a segment in a process of its own, which is the only one then as far as SQLite's locks tell.
SHORT_LIVED = """
import sys
from issuer.persistence.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
print(store.reserve("a", None, reason="x", timeout=30).high)
store.close()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ids.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path)
    store.create("a", **SETTINGS, timeout=TIMEOUT)  # type: ignore[arg-type]
    yield store
    store.close()


@pytest.fixture
def elsewhere(tmp_path: Path, path: Path) -> Callable[[], int]:
    program = tmp_path / "short_lived.py"
    program.write_text(SHORT_LIVED)

    def reserve() -> int:
        done = run(str(program), str(path))
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    return reserve


def test_a_file_with_two_names_is_refused_under_each(store: SQLiteStore, path: Path) -> None:
    other = path.with_name("other.db")
    os.link(path, other)
    for name in (path, other):
        with pytest.raises(Misconfigured, match="has 2 names"):
            SQLiteStore(name).get("a", timeout=TIMEOUT)
    assert store.reserve("a", None, reason="x", timeout=TIMEOUT).high == 10  # the one that has it open goes on
    other.unlink()
    again = SQLiteStore(path)
    assert again.reserve("a", None, reason="x", timeout=TIMEOUT).high == 20
    again.close()


def test_a_symbolic_link_is_the_same_name(store: SQLiteStore, path: Path) -> None:
    link = path.with_name("link.db")
    link.symlink_to(path)
    linked = SQLiteStore(link)
    highs = [each.reserve("a", None, reason="x", timeout=TIMEOUT).high for each in (store, linked, store, linked)]
    assert highs == [10, 20, 30, 40]
    linked.close()


def test_a_file_that_is_itself_mounted_is_refused(store: SQLiteStore, path: Path, tmp_path: Path) -> None:
    store.close()
    mounting = find_mounting() or absent("a mount namespace")
    inner = tmp_path / "with blank" / "ids.db"
    inner.parent.mkdir()
    inner.touch()
    look = f"""
import sys; sys.path.insert(0, {str(Path.cwd())!r})
from issuer.persistence.sqlite import SQLiteStore
print(SQLiteStore({str(inner)!r}).get("a", timeout=30))
"""
    script = f'mount --bind "{path}" "{inner}" && exec "$0" -c "$1"'
    done = subprocess.run(
        [*mounting, "sh", "-c", script, sys.executable, look], capture_output=True, text=True, check=False
    )
    assert "is itself a mount point" in done.stderr, done.stdout + done.stderr


def test_a_log_that_another_process_deletes_is_found_out(
    store: SQLiteStore, path: Path, elsewhere: Callable[[], int]
) -> None:
    issued = {store.reserve("a", None, reason="x", timeout=TIMEOUT).high}
    # Closing the copied file drops this process's locks on it, as POSIX has it.
    shutil.copy(path, path.with_name("copy.db"))
    issued.add(elsewhere())
    assert len(issued) == 2
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        store.reserve("a", None, reason="x", timeout=TIMEOUT)
    assert elsewhere() not in issued


@pytest.mark.parametrize("suffixes", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="".join)
def test_a_log_that_is_removed_takes_no_reservation_with_it(
    store: SQLiteStore, path: Path, elsewhere: Callable[[], int], suffixes: tuple[str, ...]
) -> None:
    issued = {store.reserve("a", None, reason="x", timeout=TIMEOUT).high for _ in range(3)}
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink()
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        store.reserve("a", None, reason="x", timeout=TIMEOUT)
    assert elsewhere() not in issued


def test_a_log_that_goes_within_the_transaction_costs_a_gap(
    store: SQLiteStore, path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], int]
) -> None:
    write = store._write

    def late(*arguments: object) -> object:
        Path(f"{path}-wal").unlink()
        Path(f"{path}-shm").unlink()
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_write", late)
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        store.reserve("a", None, reason="x", timeout=TIMEOUT)
    assert elsewhere() in (10, 20)  # nobody has 1 to 10, or nobody else
