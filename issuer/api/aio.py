"""AsyncIssuer: the asyncio interface."""

from __future__ import annotations

import asyncio
import weakref
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from operator import call
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from issuer.api.scheduler import Scheduler, Tasks
from issuer.care import inspection
from issuer.care.aio import AsyncCare
from issuer.care.discrepancies import Discrepancy
from issuer.care.doctor.findings import Finding
from issuer.care.inspection import Inspection, Readiness
from issuer.care.recovery import Named, Recovery, halt
from issuer.care.verification import Provenance, who
from issuer.clock import Deadline
from issuer.core.events import Observer
from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, TTL, only_one, whole
from issuer.core.scheme_record import OtherStrategyError
from issuer.core.steps import Calls, Steps, ask
from issuer.drivers.aio.combiner import Combiner
from issuer.drivers.aio.connections import Connections, drive
from issuer.drivers.aio.runner import Runner, new_flight
from issuer.drivers.exchange import SHORTEST
from issuer.errors import IssuerError
from issuer.forks import PARENTS, living, notice
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import Decoded
from issuer.numbers.given import SchemeOptions
from issuer.operations import tags
from issuer.operations.config import CLOSING, IssuerConfig
from issuer.operations.numbers import PLAIN, DrawOptions, Issuing
from issuer.operations.registry import TagRegistry
from issuer.operations.tag_options import TagOptions
from issuer.plugins.chain import AsyncChain
from issuer.plugins.rejected import Handler
from issuer.settings import seconds
from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers
from issuer.threads import in_thread
from issuer_persistence.facts import Upgrade
from issuer_persistence.ledger import LedgerPage, Position
from issuer_persistence.records import HIGHEST, Order, Tag

T = TypeVar("T")

