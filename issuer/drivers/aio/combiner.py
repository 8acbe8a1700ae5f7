"""A tag's callers in this event loop: tasks that draw from Redis at the same time share one draw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from issuer import gateway
from issuer.clock import Deadline, monotonic
from issuer.core.steps import Steps, renewed
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import Hand
from issuer.core.supply.supply import Supply
from issuer.drivers.aio.connections import AsyncNode
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.servers import SHORTEST
from issuer.errors import IssuerError, RedisUnavailable
from issuer.settings import seconds
from issuer.strategies.serving import StrategyRunner

T = TypeVar("T")

#: Seconds between two looks at the callers' deadlines, and at the clock: a caller's time ends this much late at most.
LOOK_EVERY = 0.025

#: After this many numbers out of hand, which wait for nothing, the loop's other tasks get their turn: every 0.3 ms.
TURN_EVERY = 100


def hand_out(futures: Iterable[asyncio.Future[int]], numbers: Iterable[int]) -> None:
    """Give each future its number, and go on at once with the task that waits for it. To be called by the loop itself.

    A future that gets its result has the loop call each waiter: 1.1 of a number's 2.3 us. Here that is one call for
    a whole batch. What it would call is read where asyncio's own `repr` of a future reads it; where that isn't one task
    and nothing else, the future does what it always does.
    """
    pairs = zip(futures, numbers, strict=False)
    try:
        for future, number in pairs:
            if future.done():
                continue  # cancelled, or its time was over: a gap
            callbacks = getattr(future, "_callbacks", None)
            if callbacks and len(callbacks) == 1:
                callback, context = callbacks[0]
                future.remove_done_callback(callback)
                future.set_result(number)
                context.run(callback, future)
            else:
                future.set_result(number)
    finally:
        # A task that ends the program, by SystemExit or KeyboardInterrupt, doesn't end the other tasks' wait.
        for future, number in pairs:
            if not future.done():
                future.set_result(number)


class Queue:
    """Callers that wait for a draw: what each waits for, and until when."""

    __slots__ = ("futures", "until")

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[int]] = []
        self.until: list[float] = []

    def postpone(self, was: float, until: float) -> None:
        """Move the deadlines that end at `was`."""
        self.until = [until if each == was else each for each in self.until]

    def expire(self, now: float, error: Callable[[], IssuerError]) -> bool:
        """Fail the callers whose time is over; return whether there were any. All have a round trip's time."""
        latest = now - SHORTEST
        for future, until in zip(self.futures, self.until, strict=True):
            if until <= latest and not future.done():
                future.set_exception(error())
        return any(until <= latest for until in self.until)

    def waiting(self) -> Queue:
        """Return the callers that still wait."""
        rest = Queue()
        for future, until in zip(self.futures, self.until, strict=True):
            if not future.done():
                rest.futures.append(future)
                rest.until.append(until)
        return rest

    def end(self, error: Callable[[], IssuerError]) -> None:
        """Fail all callers that still wait."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error())


class AsyncCombiner:
    """Draws numbers of one tag for the tasks of a loop.

    Callers queue up; one task draws for all that are there, and again for those that came meanwhile: 1000 tasks get 300
    000 numbers a second that way. Strict: a batch leaves the queue before its draw is sent, so every number is drawn
    after its call began. The task belongs to no caller: one that is cancelled breaks no reply, and its number is a gap.
    """

    def __init__(self, tag: str, key: str, runtime: Runtime, runner: AsyncRunner, timeout: float) -> None:
        """`key` is the tag's hash in Redis; `timeout`: seconds that a call may wait if it doesn't say it itself."""
        self.tag = tag
        self.supply = Supply(tag, key, runtime)
        self.state = self.supply.state
        #: The runner of the tag's strategy, if that has no counter.
        self.serving: StrategyRunner | None = None
        self._key = key
        self._runner = runner
        self._redis = runner.redis
        self._timeout = timeout
        self.loop = asyncio.get_running_loop()
        self._future: Callable[[], asyncio.Future[int]] = self.loop.create_future
        self._pack()
        self._node: AsyncNode | None = None
        self._queue = Queue()
        self._served = Queue()
        #: Whether a caller may have given up since the last draw.
        self.left = False
        self._server: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle | None = None
        #: The deadline of a caller that comes now: read off the clock at each look, as that costs 3 % of a number.
        self._until = 0.0
        self._in_a_row = 0
        #: Counts the callers that a server has for this tag, which wait in rows of its own.
        self.beside: Callable[[], int] = int

    def _pack(self) -> None:
        self._packed_as = self.state.scheme_id
        self._draws = gateway.Draws(self._key, self.supply.refill.window, self._packed_as)
        self._one = self._draws.one

    # ------------------------------------------------------------------ drawing

    def next(self, timeout: float | None) -> Awaitable[int]:
        """Draw one number, waiting `timeout` seconds at most, 0 or more.

        Raises InvalidArgument, and RuntimeError, at once or when it is awaited, if another loop runs than its own.
        """
        if self.state.hand is not None:
            return self._from_hand(self.state.hand, timeout)
        alarm = None if timeout is None else monotonic() + seconds(timeout, "timeout", zero=True)
        if self._server is None:
            self._begin()
        future = self._future()
        queue = self._queue
        queue.futures.append(future)
        queue.until.append(self._until if alarm is None else alarm)
        return future

    async def _from_hand(self, hand: Hand, timeout: float | None) -> int:
        self._check_loop()
        await self.give_turn()
        for number in hand.open:
            return number
        deadline = Deadline(self._timeout if timeout is None else seconds(timeout, "timeout", zero=True))
        return (await self._runner.see_through(self.run(self.supply.obtain(1, deadline), deadline)))[0]

    async def give_turn(self) -> None:
        """Let the loop's other tasks have their turn now and then: numbers that are there already wait for nothing."""
        self._in_a_row += 1
        if self._in_a_row >= TURN_EVERY:
            self._in_a_row = 0
            await asyncio.sleep(0)

    async def draw(self, n: int, deadline: Deadline) -> range:
        """Draw up to n numbers, at least one, waiting until the deadline."""
        hand = self.state.hand
        if hand is None:
            return await self._draw(n, deadline)
        await self.give_turn()
        if n == 1:
            for number in hand.open:
                return range(number, number + 1)
        return await self.run(self.supply.obtain(n, deadline), deadline)

    async def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run the protocol's steps to their end."""
        return await self._runner.run(steps, deadline, self.tag)

    def run_in_thread(self, steps: Steps[T], deadline: Deadline) -> T:
        """Do the same for a strategy that blocks, and so has a thread, which waits for what runs here."""
        return asyncio.run_coroutine_threadsafe(self.run(steps, deadline), self.loop).result()

    async def _draw(self, n: int, deadline: Deadline) -> range:
        """One round trip; what it doesn't bring goes the long way."""
        first: gateway.Drawn | RedisUnavailable | None = None
        node, redis = self._node, self._redis
        if node is not None and redis is not None and self.state.hand is None:
            packed = self._one if n == 1 else self._draws.of(n)
            before = self.state.seen
            try:
                reply = await redis.draw(node, packed, deadline)
            except RedisUnavailable as error:
                first = error
            else:
                if reply is not None:
                    taken = self._taken(reply, before)
                    if isinstance(taken, range):
                        return taken
                    first = taken
        self._node = None
        numbers = await self.run(self.supply.obtain(n, deadline, first), deadline)
        if redis is not None:
            if self.state.owned:
                self._node = redis.node(self._key)
            if self._packed_as != self.state.scheme_id:
                self._pack()
        return numbers

    def _taken(self, reply: list[bytes], before: int) -> range | gateway.Drawn | None:
        """Return a reply's numbers, or all of it if it says more. `before`: the highest seen when it was sent."""
        state = self.state
        if reply[0] == b"ok":
            low, high = int(reply[1]), int(reply[2])
            if state.went_back(low, before):
                return None  # drawn once more, with a look at the hash
            # No election; and no numbers in hand, see Supply.obtain.
            if len(reply) == 3 and state.hand is None:  # noqa: PLR2004
                if high > state.seen:  # noqa: PLR1730 - `max` takes three times as long
                    state.seen = high
                state.drew(high - low)
                return range(low + 1, high + 1)
        return gateway.drawn(reply)

    # ------------------------------------------------------------------ together

    @property
    def waiting(self) -> int:
        """How many callers wait now."""
        queued = sum(not future.done() for queue in (self._served, self._queue) for future in queue.futures)
        queued += self.beside()
        # Of those in the supply one stands for all that share its draw.
        return max(queued, len(self.supply.shortage.waiting))

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(f"tag {self.tag!r} is in use in another event loop")

    def _begin(self) -> None:
        self._check_loop()
        # Not by the loop's task factory: an eager one would run it before its first caller is in the queue.
        self._server = asyncio.Task(self._serve(), loop=self.loop)
        if self._watch is None:
            self._look()
        else:
            self._until = monotonic() + LOOK_EVERY + self._timeout

    async def _serve(self) -> None:
        """Draw for all callers that wait, until none does."""
        try:
            while self._queue.futures:
                self._served, self._queue = self._queue, Queue()
                if self.left:
                    # Callers that have given up get no number.
                    self.left = False
                    self._served = self._served.waiting()
                if self._served.futures:
                    await self._share(self._served)
        finally:
            self._end_queues()

    def _end_queues(self) -> None:
        """Draw for no caller any more. None waits, unless the drawing task was cancelled: the loop or issuer ends."""
        self._server = None
        for queue in (self._served, self._queue):
            queue.end(self.supply.closed_error)
        self._served, self._queue = Queue(), Queue()

    async def _share(self, served: Queue) -> None:
        futures = served.futures
        try:
            numbers = await self._draw(len(futures), Deadline.until(max(served.until)))
        except Exception as error:  # noqa: BLE001 - every caller gets it
            for future in futures:
                if not future.done():
                    future.set_exception(renewed(error) if isinstance(error, IssuerError) else error)
            return
        # Not here: while this task runs, no other one can.
        self.loop.call_soon(hand_out, futures[: len(numbers)], numbers)
        if len(numbers) < len(futures):
            # Granted short: first in the next draw.
            self._queue.futures[:0] = futures[len(numbers) :]
            self._queue.until[:0] = served.until[len(numbers) :]
        self._served = Queue()

    async def end(self, deadline: Deadline) -> None:
        """Give back what this process holds, and fail the callers that wait."""
        # First, as it ends an extension under way, which may be the server's own.
        await self.run(self.supply.close(deadline), deadline)
        if self._watch is not None:
            self._watch.cancel()
        if self._server is not None:
            self._server.cancel()
            await asyncio.wait((self._server,), timeout=SHORTEST)
            self._end_queues()

    def _look(self) -> None:
        """Look at the clock, and fail the callers whose time is over; as long as any caller waits, look again."""
        self._watch = None
        if self._server is not None and self._server.done():
            # Cancelled before its first step, as by a program that cancels all tasks: nothing of it has run.
            self._end_queues()
        if self._server is not None:
            now = monotonic()
            was, self._until = self._until, now + LOOK_EVERY + self._timeout
            held_up = now + self._timeout > was + LOOK_EVERY
            for queue in (self._served, self._queue):
                if held_up:
                    # The loop was, and the clock stood still for those who came since the last look: perhaps just now.
                    queue.postpone(was, self._until)
                self.left |= queue.expire(now, self.supply.overdue)
            self._watch = self.loop.call_later(LOOK_EVERY, self._look)
