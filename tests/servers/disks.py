"""Small disks that can be filled, and freed: tmpfs, in a program that has mounts of its own."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.waiting import until

#: Set in a program that has mounts of its own.
OWN_MOUNTS = "ISSUER_TEST_OWN_MOUNTS"

_SIZE = 64 << 20
_MOUNT = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs"]
#: Root needs no namespace of users; anybody else may have one, unless the machine forbids it.
_WAYS = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])


def find_mounting() -> list[str] | None:
    """Return the start of a command line that gives a program mounts of its own; None: this machine has none to give.

    They are gone when the program and its children are, however these end, and nobody else sees them.
    """
    if not all(map(shutil.which, ("unshare", "mount", "umount"))):
        return None
    tried = (subprocess.run([*way, *_MOUNT, "/tmp"], capture_output=True, check=False) for way in _WAYS)
    return next((way for way, ended in zip(_WAYS, tried, strict=True) if ended.returncode == 0), None)


def run_with_mounts(module: str) -> None:
    """Run this module, the program, anew in its own place with mounts of its own; return if it has them, or can't."""
    mounting = None if OWN_MOUNTS in os.environ else find_mounting()
    if mounting:
        line = [*mounting, sys.executable, "-m", module, *sys.argv[1:]]
        os.execvpe(line[0], line, {**os.environ, OWN_MOUNTS: "1"})  # noqa: S606 - no shell is wanted


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Let the folder be a disk of 64 MB while the block lasts, and say whether it is: only with mounts of one's own."""
    folder.mkdir(exist_ok=True)
    if OWN_MOUNTS not in os.environ:
        yield False
        return
    subprocess.run([*_MOUNT, str(folder)], check=True)
    try:
        yield True
    finally:
        # Lazily: whoever is slow to end may have a file open.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def is_small(folder: Path) -> bool:
    """Whether it is such a disk. Never fill another one."""
    disk = os.statvfs(folder)
    return folder.is_mount() and disk.f_blocks * disk.f_frsize == _SIZE


@contextmanager
def filled(path: Path) -> Iterator[None]:
    """Let nothing more be committed to this SQLite file, on a small disk, while the block lasts, for want of room."""
    assert is_small(path.parent)
    ballast = path.parent / "ballast"

    def full() -> bool:
        # Again each time: whoever closes the file last removes its log.
        fill(ballast)
        return _takes_nothing(path)

    until(lambda: _emptied_log(path), message="its log is empty")
    try:
        until(full, message="nothing can be committed")
        yield
    finally:
        ballast.unlink(missing_ok=True)


def fill(ballast: Path) -> None:
    """Write into this file until there is no more room."""
    with ballast.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def _emptied_log(path: Path) -> bool:
    """Cut the write-ahead log, whose room would be used again; False if somebody is at work in it."""
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as store:
        busy, *_ = store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _takes_nothing(path: Path) -> bool:
    """Whether a commit that changes nothing fails for want of room, for its log or for the log's index."""
    with closing(sqlite3.connect(path, timeout=1, isolation_level=None)) as store:
        try:
            (version,) = store.execute("PRAGMA user_version").fetchone()
            store.execute(f"PRAGMA user_version = {version}")
        except sqlite3.OperationalError as error:
            return error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
    return False
