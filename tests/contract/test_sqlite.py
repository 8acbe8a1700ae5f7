"""What only the SQLite store promises: about its file, and about forks."""

from __future__ import annotations

import sqlite3
import stat
import time
from typing import TYPE_CHECKING

import pytest

import issuer.persistence.sqlite
from issuer.persistence.errors import Misconfigured, Unavailable
from issuer.persistence.sqlite import SQLiteStore
from issuer.persistence.sqlite_schema import SCHEMA
from tests.contract.benches import TIMEOUT, SQLiteBench, check_contiguous, create, get, ranges, reserve, spans
from tests.contract.processes import finish, kill, let_go, lines, run_python, segments, start_loaders

if TYPE_CHECKING:
    from pathlib import Path


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


def test_a_newer_schema_is_refused(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store)
    sqlite_bench.close()
    connection = sqlite_bench.connect()
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    with pytest.raises(Misconfigured, match="newer"):
        get(sqlite_bench.open())


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, below = tmp_path / "text", tmp_path / "text" / "below"
    text.write_text("not a database, but long enough to be taken for one\n" * 100)
    for version in (-1, 0, 1, 2):
        connection = sqlite3.connect(tmp_path / f"foreign {version}")
        connection.execute("CREATE TABLE tags (name TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
    before = {each: each.read_bytes() for each in tmp_path.iterdir()}
    for path in (*before, tmp_path, below):
        with pytest.raises(Misconfigured):
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
    started = time.monotonic()
    with pytest.raises(Unavailable, match="locked"):
        sqlite_bench.store.reserve("orders", None, reason="test", timeout=0.05)
    assert time.monotonic() - started < 20
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
from issuer.persistence import sqlite
from issuer.persistence.sqlite import SQLiteStore
path, hooks = sys.argv[1], sys.argv[2]
if hooks == "without":
    sqlite.CHECKPOINT_AFTER = 1000  # else the log that is deleted holds nothing that is lost with it
store = SQLiteStore(path)
if hooks == "without":
    sqlite._stores.clear()  # as if nothing were done before the fork
    SQLiteStore._check_files = lambda _: None  # nor looked at the log, which is deleted under the child
print(*(lambda got: (got.low, got.high))(store.reserve("orders", 1, reason="parent", timeout=60)), flush=True)
asks, told = os.pipe()
ready, go = os.pipe()
if (child := os.fork()) == 0:
    if hooks == "without":
        inherited, store._connection = store._connection, None
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
@pytest.mark.parametrize("hooks", ["with", "without"])
def test_a_forked_child_never_gets_what_others_got(sqlite_bench: SQLiteBench, hooks: str) -> None:
    """Parent and child reserve, the parent closes, the child goes on; then somebody else reserves."""
    create(sqlite_bench.store, step=1)
    sqlite_bench.close()
    got = segments(finish(run_python(["-c", _FORKS, str(sqlite_bench.path), hooks])))
    sqlite_bench.store = sqlite_bench.open()
    got += spans(reserve(sqlite_bench.store) for _ in range(5))
    # Unless the connection is closed before a fork, ranges are given twice.
    assert (len(set(got)) == len(got)) is (hooks == "with")
    assert len(got) == 9


def test_a_fork_waits_for_the_call_that_is_under_way(sqlite_bench: SQLiteBench) -> None:
    store = sqlite_bench.store
    assert isinstance(store, SQLiteStore)
    create(store)
    store.before_fork()
    with pytest.raises(Unavailable, match="held the connection"):
        store.get("orders", timeout=0.01)
    store.after_fork_in_parent()
    assert get(store).max == 0
    # A fork that waited in vain: the child must not touch what the other thread had in its hands.
    with store._transaction(TIMEOUT) as connection, pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(issuer.persistence.sqlite, "FORK_PATIENCE", 0.01)
        store.before_fork()
        assert not store._ready_to_fork
        assert connection.in_transaction
    store.after_fork_in_child()
    with pytest.raises(Misconfigured, match="forked in the middle"):
        get(store)


@pytest.mark.live
@pytest.mark.covers("2.9")
def test_restarting_after_kill_keeps_every_segment_that_was_given(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    sqlite_bench.close()
    got: list[tuple[int, int]] = []
    for _ in range(3):
        [loader] = start_loaders(sqlite_bench.url, 1, 0)
        let_go([loader])
        got += segments(lines(loader, 20)) + kill(loader)
    known = ranges(sqlite_bench.open())
    assert set(got) <= set(known)
    check_contiguous(known, 0, get(sqlite_bench.open()).max)
