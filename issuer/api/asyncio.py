"""AsyncIssuer: the public face for asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from asyncio import get_running_loop, run_coroutine_threadsafe
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Literal, Self, TypeVar

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from issuer.api.async_administration import AsyncAdministration
from issuer.api.scheduler import Scheduler, Tasks
from issuer.clock import Deadline, monotonic
from issuer.core.events import Observer
from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, only_one, whole
from issuer.core.scheme_record import OtherStrategyError
from issuer.core.steps import ask
from issuer.core.supply.local_buffer import spend_all
from issuer.core.supply.source import Job
from issuer.drivers.asyncio.combiner import Combiner
from issuer.drivers.asyncio.connections import Connections
from issuer.drivers.asyncio.runner import Runner, new_flight
from issuer.errors import ConfigurationError, IssuerError, StoreUnavailable
from issuer.forks import PARENTS, living, notice
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import Decoded
from issuer.operations.config import CLOSING, REFRESH_LOST, STREAM_LEASE, IssuerConfig
from issuer.operations.numbers import PLAIN, TTL, DrawOptions, Issuing, transformed
from issuer.operations.registry import TagRegistry
from issuer.persistence.records import HIGHEST, LEDGER_KEPT, Tag, now_ms
from issuer.plugins.chain import AsyncChain
from issuer.plugins.contract import Call
from issuer.settings import seconds
from issuer.strategies.contract import Context

T = TypeVar("T")

log = logging.getLogger("issuer")


class AsyncIssuer(AsyncAdministration):
    """Hands out unique, increasing 64-bit numbers per tag, to the tasks of an event loop. Made by `issuer.aconnect`.

    The methods of Issuer, to be awaited; they mean the same and raise the same. It never blocks the loop: stores are
    asked in threads. It serves one loop at a time, and begins again when that one has been closed; each running loop
    needs an AsyncIssuer of its own. A task that is cancelled while it waits gets no number, and no other task gets its.
    """

    def __init__(
        self,
        config: IssuerConfig,
        redis: Connections | None,
        scheduler: Literal["background"] | AsyncIOScheduler | None,
    ) -> None:
        self._config = config
        self._runner = Runner(config.store, redis, config.store_timeout)
        self._chosen = scheduler
        #: The numbers in hand that are laid open, by tag.
        self._open: dict[str, Iterator[int]] = {}
        self._chain = AsyncChain(config.plugins) if config.plugins else None
        self._pruned = 0
        self._refresh_due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stay: AsyncGenerator[None, None] | None = None
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._registry = TagRegistry(self._make_combiner, self._open)
        self._lines = self._registry.combiners
        self._issuing = Issuing(self._combiner, self._config, self._context, self._registry.forget_if_unknown)
        theirs = self._chosen if isinstance(self._chosen, AsyncIOScheduler) else None
        self._scheduler = Scheduler(self._sweep, Tasks, theirs)
        self._runtime = self._config.runtime(
            redis=self._runner.redis is not None,
            background=self._background,
            scheduled=self._chosen is not None,
            flight=new_flight,
            attend=self._attend,
            open=self._open,
        )

    # ------------------------------------------------------------------ numbers

    async def next(
        self,
        tag: str,
        key: str | None = None,
        timeout: float | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
    ) -> int:
        """Return the next number of the tag; see Issuer.next."""
        if self._chain is not None or key is not None or shard_key is not None:
            only_one(key)
            return await self._said(tag, DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key), timeout)
        if timeout is not None:
            self._seconds(timeout)  # refused also where a number is in hand
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
            # Another loop's line? Asking for the loop before each draw costs 0.4 us of 2.4: a system call up to 3.11.
            if combiner.loop is get_running_loop():
                raise
            combiner = self._combiner(tag)
            number = await combiner.next(timeout)
        except OtherStrategyError:
            return await self._strategic(combiner, timeout)
        except IssuerError as error:
            self._registry.forget_if_unknown(combiner)
            self._tell(tag, error)
            raise
        return number if combiner.supply.scheme is None else self._valued(combiner, number)

    async def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000; see Issuer.take."""
        wanted = whole(n, "n", 1, TAKE_MOST)
        deadline = self._deadline(timeout)
        return await self._around(tag, wanted, PLAIN, lambda: self._many(tag, wanted, deadline), deadline)

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
        """Issue one number, and return it with its text, period and shard; see Issuer.issue."""
        how = DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key, restart_key)
        deadline = self._deadline(timeout)
        issued: list[Issued] = []

        async def draw() -> list[int]:
            issued.append(await self._issued(tag, how, deadline))
            return [issued[0].value]

        await self._around(tag, 1, how, draw, deadline, shown=True)
        return issued[0]

    async def peek(
        self,
        tag: str,
        *,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Return what `issue` will return next if no other caller draws before; see Issuer.peek."""
        how = DrawOptions(shard_key=shard_key, restart_key=restart_key)
        return await self._run(self._issuing.peek(tag, how), self._deadline(timeout), tag)

    async def decode(
        self, tag: str, shown: int | str, *, holder: bool = False, timeout: float | None = None
    ) -> Decoded:
        """Tell what a number, or its text, is made of; see Issuer.decode."""
        return await self._run(self._issuing.decode(tag, shown, who=holder), self._deadline(timeout), tag)

    async def _said(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        deadline = self._deadline(timeout)

        async def draw() -> list[int]:
            if how.plain:
                return await self._many(tag, 1, deadline)
            return [(await self._issued(tag, how, deadline)).value]

        return (await self._around(tag, 1, how, draw, deadline))[0]

    async def _many(self, tag: str, wanted: int, deadline: Deadline) -> list[int]:
        combiner = self._combiner(tag)
        numbers: list[int] = []
        try:
            while len(numbers) < wanted and combiner.serving is None:
                drawn = await combiner.draw(wanted - len(numbers), deadline)
                numbers += drawn if combiner.supply.scheme is None else map(combiner.supply.value, drawn)
        except OtherStrategyError:
            pass
        except IssuerError as error:
            error.drawn = numbers
            self._registry.forget_if_unknown(combiner)
            raise
        return numbers or await self._generated(combiner, wanted, deadline)

    def _valued(self, combiner: Combiner, counter: int) -> int:
        try:
            return combiner.supply.value(counter)
        except IssuerError as error:
            self._tell(combiner.tag, error)
            raise

    async def _strategic(self, combiner: Combiner, timeout: float | None) -> int:
        """Return the next number of the tag's strategy, which has no counter."""
        await combiner.give_turn()
        try:
            if combiner.serving is not None and combiner.serving.ready is not None:
                for number in combiner.serving.ready:
                    return number
            return (await self._generated(combiner, 1, self._deadline(timeout)))[0]
        except IssuerError as error:
            self._tell(combiner.tag, error)
            raise

    async def _generated(self, combiner: Combiner, n: int, deadline: Deadline) -> list[int]:
        """Get numbers of the tag's strategy, which has no counter."""
        return await combiner.run(self._issuing.generate(combiner, n, deadline), deadline)

    async def _issued(self, tag: str, how: DrawOptions, deadline: Deadline) -> Issued:
        combiner = self._combiner(tag)
        try:
            return await self._run(self._issuing.issue(tag, how, deadline), deadline, tag)
        except IssuerError:
            self._registry.forget_if_unknown(combiner)
            raise

    async def _around(
        self,
        tag: str,
        n: int,
        how: DrawOptions,
        draw: Callable[[], Awaitable[list[int]]],
        deadline: Deadline,
        *,
        shown: bool = False,
    ) -> list[int]:
        """Draw, with any plugins around it; call the rejected handler if nothing comes. `shown`: as a text, too."""
        try:
            if self._chain is None:
                return await draw()
            strategy = await self._run(self._issuing.strategy(tag), deadline, tag)
            if shown and self._chain.changes(strategy):
                raise transformed(tag)
            return await self._chain.around(Call(tag, n, strategy, how.shard_key, how.key), draw)
        except IssuerError as error:
            self._tell(tag, error)
            raise

    def stream(self, tag: str, *, timeout: float | None = None) -> AsyncIterator[int]:
        """Iterate over the tag's numbers without end; see Issuer.stream."""
        check_tag(tag)
        self._deadline(timeout)
        return self._stream(tag, timeout)

    async def _stream(self, tag: str, timeout: float | None) -> AsyncIterator[int]:
        while True:
            deadline = self._deadline(timeout)
            combiner = self._combiner(tag)
            # With numbers in hand nothing below waits: the loop's other tasks get their turn here.
            await asyncio.sleep(0)
            try:
                if combiner.serving is None:
                    await combiner.run(combiner.supply.draw_ahead(STREAM_LEASE), deadline)
            except IssuerError as error:
                self._registry.forget_if_unknown(combiner)
                self._tell(tag, error)
                raise
            yield await self.next(tag, timeout=timeout)
            if self._chain is not None:
                continue
            for number in self._combiner(tag).supply.open:  # a fork may have come in between
                yield number

    async def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers of a trend tag straight from the store; see Issuer.reserve."""
        wanted = whole(n, "n", 1, HIGHEST)
        deadline = self._deadline(timeout)
        combiner = self._combiner(tag)
        try:
            if self._chain is not None:
                # Plugins don't see each of the n numbers; they only allow or refuse the call.
                strategy = await self._run(self._issuing.strategy(tag), deadline, tag)
                if self._chain.changes(strategy):
                    raise transformed(tag)
                await self._chain.before(Call(tag, wanted, strategy))
            return await combiner.run(combiner.supply.reserve(wanted), deadline)
        except IssuerError as error:
            self._registry.forget_if_unknown(combiner)
            self._tell(tag, error)
            raise

    # ------------------------------------------------------------------ operations

    async def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store; see Issuer.warm."""
        deadline = self._deadline(timeout)
        combiner = self._combiner(tag)
        try:
            try:
                await combiner.run(combiner.supply.warm(deadline), deadline)
            except OtherStrategyError:
                await self._generated(combiner, 1, deadline)
        except IssuerError as error:
            self._registry.forget_if_unknown(combiner)
            self._tell(tag, error)
            raise

    async def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not; see Issuer.keep."""
        if self._runner.redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, and none is set: name Redis")
        records = await self.tags(timeout=timeout)
        self._registry.keep(records)
        self._attend()
        return records

    async def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, load what is due; see Issuer.tick."""
        self._enter()
        loaded = 0
        for combiner in self._registry.in_use():
            deadline = self._deadline(timeout)
            try:
                if combiner.serving is not None:
                    await combiner.run(combiner.serving.sweep(deadline), deadline)
                    continue
                await combiner.run(combiner.supply.rejoin(), Deadline(min(deadline.left(), self._runtime.window)))
                loaded += await combiner.run(combiner.supply.fetch(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._registry.troubled(combiner, error)
        return loaded

    def observe(self, observer: Observer) -> None:
        """Call the observer with each event of this issuer from now on, in the event loop; see Issuer.observe."""
        self._config.events.add(observer)

    async def close(self) -> None:
        """End an extension under way, give unused numbers back, close what we opened. Twice is harmless."""
        self._enter()
        combiners = self._registry.close()
        if combiners is None:
            return
        async with AsyncExitStack() as ends:
            # In the opposite order, each of them even if others fail.
            ends.callback(_living.discard, self)
            ends.callback(self._runner.pool.close)
            if self._config.own_store:
                ends.push_async_callback(asyncio.to_thread, self._config.store.close)
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
        return self._config.described("AsyncIssuer", self._runner.redis)

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
            raise IssuerError(f"{self!r} serves another event loop: make an AsyncIssuer for each")
        if self._loop is not None and not self.closed:
            self._begin_anew()
        self._loop = loop
        self._stay = self._staying()
        with suppress(StopIteration):  # it begins, and so the loop gets to know of it
            self._stay.asend(None).send(None)

    def _begin_anew(self) -> object:
        """Forget all that belongs to another loop, and return it."""
        spend_all(self._open)
        self._registry.spend()
        forgotten = self._registry, self._scheduler, self._stay
        self._stay = None
        self._start()
        return forgotten, self._runner.redis and self._runner.redis.begin()

    def _make_combiner(self, tag: str) -> Combiner:
        return Combiner(tag, self._config.key(tag), self._runtime, self._runner, self._config.timeout)

    def _context(self, combiner: Combiner, record: Tag) -> Context:
        loop = combiner.loop  # a strategy that blocks has a thread, which waits for what runs here
        return self._config.context(
            record,
            run=lambda steps, deadline: run_coroutine_threadsafe(combiner.run(steps, deadline), loop).result(),
            flight=new_flight,
            redis=self._runner.redis is not None,
            background=self._background,
            window=self._runtime.window,
        )

    def _attend(self) -> None:
        if self._chosen is not None:
            self._scheduler.start()

    def _background(self, job: Job) -> bool:
        if self._chosen is None:
            return False

        async def run() -> None:
            deadline = Deadline(self._runtime.window)
            await self._runner.run(job(deadline), deadline)

        return self._scheduler.background(run)

    async def _sweep(self) -> None:
        # The issuer is closed, or the loop ends: APScheduler would report it as a job that failed.
        with suppress(asyncio.CancelledError):
            await self._sweep_lines()

    async def _sweep_lines(self) -> None:
        combiners = self._registry.in_use()
        for combiner in combiners:
            if self.closed:
                return
            deadline = Deadline(self._config.store_timeout)
            try:
                steps = combiner.supply.sweep() if combiner.serving is None else combiner.serving.sweep(deadline)
                await combiner.run(steps, deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._registry.troubled(combiner, error)
        wanted = now_ms() - self._pruned >= LEDGER_KEPT // 90 or any(combiner.supply.stale for combiner in combiners)
        if wanted and monotonic() > self._refresh_due:
            # Not here: a store that hangs would keep the sweep from what Redis is back for.
            self._refresh_due = monotonic() + REFRESH_LOST
            self._scheduler.background(self._refresh)

    async def _refresh(self) -> None:
        """Ask the store for what may wait, up to the first time-out."""
        try:
            for combiner in self._registry.in_use():
                if self.closed:
                    return
                try:
                    await combiner.run(combiner.supply.refresh(), Deadline(self._config.store_timeout))
                except StoreUnavailable as error:
                    self._registry.troubled(combiner, error)
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    self._registry.troubled(combiner, error)
            if now_ms() - self._pruned >= LEDGER_KEPT // 90:
                await self._prune()
        finally:
            self._refresh_due = 0.0

    async def _prune(self) -> None:
        """Once a day: old ledger entries."""
        self._pruned = now = now_ms()
        steps = ask(lambda store, left: store.prune(before=now - LEDGER_KEPT, timeout=left))
        try:
            await self._run(steps, Deadline(self._config.store_timeout), None)
        except IssuerError as error:
            log.debug("ledger not pruned: %s", error)

    def _put_away(self) -> None:
        """Before a fork that Python doesn't see: let the child find nothing that it could use without asking."""
        self._lines = {}
        self._open.clear()
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
