"""What only the SQLite store promises: about forks, and its files, also with two names or taken away while open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import issuer.persistence.sqlite
from issuer.persistence.errors import Misconfigured, Unavailable
from issuer.persistence.sqlite import SQLiteStore
from issuer.persistence.sqlite_schema import SCHEMA
from tests.contract.benches import TIMEOUT, SQLiteBench, check_contiguous, create, get, reserve, spans
from tests.contract.processes import finish, let_go, run_python, segments, start_loaders
from tests.servers.absent import absent
from tests.servers.disks import find_mounting
from tests.waiting import until


def test_directories_are_made_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "d?#ü.db"
    create(SQLiteStore(path))
    assert path.exists()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_it_is_durable_in_wal_mode_and_tells_what_is_in_force(sqlite_bench: SQLiteBench) -> None:
    store = sqlite_bench.make()
    seen = store.examine(timeout=TIMEOUT)
    assert (seen.journal, seen.synchronous, seen.time) == ("wal", 2, None)
    assert store._connection is not None
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store._connection.execute("PRAGMA synchronous = OFF")
    assert store.examine(timeout=TIMEOUT).synchronous == 0
    store.close()


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, below = tmp_path / "text", tmp_path / "text" / "below"
    text.write_text("not a database, but long enough to be taken for one\n" * 100)
    for version in (-1, 0, 1, 2):
        connection = sqlite3.connect(tmp_path / f"foreign {version}")
        connection.execute("CREATE TABLE tags (name TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
    store = SQLiteStore(tmp_path / "newer")
    create(store)
    store.close()
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    newer.close()
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    for path in (*before, tmp_path, below):
        with pytest.raises(Misconfigured, match="newer" if path.name == "newer" else None):
            create(SQLiteStore(path))
    assert {each: each.read_bytes() for each in tmp_path.iterdir()} == before
    for name in ("", ":memory:"):
        with pytest.raises(Misconfigured):
            SQLiteStore(name)


def test_a_file_replaced_under_an_open_store_is_noticed(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store)
    sqlite_bench.path.rename(sqlite_bench.path.with_suffix(".old"))
    create(sqlite_bench.open())
    with pytest.raises(Misconfigured, match="replaced"):
        reserve(sqlite_bench.store)


@pytest.mark.covers("2.4")
def test_a_locked_file_costs_no_more_than_the_timeout_and_changes_nothing(sqlite_bench: SQLiteBench) -> None:
    made = create(sqlite_bench.store)
    other = sqlite_bench.connect()
    other.execute("BEGIN IMMEDIATE")

    def locked() -> bool:
        started = time.monotonic()
        with pytest.raises(Unavailable) as caught:
            sqlite_bench.store.reserve("orders", None, reason="test", timeout=0.05)
        assert time.monotonic() - started < 20
        return "locked" in str(caught.value)

    until(locked, TIMEOUT)  # a machine that stands still may not come as far as the lock within that time
    other.execute("ROLLBACK")
    other.close()
    assert get(sqlite_bench.store) == made
    assert reserve(sqlite_bench.store).low == 0


@pytest.mark.covers("2.6", "2.7", "2.14")
def test_a_transaction_of_the_caller_on_the_same_file_is_neither_joined_nor_in_the_way(
    sqlite_bench: SQLiteBench,
) -> None:
    create(sqlite_bench.store, step=10)
    caller = sqlite_bench.connect()
    seen = "SELECT max FROM tags"
    got = []
    for reads in (True, False):
        caller.execute("BEGIN")
        if reads:
            assert caller.execute(seen).fetchone() == (0,)
        got += spans([reserve(sqlite_bench.store), reserve(sqlite_bench.open())])
        # What it read stands still for as long as it is open; what we reserved outlives its end.
        assert caller.execute(seen).fetchone() == (0 if reads else 40,)
        caller.execute("ROLLBACK")
        assert caller.execute(seen).fetchone() == (got[-1][1],)
    caller.close()
    check_contiguous([*got, *spans([reserve(sqlite_bench.store)])], 0, 50)


@pytest.mark.covers("0.24", "1.22")
def test_a_reservation_whose_ledger_entry_fails_leaves_max_unchanged(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(sqlite_bench.store)
    with monkeypatch.context() as broken:
        broken.setattr(issuer.persistence.sqlite, "_PUT_ENTRY", "INSERT INTO nowhere VALUES (?, ?, ?, ?, ?, ?, ?, ?)")
        with pytest.raises(Unavailable):
            reserve(sqlite_bench.store)
    assert get(sqlite_bench.store) == made
    assert reserve(sqlite_bench.store).low == 0


_FORKS = """
import os, sys
from issuer.persistence.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
print(*(lambda got: (got.low, got.high))(store.reserve("orders", 1, reason="parent", timeout=60)), flush=True)
asks, told = os.pipe()
ready, go = os.pipe()
if (child := os.fork()) == 0:
    got = store.reserve("orders", 1, reason="child", timeout=60)
    os.write(told, b"open")
    os.read(ready, 1)  # until the parent has closed
    for _ in range(3):
        got = store.reserve("orders", 1, reason="child", timeout=60)
        print(got.low, got.high, flush=True)
    os._exit(0)
os.read(asks, 4)
store.close()
os.write(go, b"x")
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.covers("U.14")
def test_a_forked_child_never_gets_what_others_got(sqlite_bench: SQLiteBench) -> None:
    """Parent and child reserve, the parent closes, the child goes on; then somebody else reserves."""
    create(sqlite_bench.store, step=1)
    sqlite_bench.close()
    got = segments(finish(run_python(["-c", _FORKS, str(sqlite_bench.path)])))
    sqlite_bench.store = sqlite_bench.open()
    got += spans(reserve(sqlite_bench.store) for _ in range(5))
    assert len(set(got)) == len(got) == 9


