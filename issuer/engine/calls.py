"""Calls for numbers that need more than a plain draw: options, plugins, contiguous ranges, strategies."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from issuer.care.chronicle import difference
from issuer.core import scheme_record
from issuer.core.requests import whole
from issuer.core.supply import reservations
from issuer.engine.base import BaseEngine
from issuer.forks import no_fork
from issuer.operations.config import STREAM_LEASE
from issuer.operations.numbers import PLAIN, DrawOptions, plugin_call
from issuer.operations.registry import AnyCombiner
from issuer_persistence.records import HIGHEST, Tag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from issuer.clock import Deadline
    from issuer.core.issued import Issued
    from issuer.core.steps import Steps
    from issuer.operations.tag_options import TagOptions
    from issuer.plugins.chain import Plugins
    from issuer.plugins.hooks import Draw

T = TypeVar("T")
L = TypeVar("L", bound=AnyCombiner)

#: If a tag has one of these settings, each of its numbers also has a text, a period or a shard.
_COMPOSED = frozenset({"format", "restart", *scheme_record.PARTS})


class EngineCalls(BaseEngine[L]):
    """The methods of an engine that return numbers.

    In threads, the coroutines never wait for an event loop. See `issuer.threads.finished`.
    """

    @abstractmethod
    async def run_draw(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run steps that draw numbers to their end, and return their result."""

    async def number(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        """Return the next number of the tag. `how`: key, shard key and other options; see Issuer.next."""
        return (await self._values(tag, how, timeout, [], as_drawn=False))[0]

    async def issue(self, tag: str, how: DrawOptions, timeout: float | None) -> Issued:
        """Issue one number of the tag. `how`: key, shard key and other options; see Issuer.issue."""
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
        self, tag: str, n: int, how: DrawOptions, deadline: Deadline, draw: Draw, *, as_drawn: bool = False
    ) -> list[int]:
        """Call the plugins, then `draw`, then the plugins again. Return the numbers, which plugins may have changed.

        `how`: options of the call. `as_drawn`: raise ConfigurationError if a plugin changes numbers.
        """
        if self.chain is None:
            return await draw()
        record = await self.record(tag, deadline)
        call = plugin_call(record, n, how, self.chain, as_drawn=as_drawn)
        return await self.chain.surroundings(call.strategy).around(call, draw)

    async def record(self, tag: str, deadline: Deadline) -> Tag:
        """Return the tag's record as this process last read it. If it has not read it yet, read it from the store."""
        known = self.registry.combiner(tag).supply.state.record
        if known is not None:
            return known
        return await self.run_draw(self.issuing.record(tag), deadline, tag)

    async def composed(self, tag: str, timeout: float | None) -> bool:
        """Return whether the tag's numbers have a text, a period or a shard; see Issuer.composed."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            return not _COMPOSED.isdisjoint((await self.record(tag, deadline)).scheme)

    async def reserve(self, tag: str, n: int, timeout: float | None) -> range:
        """Reserve n contiguous numbers in the store; see Issuer.reserve."""
        deadline = self.deadline(timeout)
        with self.attempt(tag):
            wanted = whole(n, "n", 1, HIGHEST)
            combiner = self.registry.combiner(tag)
            if self.chain is not None:
                await self._allow(await self.record(tag, deadline), wanted, self.chain)
            return await combiner.run(reservations.reserve(combiner.supply, wanted), deadline)

    async def _allow(self, record: Tag, n: int, chain: Plugins[Any]) -> None:
        """Call `before` of the plugins, which may reject the call. Plugins do not see the single numbers of a range."""
        call = plugin_call(record, n, PLAIN, chain, as_drawn=True)
        await chain.surroundings(call.strategy).before(call)

    async def create(self, tag: str, options: TagOptions, *, exist_ok: bool, timeout: float | None) -> Tag:
        """Create a tag, and return it; see Issuer.create."""
        return (await self.create_many({tag: options}, tag, exist_ok=exist_ok, timeout=timeout))[0]

    async def create_many(
        self, wanted: Mapping[str, TagOptions], tag: str | None, *, exist_ok: bool, timeout: float | None
    ) -> list[Tag]:
        """Create several tags; see Issuer.create_many. `tag`: the tag that errors name, or None."""
        deadline = self.deadline(timeout)
        founded = partial(self.issuing.founded, deadline=deadline)
        with no_fork():
            from issuer.operations import tags

        steps = tags.create_many(wanted, self.config, founded, exist_ok=exist_ok)
        every, new = await self.run(steps, deadline, tag)
        await self.chronicle.act("create", {each.tag: difference(None, each) for each in new}, deadline.left())
        return every

    async def configure(self, tag: str, options: TagOptions, timeout: float | None) -> Tag:
        """Change settings of a tag; see Issuer.configure."""
        with no_fork():
            from issuer.operations import tags

        deadline = self.deadline(timeout)
        before, after = await self.run(tags.configure(tag, options, self.config), deadline, tag)
        raised = f"max {before.max} -> {after.max}" if options.own.keys() & {"start", "above"} else ""
        change = ", ".join(filter(None, (raised, difference(before, after))))
        await self.chronicle.act("configure", {tag: change}, deadline.left())
        return after

    async def delete(self, tag: str, timeout: float | None) -> None:
        """Delete a tag; see Issuer.delete."""
        deadline = self.deadline(timeout)
        await self.run(self.issuing.delete(tag, deadline), deadline, tag)
        await self.chronicle.act("delete", {tag: ""}, deadline.left())

    async def halt(self, tag: str, timeout: float | None) -> None:
        """Stop the reservations of a tag; see Issuer.halt."""
        with no_fork():
            from issuer.care import recovery

        deadline = self.deadline(timeout)
        await self.run(recovery.halt(tag), deadline, tag)
        await self.chronicle.act("halt", {tag: ""}, deadline.left())

    async def warm(self, tag: str, timeout: float | None) -> None:
        """Wait until the tag has numbers; see Issuer.warm."""
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
