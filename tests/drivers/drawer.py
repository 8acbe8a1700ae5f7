"""A process that draws: python -m tests.drivers.drawer REDIS STORE COUNT threads|tasks CALLERS FILE

It waits for a line on stdin, draws from "a" with so many callers at once, and writes each number with the times of its
call, three 64-bit values each.
"""

import asyncio
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import issuer
from tests.audit import Draw, awaited, drawn
from tests.programs import PIPE, Program


def by_threads(ids: issuer.Issuer, threads: int, each: int) -> list[Draw]:
    """Draw in so many threads at once."""
    draws: list[Draw] = []
    running = [
        threading.Thread(target=lambda: draws.extend([drawn(lambda: ids.next("a")) for _ in range(each)]))
        for _ in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(draws) == threads * each
    return draws


async def by_tasks(ids: issuer.AsyncIssuer, tasks: int, each: int) -> list[Draw]:
    """Draw in so many tasks at once."""

    async def draw() -> list[Draw]:
        return [await awaited(lambda: ids.next("a")) for _ in range(each)]

    return [one for part in await asyncio.gather(*(draw() for _ in range(tasks))) for one in part]


def by_processes(redis: str, store: str, kinds: Sequence[tuple[str, int]], count: int, at: Path) -> Iterator[Draw]:
    """Draw so many numbers in a process of each kind, ("threads" or "tasks", callers), all at once."""
    files = [at / str(number) for number in range(len(kinds))]
    with ExitStack() as ends:
        drawers = [
            ends.enter_context(
                Program(
                    *("-m", "tests.drivers.drawer", redis, store, str(count), kind, str(callers), str(file)),
                    stdin=PIPE,
                    stdout=PIPE,
                )
            )
            for (kind, callers), file in zip(kinds, files, strict=True)
        ]
        for drawer in drawers:
            assert drawer.stdout is not None
            assert drawer.stdout.readline() == "ready\n"
        for drawer in drawers:
            assert drawer.stdin is not None
            drawer.stdin.write("go\n")
            drawer.stdin.flush()
        for drawer in drawers:
            assert drawer.wait(240) == 0
    for file in files:
        for number, began, ended in struct.iter_unpack("qdd", file.read_bytes()):
            yield Draw(number, began, ended)


def ready() -> None:
    """Say so, and wait for the start."""
    print("ready", flush=True)
    sys.stdin.readline()


def drawing(redis: str, store: str, kind: str, callers: int, each: int) -> list[Draw]:
    """Draw, and return what came."""

    async def tasks() -> list[Draw]:
        async with issuer.aconnect(redis=redis, store=store) as ids:
            await ids.next("a")
            ready()
            return await by_tasks(ids, callers, each)

    if kind == "tasks":
        return asyncio.run(tasks())
    with issuer.connect(redis=redis, store=store) as ids:
        ids.next("a")
        ready()
        return by_threads(ids, callers, each)


if __name__ == "__main__":
    _, _redis, _store, _count, _kind, _callers, _file = sys.argv
    _draws = drawing(_redis, _store, _kind, int(_callers), int(_count) // int(_callers))
    Path(_file).write_bytes(b"".join(struct.pack("qdd", *draw) for draw in _draws))
