"""A process of its own that reserves in a loop: loader.py URL TAG COUNT [STEP]. Prints "low high" per segment.

COUNT 0: until it is killed. STEP -: the tag's own. Waits for a line on its standard input before it begins.
"""

import sys

from persistence.errors import Unavailable
from persistence.opening import open_store


def main(url: str, tag: str, count: int, size: str) -> None:
    """Reserve `count` segments and print each once it is ours."""
    store = open_store(url)
    print("ready", flush=True)
    sys.stdin.readline()
    done = 0
    while done < count or not count:
        try:
            got = store.reserve(tag, None if size == "-" else int(size), reason="loader", timeout=20)
        except Unavailable:
            if not count:
                raise
            continue
        print(got.low, got.high, flush=True)
        done += 1
    store.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "-")
