"""A process that reserves with a journal: journaller.py STORE JOURNAL MODE, where MODE is one of these.

* `endless`: segment after segment, each printed as "low high" once it is ours, until it is killed.
* `rotate`: 8 threads, 25 segments each, with a journal that is rotated every 20 KB; printed at the end.
* `dies-in-mid-write`: one segment, and kill -9 when half of its line is written.
* `full`: segments until a file may not grow any more, five further attempts, and one when there is room again.

Waits for a line on its standard input before it begins.
"""

import os
import resource
import signal
import sys
import threading

from persistence.errors import Unavailable
from persistence.journalled import Journalled
from persistence.memory import MemoryStore
from persistence.opening import open_store
from persistence.records import HIGHEST, Reservation

TIMEOUT = 20.0


def got(store: Journalled) -> Reservation:
    """Reserve a segment."""
    return store.reserve("orders", None, reason="test", timeout=TIMEOUT)


def endless(store: Journalled) -> None:
    """Reserve until killed."""
    while True:
        segment = got(store)
        print(segment.low, segment.high, flush=True)


def rotate(store: Journalled) -> None:
    """Reserve in many threads."""
    lines: list[str] = []

    def reserve() -> None:
        for _ in range(25):
            segment = got(store)
            lines.append(f"{segment.low} {segment.high}")

    running = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print("\n".join(lines))


def dies_in_mid_write(store: Journalled) -> None:
    """Be killed with half a line written."""
    write = os.write

    def half(descriptor: int, line: bytes) -> int:
        if b'"reserve"' in line:
            write(descriptor, line[: len(line) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, line)

    os.write = half  # type: ignore[assignment]  # what a kill between two bytes comes to
    got(store)


def full(store: Journalled) -> None:
    """Print each segment; for each attempt that fails the store's max; at the end one more segment."""
    store.create("orders", above=0, step=10, limit=HIGHEST, order="trend", description="", timeout=TIMEOUT)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))
    failed = 0
    while failed < 5:
        try:
            segment = got(store)
            print(segment.low, segment.high)
        except Unavailable:
            failed += 1
            record = store.get("orders", timeout=TIMEOUT)
            print("failed", record.max if record else None)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    segment = got(store)
    print(segment.low, segment.high)


def main(url: str, journal: str, mode: str) -> None:
    """Do what MODE says."""
    inner = MemoryStore() if mode == "full" else open_store(url)
    store = Journalled(inner, journal, rotate_at=20_000 if mode == "rotate" else 10_000_000)
    print("ready", flush=True)
    sys.stdin.readline()
    {"endless": endless, "rotate": rotate, "dies-in-mid-write": dies_in_mid_write, "full": full}[mode](store)


if __name__ == "__main__":
    main(*sys.argv[1:4])
