"""AsyncIssuer: the asyncio interface."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from typing import TYPE_CHECKING, Self

from issuer.api.calls.aio import AsyncIssuerCalls
from issuer.core.requests import TAKE_MOST, TTL, only_one, whole
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError
from issuer.forks import GENERATION, refuse_inherited
from issuer.gateway.keys import check_tag
from issuer.operations.numbers import DrawOptions
from issuer.settings import seconds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from issuer.drivers.aio.combiner import AsyncCombiner
    from issuer.drivers.aio.connections import AsyncConnections
    from issuer.engine.scheduler import Chosen
    from issuer.operations.config import IssuerConfig


class AsyncIssuer(AsyncIssuerCalls):
    """Issues unique, increasing 64-bit numbers for named tags in an event loop. Create it with `issuer.aconnect`.

    The methods are those of Issuer, as coroutines, with the same arguments, results and errors. The methods never block
    the event loop: requests to the store run in worker threads.

    An AsyncIssuer serves one event loop at a time. Create one for each running loop. When a loop has been closed, its
    AsyncIssuer can be used in the next one. If a task is cancelled while it waits for a number, that number is a gap:
    no other task receives it.

    Every method that contacts Redis or the store has a `timeout`, in seconds. When this time has passed, the method
    raises StoreUnavailable or RedisUnavailable, depending on which server did not answer. With `timeout=0`, a call uses
    only numbers that the process already holds, or one round trip to Redis.

    Every method can raise ConfigurationError. If the data in Redis or the store cannot be trusted, every method can
    raise CorruptState or FenceError. The other errors are listed for each method.
    """

    engine: AsyncEngine

    def __init__(self, config: IssuerConfig, redis: AsyncConnections | None, scheduler: Chosen) -> None:
        super().__init__(AsyncEngine(config, redis, scheduler))

    async def next(
        self,
        tag: str,
        key: str | None = None,
        timeout: float | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
    ) -> int:
        """Return the next number of a tag.

        A strict tag returns a number above every number that an earlier call has returned, in any process. "Earlier"
        means that the other call had returned before this call began. A trend tag's numbers increase within a process.
        For a keyed tag call `issue` instead.

        Args:
            tag: Name of the tag.
            key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process.
                Needs Redis.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.

        Raises:
            UnknownTag: The tag was never created, or was deleted.
            LimitReached: No number is left up to the tag's limit.
            StoreUnavailable: No number is left in Redis and in this process, and the store did not answer in time.
            RedisUnavailable: Redis did not answer in time, and the tag is strict or `key` was given.
            StoreBehind: The tag is halted, or the store has lost reservations. Run `recover`.
            Refused: A plugin rejected the call.
            InvalidArgument: An argument is out of its range.
        """
        engine = self.engine
        if engine.chain is not None or key is not None or shard_key is not None:
            only_one(key)
            return await engine.number(tag, DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key), timeout)
        if timeout is not None:
            seconds(timeout, "timeout", zero=True)  # checked also if the number comes from memory
        try:
            combiner = engine.combiners[tag]
        except (KeyError, TypeError):
            combiner = engine.combiner(tag)
        try:
            number = await combiner.next(timeout)
        except asyncio.CancelledError:
            combiner.left = True
            raise
        except RuntimeError:
            # The combiner draws for all tasks of one loop. If it belongs to an earlier loop, get a new one, and try
            # again. To check the loop before each draw would cost 0.4 us of 2.4: a system call in Python 3.11.
            if combiner.loop is get_running_loop():
                raise
            combiner = engine.combiner(tag)
            number = await combiner.next(timeout)
        except IssuerError as error:
            engine.refused(tag, error)
            raise
        plain = combiner.state.scheme is None and combiner.generation == GENERATION.now
        return number if plain else self._valued(combiner, number)

    def _valued(self, combiner: AsyncCombiner, counter: int) -> int:
        try:
            refuse_inherited(combiner.generation, combiner.tag)
            return combiner.state.value(counter)
        except IssuerError as error:
            self.engine.refused(combiner.tag, error)
            raise

    async def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return a list of exactly n numbers of a tag, in increasing order.

        The numbers can span several segments, so they need not be contiguous. Raises the errors of `next`. If an error
        occurs part-way, for example at the tag's limit, the error's attribute `drawn` contains the numbers that were
        drawn before the error.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1..1 000 000.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.take(tag, whole(n, "n", 1, TAKE_MOST), self.engine.deadline(timeout))

    def stream(self, tag: str, *, timeout: float | None = None) -> AsyncIterator[int]:
        """Return an endless iterator over the tag's numbers. Use each iterator in one thread or task only.

        A strict tag's numbers are drawn one by one, each when it is requested. A trend tag's numbers are drawn ahead in
        batches, and served from memory. `next` and all streams of the process use the same batches.

        The tag's `lease` is the size of a batch. If the tag has no lease, the issuer's `lease` is used. If there is no
        lease at all, the first batch has 1000 numbers. If a batch is used up in less than 50 ms, the next batch is
        twice as large, up to a fifth of a segment. If a batch lasts longer than a second, the next batch is half as
        large, but not smaller than 1000.

        Raises the errors of `next`.

        Args:
            tag: Name of the tag.
            timeout: Longest wait for each number in seconds, 0 or more. None means the issuer's `timeout`.
        """
        check_tag(tag)
        if timeout is not None:
            seconds(timeout, "timeout", zero=True)
        return self._stream(tag, timeout)

    async def _stream(self, tag: str, timeout: float | None) -> AsyncIterator[int]:
        while True:
            # Let other tasks of the loop run: if the numbers are in memory, no call below waits.
            await asyncio.sleep(0)
            await self.engine.lease_for_stream(tag, timeout)
            yield await self.next(tag, timeout=timeout)
            if self.engine.chain is not None:
                continue
            for number in self.engine.combiner(tag).state.open:  # looked up each time: a fork replaces the combiner
                yield number

    async def close(self) -> None:
        """Stop background work, return unused numbers, and close the issuer's connections.

        A second call does nothing. Clients, stores and schedulers that were passed to `connect` or `aconnect` stay
        open.
        """
        await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
