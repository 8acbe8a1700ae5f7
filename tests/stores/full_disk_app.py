"""Draws while the disk of its store is full: python -m tests.stores.full_disk_app REDIS FOLDER COLOUR.

With mounts of its own it fills a small disk, else its own files can't grow. Prints a JSON object.
"""

import json
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import issuer
from tests.colours import COLOURS
from tests.servers.disks import filled, small_disk

STEP = 100


@contextmanager
def no_larger_files() -> Iterator[None]:
    """Let this process write no file beyond its first bytes while the block lasts."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def main(redis: str, folder: Path, colour: str) -> None:
    """Draw before, while and after; print what came, and what the call was told for which there was nothing left."""
    path = folder / "store" / "a.db"
    with small_disk(path.parent) as disk, COLOURS[colour](redis=redis, store=f"sqlite:///{path}", timeout=20) as ids:
        ids.create("a", step=STEP)
        numbers = [ids.next("a")]
        refused: list[issuer.StoreUnavailable] = []
        with filled(path) if disk else no_larger_files():
            # Two segments are in Redis at most; that the third is refused is what this is for. A machine that stands
            # still may use up the second before the store has said why.
            end = time.monotonic() + 60
            while not refused or ("disk" not in str(refused[-1]) and time.monotonic() < end):
                assert len(numbers) <= 2 * STEP + 1, "a full disk took a reservation"
                try:
                    numbers.append(ids.next("a", timeout=20 if len(numbers) < STEP else 1))
                except issuer.StoreUnavailable as error:
                    assert len(numbers) >= STEP, "what was loaded was not served"
                    refused.append(error)
                except issuer.RedisUnavailable:
                    continue  # the machine stood still
        numbers += ids.take("a", 3 * STEP)
        told = {"disk": disk, "numbers": numbers, "max": ids.inspect("a").store.max}
    last = refused[-1]
    print(json.dumps({**told, "said": str(last), "code": last.code, "again": last.retry_after}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
