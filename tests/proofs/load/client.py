"""A process of clients: python -m tests.proofs.load.client REDIS STORE TAG THREADS FILE

It draws in so many threads until its stdin ends, appends each number to the file (64 bits, this machine's order), and
once a second prints a line of JSON: what it has done and what it takes of the machine.
"""

import json
import os
import socket
import sys
import threading
import time
from array import array
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import issuer

#: Numbers that a thread keeps before it writes them.
KEPT = 4096

#: What the threads of the scheduler are called.
POOL = "issuer-jobs"


class Client:
    """A thread that draws, one number after the other."""

    def __init__(self, ids: issuer.Issuer, tag: str, file: int, ended: threading.Event) -> None:
        self._ids, self._tag, self._file, self._ended = ids, tag, file, ended
        self._numbers = array("q", bytes(8 * KEPT))
        self.count = 0
        #: The slowest call, in seconds.
        self.slowest = 0.0
        self.errors = 0
        self.last_error = ""
        self.thread = threading.Thread(target=self._draw, daemon=True)

    def _draw(self) -> None:
        numbers, kept = self._numbers, 0
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                numbers[kept] = self._ids.next(self._tag)
            except issuer.IssuerError as error:
                self.errors += 1
                self.last_error = repr(error)
                continue
            self.slowest = max(self.slowest, time.monotonic() - began)
            kept += 1
            self.count += 1
            if kept == KEPT:
                os.write(self._file, numbers)
                kept = 0
        os.write(self._file, numbers[:kept])


def taken(redis: str, store: str) -> dict[str, int]:
    """Return what this process takes of the machine; memory in KiB. `redis`, `store`: their URLs."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    pool = sum(thread.name.startswith(POOL) for thread in threading.enumerate())
    open_files = Counter(map(_leads_to, Path("/proc/self/fd").iterdir()))
    to_redis, to_store = open_files.pop(urlsplit(redis).port, 0), open_files.pop(urlsplit(store).port, 0)
    return {
        "memory": pages * os.sysconf("SC_PAGE_SIZE") // 1024,
        "pool": pool,
        "threads": threading.active_count() - pool,
        "redis": to_redis,
        "store": to_store,
        "files": open_files.total(),
    }


def _leads_to(path: Path) -> int | None:
    """Return the port that an open file leads to, None if it is no connection."""
    try:
        if not str(path.readlink()).startswith("socket:"):
            return None
        with socket.socket(fileno=os.dup(int(path.name))) as connection:
            port: int = connection.getpeername()[1]
            return port
    except OSError:  # closed meanwhile, or not yet connected
        return None


def main(redis: str, store: str, tag: str, threads: str, file: str) -> None:
    """Draw until stdin ends."""
    ended = threading.Event()
    target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with issuer.connect(redis=redis, store=store, timeout=30, insist=30) as ids:
        ids.next(tag)
        clients = [Client(ids, tag, target, ended) for _ in range(int(threads))]

        def tell() -> None:
            done = {
                "count": sum(client.count for client in clients),
                "slowest": max(client.slowest for client in clients),
                "errors": sum(client.errors for client in clients),
                "last_error": max(client.last_error for client in clients),
            }
            print(json.dumps({**done, **taken(redis, store)}), flush=True)

        for client in clients:
            client.thread.start()

        def report() -> None:
            while not ended.wait(1.0):
                tell()

        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        sys.stdin.read()
        ended.set()
        for thread in (*(client.thread for client in clients), reporter):
            thread.join(40)
        tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
