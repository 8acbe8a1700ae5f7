"""AsyncIssuer: the asyncio interface."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

from issuer.care import inspection
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.findings import Finding
from issuer.care.inspection import Inspection, Readiness
from issuer.care.recovery import Named, Recovery, halt
from issuer.care.verification import Provenance, who
from issuer.core.events import Observer
from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, TTL, only_one, whole
from issuer.core.scheme_record import OtherStrategyError
from issuer.core.steps import ask
from issuer.drivers.aio.combiner import AsyncCombiner
from issuer.drivers.aio.connections import AsyncConnections
from issuer.engine.aio import AsyncEngine
from issuer.engine.scheduler import Chosen
from issuer.errors import IssuerError
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import Decoded
from issuer.numbers.given import SchemeOptions
from issuer.operations import tags
from issuer.operations.config import IssuerConfig
from issuer.operations.numbers import DrawOptions
from issuer.operations.tag_options import TagOptions
from issuer.plugins.rejected import Handler
from issuer.settings import seconds
from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers
from issuer_persistence.facts import Upgrade
from issuer_persistence.ledger import LedgerPage, Position
from issuer_persistence.records import HIGHEST, Order, Tag

T = TypeVar("T")


class AsyncIssuer:
    """Issues unique, increasing 64-bit numbers for named tags in an event loop. Create it with `issuer.aconnect`.

    The methods are those of Issuer, as coroutines, with the same arguments, results and errors. They never block the
    event loop: requests to the store run in worker threads.

    An AsyncIssuer serves one event loop at a time. Create one for each running loop. When a loop has been closed, its
    AsyncIssuer can be used in the next one. If a task is cancelled while it waits for a number, that number is a gap:
    no other task receives it.

    Every method that contacts Redis or the store has a `timeout`, in seconds. When this time has passed, the method
    raises StoreUnavailable or RedisUnavailable, depending on which server did not answer. With `timeout=0`, a call uses
    only numbers that the process already holds, or one round trip to Redis.

    Every method can raise ConfigurationError. If the data in Redis or the store cannot be trusted, every method can
    raise CorruptState or FenceError. The other errors are listed for each method.
    """

    def __init__(self, config: IssuerConfig, redis: AsyncConnections | None, scheduler: Chosen) -> None:
        #: The inside of the issuer, for parts of this package. It may change in any version.
        self.engine = AsyncEngine(config, redis, scheduler)

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self.engine.closed

    @property
    def rejected(self) -> Handler:
        """Function that is called with the tag and the error when a call for numbers fails. You can replace it."""
        return self.engine.config.rejections.handler

    @rejected.setter
    def rejected(self, handler: Handler) -> None:
        self.engine.config.rejections.handler = handler

    # ------------------------------------------------------------------ numbers

    async def next(
        self,
        tag: str,
        key: str | None = None,
        timeout: float | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
    ) -> int:
        """Return the next number of a tag.

        Details and errors: see Issuer.next.

        Args:
            tag: Name of the tag.
            key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process.
                Needs Redis.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
        """
        engine = self.engine
        if engine.chain is not None or key is not None or shard_key is not None:
            only_one(key)
            return await engine.number(tag, DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key), timeout)
        if timeout is not None:
            seconds(timeout, "timeout", zero=True)  # refused also where a number is in hand
        try:
            combiner = engine.combiners[tag]
        except (KeyError, TypeError):
            combiner = engine.combiner(tag)
        if combiner.serving is not None:
            return await engine.next_generated(combiner, timeout)
        try:
            number = await combiner.next(timeout)
        except asyncio.CancelledError:
            combiner.left = True
            raise
        except RuntimeError:
            # Another loop's combiner? To ask for the loop before each draw costs 0.4 us of 2.4: a system call to 3.11.
            if combiner.loop is get_running_loop():
                raise
            combiner = engine.combiner(tag)
            number = await combiner.next(timeout)
        except OtherStrategyError:
            return await engine.next_generated(combiner, timeout)
        except IssuerError as error:
            engine.refused(tag, error)
            raise
        return number if combiner.state.scheme is None else self._valued(combiner, number)

    async def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return a list of exactly n numbers of a tag, in increasing order.

        Details and errors: see Issuer.take.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1..1 000 000.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.take(tag, whole(n, "n", 1, TAKE_MOST), self.engine.deadline(timeout))

    async def issue(
        self,
        tag: str,
        *,
        key: str | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Draw one number as `next` does, and return it with its text, period and shard.

        Details and errors: see Issuer.issue.

        Args:
            tag: Name of the tag.
            key: Idempotency key of 1 to 200 bytes. Calls with the same key return the same number, in every process.
                Needs Redis.
            ttl: How long Redis keeps the number of `key`, in seconds, above 0. Default: one day.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
            restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        how = DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key, restart_key)
        return await self.engine.issue(tag, how, timeout)

    async def composed(self, tag: str, *, timeout: float | None = None) -> bool:
        """Return True if the tag's numbers have a text, a period or a shard. `issue` returns these; `next` does not.

        Details and errors: see Issuer.composed.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.composed(tag, timeout)

    async def peek(
        self,
        tag: str,
        *,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Return what `issue` will return next if no other caller draws first. No number is consumed.

        Details and errors: see Issuer.peek.

        Args:
            tag: Name of the tag.
            shard_key: Key that selects the shard. Required for a tag with shards, and not allowed for any other tag.
            restart_key: Key that selects the series. Required for a keyed tag, and not allowed for any other tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        how = DrawOptions(shard_key=shard_key, restart_key=restart_key)
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.peek(tag, how), deadline, tag)

    async def decode(
        self, tag: str, shown: int | str, *, holder: bool = False, timeout: float | None = None
    ) -> Decoded:
        """Return the parts of a number or of its text: counter, period, shard, key and others.

        Details and errors: see Issuer.decode.

        Args:
            tag: Name of the tag.
            shown: The number, or its text in the tag's format.
            holder: If True, also find the process that holds or held the machine number. Only for snowflake tags.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.decode(tag, shown, who=holder), deadline, tag)

    def _valued(self, combiner: AsyncCombiner, counter: int) -> int:
        try:
            return combiner.state.value(counter)
        except IssuerError as error:
            self.engine.refused(combiner.tag, error)
            raise

    def stream(self, tag: str, *, timeout: float | None = None) -> AsyncIterator[int]:
        """Return an endless iterator over the tag's numbers. Use each iterator in one thread or task only.

        Details and errors: see Issuer.stream.

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
            # With numbers in hand nothing below waits: the loop's other tasks get their turn here.
            await asyncio.sleep(0)
            await self.engine.lease_for_stream(tag, timeout)
            yield await self.next(tag, timeout=timeout)
            if self.engine.chain is not None:
                continue
            for number in self.engine.combiner(tag).supply.open:  # a fork may have come in between
                yield number

    async def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers of a trend tag. They are reserved in the store with one request.

        Details and errors: see Issuer.reserve.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1 up to the tag's limit.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.reserve(tag, n, timeout)

    # ------------------------------------------------------------------ tags

    async def create(
        self,
        tag: str,
        *,
        start: int | None = None,
        above: int | None = None,
        step: int | Literal["auto"] | None = None,
        limit: int | str = HIGHEST,
        order: Order | None = None,
        lease: int | None = None,
        ahead: int = 1,
        description: str = "",
        exist_ok: bool = False,
        timeout: float | None = None,
        **given: Unpack[SchemeOptions],
    ) -> Tag:
        """Create a tag, and return it. A deleted tag that is created again continues above its old numbers.

        Details and errors: see Issuer.create.

        Args:
            tag: Name of the tag: 1 to 200 bytes, without control characters, and without blanks at its ends.
            start: First number, 1..limit. Default: 1.
            above: The number before the first one, 0..limit-1. Give `start` or `above`, not both.
            step: Numbers per step, 1..2^63-1. None or "auto" means 1000, with the step mode "auto".
            limit: Last number, 1..2^63-1, or one of "int32", "uint32", "js", "int64".
            order: "strict" (needs Redis) or "trend". Default: "trend" if the issuer has no Redis or the strategy has no
                counter, else "strict".
            lease: How many numbers of a trend tag each process draws ahead, 0 (none)..1 000 000. None means the
                issuer's `lease`.
            ahead: Steps per segment, 1..1000. A longer segment bridges a longer outage of the store.
            description: Text for operators, at most 1000 bytes.
            exist_ok: If True and the tag exists, return it unchanged. The tag's step, lease, ahead and description may
                differ from the arguments.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            **given: Settings of the tag's scheme, see SchemeOptions.
        """
        asked = TagOptions(start, above, step, limit, order, lease, ahead, description, given)
        deadline = self.engine.deadline(timeout)
        founded = partial(self.engine.issuing.founded, deadline=deadline)
        return await self.engine.run(
            tags.create(tag, asked, self.engine.config, founded, exist_ok=exist_ok), deadline, tag
        )

    async def configure(
        self,
        tag: str,
        *,
        step: int | Literal["auto"] | None = None,
        limit: int | str | None = None,
        start: int | None = None,
        above: int | None = None,
        lease: int | None = None,
        ahead: int | None = None,
        description: str | None = None,
        timeout: float | None = None,
        **given: Unpack[SchemeOptions],
    ) -> Tag:
        """Change settings of a tag while it is in use, and return the changed tag. None leaves a setting unchanged.

        Details and errors: see Issuer.configure.

        Args:
            tag: Name of the tag.
            step: Numbers per step, 1..2^63-1, or "auto".
            limit: Last number, as in `create`. It cannot be lower than a number that is reserved already, unless the
                tag has periods.
            start: Next number to issue. Numbers lower than `start` are skipped. A tag never goes back to lower numbers.
                Not for tags with periods.
            above: The number before the next one to issue, in place of `start`.
            lease: How many numbers of a trend tag each process draws ahead, 0 (none)..1 000 000.
            ahead: Steps per segment, 1..1000.
            description: Text for operators, at most 1000 bytes.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
            **given: Settings of the tag's scheme that can be changed, see SchemeOptions.
        """
        asked = TagOptions(start, above, step, limit, None, lease, ahead, description, given)
        return await self.engine.run(tags.configure(tag, asked, self.engine.config), self.engine.deadline(timeout), tag)

    async def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Delete a tag and its parts. Calls for its numbers raise UnknownTag from then on.

        Details and errors: see Issuer.delete.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        await self.engine.run(self.engine.issuing.delete(tag, deadline), deadline, tag)

    async def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, sorted by name.

        Details and errors: see Issuer.tags.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.run(inspection.tags(), self.engine.deadline(timeout), None)

    async def inspect(self, tag: str, *, deleted: bool = False, timeout: float | None = None) -> Inspection:
        """Return the state of a tag in the store and in Redis. Nothing is changed.

        Details and errors: see Issuer.inspect.

        Args:
            tag: Name of the tag.
            deleted: If True, return the last state of a deleted tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self.engine.enter()
        return await self.engine.care.inspect(tag, timeout, deleted=deleted)

    async def segments(
        self,
        tag: str,
        count: int = 100,
        *,
        beyond: Position | None = None,
        upward: bool = False,
        timeout: float | None = None,
    ) -> LedgerPage:
        """Return one page of the tag's ledger: its segments, those with the highest numbers first.

        Details and errors: see Issuer.segments.

        Args:
            tag: Name of the tag.
            count: Entries per page, 1..1000. Damaged entries count too. They are in the attribute `damaged`.
            beyond: Attribute `last` of the previous page. Omit it for the first page. If `last` is None, there are no
                more pages.
            upward: If True, return the segments with the lowest numbers first.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        steps = inspection.segments(tag, count, beyond, upward=upward)
        return await self.engine.run(steps, self.engine.deadline(timeout), tag)

    async def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return all machine numbers that a snowflake tag ever used. Nothing is changed.

        Details and errors: see Issuer.machines.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.machines(tag), deadline, tag)

    async def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used with a future time, and return them.

        Details and errors: see Issuer.set_aside.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(self.engine.issuing.set_aside(tag), deadline, tag)

    # ------------------------------------------------------------------ operations

    async def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Wait until numbers of the tag are loaded, so that the first `next` need not wait for the store.

        Details and errors: see Issuer.warm.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        await self.engine.warm(tag, timeout)

    async def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """Load segments in the background for every tag of the store from now on, and return these tags.

        Details and errors: see Issuer.keep.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self.engine.enter()
        return await self.engine.care.keep(timeout)

    async def tick(self, *, timeout: float | None = None) -> int:
        """Load the segments that are due for the tags in use, and return how many were loaded.

        Details and errors: see Issuer.tick.

        Args:
            timeout: Longest wait for each tag in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self.engine.enter()
        return await self.engine.care.tick(timeout)

    async def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the ledger, the store and Redis, and return the discrepancies. Nothing is changed.

        Details and errors: see Issuer.verify.

        Args:
            tag: Name of the tag. Its parts are checked too. None means all tags.
            timeout: Longest wait for each piece in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.care.verify(tag, timeout)

    async def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return the origin of a number: the process that reserved its segment, the time and the purpose.

        Details and errors: see Issuer.who.

        Args:
            tag: Name of the tag.
            number: Counter value to look up, 1..2^63-1. If the tag has a scheme, this value can differ from the
                number that users see. `decode` returns the counter value.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.run(who(self.engine.config.hash_key, tag, number), self.engine.deadline(timeout), tag)

    async def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop all reservations of a tag and its parts, in every process, until `recover` is run.

        Details and errors: see Issuer.halt.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        await self.engine.run(halt(tag), self.engine.deadline(timeout), tag)

    async def upgrade(self, *, timeout: float | None = None) -> Upgrade:
        """Upgrade the schema of the store to this version, and return the versions before and after.

        Details and errors: see Issuer.upgrade.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self.engine.deadline(timeout)
        return await self.engine.run(ask(lambda store, left: store.upgrade(timeout=left)), deadline, None)

    async def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that no number up to the highest known number is issued again, and end a halt.

        Details and errors: see Issuer.recover.

        Args:
            tag: Name of the tag. Its parts are recovered too. None means all tags: if a tag fails, the others are still
                tried, and the first error is raised at the end.
            at_least: Highest counter value known from elsewhere, such as your tables, 0..2^63-1. Only for a single tag.
                `decode` returns the counter value of a number.
            from_journal: Paths of journal files in any order, or the result of `issuer_persistence.journal.read`. Tags
                that the store has lost are created again. Journals of another store are accepted only if this store is
                empty, or was restored from them.
            dry_run: If True, change nothing, and report what would be done. A dry run also works without Redis, see
                `Recovery.redis_error`.
            timeout: Longest wait for each tag in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.care.recover(tag, at_least, from_journal, dry_run=dry_run, timeout=timeout)

    async def ready(self, *, timeout: float | None = None) -> Readiness:
        """Check whether the store and Redis answer, and which tags are halted. Nothing is changed.

        Details and errors: see Issuer.ready.

        Args:
            timeout: Longest wait for the store, and again for Redis, in seconds, 0 or more. None means the issuer's
                `timeout`.
        """
        return await self.engine.care.ready(timeout)

    async def doctor(
        self,
        *,
        most: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> list[Finding]:
        """Check Redis, the store, the settings and the tags, and return the findings, the worst first.

        Details and errors: see Issuer.doctor.

        Args:
            most: How many tags to check closely, 0..2^63-1. The most recently used tags are checked first. None means
                1000.
            progress: Function that is called after each tag with the number of tags checked and the total.
            timeout: Longest wait for each request in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.engine.care.doctor(most, progress, timeout)

    def observe(self, observer: Observer) -> None:
        """Call a function with each event of this issuer from now on. The classes of events are in `issuer.events`.

        Details and errors: see Issuer.observe.

        Args:
            observer: Function that takes the event.
        """
        self.engine.config.events.add(observer)

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

    def __repr__(self) -> str:
        return repr(self.engine)