#: How many numbers of a draw become a list at once: 0.1 ms, in which no other task has its turn.
PIECE = 1000


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

    def __init__(
        self,
        config: IssuerConfig,
        redis: Connections | None,
        scheduler: Literal["background"] | AsyncIOScheduler | None,
    ) -> None:
        self._config = config
        self._runner = Runner(config.store, redis, config.settings.store_timeout)
        self._chosen = scheduler
        self._chain = AsyncChain(config.plugins) if config.plugins else None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stay: AsyncGenerator[None, None] | None = None
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._scheduler = Scheduler(self._sweep, Tasks, self._chosen)
        background = partial(self._scheduler.background, self._runner.work)
        self._runtime = self._config.runtime(new_flight, background, self._scheduler.start, scheduler=self._chosen)
        self._registry = TagRegistry(self._make_combiner, self._runtime.fast_path)
        self._lines = self._registry.combiners
        shared = self._registry, self._config, self._runtime
        self._numbers = Issuing(
            *shared, self._chain, combiner=self._combiner, run=self._seen_through, drive=partial(drive, do=call)
        )
        self.care = AsyncCare(*shared, run=self._run, deadline=self._deadline)

    @property
    def _issuing(self) -> Issuing[Combiner]:
        self._enter()  # first, as it may begin again
        return self._numbers

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._registry.closed

    @property
    def rejected(self) -> Handler:
        """Function that is called with the tag and the error when a call for numbers fails. You can replace it."""
        return self._config.rejections.handler

    @rejected.setter
    def rejected(self, handler: Handler) -> None:
        self._config.rejections.handler = handler

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
        if self._chain is not None or key is not None or shard_key is not None:
            only_one(key)
            return await self._said(tag, key, seconds(ttl, "ttl", zero=False), shard_key, self._deadline(timeout))
        if timeout is not None:
            seconds(timeout, "timeout", zero=True)  # refused also where a number is in hand
        try:
            combiner = self._lines[tag]
        except (KeyError, TypeError):
            combiner = self._combiner(tag)
        if combiner.serving is not None:
            return await self._strategic(combiner, timeout)
        try:
            number = await combiner.next(timeout)
        except asyncio.CancelledError:
            combiner.left = True
            raise
        except RuntimeError:
            # Another loop's combiner? To ask for the loop before each draw costs 0.4 us of 2.4: a system call to 3.11.
            if combiner.loop is get_running_loop():
                raise
            combiner = self._combiner(tag)
            number = await combiner.next(timeout)
        except OtherStrategyError:
            return await self._strategic(combiner, timeout)
        except IssuerError as error:
            self._issuing.failed(tag, error)
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
        return await self._drawn(tag, whole(n, "n", 1, TAKE_MOST), self._deadline(timeout))

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
        return await self._attempt(tag, self._issuing.issue(tag, how, self._deadline(timeout)))

    async def composed(self, tag: str, *, timeout: float | None = None) -> bool:
        """Return True if the tag's numbers have a text, a period or a shard. `issue` returns these; `next` does not.

        Details and errors: see Issuer.composed.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._attempt(tag, self._issuing.composed(tag, self._deadline(timeout)))

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
        return await self._run(self._issuing.peek(tag, how), self._deadline(timeout), tag)

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
        return await self._run(self._issuing.decode(tag, shown, who=holder), self._deadline(timeout), tag)

    async def _said(
        self, tag: str, key: str | None, ttl: float, shard_key: str | bytes | None, deadline: Deadline
    ) -> int:
        if key is None and shard_key is None:
            return (await self._drawn(tag, 1, deadline))[0]
        return await self._attempt(tag, self._issuing.number(tag, DrawOptions(key, ttl, shard_key), deadline))

    async def _drawn(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        """Draw exactly n numbers, with any plugins around it."""
        if self._chain is None:
            return await self._runner.see_through(self._many(tag, n, deadline))

        def draw() -> Awaitable[list[int]]:
            return self._runner.see_through(self._many(tag, n, deadline))

        return await self._attempt(tag, self._issuing.around(tag, n, PLAIN, deadline, draw))

    # Nothing is shared here with the other colour: a generator more costs a draw 2 to 6 us.
    async def _many(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        numbers: list[int] = []
        try:
            combiner = self._combiner(tag)
            try:
                while len(numbers) < n and combiner.serving is None:
                    self._runner.go_on()
                    drawn = await combiner.draw(n - len(numbers), deadline)
                    scheme = combiner.state.scheme  # as it was drawn under
                    for at in range(0, len(drawn), PIECE):
                        if at:
                            await asyncio.sleep(0)
                        piece = drawn[at : at + PIECE]
                        numbers += piece if scheme is None else map(scheme.value, piece)
            except OtherStrategyError:
                pass
            return numbers or await drive(self._issuing.generated(combiner, n, deadline), call)
        except IssuerError as error:
            error.drawn = numbers
            if self._chain is None:
                self._issuing.failed(tag, error)
            raise

    async def _attempt(self, tag: str, calls: Calls[T]) -> T:
        """Run the calls of an operation that is to bring numbers."""
        try:
            return await drive(calls, call)
        except IssuerError as error:
            self._issuing.failed(tag, error)
            raise

    def _valued(self, combiner: Combiner, counter: int) -> int:
        try:
            return combiner.state.value(counter)
        except IssuerError as error:
            self._issuing.failed(combiner.tag, error)
            raise

    async def _strategic(self, combiner: Combiner, timeout: float | None) -> int:
        """Return the next number of the tag's strategy, which has no counter."""
        await combiner.give_turn()
        try:
            if combiner.serving is not None and combiner.serving.ready is not None:
                for number in combiner.serving.ready:
                    return number
            return (await drive(self._issuing.generated(combiner, 1, self._deadline(timeout)), call))[0]
        except IssuerError as error:
            self._issuing.failed(combiner.tag, error)
            raise

    def stream(self, tag: str, *, timeout: float | None = None) -> AsyncIterator[int]:
        """Return an endless iterator over the tag's numbers. Use each iterator in one thread or task only.

        Details and errors: see Issuer.stream.

        Args:
            tag: Name of the tag.
            timeout: Longest wait for each number in seconds, 0 or more. None means the issuer's `timeout`.
        """
        check_tag(tag)
        self._deadline(timeout)
        return self._stream(tag, timeout)

    async def _stream(self, tag: str, timeout: float | None) -> AsyncIterator[int]:
        while True:
            # With numbers in hand nothing below waits: the loop's other tasks get their turn here.
            await asyncio.sleep(0)
            await self._attempt(tag, self._issuing.lease_for_stream(tag, self._deadline(timeout)))
            yield await self.next(tag, timeout=timeout)
            if self._chain is not None:
                continue
            for number in self._combiner(tag).supply.open:  # a fork may have come in between
                yield number

    async def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers of a trend tag. They are reserved in the store with one request.

        Details and errors: see Issuer.reserve.

        Args:
            tag: Name of the tag.
            n: How many numbers, 1 up to the tag's limit.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._attempt(tag, self._issuing.reserve(tag, n, self._deadline(timeout)))

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
        deadline = self._deadline(timeout)
        founded = partial(self._issuing.founded, deadline=deadline)
        return await self._run(tags.create(tag, asked, self._config, founded, exist_ok=exist_ok), deadline, tag)

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
        return await self._run(tags.configure(tag, asked, self._config), self._deadline(timeout), tag)

    async def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Delete a tag and its parts. Calls for its numbers raise UnknownTag from then on.

        Details and errors: see Issuer.delete.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        deadline = self._deadline(timeout)
        await self._run(self._issuing.delete(tag, deadline), deadline, tag)

    async def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, sorted by name.

        Details and errors: see Issuer.tags.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._run(inspection.tags(), self._deadline(timeout), None)

    async def inspect(self, tag: str, *, deleted: bool = False, timeout: float | None = None) -> Inspection:
        """Return the state of a tag in the store and in Redis. Nothing is changed.

        Details and errors: see Issuer.inspect.

        Args:
            tag: Name of the tag.
            deleted: If True, return the last state of a deleted tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self._enter()
        return await self.care.inspect(tag, timeout, deleted=deleted)

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
        return await self._run(steps, self._deadline(timeout), tag)

    async def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return all machine numbers that a snowflake tag ever used. Nothing is changed.

        Details and errors: see Issuer.machines.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._run(self._issuing.machines(tag), self._deadline(timeout), tag)

    async def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used with a future time, and return them.

        Details and errors: see Issuer.set_aside.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._run(self._issuing.set_aside(tag), self._deadline(timeout), tag)

    # ------------------------------------------------------------------ operations

    async def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Wait until numbers of the tag are loaded, so that the first `next` need not wait for the store.

        Details and errors: see Issuer.warm.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        await self._attempt(tag, self._issuing.warm(tag, self._deadline(timeout)))

    async def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """Load segments in the background for every tag of the store from now on, and return these tags.

        Details and errors: see Issuer.keep.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self._enter()
        return await self.care.keep(timeout)

    async def tick(self, *, timeout: float | None = None) -> int:
        """Load the segments that are due for the tags in use, and return how many were loaded.

        Details and errors: see Issuer.tick.

        Args:
            timeout: Longest wait for each tag in seconds, 0 or more. None means the issuer's `timeout`.
        """
        self._enter()
        return await self.care.tick(timeout)

    async def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the ledger, the store and Redis, and return the discrepancies. Nothing is changed.

        Details and errors: see Issuer.verify.

        Args:
            tag: Name of the tag. Its parts are checked too. None means all tags.
            timeout: Longest wait for each piece in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self.care.verify(tag, timeout)

    async def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return the origin of a number: the process that reserved its segment, the time and the purpose.

        Details and errors: see Issuer.who.

        Args:
            tag: Name of the tag.
            number: Counter value to look up, 1..2^63-1. If the tag has a scheme, this value can differ from the
                number that users see. `decode` returns the counter value.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._run(who(self._config.hash_key, tag, number), self._deadline(timeout), tag)

    async def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop all reservations of a tag and its parts, in every process, until `recover` is run.

        Details and errors: see Issuer.halt.

        Args:
            tag: Name of the tag.
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        await self._run(halt(tag), self._deadline(timeout), tag)

    async def upgrade(self, *, timeout: float | None = None) -> Upgrade:
        """Upgrade the schema of the store to this version, and return the versions before and after.

        Details and errors: see Issuer.upgrade.

        Args:
            timeout: Longest wait in seconds, 0 or more. None means the issuer's `timeout`.
        """
        return await self._run(ask(lambda store, left: store.upgrade(timeout=left)), self._deadline(timeout), None)

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
        return await self.care.recover(tag, at_least, from_journal, dry_run=dry_run, timeout=timeout)

    async def ready(self, *, timeout: float | None = None) -> Readiness:
        """Check whether the store and Redis answer, and which tags are halted. Nothing is changed.

        Details and errors: see Issuer.ready.

        Args:
            timeout: Longest wait for the store, and again for Redis, in seconds, 0 or more. None means the issuer's
                `timeout`.
        """
        return await self.care.ready(timeout)

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
        return await self.care.doctor(most, progress, timeout)

    def observe(self, observer: Observer) -> None:
        """Call a function with each event of this issuer from now on. The classes of events are in `issuer.events`.

        Details and errors: see Issuer.observe.

        Args:
            observer: Function that takes the event.
        """
        self._config.events.add(observer)

    async def close(self) -> None:
        """Stop background work, return unused numbers, and close the issuer's connections.

        A second call does nothing. Clients, stores and schedulers that were passed to `connect` or `aconnect` stay
        open.
        """
        self._enter()
        self._config.events.come_round(at_once=True)
        combiners = self._registry.close()
        if combiners is None:
            return
        async with AsyncExitStack() as ends:
            # In the opposite order, each of them even if others fail.
            ends.callback(self._config.events.come_round, at_once=True)
            ends.callback(_living.discard, self)
            ends.callback(self._runner.pool.close)
            if self._config.own_store:
                ends.push_async_callback(in_thread, self._config.store.close)
            if self._runner.redis is not None:
                ends.push_async_callback(self._runner.redis.close)
            if self._stay is not None:
                ends.push_async_callback(self._stay.aclose)
            ends.push_async_callback(self._leave, combiners)

    async def _leave(self, combiners: Iterable[Combiner]) -> None:
        """End and give back what belongs to this loop."""
        deadline = Deadline(CLOSING)
        async with AsyncExitStack() as ends:
            if self._runner.redis is not None:
                ends.push_async_callback(self._runner.redis.drop_idle)
            ends.push_async_callback(self._scheduler.cancel)
            ends.push_async_callback(self._runner.end, SHORTEST)
            for combiner in combiners:
                ends.push_async_callback(combiner.end, deadline)
                if combiner.serving is not None:
                    ends.push_async_callback(combiner.run, combiner.serving.close(deadline), deadline)
            ends.callback(self._scheduler.stop)

    async def _staying(self) -> AsyncGenerator[None, None]:
        """Leave the loop in order when it ends: a loop that is shut down closes its async generators."""
        try:
            yield
        finally:
            notice()
            if not self.closed:
                await self._leave(self._registry.combiners.values())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._config.described("AsyncIssuer")

    # ------------------------------------------------------------------ inside

    def _combiner(self, tag: str) -> Combiner:
        notice()  # every call that isn't answered out of hand comes here, or to `_enter`, before anything else
        if self._loop is not get_running_loop():
            self._enter()
        return self._registry.combiner(tag)

    def _enter(self) -> None:
        """Begin in the running loop; what belonged to a loop that was closed is gone with it."""
        notice()
        loop = get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise IssuerError(f"{self!r} is in use in another event loop: create an AsyncIssuer for each loop")
        if self._loop is not None and not self.closed:
            self._begin_anew()
        self._loop = loop
        self._stay = self._staying()
        with suppress(StopIteration):  # it begins, and so the loop gets to know of it
            self._stay.asend(None).send(None)

    def _begin_anew(self) -> object:
        """Forget all that belongs to another loop, and return it."""
        self._registry.spend()
        forgotten = self._registry, self._scheduler, self._stay
        self._stay, pruned = None, self.care.pruned
        self._start()
        self.care.pruned = pruned
        return forgotten, self._runner.redis and self._runner.redis.begin()

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._config.settings.timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    async def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        self._enter()
        if self._registry.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return await self._runner.run(steps, deadline, tag)

    async def _seen_through(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        return await self._runner.see_through(self._run(steps, deadline, tag))

    def _make_combiner(self, tag: str) -> Combiner:
        return Combiner(tag, self._config.key(tag), self._runtime, self._runner, self._config.settings.timeout)

    async def _sweep(self) -> None:
        # The issuer is closed, or the loop ends: APScheduler would report it as a job that failed.
        with suppress(asyncio.CancelledError):
            if await self.care.sweep():
                self._scheduler.background(self._refresh)

    async def _refresh(self) -> None:
        await self.care.refresh()

    def _put_away(self) -> None:
        self._lines = {}
        self._registry.shut()

    def _lay_out(self) -> None:
        self._lines = self._registry.combiners
        self._registry.settle()

    def _after_fork(self) -> None:
        if isinstance(self._chosen, AsyncIOScheduler):
            # It says that it runs, but its loop is the parent's: here the callers extend by themselves.
            self._chosen = None
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
        PARENTS.append(self._begin_anew())
        self._runner.after_fork()
        self._loop = None
        self._config.store.after_fork()


#: Every AsyncIssuer of this process: to be reset in a forked child.
_living: weakref.WeakSet[AsyncIssuer] = living(
    lambda each: each._after_fork(),  # noqa: SLF001 - the hooks of the class
    unseen=lambda each: each._put_away(),  # noqa: SLF001 - the same
    unseen_over=lambda each: each._lay_out(),  # noqa: SLF001 - the same
)
