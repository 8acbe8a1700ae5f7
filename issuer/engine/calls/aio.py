"""Calls for numbers that need more than a plain draw: options, plugins, contiguous ranges, strategies."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

from issuer.clock import Deadline
from issuer.core import scheme_record
from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, check_contiguous, whole
from issuer.core.steps import Steps
from issuer.drivers.aio.combiner import AsyncCombiner
from issuer.engine.base import BaseEngine
from issuer.errors import Unavailable
from issuer.operations.config import STREAM_LEASE
from issuer.operations.numbers import PLAIN, DrawOptions, plugin_call
from issuer_persistence.records import HIGHEST, Tag

if TYPE_CHECKING:
    from issuer.plugins.chain import AsyncChain, AsyncDraw

T = TypeVar("T")

#: If a tag has one of these settings, each of its numbers also has a text, a period or a shard.
_COMPOSED = frozenset({"format", "restart", *scheme_record.PARTS})

#: Maximum number of draws of `contiguous`, for a strict and for a trend tag. A draw at the end of a segment returns too
#: few numbers, so `contiguous` draws again. After the last draw it raises an error for a strict tag. For a trend tag,
#: the store then reserves a range.
CONTIGUOUS_DRAWS = 16
CONTIGUOUS_DRAWS_OF_TREND = 3


class AsyncEngineCalls(BaseEngine[AsyncCombiner]):
    """The methods of an engine that return numbers."""

    chain: AsyncChain | None

    @abstractmethod
    async def run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps (calls to Redis and the store) to their end. Raises IssuerError if the issuer is closed."""

    @abstractmethod
    async def run_draw(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run steps that draw numbers to their end, and return their result."""

    @abstractmethod
    async def take(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        """Draw exactly n numbers. Plugins are called before and after the draw."""

    async def number(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        """Return the next number of the tag. `how`: key, shard key and other options; see AsyncIssuer.next."""
        if how.key is None and how.shard_key is None:
            return (await self.take(tag, 1, self.deadline(timeout)))[0]
        return (await self._values(tag, how, timeout, [], as_drawn=False))[0]

    async def issue(self, tag: str, how: DrawOptions, timeout: float | None) -> Issued:
        """Issue one number of the tag. `how`: key, shard key and other options; see AsyncIssuer.issue."""
        issued: list[Issued] = []
        await self._values(tag, how, timeout, issued, as_drawn=True)
        return issued[-1]

    async def _values(
        self, tag: str, how: DrawOptions, timeout: float | None, issued: list[Issued], *, as_drawn: bool
    ) -> list[int]:
        deadline = self.deadline(timeout)

        async def draw() -> list[int]:
            issued.append(await self.run_draw(self.issuing.issue(tag, how, deadline, text=as_drawn), deadline, tag))
            return [issued[-1].value]

        with self.attempt(tag):
            return await self.around(tag, 1, how, deadline, draw, as_drawn=as_drawn)

    async def around(
        self, tag: str, n: int, how: DrawOptions, deadline: Deadline, draw: AsyncDraw, *, as_drawn: bool = False
    ) -> list[int]:
        """Call the plugins, then `draw`, then the plugins again. Return the numbers, which plugins may have changed.

        `how`: options of the call. `as_drawn`: raise ConfigurationError if a plugin changes numbers.
        """
        if self.chain is None:
            return await draw()
        record = await self.record(tag, deadline)
        return await self.chain.around(plugin_call(record, n, how, self.chain, as_drawn=as_drawn), draw)

    async def record(self, tag: str, deadline: Deadline) -> Tag:
        """Return the tag's record as this process last read it. If it has not read it yet, read it from the store."""
        known = self.registry.combiner(tag).supply.state.record
        if known is not None:
            return known
        return await self.run_draw(self.issuing.record(tag), deadline, tag)

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the tag's numbers have a text, a period or a shard; see AsyncIssuer.composed."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            return not _COMPOSED.isdisjoint((await self.record(tag, deadline)).scheme)

    async def reserve(self, tag: str, n: int, timeout: float | None) -> range:
        """Reserve n contiguous numbers in the store; see AsyncIssuer.reserve."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            wanted = whole(n, "n", 1, HIGHEST)
            combiner = self.registry.combiner(tag)
            if self.chain is not None:
                await self._allow(await self.record(tag, deadline), wanted, self.chain)
            return await combiner.run(combiner.supply.reserve(wanted), deadline)

    async def _allow(self, record: Tag, n: int, chain: AsyncChain) -> None:
        """Call `before` of the plugins, which may reject the call. Plugins do not see the single numbers of a range."""
        await chain.before(plugin_call(record, n, PLAIN, chain, as_drawn=True))

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
            return await combiner.run(combiner.supply.reserve(wanted), deadline)
        problem = (
            f"tag {tag!r}: other callers drew numbers in between, so {wanted} contiguous numbers were not available"
        )
        raise Unavailable(f"{problem}; retry, or raise the tag's step", tag=tag, retry_after=0.1)

    async def warm(self, tag: str, timeout: float | None) -> None:
        """Wait until the tag has numbers; see AsyncIssuer.warm."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            combiner = self.registry.combiner(tag)
            await combiner.run(combiner.supply.warm(deadline), deadline)

    async def lease_for_stream(self, tag: str, timeout: float | None) -> None:
        """For a stream: let later draws from a trend tag fetch many numbers at once, unless a `lease` is set."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            combiner = self.registry.combiner(tag)
            await combiner.run(combiner.supply.origin.lease_for_stream(STREAM_LEASE), deadline)
