"""A tag's callers in this event loop: tasks that draw from Redis at the same time share one draw."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.flight import renewed
from issuer.core.source import Means
from issuer.core.steps import Steps
from issuer.core.supply import Supply
from issuer.drivers.asyncio.connections import Node
from issuer.drivers.asyncio.runner import Runner
from issuer.errors import IssuerError, RedisUnavailable

T = TypeVar("T")

#: Seconds between two looks at the callers' deadlines.
LOOK_EVERY = 0.025

#: A caller: what it waits for, and until when.
_Seat = tuple["asyncio.Future[int]", float]


class Line:
    """Draws numbers of one tag for the tasks of a loop.

    Callers queue up; one task draws for all who are there, and again for those who came meanwhile: 1000 tasks get 300
    000 numbers a second that way. Strict: a batch leaves the queue before its draw is sent, so every number is drawn
    after its call began. The task belongs to nobody: a caller that is cancelled breaks no reply, and its number is a
    gap.
    """

    def __init__(self, tag: str, key: str, means: Means, runner: Runner) -> None:
        """`key` is the tag's hash in Redis."""
        self.tag = tag
        self.supply = supply = Supply(tag, key, means)
        self._key = key
        self._runner = runner
        self._redis = runner.redis
        self._loop = asyncio.get_running_loop()
        self._one = gateway.draw(key, 1, supply.window).packed
        self._node: Node | None = None
        self._queue: list[_Seat] = []
        self._served: list[_Seat] = []
        self._server: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None

    # ------------------------------------------------------------------ drawing

    async def next(self, timeout: float) -> int:
        """Draw one number, waiting so many seconds at most."""
        if self.supply.hand is not None:
            deadline = Deadline(timeout)
            return (await self.run(self.supply.obtain(1, deadline), deadline))[0]
        future: asyncio.Future[int] = self._loop.create_future()
        self._queue.append((future, monotonic() + timeout))
        if self._server is None:
            self._server = self._loop.create_task(self._serve())
        return await future

    async def draw(self, n: int, deadline: Deadline) -> range:
        """Draw up to n numbers, at least one, waiting until the deadline."""
        if self.supply.hand is not None:
            return await self.run(self.supply.obtain(n, deadline), deadline)
        return await self._round_trip(n, deadline.at)

    async def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run the protocol's steps to their end."""
        return await self._runner.run(steps, deadline, self.tag)

    async def _round_trip(self, n: int, until: float) -> range:
        """One round trip; whatever it doesn't bring goes the long way."""
        self.supply.used_at = now = monotonic()
        first: gateway.Drawn | RedisUnavailable | None = None
        node = self._node
        if node is not None and self._redis is not None:
            packed = self._one if n == 1 else gateway.draw(self._key, n, self.supply.window).packed
            try:
                reply = await self._redis.draw(node, packed, until - now)
            except RedisUnavailable as error:
                first = error
            else:
                if reply is not None:
                    if reply[0] == b"ok" and len(reply) == 3:  # noqa: PLR2004 - low and high, nobody elected
                        high = int(reply[2])
                        self.supply.seen = max(self.supply.seen, high)
                        return range(int(reply[1]) + 1, high + 1)
                    first = gateway.drawn(reply)
        self._node = None
        deadline = Deadline(until - monotonic())
        numbers = await self.run(self.supply.obtain(n, deadline, first), deadline)
        if self._redis is not None:
            self._node = self._redis.node(self._key)
        return numbers

    # ------------------------------------------------------------------ together

    async def _serve(self) -> None:
        """Draw for all who wait, until nobody does."""
        if self._watch is None:
            self._watch = self._loop.call_later(LOOK_EVERY, self._look)
        try:
            while self._queue:
                # Whoever has given up gets no number.
                self._served, self._queue = [seat for seat in self._queue if not seat[0].done()], []
                if self._served:
                    await self._share(self._served)
        finally:
            self._server = None
            for future, _ in (*self._served, *self._queue):
                if not future.done():  # only if this task was cancelled: the loop, or the issuer, ends
                    future.set_exception(IssuerError(f"tag {self.tag!r}: this issuer is closed", tag=self.tag))
            self._served = self._queue = []

    async def _share(self, seats: list[_Seat]) -> None:
        try:
            numbers = await self._round_trip(len(seats), max([until for _, until in seats]))
        except Exception as error:  # noqa: BLE001 - every caller gets it
            for future, _ in seats:
                if not future.done():
                    future.set_exception(renewed(error) if isinstance(error, IssuerError) else error)
            return
        for (future, _), number in zip(seats, numbers, strict=False):
            if not future.done():
                future.set_result(number)
        if len(numbers) < len(seats):
            # Granted short: first in the next draw.
            self._queue[:0] = seats[len(numbers) :]

    async def end(self, deadline: Deadline) -> None:
        """Tell those who wait that it is over, and give back what this process holds."""
        if self._server is not None:
            self._server.cancel()
        if self._watch is not None:
            self._watch.cancel()
        await self.run(self.supply.close(deadline), deadline)

    def _look(self) -> None:
        """Tell those whose time is over; as long as anybody waits, look again."""
        now = monotonic()
        if self._server is None:
            self._watch = None
            return
        for future, until in (*self._served, *self._queue):
            if until <= now and not future.done():
                future.set_exception(self.supply.overdue())
        self._watch = self._loop.call_later(LOOK_EVERY, self._look)
