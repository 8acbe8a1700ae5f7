"""A process of its own that reserves in a loop: loader.py URL TAG COUNT STEP [JOURNAL]. Prints "low high" per segment.

COUNT 0: until it is killed. STEP -: the tag's own. JOURNAL: with a journal, which is rotated every few lines. Waits for
a line on its standard input before it begins.
"""

import sys

from issuer_persistence.errors import Unconfirmed
from issuer_persistence.journalled import Journalled
from issuer_persistence.ledger import Purpose
from issuer_persistence.opening import open_store


def main(url: str, tag: str, count: str, size: str, journal: str = "") -> None:
    """Reserve `count` segments and print each once it is ours."""
    store = open_store(url)
    if journal:
        store = Journalled(store, journal, rotate_at=10_000)
    print("ready", flush=True)
    sys.stdin.readline()
    left = int(count) or sys.maxsize
    while left:
        try:
            got = store.reserve(tag, None if size == "-" else int(size), purpose=Purpose("loader"), timeout=60)
        except Unconfirmed:
            if count == "0":
                raise
            continue
        print(got.low, got.high, flush=True)
        left -= 1
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
