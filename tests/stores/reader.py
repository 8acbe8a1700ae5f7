"""Reserves one number after the other, and reads its own store's files meanwhile: reader.py FILE KIND SECONDS.

KIND: "copies" copies their directory every 5 ms, "reads" reads -shm as often, "plain" does neither. Prints "low high"
for each reservation; a reservation that takes over 10 s ends it with an error.
"""

import shutil
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from issuer_persistence.ledger import Purpose
from issuer_persistence.sqlite import SQLiteStore


def _copy(path: Path, over: threading.Event) -> None:
    with TemporaryDirectory() as folder:
        while not over.wait(0.005):
            with suppress(OSError):  # a log that was there is gone
                shutil.copytree(path.parent, folder, dirs_exist_ok=True)


def _read(path: Path, over: threading.Event) -> None:
    while not over.wait(0.005):
        with suppress(OSError):
            Path(f"{path}-shm").read_bytes()


def main(path: Path, kind: str, seconds: float) -> None:
    """Reserve for so many seconds."""
    over = threading.Event()
    beside = {"copies": _copy, "reads": _read}.get(kind)
    reading = threading.Thread(target=beside or over.wait, args=(path, over) if beside else ())
    reading.start()
    try:
        store = SQLiteStore(path)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            got = store.reserve("orders", 1, purpose=Purpose(kind), timeout=10)
            print(got.low, got.high)
    finally:
        over.set()
        reading.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
