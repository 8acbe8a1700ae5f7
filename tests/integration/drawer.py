"""A process that draws: python -m tests.integration.drawer REDIS STORE TAG COUNT THREADS FILE

It waits for a line on stdin, draws, and writes each number with the times of its call, three 64-bit values each.
"""

import struct
import sys
import threading
import time

import issuer


def main(arguments: list[str]) -> None:
    """Draw in threads until there are enough."""
    redis, store, tag, file = arguments[0], arguments[1], arguments[2], arguments[5]
    count, threads = int(arguments[3]), int(arguments[4])
    with issuer.connect(redis=redis, store=store, timeout=30) as ids:
        ids.next(tag)
        print("ready", flush=True)
        sys.stdin.readline()
        results: list[bytes] = []

        def draw(times: int) -> None:
            mine = []
            for _ in range(times):
                began = time.monotonic_ns()
                number = ids.next(tag)
                mine.append(struct.pack("qqq", number, began, time.monotonic_ns()))
            results.append(b"".join(mine))

        running = [threading.Thread(target=draw, args=(count // threads,)) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    with open(file, "wb") as target:  # noqa: PTH123 - a path in a string, written once
        target.write(b"".join(results))


if __name__ == "__main__":
    main(sys.argv[1:])
