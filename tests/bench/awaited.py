"""Strict tags from asyncio, beside what its futures cost when there is no Redis at all."""

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any, Self

from redis.asyncio import BlockingConnectionPool, Redis

from tests.bench.figures import Bound, Figure, percentile, ratio
from tests.bench.rounds import Effort, alternate, crowd, tasks
from tests.bench.servers import TAG, drawing_tasks, on_loop, redis_server

CROWDS = (200, 1000)
#: The crowd whose slowest calls are asked about as well.
WATCHED = 200
CONNECTIONS = 50


class Futures:
    """The least that combining on asyncio can cost: callers wait in a list, a task swaps it and answers by a counter.

    No I/O, no fence, no script: the part of asyncio itself.
    """

    def __init__(self) -> None:
        self._counter = count(1)
        self._waiting: list[asyncio.Future[int]] = []
        self._idle: asyncio.Future[None] | None = None
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def next(self) -> int:
        """Return the next number of the counter, from the batch that is answered next."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        if self._idle is not None:
            self._idle.set_result(None)
            self._idle = None
        return await future

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _serve(self) -> None:
        while True:
            if not self._waiting:
                self._idle = asyncio.get_running_loop().create_future()
                await self._idle
            batch, self._waiting = self._waiting, []
            for future, number in zip(batch, self._counter, strict=False):
                if not future.done():
                    future.set_result(number)
            # Where the round trip would be: the others of this turn of the loop take their seats.
            await asyncio.sleep(0)


def client_of(url: str) -> Redis:
    """Connect redis.asyncio as its documentation says for many callers: a pool whose callers wait for a connection."""
    return Redis.from_pool(BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS))


def awaited(effort: Effort) -> Iterator[Figure]:
    """await next(tag), strict, 200 and 1000 tasks on one event loop."""
    with (
        asyncio.Runner() as runner,
        redis_server() as server,
        drawing_tasks(runner, redis=server.url, store="memory://") as ids,
        on_loop(runner, Futures) as alone,
        on_loop(runner, partial(client_of, server.url)) as client,
    ):
        draw = partial(ids.next, TAG)
        calls = {"next": draw, "redis.asyncio incr": partial(client.incr, "counter"), "futures alone": alone.next}
        for crowded in CROWDS:
            loads = {f"{what}, {crowded} tasks": call for what, call in calls.items()}
            ours, theirs, bare = loads
            rounds = alternate(
                {what: tasks(runner, call, crowded, effort.seconds) for what, call in loads.items()},
                effort.rounds,
                "/s",
            )
            yield from rounds.figures()
            yield rounds.ratio(ours, theirs, Bound(25, 40, least=True), "next / redis.asyncio incr")
            yield rounds.ratio(ours, bare, Bound(0.55, least=True), "next / futures alone")
            if crowded == WATCHED:
                yield from _latencies(runner, draw, effort)


def _latencies(runner: asyncio.Runner, draw: Any, effort: Effort) -> Iterator[Figure]:
    halves, slow = [], []
    for _ in range(effort.rounds):
        seen: list[float] = []
        runner.run(crowd(draw, WATCHED, effort.seconds, seen))
        seen.sort()
        halves.append(percentile(seen, 0.5) * 1e6)
        slow.append(percentile(seen, 0.99) * 1e6)
    yield Figure(f"median call, {WATCHED} tasks", tuple(halves), "us")
    yield Figure(f"p99, {WATCHED} tasks", tuple(slow), "us")
    yield ratio("p99 / median", slow, halves, Bound(3))
