"""What only the SQLite store promises: about forks, and its files, also with two names or taken away while open."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

import issuer_persistence.sqlite.store
from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite import SQLiteStore
from issuer_persistence.sqlite.schema import SCHEMA
from issuer_persistence.sqlite.store import SQLiteTransaction
from tests.servers.absent import absent
from tests.servers.disks import find_mounting
from tests.stores.benches import TIMEOUT, SQLiteBench, before, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.processes import finish, let_go, run_python, segments, start_loaders
from tests.waiting import until


def test_directories_are_made_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "d?#ü.db"
    create(SQLiteStore(path))
    assert path.exists()
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path.parent, path.parent.parent)] == [0o700, 0o700]


def test_it_is_durable_in_wal_mode_and_tells_what_is_in_force(sqlite_bench: SQLiteBench) -> None:
    store = sqlite_bench.make()
    with store.transaction(TIMEOUT) as reading:
        found = [reading.connection.execute(f"PRAGMA {name}").fetchone() for name in ("journal_mode", "synchronous")]
    assert found == [("wal",), (2,)]
    seen = store.examine(timeout=TIMEOUT)
    assert (seen.journal, seen.synchronous, seen.time) == ("wal", 2, None)
    store.close()


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, below = tmp_path / "text", tmp_path / "text" / "below"
    text.write_text("not a database, but long enough to be taken for one\n" * 100)
    for version in (-1, 0, 1, 2):
        with closing(sqlite3.connect(tmp_path / f"foreign {version}")) as connection:
            connection.execute("CREATE TABLE tags (name TEXT)")
            connection.execute(f"PRAGMA user_version = {version}")
    with SQLiteBench(tmp_path / "newer") as newer:
        create(newer.store)
    newer.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    (tmp_path / "newer-lock").unlink()
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
    nowhere = "INSERT INTO nowhere VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    with monkeypatch.context() as broken:
        broken.setattr(issuer_persistence.sqlite.store, "_PUT_ENTRY", nowhere)
        with pytest.raises(Unconfirmed):
            reserve(sqlite_bench.store)
    assert get(sqlite_bench.store) == made
    assert reserve(sqlite_bench.store).low == 0


_FORKS = """
import os, sys
from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
print(*(lambda got: (got.low, got.high))(store.reserve("orders", 1, purpose=Purpose("parent"), timeout=60)), flush=True)
asks, told = os.pipe()
ready, go = os.pipe()
if (child := os.fork()) == 0:
    got = store.reserve("orders", 1, purpose=Purpose("child"), timeout=60)
    os.write(told, b"open")
    os.read(ready, 1)  # until the parent has closed
    for _ in range(3):
        got = store.reserve("orders", 1, purpose=Purpose("child"), timeout=60)
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
        with pytest.raises(Unconfirmed) as caught:
            store.get("orders", timeout=0.01)
        return "held the connection" in str(caught.value)

    until(waiting, TIMEOUT)
    store.after_fork_in_parent()
    assert get(store).max == 0
    entered, over = threading.Event(), threading.Event()

    def busy() -> None:
        with store.transaction(TIMEOUT):
            entered.set()
            over.wait(TIMEOUT)

    call, ending = threading.Thread(target=busy), threading.Timer(0.1, over.set)
    call.start()
    assert entered.wait(TIMEOUT)
    ending.start()
    store.before_fork()
    assert store._held
    store.after_fork_in_parent()
    call.join()
    # A fork that waited in vain, no longer than the call's own deadline and a little: the child must not touch what the
    # other thread had in its hands.
    forked = pytest.raises(Misconfigured, match="forked in the middle")
    with forked, ExitStack() as ends, pytest.MonkeyPatch.context() as patient:
        # Again, if its time is over before it has begun.
        open_ = until(lambda: ends.enter_context(store.transaction(0.5)), TIMEOUT, ignoring=(Unconfirmed,))
        patient.setattr(issuer_persistence.sqlite.store, "FORK_PATIENCE", 60.0)
        began = time.monotonic()
        store.before_fork()
        assert time.monotonic() - began < 30
        assert not store._held
        assert open_.connection.in_transaction
        store.after_fork_in_child()
    with pytest.raises(Misconfigured, match="forked in the middle"):
        get(store)


