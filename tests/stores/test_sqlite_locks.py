"""The lock of an SQLite store: released on every way out, and what comes of programs that do not take it."""

from __future__ import annotations

import errno
import fcntl
import itertools
import linecache
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import TagPresent, Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite.file import SQLiteFile
from issuer_persistence.sqlite.store import SQLiteTransaction
from tests.stores.benches import TIMEOUT, SQLiteBench, before, check_contiguous, create, get, reserve, spans
from tests.stores.processes import finish, let_go, lines, run_python, segments
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


def is_free(sqlite_bench: SQLiteBench) -> bool:
    """Whether nobody holds the lock."""
    descriptor = os.open(f"{sqlite_bench.path}-lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_a_program_that_was_started_meanwhile_keeps_no_lock(tmp_path: Path) -> None:
    """It has a copy of the descriptor, as a child that C code has just forked."""
    path = tmp_path / "lock"
    with locks.locked(path, lambda: locks.open_file(path, os.O_RDWR | os.O_CREAT), CallDeadline(TIMEOUT)) as held:
        beside = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[held])
    with beside, locks.locked(path, lambda: locks.open_file(path, os.O_RDWR), CallDeadline(5)):
        assert beside.poll() is None


#: Is killed within a call, just after it was forked. Prints the child, which lives.
_KILLED = """
import os, signal, sys
from pathlib import Path
from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
path = Path(sys.argv[1])
with locks.locked(path, lambda: locks.open_file(path, os.O_RDWR | os.O_CREAT), CallDeadline(60)):
    child = os.fork()
    if not child:
        os.closerange(0, 3)
        signal.alarm(60)
        signal.pause()
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_of_a_process_that_was_killed_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    killed = subprocess.run([sys.executable, "-c", _KILLED, path], stdout=subprocess.PIPE, text=True, check=False)
    child = int(killed.stdout)
    try:
        with locks.locked(path, lambda: locks.open_file(path, os.O_RDWR), CallDeadline(5)):
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("call", ["fchmod", "fchown", "fstat"])
def test_a_lock_file_that_cannot_be_shared_is_locked_all_the_same_and_unlocked(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """In a container without root rights, the owner of the database may have no number."""
    create(sqlite_bench.store)
    sqlite_bench.path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(sqlite_bench.path, 12345, 12345)
    elif call == "fchown":
        pytest.skip("only root changes the owner")
    called = list[int]()
    really = getattr(os, call)

    def failing(descriptor: int, *values: object) -> object:
        if sys._getframe(1).f_code.co_name != "_share":
            return really(descriptor, *values)
        called.append(descriptor)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        assert spans([reserve(sqlite_bench.store, 10)]) == [(0, 10)]
    assert called
    assert is_free(sqlite_bench)
    assert spans([reserve(sqlite_bench.open(), 10)]) == [(10, 20)]


class Interrupted(Exception):
    """Raised by a signal handler."""


#: What releases the lock: an exception within it is out of reach.
_ENDS, _END = {"close"}, "close(descriptor)"


@contextmanager
def interrupted_at(line: int) -> Iterator[None]:
    """Raise Interrupted at that line of all that run in the store's file and its lock."""
    lines = itertools.count()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        path, caller = frame.f_code.co_filename, frame.f_back and frame.f_back.f_code.co_name
        if {frame.f_code.co_name, caller} & _ENDS or not path.endswith(("locks.py", "sqlite/file.py", "contextlib.py")):
            return None
        if event != "line" or linecache.getline(path, frame.f_lineno).strip() == _END:
            return trace
        if next(lines) == line:
            sys.settrace(None)
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def test_an_exception_of_a_signal_handler_at_any_line_leaves_the_lock_free(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store)
    for line in itertools.count():
        with suppress(Interrupted), interrupted_at(line):
            sqlite_bench.store.reserve("orders", 10, purpose=Purpose("test"), timeout=TIMEOUT)
            break
        assert is_free(sqlite_bench), f"at line {line}"
    assert line > 100


