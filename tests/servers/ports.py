"""Loopback ports for servers that may go away and come back on the same one: no two processes take the same.

A process takes its ports from a block that is its own as long as it lives: a lock on a file says so, which ends with
the process, however that ends. The lock is in the directory for temporary files, for all runs on this machine.
"""

import errno
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from issuer.chaos.ports import is_free

LOOPBACK = "127.0.0.1"
# Below the range that outgoing ports are taken from: a client that polls a dead port of that range can connect to
# itself, and the server could never come back there. From 31 000 `issuer chaos` takes its own.
_FIRST, _LAST = 11_000, 20_999
# A Cluster node listens on a second port, so many above the first; both belong to the block.
_BUS_ABOVE = 10_000
_SIZE = 50

_lock = threading.Lock()
_own: dict[int, Iterator[int]] = {}
_held: list[int] = []


def free_port() -> int:
    """Return a port on which nobody listens; no other process of the tests takes it, nor its Cluster bus port."""
    with _lock:
        # A forked child would hand out what its parent does.
        mine = _own.setdefault(os.getpid(), _ports())
        return next(port for port in mine if is_free(port) and is_free(port + _BUS_ABOVE))


def _ports() -> Iterator[int]:
    """Take one block after the other: a port that was handed out may be that of a server that comes back."""
    folder = Path(tempfile.gettempdir(), "issuer-test-ports")
    folder.mkdir(mode=0o777, exist_ok=True)
    while True:
        taken = (first for first in range(_FIRST, _LAST, _SIZE) if _locked(folder / str(first)))
        first = next(taken, None)
        if first is None:
            raise RuntimeError(f"every block of ports is in use: {folder}")
        yield from range(first, first + _SIZE)


def _locked(path: Path) -> bool:
    """Lock this file until the process ends; False if another one has."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        return False
    _held.append(file)
    return True
