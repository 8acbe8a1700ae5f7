"""The engine of an AsyncIssuer. It serves the tasks of one event loop at a time."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from issuer.care.chronicler import SHORT
from issuer.clock import Deadline
from issuer.core.record import read_record
from issuer.core.requests import TAKE_MOST, check_contiguous, check_reserving, whole
from issuer.core.supply import reservations
from issuer.drivers.aio.combiner import AsyncCombiner
from issuer.drivers.aio.runner import AsyncRunner, new_flight
from issuer.drivers.running import SHORTEST
from issuer.engine.base import OPEN_ENGINES
from issuer.engine.calls import EngineCalls
from issuer.engine.scheduler import Chosen, Tasks
from issuer.errors import IssuerError, Unavailable, UnknownTag
from issuer.forks import GENERATION, no_fork, notice, refuse_inherited
from issuer.gateway.keys import check_tag
from issuer.operations.config import CLOSING, IssuerConfig
from issuer.operations.numbers import PLAIN, DrawOptions
from issuer.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence

    from issuer.core.steps import Steps
    from issuer.drivers.aio.connections import AsyncConnections
    from issuer.plugins.chain import AsyncChain
    from issuer_persistence.records import Tag

T = TypeVar("T")

#: How many counters of a draw are converted to numbers at once. During this time, 0.1 ms, no other task runs.
PIECE = 1000

#: Maximum number of draws of `contiguous`, for a strict and for a trend tag. A draw at the end of a segment returns too
#: few numbers, so `contiguous` draws again. After the last draw it raises an error for a strict tag. For a trend tag,
#: the store then reserves a range.
CONTIGUOUS_DRAWS = 16
CONTIGUOUS_DRAWS_OF_TREND = 3

#: If all connections to Redis are in use, `take` of at most this many numbers shares a draw with others. A connection
#: for each would cost 160 tasks two thirds of their numbers. More numbers would keep the calls that share waiting.
SHARES = 100


class AsyncEngine(EngineCalls[AsyncCombiner]):
    """An AsyncIssuer without its public methods; see BaseEngine. Some methods are for the HTTP and Redis servers."""

    face = "AsyncIssuer"
    _executor = Tasks
    _flight = staticmethod(new_flight)
    _runner = AsyncRunner
    runner: AsyncRunner

    def __init__(self, config: IssuerConfig, redis: AsyncConnections | None, chosen: Chosen) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stay: AsyncGenerator[None, None] | None = None
        super().__init__(config, redis, chosen)

    def start(self) -> None:
        """Create everything that belongs to one process and one event loop."""
        super().start()
        #: The combiner of each tag in use. `next` looks up the combiner of the tag here, and does not check for a fork.
        #: So before uWSGI forks, `unpublish` replaces this dict by an empty one: otherwise the child would issue the
        #: parent's numbers.
        self.combiners = self.registry.combiners

    def enter(self) -> None:
        """Detect a new event loop, and a fork in C, for which Python calls no hook. Each call must begin with `enter`.

        The objects of a closed loop are replaced. Raises IssuerError if another open loop uses this issuer.
        """
        notice()
        loop = get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise IssuerError(f"{self!r} is in use in another event loop: create an AsyncIssuer for each loop")
        if self._loop is not None and not self.closed:
            self.begin_anew()
        self._loop = loop
        self._stay = self._staying()
        with suppress(StopIteration):  # start the generator: when the loop ends, it closes the started generators
            self._stay.asend(None).send(None)

    def combiner(self, tag: str) -> AsyncCombiner:
        """Call `enter`, and return the tag's combiner. Raises InvalidArgument. Raises IssuerError after `close`."""
        notice()
        if self._loop is not get_running_loop():
            self.enter()
        return self.registry.combiner(tag)

    @staticmethod
    def _chain(plugins: Iterable[Any]) -> AsyncChain:
        with no_fork():
            from issuer.plugins.chain import AsyncChain

        return AsyncChain(plugins)

    def make_combiner(self, tag: str) -> AsyncCombiner:
        """Create the combiner of a tag."""
        return AsyncCombiner(
            tag,
            self.config.key(tag),
            self.runtime,
            self.runner,
            self.timeout,
            others=None if self.chain is None else self._others,
        )

    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps (calls to Redis and the store) to their end, and return their result."""
        self.enter()
        if self.registry.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return await self.runner.run(steps, deadline, tag)

    async def run_draw(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run steps that draw numbers.

        If the caller is cancelled, the steps still read the reply of Redis that they wait for. Otherwise the connection
        would be lost.
        """
        return await self.runner.see_through(self.run(steps, deadline, tag))

    def run_in_thread(self, steps: Steps[T], deadline: Deadline, *, tag: str) -> T:
        """Run steps for a strategy that blocks. It calls this in a thread, which waits for the result."""
        if self._loop is None:
            raise RuntimeError("no event loop runs the issuer")
        return asyncio.run_coroutine_threadsafe(self.run(steps, deadline, tag), self._loop).result()

    async def number(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        """Return the next number of the tag. `how`: key, shard key and other options; see AsyncIssuer.next."""
        if how.key is None and how.shard_key is None:
            return (await self.take(tag, 1, self.deadline(timeout)))[0]
        return await super().number(tag, how, timeout)

    async def take(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        """Draw exactly n numbers. Plugins are called before and after the draw."""
        numbers: list[int] = []
        for part in await self.ranges(tag, n, deadline):
            for at in range(0, len(part), PIECE):
                if at:
                    await asyncio.sleep(0)
                numbers += part[at : at + PIECE]
        return numbers

    async def ranges(self, tag: str, n: int, deadline: Deadline) -> Sequence[Sequence[int]]:
        """Draw as `take` does. The numbers are in parts, which need little memory if they are ranges; see `lists`."""
        if self.chain is not None:
            with self.attempt(tag):
                return [await self._around(tag, n, deadline)]
        generation = GENERATION.now
        try:
            return await self.runner.see_through(self._drawn(tag, n, deadline))
        finally:
            refuse_inherited(generation, tag)

    async def lists(self, tag: str, deadline: Deadline) -> bool:
        """Return whether `ranges` returns lists: the numbers of plugins, schemes, and strategies without a counter."""
        combiner = self.combiner(tag)
        if combiner.state.record is None:
            await combiner.run(combiner.supply.read_soon(deadline), deadline)
        record = combiner.state.record
        return self.chain is not None or record is None or record.scheme_id != ""

    async def _around(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        async def draw() -> list[int]:
            parts = await self.runner.see_through(self._drawn(tag, n, deadline))
            return [each for part in parts for each in part]

        return await self.around(tag, n, PLAIN, deadline, draw)

    # `blocking.py` has a second method of this kind. Code for both would need a generator, which takes 2 to 6 us more
    # for each draw.
    async def _drawn(self, tag: str, n: int, deadline: Deadline) -> list[Sequence[int]]:
        parts: list[Sequence[int]] = []
        left = n
        try:
            combiner = self.combiner(tag)
            while left:
                if parts:
                    self.runner.go_on()
                if combiner.state.lacks(left):
                    await combiner.run(combiner.supply.check_left(left), deadline)
                numbers: list[int] = []
                if n <= SHARES and combiner.crowded:
                    parts.append(numbers)
                    await combiner.share(numbers, left, deadline)
                    break
                drawn = await combiner.draw(left, deadline)
                left -= len(drawn)
                combiner.state.bulk += len(drawn) - 1
                scheme = combiner.state.scheme  # read it now: it can change while the loop below lets others run
                if scheme is None:
                    parts.append(drawn)
                    continue
                parts.append(numbers)
                for at in range(0, len(drawn), PIECE):
                    if at:
                        await asyncio.sleep(0)
                    numbers += map(scheme.value, drawn[at : at + PIECE])
        except IssuerError as error:
            self.part_way(tag, error, [each for part in parts for each in part])
            raise
        return parts

    # ------------------------------------------------------------------ for servers

    async def _others(self, combiner: AsyncCombiner, n: int, deadline: Deadline) -> Sequence[int]:
        """Draw up to n numbers for clients of `issuer serve`, with the plugins."""
        try:
            return await self._around(combiner.tag, n, deadline)
        except IssuerError as error:
            if error.drawn:
                return error.drawn  # serve these numbers, drawn before the error; the next draw meets the error again
            raise

    async def reserve_step(
        self, tag: str, reason: str, spend: Callable[[int, str], object], timeout: float | None
    ) -> range:
        """Reserve one step of a trend tag in the store, for a client that issues the numbers itself.

        Near the tag's limit, fewer numbers are reserved. If the step was just changed, the next call uses the new one.

        Args:
            tag: Name of the tag.
            reason: Purpose of the reservation, for the ledger.
            spend: Function that counts the numbers of the tag before they are reserved. It may raise an error.
            timeout: Longest wait in seconds. None means the timeout of the issuer.

        Returns:
            The numbers. If the tag has a stride, the range has this stride.
        """
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            combiner = self.combiner(tag)
            record = await combiner.run(reservations.recent(combiner.supply), deadline)
            step = min(record.step, record.limit)
            check_reserving(record, step, spaced=True)
            spend(step, tag)
            if self.chain is not None:
                await self._allow(record, step, self.chain)
            reserved = await combiner.run(reservations.reserve_step(combiner.supply, step, reason), deadline)
            value, n = self.config.texts(reserved.tag).value, reserved.high - reserved.low
            # A change of the stride applies above all reserved counters, so these numbers have equal distances.
            first, last = value(reserved.low + 1), value(reserved.high)
            return range(first, last + 1, (last - first) // (n - 1) if n > 1 else 1)

    async def contiguous(self, tag: str, n: int) -> range:
        """Return n contiguous numbers, drawn as `next` draws them. This works for strict tags too. `n`: 1..1 000 000.

        A draw can return too few numbers, as at the end of a segment. If they come from Redis, they are a gap, and n
        numbers are drawn again. If they come from memory, the next draw continues after them.

        Raises the errors of `next`. Raises InvalidArgument if the tag's numbers are not counter values. For a strict
        tag, raises Unavailable if no draw has returned n numbers, because other callers drew numbers in between.
        """
        deadline = self.deadline(None)
        with self.attempt(tag):
            wanted = whole(n, "n", 1, TAKE_MOST)
            combiner = self.registry.combiner(tag)
            record = await self.record(tag, deadline)
            if self.chain is not None:
                await self._allow(record, wanted, self.chain)
            return await self._contiguous(combiner, record, wanted, deadline)

    async def _contiguous(self, combiner: AsyncCombiner, record: Tag, wanted: int, deadline: Deadline) -> range:
        drawn, tag, state = range(0), combiner.tag, combiner.supply.state
        for _ in range(CONTIGUOUS_DRAWS if record.order == "strict" else CONTIGUOUS_DRAWS_OF_TREND):
            check_contiguous(state.record or record, wanted)
            missing = wanted if state.buffer is None else wanted - len(drawn)
            more = await combiner.draw(missing, deadline)
            if state.scheme_id or not isinstance(more, range):
                # The tag got a scheme after the record was read, so these counters are not numbers for users.
                drawn = range(0)
                continue
            drawn = range(drawn.start, more.stop) if drawn and drawn.stop == more.start else more
            if len(drawn) >= wanted:
                return drawn[-wanted:]
        check_contiguous(state.record or record, wanted)
        if record.order == "trend":
            return await combiner.run(reservations.reserve(combiner.supply, wanted), deadline)
        problem = (
            f"tag {tag!r}: other callers drew numbers in between, so {wanted} contiguous numbers were not available"
        )
        raise Unavailable(f"{problem}; retry, or raise the tag's step", tag=tag, retry_after=0.1)

    async def last(self, tag: str) -> int | None:
        """Return the highest number that was issued, as Redis reports it, or None; see Issuing.last."""
        deadline = self.deadline(None)
        return await self.run(self.issuing.last(tag), deadline, tag)

    def knows(self, tag: str) -> bool:
        """Whether this process has drawn from the tag, or begun to. False for names that clients invent."""
        return tag in self.registry.combiners

    async def find(self, tag: str, seconds: float) -> bool:
        """Return whether the tag exists. False if the tag does not exist yet, and its first draw will create it.

        `seconds`: longest wait. Raises UnknownTag if the tag does not exist and draws do not create it. Raises
        Unavailable.
        """
        try:
            await self.run(read_record(check_tag(tag)), Deadline(seconds), tag)
        except UnknownTag:
            if not self.config.settings.embedded:
                raise
            return False
        return True

    async def exists(self, tag: str) -> bool:
        """Return whether the tag exists. After another process has deleted it, the result can be True for a minute."""
        deadline = self.deadline(None)
        return await self.run(self.issuing.exists(tag), deadline, tag)

    # ------------------------------------------------------------------ background work

    def background(self, work: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Run a coroutine function in the background; see Scheduler.background."""
        return self.scheduler.background(work)

    async def sweep(self) -> None:
        """Do the background work of all tags in use. The scheduler calls this every second."""
        # If the issuer is closed or the loop ends, this task is cancelled. Without `suppress`, APScheduler would
        # report a failed job.
        with suppress(asyncio.CancelledError):
            await self.upkeep.sweep()

    # ------------------------------------------------------------------ end, loops and forks

    async def close(self) -> None:
        """End background work, return unused numbers, and close the connections. A second call does nothing."""
        self.enter()
        self.config.events.call_periodic(at_once=True)
        combiners = self.registry.close()
        if combiners is None:
            return
        async with AsyncExitStack() as ends:
            # At the end of this block, these calls run in reverse order. Each call runs even if others fail.
            ends.callback(self.config.events.call_periodic, at_once=True)
            ends.callback(OPEN_ENGINES.discard, self)
            ends.callback(self.runner.pool.close)
            if self.config.own_store:
                ends.push_async_callback(in_thread, self.config.store.close)
            if self.runner.redis is not None:
                ends.push_async_callback(self.runner.redis.close)
            if self._stay is not None:
                ends.push_async_callback(self._stay.aclose)
            ends.push_async_callback(self._leave, combiners)

    async def _leave(self, combiners: Iterable[AsyncCombiner]) -> None:
        """End the combiners of this loop, which return their unused numbers."""
        deadline = Deadline(CLOSING)
        async with AsyncExitStack() as ends:
            if self.runner.redis is not None:
                ends.push_async_callback(self.runner.redis.close_idle)
                ends.push_async_callback(lambda: self.runner.run(self.chronicle.ending(), Deadline(SHORT), None))
            ends.push_async_callback(self.upkeep.end)
            ends.push_async_callback(self.scheduler.cancel)
            ends.push_async_callback(self.runner.end, SHORTEST)
            for combiner in combiners:
                ends.push_async_callback(combiner.end, deadline)
            ends.callback(self.scheduler.stop)

    async def _staying(self) -> AsyncGenerator[None, None]:
        """Return unused numbers when the loop ends: asyncio then closes this async generator, and `finally` runs."""
        generation = GENERATION.now
        try:
            yield
        finally:
            notice()
            # In a forked child, Python also closes the generator of the parent.
            if not self.closed and generation == GENERATION.now:
                await self._leave(self.registry.combiners.values())

    def begin_anew(self) -> None:
        """Replace all objects that belong to another process or event loop."""
        self._stay = None
        super().begin_anew()
        self._loop = None  # last: if a signal interrupts this method, the next call begins it again

    def unpublish(self) -> None:
        """Before a fork in C, as by uWSGI: hide the numbers that `next` takes from memory.

        In the child, `next` would take the parent's numbers, because it does not check for a fork.
        """
        self.combiners = {}
        super().unpublish()

    def settle(self) -> None:
        """In the parent, after a fork in C: show `next` again the numbers that `unpublish` has hidden."""
        self.combiners = self.registry.combiners
        super().settle()