@contextmanager
def no_descriptors() -> Iterator[int]:
    """Leave no file descriptor to this process during the block. Yield one that the block may close."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = list[int]()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield taken.pop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for each in taken:
            os.close(each)


def test_without_a_file_descriptor_left_a_call_is_unconfirmed(sqlite_bench: SQLiteBench) -> None:
    store, fresh = sqlite_bench.store, sqlite_bench.open()
    create(store)
    with no_descriptors():
        for each in (store, fresh):
            with pytest.raises(Unconfirmed, match="Too many open files"):
                reserve(each, 10)
            with pytest.raises(Unconfirmed, match="Too many open files"):
                get(each)
    assert spans([reserve(store, 10), reserve(fresh, 10)]) == [(0, 10), (10, 20)]


def test_without_a_file_descriptor_for_the_mount_points_a_call_is_unconfirmed(sqlite_bench: SQLiteBench) -> None:
    """Whether the file is a mount point is not known then."""
    create(sqlite_bench.store)
    fresh = sqlite_bench.open()
    with no_descriptors() as last:
        os.close(last)  # for the lock file
        with pytest.raises(Unconfirmed, match="Too many open files"):
            get(fresh)
    assert get(fresh) == get(sqlite_bench.store)


@pytest.mark.covers("2.4")
def test_a_locked_file_costs_no_more_than_the_timeout_and_changes_nothing(sqlite_bench: SQLiteBench) -> None:
    made = create(sqlite_bench.store)
    other = sqlite_bench.connect()
    other.execute("BEGIN IMMEDIATE")

    def locked() -> bool:
        started = time.monotonic()
        with pytest.raises(Unconfirmed) as caught:
            sqlite_bench.store.reserve("orders", None, purpose=Purpose("test"), timeout=0.05)
        assert time.monotonic() - started < 20
        return "locked" in str(caught.value)

    until(locked, TIMEOUT)  # a machine that stands still may not come as far as the lock within that time
    other.execute("ROLLBACK")
    other.close()
    assert get(sqlite_bench.store) == made
    assert reserve(sqlite_bench.store).low == 0


#: Reserves once, within a second, and prints the segment, or nothing if the store was locked.
_IMPATIENT = """
import sys
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite import SQLiteStore
try:
    got = SQLiteStore(sys.argv[1]).reserve("orders", None, purpose=Purpose("impatient"), timeout=1)
    print(got.low, got.high)
except Unconfirmed as error:
    assert "locked" in str(error) or "not done" in str(error), error
"""


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_who_reads_its_own_files_within_a_transaction_shares_no_number(sqlite_bench: SQLiteBench, suffix: str) -> None:
    """Closing any of these files drops this process's POSIX locks on it, which are all that SQLite has."""
    store = sqlite_bench.store
    create(store, step=10)
    beside: list[tuple[int, int]] = []

    def read() -> None:
        Path(f"{sqlite_bench.path}{suffix}").read_bytes()
        beside.extend(segments(finish(run_python(["-c", _IMPATIENT, str(sqlite_bench.path)]))))

    with before(SQLiteTransaction, "write", read):
        own = spans([reserve(store)])
    check_contiguous([*own, *beside, *spans([reserve(store)])], 0, 20 + 10 * len(beside))


#: Reserves twice, each time when it is told to.
_TWICE = """
import sys
from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1])
for _ in range(2):
    sys.stdin.readline()
    got = store.reserve("orders", None, purpose=Purpose("twice"), timeout=60)
    print(got.low, got.high, flush=True)
"""


