"""The lock of an SQLite store is released on every way out, and a shortage of the system is no wrong configuration."""

from __future__ import annotations

import errno
import fcntl
import itertools
import linecache
import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence import locks
from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from tests.stores.benches import TIMEOUT, SQLiteBench, create, get, reserve, spans

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType


def is_free(bench: SQLiteBench) -> bool:
    """Whether nobody holds the lock."""
    descriptor = os.open(f"{bench.path}-lock", os.O_RDWR)
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