def test_a_fork_waits_for_the_call_that_is_under_way(sqlite_bench: SQLiteBench) -> None:
    store = sqlite_bench.store
    assert isinstance(store, SQLiteStore)
    create(store)
    store.before_fork()

    def waiting() -> bool:
        with pytest.raises(Unavailable) as caught:
            store.get("orders", timeout=0.01)
        return "held the connection" in str(caught.value)

    until(waiting, TIMEOUT)
    store.after_fork_in_parent()
    assert get(store).max == 0
    # A fork that waited in vain, no longer than the call's own deadline and a little: the child must not touch what the
    # other thread had in its hands.
    with ExitStack() as ends, pytest.MonkeyPatch.context() as patient:
        # Again, if its time is over before it has begun.
        connection = until(lambda: ends.enter_context(store._transaction(0.5)), TIMEOUT, ignoring=(Unavailable,))
        patient.setattr(issuer.persistence.sqlite, "FORK_PATIENCE", 60.0)
        began = time.monotonic()
        store.before_fork()
        assert time.monotonic() - began < 30
        assert not store._ready_to_fork
        assert connection.in_transaction
    store.after_fork_in_child()
    with pytest.raises(Misconfigured, match="forked in the middle"):
        get(store)


def test_close_waits_no_longer_than_a_second_for_a_call_that_is_overdue(
    sqlite_bench: SQLiteBench, caplog: pytest.LogCaptureFixture
) -> None:
    """As one on a disk that stands still, or whose turn was lost: the program hung at its end."""
    store = sqlite_bench.make()
    create(store)
    with ExitStack() as ends:
        connection = until(lambda: ends.enter_context(store._transaction(0.5)), TIMEOUT, ignoring=(Unavailable,))
        closing = threading.Thread(target=store.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        assert connection.in_transaction, "it is left to the call"
    assert "stays open until the process ends" in caplog.text
    with pytest.raises(Misconfigured, match="was closed"):
        get(store)


def elsewhere(bench: SQLiteBench) -> int:
    """Reserve in a process of its own, which is the only one then as far as SQLite's locks tell."""
    [loader] = start_loaders(bench.url, 1, 1)
    let_go([loader])
    [(_, high)] = segments(finish(loader))
    return high


def test_a_file_with_two_names_is_refused_under_each(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    other = sqlite_bench.path.with_name("other.db")
    os.link(sqlite_bench.path, other)
    for name in (sqlite_bench.path, other):
        with pytest.raises(Misconfigured, match="has 2 names"):
            SQLiteStore(name).get("orders", timeout=TIMEOUT)
    assert reserve(sqlite_bench.store).high == 10  # the one that has it open goes on
    other.unlink()
    again = sqlite_bench.make()
    assert reserve(again).high == 20
    again.close()


def test_a_symbolic_link_is_the_same_name(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    link = sqlite_bench.path.with_name("link.db")
    link.symlink_to(sqlite_bench.path)
    linked = SQLiteStore(link)
    highs = [reserve(each).high for each in (sqlite_bench.store, linked, sqlite_bench.store, linked)]
    assert highs == [10, 20, 30, 40]
    linked.close()


def test_a_file_that_is_itself_mounted_is_refused(sqlite_bench: SQLiteBench, tmp_path: Path) -> None:
    create(sqlite_bench.store, step=10)
    sqlite_bench.close()
    mounting = find_mounting() or absent("a mount namespace")
    inner = tmp_path / "with blank" / "ids.db"
    inner.parent.mkdir()
    inner.touch()
    look = f"""
import sys; sys.path.insert(0, {str(Path.cwd())!r})
from issuer.persistence.sqlite import SQLiteStore
print(SQLiteStore({str(inner)!r}).get("orders", timeout=30))
"""
    script = f'mount --bind "{sqlite_bench.path}" "{inner}" && exec "$0" -c "$1"'
    done = subprocess.run(
        [*mounting, "sh", "-c", script, sys.executable, look], capture_output=True, text=True, check=False
    )
    assert "is itself a mount point" in done.stderr, done.stdout + done.stderr


def test_a_log_that_another_process_deletes_is_found_out(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    issued = {reserve(sqlite_bench.store).high}
    # Closing the copied file drops this process's locks on it, as POSIX has it.
    shutil.copy(sqlite_bench.path, sqlite_bench.path.with_name("copy.db"))
    issued.add(elsewhere(sqlite_bench))
    assert len(issued) == 2
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        reserve(sqlite_bench.store)
    assert elsewhere(sqlite_bench) not in issued


@pytest.mark.parametrize("suffixes", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="".join)
def test_a_log_that_is_removed_takes_no_reservation_with_it(
    sqlite_bench: SQLiteBench, suffixes: tuple[str, ...]
) -> None:
    create(sqlite_bench.store, step=10)
    issued = {reserve(sqlite_bench.store).high for _ in range(3)}
    for suffix in suffixes:
        Path(f"{sqlite_bench.path}{suffix}").unlink()
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        reserve(sqlite_bench.store)
    assert elsewhere(sqlite_bench) not in issued


def test_a_log_that_goes_within_the_transaction_costs_a_gap(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(sqlite_bench.store, step=10)
    store: Any = sqlite_bench.store
    write = store._write

    def late(*arguments: object) -> object:
        Path(f"{sqlite_bench.path}-wal").unlink()
        Path(f"{sqlite_bench.path}-shm").unlink()
        return write(*arguments)

    monkeypatch.setattr(store, "_write", late)
    with pytest.raises(Misconfigured, match="replaced or removed while it was open"):
        reserve(sqlite_bench.store)
    assert elsewhere(sqlite_bench) in (10, 20)  # nobody has 1 to 10, or nobody else