def test_a_range_that_a_program_without_the_lock_reserves_once_more_is_seen_by_verify(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes its transaction over that of a program with the lock, whose entry is lost with it."""
    create(sqlite_bench.store, step=10)
    older: Any = sqlite_bench.store
    beside = run_python(["-c", _TWICE, str(sqlite_bench.path)])
    monkeypatch.setattr(older._file, "_alone", lambda *_, **__: nullcontext())

    def overtaken() -> None:
        Path(f"{sqlite_bench.path}-shm").read_bytes()
        let_go([beside])
        assert lines(beside, 1) == "0 10\n"

    with before(SQLiteTransaction, "write", overtaken):
        assert spans([reserve(older)]) == [(0, 10)]
    assert segments(finish(beside, "go\n")) == [(10, 20)]
    with issuer.connect(store=sqlite_bench.make(), redis="none") as ids:
        assert [(each.kind, each.numbers) for each in ids.verify("orders")] == [("overlap", (1, 10))]


def test_a_lock_that_is_removed_within_the_transaction_costs_a_gap(sqlite_bench: SQLiteBench) -> None:
    """Another process takes the lock of a new file then, and may work at the same time."""
    create(sqlite_bench.store, step=10)
    lock = Path(f"{sqlite_bench.path}-lock")
    replaced = pytest.raises(Unconfirmed, match="removed or replaced while it was locked")
    with before(SQLiteTransaction, "write", lock.unlink), replaced:
        reserve(sqlite_bench.store)
    assert reserve(sqlite_bench.store).low in (0, 10)


def test_a_file_of_the_lock_has_the_mode_of_the_database(sqlite_bench: SQLiteBench) -> None:
    create(sqlite_bench.store, step=10)
    lock = Path(f"{sqlite_bench.path}-lock")
    lock.unlink()
    sqlite_bench.path.chmod(0o660)
    reserve(sqlite_bench.store)
    assert stat.S_IMODE(lock.stat().st_mode) == 0o660


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_read_while_a_program_without_the_lock_writes_is_in_doubt(
    sqlite_bench: SQLiteBench, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    """It may also look like a damaged file meanwhile."""
    store = sqlite_bench.store
    create(store, step=10)
    others = []

    def write() -> None:
        others.append(sqlite_bench.connect())
        others[-1].execute("UPDATE tags SET max = 50")
        if fails:
            raise sqlite3.DatabaseError("database disk image is malformed")

    with before(SQLiteTransaction, "read", write), pytest.raises(Unconfirmed, match="does not take the lock"):
        get(store)
    assert get(store).max == 50
    assert store.examine(timeout=TIMEOUT).open_elsewhere
    assert [reserve(store).low, reserve(store).low] == [50, 60]
    assert caplog.text.count("does not take the lock") == 1
    others[0].close()
    assert not store.examine(timeout=TIMEOUT).open_elsewhere


@pytest.mark.parametrize("writes", [True, False])
def test_a_file_that_another_process_creates_meanwhile_is_not_opened_without_the_lock(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    """The other one creates the file just after a call has found no lock file, or no database."""
    other = sqlite_bench.open()
    opened, created = list[str](), list[object]()
    exists, really_opened = os.path.exists, SQLiteFile._opened

    def create_once() -> None:
        if not created:
            created.append(None)
            created.append(create(other))

    def looking(path: Any) -> bool:
        found = exists(path)
        create_once()
        return found

    def noting(file: SQLiteFile, options: str, deadline: Any) -> sqlite3.Connection:
        opened.append(options)
        return really_opened(file, options, deadline)

    with monkeypatch.context() as patched:
        patched.setattr(os.path, "exists", looking)
        patched.setattr(SQLiteFile, "_opened", noting)
        if writes:
            with pytest.raises(TagPresent):
                create(sqlite_bench.store)
        else:
            assert sqlite_bench.store.get("orders", timeout=TIMEOUT) is None
    assert opened == ["mode=rwc"] * (2 if writes else 1)
    assert [get(sqlite_bench.store)] == created[1:]


@pytest.mark.parametrize("other_is_a_store", [True, False])
def test_a_file_without_a_lock_that_two_processes_begin_to_use_disturbs_none_of_them(
    sqlite_bench: SQLiteBench, monkeypatch: pytest.MonkeyPatch, other_is_a_store: bool
) -> None:
    """As after a backup was put in place. A log appears while one checks, without the lock, whether it is a store."""
    lock = Path(f"{sqlite_bench.path}-lock")
    create(sqlite_bench.store, step=10)
    lock.unlink()
    store, other = sqlite_bench.open(), sqlite_bench.open()
    looks, has_log = iter([False, True]), SQLiteFile.has_log.fget  # type: ignore[attr-defined]  # it is a property

    def looking(file: SQLiteFile) -> bool:
        found = next(looks, None)
        if found and other_is_a_store:
            assert reserve(other).low == 0
        return has_log(file) if found is None else found

    with monkeypatch.context() as patched:
        patched.setattr(SQLiteFile, "has_log", property(looking))
        if other_is_a_store:
            assert reserve(store).low == 10
        else:
            with pytest.raises(Unconfirmed, match="does not take the lock"):
                reserve(store)
            assert not lock.exists()
    assert reserve(store).low == 20 * other_is_a_store


@pytest.mark.soak
def test_processes_that_copy_and_read_their_own_files_for_a_minute_get_no_number_twice(
    sqlite_bench: SQLiteBench,
) -> None:
    create(sqlite_bench.store, step=1)
    started = [
        run_python([str(Path(__file__).with_name("reader.py")), str(sqlite_bench.path), kind, "60"])
        for kind in ("copies", "reads", "plain")
    ]
    got = [each for program in started for each in segments(finish(program))]
    assert len(set(got)) == len(got) > 100
    check_contiguous(got, 0, len(got))