def test_a_child_that_is_forked_within_a_call_commits_nothing(sqlite_bench: SQLiteBench) -> None:
    """As by a signal's handler: the lock and the connection are the parent's."""
    store = sqlite_bench.store
    create(store, step=10)
    children = list[int]()
    with before(SQLiteTransaction, "write", lambda: children.append(os.fork())):
        try:
            got = store.reserve("orders", None, purpose=Purpose("fork"), timeout=0.5)
        except Misconfigured as error:
            os._exit(3 if "forked in the middle of a call" in str(error) else 4)
        finally:
            if children == [0]:
                os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 3
    assert (got.high, elsewhere(sqlite_bench), reserve(store).high) == (10, 20, 30)


def test_close_waits_no_longer_than_a_second_for_a_call_that_is_overdue(
    sqlite_bench: SQLiteBench, caplog: pytest.LogCaptureFixture
) -> None:
    """As one on a disk that stands still, or whose turn was lost: the program hung at its end."""
    store = sqlite_bench.make()
    create(store)
    with ExitStack() as ends:
        open_ = until(lambda: ends.enter_context(store.transaction(0.5)), TIMEOUT, ignoring=(Unconfirmed,))
        ending = threading.Thread(target=store.close, daemon=True)
        ending.start()
        ending.join(60)
        assert not ending.is_alive()
        assert open_.connection.in_transaction, "it is left to the call"
    assert "the store was closed while a call is still running" in caplog.text
    with pytest.raises(Misconfigured, match="was closed"):
        get(store)


def elsewhere(sqlite_bench: SQLiteBench) -> int:
    """Reserve in a process of its own, which is the only one then as far as SQLite's locks tell."""
    [loader] = start_loaders(sqlite_bench.url, 1, 1)
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
from issuer_persistence.sqlite import SQLiteStore
print(SQLiteStore({str(inner)!r}).get("orders", timeout=30))
"""
    script = f'mount --bind "{sqlite_bench.path}" "{inner}" && exec "$0" -c "$1"'
    done = subprocess.run(
        [*mounting, "sh", "-c", script, sys.executable, look], capture_output=True, text=True, check=False
    )
    assert "is itself a mount point" in done.stderr, done.stdout + done.stderr


def test_an_entry_that_another_one_has_replaced_is_put_back(
    sqlite_bench: SQLiteBench, caplog: pytest.LogCaptureFixture
) -> None:
    create(sqlite_bench.store, step=10)
    mine = [reserve(sqlite_bench.store), reserve(sqlite_bench.store)]
    sqlite_bench.execute("DELETE FROM segments WHERE id = ?", mine[0].entry)  # as pruning does
    sqlite_bench.execute("UPDATE segments SET id = 'theirs', low = 5 WHERE id = ?", mine[1].entry)
    assert spans([reserve(sqlite_bench.store)]) == [(20, 30)]
    assert ranges(sqlite_bench.store) == [(5, 20), (10, 20), (20, 30)]
    assert "11..20 was reserved twice" in caplog.text
    caplog.clear()
    sqlite_bench.execute("DELETE FROM segments WHERE high = 30")
    assert spans([reserve(sqlite_bench.store)]) == [(30, 40)]
    assert caplog.text == ""


def test_a_copy_of_the_directory_between_two_reservations_holds_all_of_it(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    issued = {reserve(sqlite_bench.store).high}
    copied = shutil.copytree(sqlite_bench.path.parent, sqlite_bench.path.parent.with_name("copied"))
    issued.update((elsewhere(sqlite_bench), reserve(sqlite_bench.store).high, elsewhere(sqlite_bench)))
    assert issued == {10, 20, 30, 40}
    assert reserve(SQLiteStore(copied / sqlite_bench.path.name)).low == 10


@pytest.mark.parametrize("suffixes", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="".join)
def test_a_log_that_is_removed_takes_no_reservation_with_it(
    sqlite_bench: SQLiteBench, suffixes: tuple[str, ...]
) -> None:
    create(sqlite_bench.store, step=10)
    other = sqlite_bench.connect()  # keeps the log where it is
    other.execute("SELECT * FROM tags").fetchall()
    issued = {reserve(sqlite_bench.store).high for _ in range(3)}
    for suffix in suffixes:
        Path(f"{sqlite_bench.path}{suffix}").unlink()
    assert elsewhere(sqlite_bench) not in issued
    other.close()


def test_a_log_that_goes_within_the_transaction_costs_a_gap_at_most(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)

    def remove() -> None:
        for suffix in ("-wal", "-shm"):
            Path(f"{sqlite_bench.path}{suffix}").unlink()

    with before(SQLiteTransaction, "write", remove):
        assert reserve(sqlite_bench.store).high == 10
    assert elsewhere(sqlite_bench) == 20


def test_a_file_that_is_removed_within_the_transaction_brings_no_numbers(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    with before(SQLiteTransaction, "write", sqlite_bench.path.unlink), pytest.raises(StoreError):
        reserve(sqlite_bench.store)


def test_who_reads_undoes_what_a_killed_program_has_begun(sqlite_bench: SQLiteBench) -> None:
    """Another program that opened the file with a rollback journal, and was killed in a large transaction."""
    create(sqlite_bench.store, step=10)
    sqlite_bench.close()
    program = f"""
