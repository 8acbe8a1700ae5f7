"""A process that draws: python -m tests.integration.drawer REDIS STORE TAG COUNT CALLERS FILE [threads|tasks]

It waits for a line on stdin, draws with so many callers at once, and writes each number with the times of its call,
three 64-bit values each.
"""

import asyncio
import struct
import sys
import threading
import time

import issuer


def by_threads(redis: str, store: str, tag: str, count: int, callers: int) -> list[bytes]:
    """Draw in threads until there are enough."""
    results: list[bytes] = []
    with issuer.connect(redis=redis, store=store, timeout=30) as ids:
        ids.next(tag)
        ready()

        def draw(times: int) -> None:
            mine = []
            for _ in range(times):
                began = time.monotonic_ns()
                number = ids.next(tag)
                mine.append(struct.pack("qqq", number, began, time.monotonic_ns()))
            results.append(b"".join(mine))

        running = [threading.Thread(target=draw, args=(count // callers,)) for _ in range(callers)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return results


async def by_tasks(redis: str, store: str, tag: str, count: int, callers: int) -> list[bytes]:
    """Draw in tasks until there are enough."""
    async with issuer.aconnect(redis=redis, store=store, timeout=30) as ids:
        await ids.next(tag)
        ready()

        async def draw(times: int) -> bytes:
            mine = []
            for _ in range(times):
                began = time.monotonic_ns()
                number = await ids.next(tag)
                mine.append(struct.pack("qqq", number, began, time.monotonic_ns()))
            return b"".join(mine)

        return await asyncio.gather(*(draw(count // callers) for _ in range(callers)))


def ready() -> None:
    """Say so, and wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()


def main(arguments: list[str]) -> None:
    """Draw, and write what came."""
    redis, store, tag, file = arguments[0], arguments[1], arguments[2], arguments[5]
    count, callers = int(arguments[3]), int(arguments[4])
    if arguments[6:] == ["tasks"]:
        results = asyncio.run(by_tasks(redis, store, tag, count, callers))
    else:
        results = by_threads(redis, store, tag, count, callers)
    with open(file, "wb") as target:  # noqa: PTH123 - a path in a string, written once
        target.write(b"".join(results))


if __name__ == "__main__":
    main(sys.argv[1:])
