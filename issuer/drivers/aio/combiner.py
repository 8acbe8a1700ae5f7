"""Lets the callers of a tag in one event loop share draws.

The callers are tasks, and clients of the server for the Redis protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import length_hint
from typing import TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core.steps import Steps, renewed
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.supply import Supply
from issuer.drivers.aio.callers import Queue, Share, Waiter, fail, flush, hand_out
from issuer.drivers.aio.connections import AsyncNode
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.running import SHORTEST
from issuer.errors import IssuerError, RedisUnavailable
from issuer.forks import GENERATION
from issuer.gateway import tag_scripts
from issuer.settings import seconds

T = TypeVar("T")

#: Seconds between two checks of the callers' deadlines. A caller gets its error at most this long after its deadline.
LOOK_EVERY = 0.025

#: Maximum count of numbers of one draw. `issuer serve` packs all replies of a draw without a pause, in 0.1 us each.
DRAW_MOST = 50_000

#: A task that takes a number from memory is not suspended. After this many numbers (0.3 ms) it lets other tasks run.
TURN_EVERY = 100


def values(value: Callable[[int], int], counters: Sequence[int]) -> list[int]:
    """Convert counters to numbers, until `value` raises an error, as at the limit.

    If there is no number before the error, raise the error.
    """
    numbers: list[int] = []
    with suppress(IssuerError):
        numbers.extend(map(value, counters))
    return numbers or [value(counters[0])]


def _each(error: Exception) -> Exception:
    """Return the error for one of several callers."""
    return renewed(error) if isinstance(error, IssuerError) else error


class AsyncCombiner:
    """Draws numbers of one tag for the callers in a loop.

    Callers wait in a queue. One task, the drawing task, draws for all of them, and then for all callers that came
    during this draw. In this way 1000 tasks get 300 000 numbers a second. The callers of a draw leave the queue before
    the draw is sent, so every number is drawn after its call began. The drawing task belongs to no caller: if a caller
    is cancelled, the reply is still read, and the caller's number is a gap.
    """

    def __init__(
        self,
        tag: str,
        key: str,
        runtime: Runtime,
        runner: AsyncRunner,
        timeout: float,
        *,
        others: Callable[[AsyncCombiner, int, Deadline], Awaitable[Sequence[int]]] | None,
    ) -> None:
        """`others`: draws up to n numbers for Waiters (clients of the Redis protocol) with plugins, or None."""
        self.tag = tag
        self.supply = Supply(tag, key, runtime)
        self.state = self.supply.state
        self._others = others
        self._runner = runner
        self._redis = runner.redis
        self._timeout = timeout
        self.generation = runner.generation
        self.loop = asyncio.get_running_loop()
        self._future: Callable[[], asyncio.Future[int]] = self.loop.create_future
        self._pack()
        self._node: AsyncNode | None = None
        self._queue = Queue()
        self._served = Queue()
        #: Whether a caller may have been cancelled, or got an error, since the last draw.
        self.left = False
        self._server: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        #: Deadline of new callers without timeout. Set every LOOK_EVERY, as the clock takes 3 % of a number's time.
        self._until = 0.0
        self._in_a_row = 0

    def rest(self) -> None:
        """Let the next draw take the slow path through `Supply`, because the tag was not used for a while."""
        self._node = None
        self.supply.rest()

    def _pack(self) -> None:
        self._packed_as = self.state.scheme_id
        self._draws = self.supply.refill.draws(self._packed_as)
        self._one = self._draws.one

    # ------------------------------------------------------------------ drawing

    def next(self, timeout: float | None) -> Awaitable[int]:
        """Draw one number. `timeout`: longest wait in seconds, 0 or more. None means the default of the issuer.

        Raises InvalidArgument. In another event loop, the call or its `await` raises RuntimeError.
        """
        state = self.state
        # While callers wait, a new one waits behind them. To look for numbers first would cost 15 % of a number's time.
        if state.source is not None or (
            state.buffer is not None and self._server is None and (length_hint(state.buffer.open) or self.supply.alone)
        ):
            return self._from_memory(timeout)
        # As `_queued` does. To call it here would cost 3 % of a number's time.
        alarm = None if timeout is None else monotonic() + seconds(timeout, "timeout", zero=True)
        if self._server is None:
            self._begin()
        future = self._future()
        queue = self._queue
        queue.callers.append(future)
        queue.until.append(self._until if alarm is None else alarm)
        return future

    def _queued(self, timeout: float | None) -> asyncio.Future[int]:
        if self._server is None:
            self._begin()
        future = self._future()
        self._queue.callers.append(future)
        self._queue.until.append(
            self._until if timeout is None else monotonic() + seconds(timeout, "timeout", zero=True)
        )
        return future

    def from_memory(self, n: int) -> list[int]:
        """Take up to n numbers from memory for a client. While a caller waits, take none: its numbers come first."""
        state = self.state
        if (state.buffer is None and state.source is None) or self._server is not None or self._others is not None:
            return []
        return list(islice(state.open, n))

    def enqueue(self, waiter: Waiter) -> None:
        """Give the waiter numbers of the next draw."""
        if self._server is None:
            self._begin()
        queue = self._queue
        queue.callers.append(waiter)
        queue.until.append(self._until)
        queue.waiters += 1

    async def _from_memory(self, timeout: float | None) -> int:
        if asyncio.get_running_loop() is not self.loop:
            raise self._in_another_loop()
        await self._give_turn()
        for number in self.state.open:
            return number
        if not self.supply.alone:
            return await self._queued(timeout)
        deadline = Deadline(self._timeout if timeout is None else seconds(timeout, "timeout", zero=True))
        return (await self._runner.see_through(self.run(self.supply.obtain(1, deadline), deadline)))[0]

    @property
    def crowded(self) -> bool:
        """Whether a draw would wait for a connection to Redis, because all are in use."""
        node = self._node
        return node is not None and not (node.idle or node.pool.free or self.state.buffer or self._others)

    async def share(self, numbers: list[int], n: int, deadline: Deadline) -> None:
        """Add n numbers to the list. They come from the next draw for the callers in the queue."""
        if self._server is None:
            self._begin()
        share, queue = Share(numbers, n, self.loop.create_future()), self._queue
        queue.callers.append(share)
        queue.until.append(deadline.at)
        queue.waiters += 1
        try:
            await share.taken
        except asyncio.CancelledError:
            self.left = True
            raise

    async def _give_turn(self) -> None:
        """Once in TURN_EVERY calls, let other tasks run: a task that takes a number from memory is not suspended."""
        self._in_a_row += 1
        if self._in_a_row >= TURN_EVERY:
            self._in_a_row = 0
            await asyncio.sleep(0)

    async def draw(self, n: int, deadline: Deadline) -> Sequence[int]:
        """Draw up to n numbers, at least one. Waits until the deadline. Those of a counter are a range."""
        if self.state.buffer is not None or self.state.source is not None:
            await self._give_turn()
            if n == 1:
                for number in self.state.open:
                    return range(number, number + 1)
        if self.state.source is not None:
            return await self.run(self.supply.obtain(n, deadline), deadline)
        return await self._draw(n, deadline.at)

    async def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run the steps (calls to Redis and the store) to their end, and return their result."""
        return await self._runner.run(steps, deadline, self.tag)

    async def _draw(self, n: int, until: float) -> Sequence[int]:
        """Draw with one call to Redis, or with `Supply` if the reply has no numbers. `until`: deadline (monotonic)."""
        first: tag_scripts.Drawn | RedisUnavailable | None = None
        node, redis = self._node, self._redis
        if self.state.buffer is not None:
            await self._give_turn()
            numbers = await self._from_buffer(n, until)
            if numbers is not None:
                return numbers
        elif node is not None and redis is not None:
            before = self.state.seen
            try:
                reply = await redis.draw(node, self._one if n == 1 else self._draws.of(n), until)
            except RedisUnavailable as error:
                first = error
            else:
                # In a forked child, the reply is the parent's. There the runner refuses the call.
                if reply is not None and self.generation == GENERATION.now:
                    taken = self._taken(reply, n, before)
                    if isinstance(taken, range):
                        return taken
                    first = taken
        return await self._obtain(n, Deadline.until(until), first)

    async def _obtain(
        self, n: int, deadline: Deadline, first: tag_scripts.Drawn | RedisUnavailable | None
    ) -> Sequence[int]:
        self._node = None
        numbers = await self.run(self.supply.obtain(n, deadline, first), deadline)
        if self._redis is not None:
            if self.state.owned:
                self._node = self._redis.node(self.state.key)
                self.supply.used()  # again: if `rest` was called meanwhile, sweeps would not check the tag
            if self._packed_as != self.state.scheme_id:
                self._pack()
        return numbers

    async def _from_buffer(self, n: int, until: float) -> range | None:
        """Draw from the local buffer. If it is empty, refill it with one call to Redis. None: use `Supply`."""
        supply, node, redis = self.supply, self._node, self._redis
        numbers = supply.at_hand(n)
        begun = None if numbers is not None or node is None or redis is None else supply.refill.begin(n)
        if begun is None or node is None or redis is None:
            return numbers
        flight, buffer, size = begun
        first: tag_scripts.Leased | RedisUnavailable | None = None
        try:
            try:
                reply = await redis.draw(node, self._draws.lease(size) if size else self._draws.of(n), until)
            except RedisUnavailable as error:
                first = error
            else:
                if reply is not None and not size:
                    return supply.passed(flight, reply, n)
                drawn = first = None if reply is None else tag_scripts.leased(reply)
                if drawn is not None and supply.refill.landed(flight, buffer, drawn):
                    return supply.at_hand(n)
            deadline = Deadline.until(until)
            await self.run(supply.refill.land(flight, buffer, first, deadline), deadline)
        except BaseException:
            flight.finish(progress=False)
            raise
        return None

    def _taken(self, reply: list[bytes], n: int, before: int) -> range | tag_scripts.Drawn | None:
        """Return the numbers of a reply, or the reply itself if it has no numbers. None: draw again with `Supply`.

        `n`: how many numbers were requested. `before`: highest number seen when the draw was sent.
        """
        state = self.state
        if reply[0] == b"ok":
            low, high = int(reply[1]), int(reply[2])
            if low < before and state.went_back(low, before):
                return None  # `Supply.obtain` checks the hash and draws again
            # The usual case: the reply (3 parts) elects no process to load a segment, and no numbers are in memory.
            if len(reply) == 3 and state.buffer is None:  # noqa: PLR2004
                if high > state.seen:  # noqa: PLR1730 - `max` takes three times as long
                    state.seen = high
                state.draws += 1
                state.numbers += high - low
                return range(low + 1, high + 1)
            if state.ended is None:
                return self.supply.accept(tag_scripts.drawn(reply), n)
        return tag_scripts.drawn(reply)

    # ------------------------------------------------------------------ callers that share a draw

    @property
    def waiting(self) -> int:
        """How many numbers the waiting callers need in total."""
        waiting = [each for queue in (self._served, self._queue) for each in queue.callers if not each.done()]
        queued = sum(each.missing if isinstance(each, Waiter) else 1 for each in waiting)
        # The supply counts all callers that share a draw as one caller.
        return max(queued, len(self.supply.shortage.waiting))

    def _begin(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise self._in_another_loop()
        # The loop's task factory is not used: an eager task would run before its first caller is queued.
        self._server = asyncio.Task(self._serve(), loop=self.loop)
        if self._watch is None:
            self._look()
        else:
            self._until = monotonic() + LOOK_EVERY + self._timeout

    def _in_another_loop(self) -> RuntimeError:
        return RuntimeError(f"tag {self.tag!r} is in use in another event loop")

    async def _serve(self) -> None:
        try:
            while self._queue.callers:
                self._served, self._queue = self._queue, Queue()
                if self.left:
                    # Do not draw for callers that have given up.
                    self.left = False
                    self._served.keep(lambda caller: not caller.done())
                if self._served.callers:
                    await self._share(self._served)
        finally:
            self._server = None
            if self._served.callers or self._queue.callers:
                self._end_queues()

    def _end_queues(self) -> None:
        """Give an error to the waiting callers: the loop or the issuer ends, and so the drawing task was cancelled."""
        left = [*self._served.callers, *self._queue.callers]
        # Replace the queues first, because a client that gets an error may enqueue its next waiter.
        self._server, self._served, self._queue = None, Queue(), Queue()
        fail(left, self.supply.closed_error)

    async def _share(self, served: Queue) -> None:
        callers, mixed = served.callers, served.waiters > 0
        n = len(callers)
        if n == served.waiters:
            n = sum([each.missing for each in callers])  # type: ignore[misc,union-attr]  # no future is among them
        elif mixed:
            n = sum([each.missing if isinstance(each, Waiter) else 1 for each in callers])
        self.state.bulk += n - len(callers)
        n, until = min(n, DRAW_MOST), max(served.until)
        drawn: Sequence[int]
        try:
            if mixed and self._others is not None:
                drawn = numbers = await self._others(self, n, Deadline.until(until))
            else:
                drawn = numbers = await self._draw(n, until)
                if mixed and self.state.scheme is not None:
                    numbers = values(self.state.value, drawn)
        except Exception as error:  # noqa: BLE001 - every caller gets it
            fail(callers, partial(_each, error))
            return
        self._served = Queue()
        if len(numbers) == n == len(callers) == served.waiters:
            # The most frequent batch is one INCR for each client. This loop saves 3 % of the time of an INCR.
            for caller, number in zip(callers, numbers, strict=True):
                caller.set_result(number)
            flush(callers)
            return
        if mixed:
            self._hand_over(served, drawn, numbers)
            return
        # The loop calls `hand_out`, because no other task can be continued while this one runs.
        self.loop.call_soon(hand_out, callers[: len(drawn)], drawn)  # type: ignore[arg-type]  # none is a Waiter
        if len(drawn) < len(callers):
            # Callers without a number are the first of the next draw.
            self._queue.put_back(served, len(drawn))

    def _hand_over(self, served: Queue, counters: Sequence[int], numbers: Sequence[int]) -> None:
        """Give numbers to Waiters and counters to tasks, in the order of their calls. A task converts its counter."""
        callers, at, end = served.callers, 0, len(numbers)
        rest = len(callers)
        futures: list[asyncio.Future[int]] = []
        theirs: list[int] = []
        for place, caller in enumerate(callers):
            if at == end:
                rest = min(rest, place)
            elif not isinstance(caller, Waiter):
                futures.append(caller)
                theirs.append(counters[at])
                at += 1
            elif caller.missing == 1:
                caller.set_result(numbers[at])
                at += 1
            else:
                stops = at + caller.missing
                caller.give(numbers[at:stops])
                rest = place if stops > end else rest
                at = min(stops, end)
        if rest < len(callers):
            # Callers without a number are the first of the next draw.
            self._queue.put_back(served, rest)
        if futures:
            self.loop.call_soon(hand_out, futures, theirs)
        flush(callers)

    async def end(self, deadline: Deadline) -> None:
        """Return the unused numbers of this process, and give an error to the callers that wait."""
        # Close the supply first: this ends a load of a segment that the drawing task may have started.
        try:
            await self.run(self.supply.close(deadline), deadline)
        finally:
            if self._watch is not None:
                self._watch.cancel()
            if self._server is not None:
                self._server.cancel()
                await asyncio.wait((self._server,), timeout=SHORTEST)
                self._end_queues()

    def _look(self) -> None:
        """Give an error to the callers whose deadline has passed. This runs every LOOK_EVERY while callers wait."""
        self._watch = None
        if self._server is not None and self._server.done():
            # The drawing task was cancelled before its first step, as in a program that cancels all tasks.
            self._end_queues()
        if self._server is not None:
            now = monotonic()
            was, self._until = self._until, now + LOOK_EVERY + self._timeout
            held_up = now + self._timeout > was + LOOK_EVERY
            for queue in (self._served, self._queue):
                if held_up:
                    # The loop was blocked, so the deadline of callers that came since the last check is too early.
                    queue.postpone(was, self._until)
                self.left |= queue.expire(now, self.supply.overdue)
            self._watch = self.loop.call_later(LOOK_EVERY, self._look)