import os, sqlite3
begun = sqlite3.connect({str(sqlite_bench.path)!r}, isolation_level=None)
for each in ("journal_mode = DELETE", "cache_size = 2", "cache_spill = 1"):
    begun.execute("PRAGMA " + each)
begun.execute("BEGIN IMMEDIATE")
begun.execute("UPDATE tags SET max = 5000")
begun.execute("CREATE TABLE ballast (a)")
begun.executemany("INSERT INTO ballast VALUES (?)", [("x" * 500,)] * 500)
os._exit(9)
"""  # noqa: S608 - ours
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert Path(f"{sqlite_bench.path}-journal").exists()
    assert get(sqlite_bench.make()).max == 0


def test_a_copy_made_with_vacuum_that_is_put_back_is_a_store(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    assert reserve(sqlite_bench.store).high == 10
    copied = sqlite_bench.path.with_name("copied.db")
    sqlite_bench.execute("VACUUM INTO ?", str(copied))
    sqlite_bench.close()
    copied.replace(sqlite_bench.path)
    again = sqlite_bench.make()
    assert [get(again).max, reserve(again).high, reserve(again).high, elsewhere(sqlite_bench)] == [10, 20, 30, 40]


def test_a_store_of_another_user_can_be_read_where_nothing_can_be_written() -> None:
    me, other = os.geteuid(), 65534
    with TemporaryDirectory() as folder:
        path = Path(folder, "store.db")
        store, reader = SQLiteStore(path), SQLiteStore(path)
        create(store, step=10)
        assert reserve(store).high == 10
        before = sorted(path.parent.iterdir())
        path.parent.chmod(0o555)
        if me == 0:
            os.seteuid(other)
        try:
            assert (get(reader).max, ranges(reader)) == (10, [(0, 10)])
            with pytest.raises(Misconfigured):
                reserve(reader)
        finally:
            os.seteuid(me)
            path.parent.chmod(0o700)
        assert sorted(path.parent.iterdir()) == before
        assert reserve(store).high == 20


def test_who_reads_makes_and_changes_no_file(sqlite_bench: SQLiteBench) -> None:
    missing = sqlite_bench.path.with_name("missing") / "a.db"
    reader = SQLiteStore(missing)
    assert (reader.get("orders", timeout=TIMEOUT), reader.tags(count=1000, timeout=TIMEOUT)) == (None, [])
    assert (reader.examine(timeout=TIMEOUT).schema, reader.store_id(timeout=TIMEOUT)) == (0, "")
    assert not missing.parent.exists()
    create(sqlite_bench.store, step=10)
    reserve(sqlite_bench.store)
    Path(f"{sqlite_bench.path}-lock").unlink()
    before = {each: each.read_bytes() for each in sqlite_bench.path.parent.iterdir()}
    store = sqlite_bench.make()
    assert (store.store_id(timeout=TIMEOUT), get(store).max) == (store.store_id(timeout=TIMEOUT), 10)
    assert store.segments("orders", count=9, timeout=TIMEOUT).entries
    assert {each: each.read_bytes() for each in sqlite_bench.path.parent.iterdir()} == before


def test_what_outlives_a_connection_keeps_the_file_open_no_longer(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The frames of an error hold what sqlite3 keeps statements in, if a finalizer got it in the midst of `connect`."""
    kept = []
    real = functools.update_wrapper

    def keeping(wrapper: Any, *arguments: Any, **options: Any) -> Any:
        kept.append(wrapper)
        return real(wrapper, *arguments, **options)

    monkeypatch.setattr(functools, "update_wrapper", keeping)
    create(sqlite_bench.store, step=10)
    assert reserve(sqlite_bench.store).high == 10
    assert kept
    assert not Path(f"{sqlite_bench.path}-wal").exists()
    assert caplog.text == ""
