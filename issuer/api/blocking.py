"""Issuer: the public face for threads."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import chain
from types import TracebackType
from typing import Literal, Self, TypeVar

from apscheduler.schedulers.base import BaseScheduler

from issuer.api.administration import Administration
from issuer.api.scheduler import Scheduler, Threads
from issuer.clock import Deadline, monotonic
from issuer.core.events import Observer
from issuer.core.issued import Issued
from issuer.core.requests import TAKE_MOST, only_one, whole
from issuer.core.scheme_record import OtherStrategyError
from issuer.core.steps import ask
from issuer.core.supply.local_buffer import spend_all
from issuer.core.supply.source import Job
from issuer.drivers.blocking.combiner import Combiner
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.errors import ConfigurationError, IssuerError, StoreUnavailable
from issuer.forks import living, notice
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import Decoded
from issuer.operations.config import CLOSING, REFRESH_LOST, STREAM_LEASE, IssuerConfig
from issuer.operations.numbers import PLAIN, TTL, DrawOptions, Issuing, transformed
from issuer.operations.registry import TagRegistry
from issuer.persistence.records import HIGHEST, LEDGER_KEPT, Tag, now_ms
from issuer.plugins.chain import Chain
from issuer.plugins.contract import Call
from issuer.settings import seconds
from issuer.strategies.contract import Context

T = TypeVar("T")

log = logging.getLogger("issuer")


class Issuer(Administration):
    """Hands out unique, increasing 64-bit numbers per tag. Made by `issuer.connect`; safe to share among threads.

    After a fork the child has an Issuer of its own: it shares no number, connection or thread with its parent. Every
    call takes `timeout=` in seconds: past it StoreUnavailable or RedisUnavailable is raised, whichever was waited for.
    0 means only what is in hand: one round trip to Redis, or the process's own segment. Every method may raise
    ConfigurationError, and CorruptState or FenceError where Redis or the store can't be trusted.
    """

    def __init__(
        self, config: IssuerConfig, redis: Connections | None, scheduler: Literal["background"] | BaseScheduler | None
    ) -> None:
        self._config = config
        self._runner = Runner(config.store, redis, config.store_timeout)
        self._chosen = scheduler
        #: Per tag, the iterator that `next()` consumes: a range held in memory, or the tag's Combiner. The second is
        #: empty if plugins are registered: then each call takes the slow path.
        self._laid: dict[str, Iterator[int]] = {}
        self._chain = Chain(config.plugins) if config.plugins else None
        self._open = self._laid if self._chain is None else {}
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._registry = TagRegistry(self._make_combiner, self._laid)
        self._issuing = Issuing(self._registry.combiner, self._config, self._context, self._registry.forget_if_unknown)
        self._pruned = 0
        self._refresh_due = 0.0
        theirs = self._chosen if isinstance(self._chosen, BaseScheduler) else None
        self._scheduler = Scheduler(self._sweep, Threads, theirs)
        self._runtime = self._config.runtime(
            redis=self._runner.redis is not None,
            background=self._background,
            scheduled=self._chosen is not None,
            flight=new_flight,
            attend=self._attend,
            open=self._laid,
        )

    # ------------------------------------------------------------------ numbers

    # Not keyword-only like every other `timeout`: that would cost 30 of the 80 ns of a number in hand. `key` comes
    # first, as no number can be one: `next("t", 3)` is refused, and no look at it is needed, which costs 4 ns.
    def next(
        self,
        tag: str,
        key: str | None = None,
        timeout: float | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
    ) -> int:
        """Return the next number of the tag, above every number that a call which returned before has got (strict).

        key: the same number for the same key, from any process, for `ttl` seconds (a day): draw again after a lost
        reply. 1..200 bytes; kept in Redis. shard_key: whose shard it is of, for a tag with shards. A tag with a series
        for each key has `issue`. `take` gives n numbers.

        Raises UnknownTag, LimitReached, StoreUnavailable, RedisUnavailable, StoreBehind, Refused, InvalidArgument.
        """
        if timeout is None and key is None and shard_key is None:
            try:
                return next(self._open[tag])  # a number in hand, or a draw: drivers/blocking/combiner.py
            except (KeyError, StopIteration, TypeError, OtherStrategyError):
                pass
            except IssuerError:
                # By no name: that would be one variable more, and 3 % of the time that a number in hand takes.
                self._tell_raised(tag)
                raise
        # Apart: a function within this one would make cells of its variables, and 90 ns a number 125.
        only_one(key)
        return self._said(tag, DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key), timeout)

    def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000, increasing, over segment borders. Errors as `next`.

        After an error part-way, as at the tag's limit, the numbers already drawn are in its `drawn`.
        """
        wanted = whole(n, "n", 1, TAKE_MOST)
        deadline = self._deadline(timeout)
        return self._around(tag, wanted, PLAIN, lambda: self._many(tag, wanted, deadline), deadline)

    def issue(
        self,
        tag: str,
        *,
        key: str | None = None,
        ttl: float = TTL,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Issue one number as `next` does, and return it with its text by the tag's format, its period and its shard.

        Raises as `next`; ConfigurationError if a plugin transforms the tag's numbers, as it has no part in the text.
        """
        how = DrawOptions(key, seconds(ttl, "ttl", zero=False), shard_key, restart_key)
        deadline = self._deadline(timeout)
        issued: list[Issued] = []

        def draw() -> list[int]:
            issued.append(self._issued(tag, how, deadline))
            return [issued[0].value]

        self._around(tag, 1, how, draw, deadline, shown=True)
        return issued[0]

    def peek(
        self,
        tag: str,
        *,
        shard_key: str | bytes | None = None,
        restart_key: str | None = None,
        timeout: float | None = None,
    ) -> Issued:
        """Return what `issue` will return next if no other caller draws before. Consumes nothing. Raises as `next`."""
        how = DrawOptions(shard_key=shard_key, restart_key=restart_key)
        return self._run(self._issuing.peek(tag, how), self._deadline(timeout), tag)

    def decode(self, tag: str, shown: int | str, *, holder: bool = False, timeout: float | None = None) -> Decoded:
        """Tell what a number, or its text, is made of: counter, period, shard. Raises NotDecodable, UnknownTag.

        `holder`: ask which process holds, or held, the machine number of a number that a strategy made; None if that
        can't be found out.
        """
        return self._run(self._issuing.decode(tag, shown, who=holder), self._deadline(timeout), tag)

    def _tell_raised(self, tag: str) -> None:
        error = sys.exception()
        if isinstance(error, IssuerError):
            self._tell(tag, error)

    def _said(self, tag: str, how: DrawOptions, timeout: float | None) -> int:
        deadline = self._deadline(timeout)
        if how.plain:
            return self._around(tag, 1, how, lambda: [self._one(tag, deadline)], deadline)[0]
        return self._around(tag, 1, how, lambda: [self._issued(tag, how, deadline).value], deadline)[0]

    def _one(self, tag: str, deadline: Deadline) -> int:
        combiner = self._registry.combiner(tag)
        try:
            if combiner.serving is None:
                return combiner.supply.value(combiner.next(deadline))
        except OtherStrategyError:
            pass
        except IssuerError:
            self._registry.forget_if_unknown(combiner)
            raise
        return self._generated(combiner, 1, deadline)[0]

    def _many(self, tag: str, wanted: int, deadline: Deadline) -> list[int]:
        combiner = self._registry.combiner(tag)
        numbers: list[int] = []
        try:
            while len(numbers) < wanted and combiner.serving is None:
                drawn = combiner.draw(wanted - len(numbers), deadline)
                numbers += drawn if combiner.supply.scheme is None else map(combiner.supply.value, drawn)
        except OtherStrategyError:
            pass
        except IssuerError as error:
            error.drawn = numbers
            self._registry.forget_if_unknown(combiner)
            raise
        return numbers or self._generated(combiner, wanted, deadline)

    def _generated(self, combiner: Combiner, n: int, deadline: Deadline) -> list[int]:
        """Get numbers of the tag's strategy, which has no counter."""
        numbers = combiner.run(self._issuing.generate(combiner, n, deadline), deadline)
        ready = combiner.serving.ready if combiner.serving is not None and self._chain is None else None
        if ready is not None:
            self._registry.lay_open(combiner, ready)
        return numbers

    def _issued(self, tag: str, how: DrawOptions, deadline: Deadline) -> Issued:
        combiner = self._registry.combiner(tag)
        try:
            return self._run(self._issuing.issue(tag, how, deadline), deadline, tag)
        except IssuerError:
            self._registry.forget_if_unknown(combiner)
            raise

    def _around(
        self,
        tag: str,
        n: int,
        how: DrawOptions,
        draw: Callable[[], list[int]],
        deadline: Deadline,
        *,
        shown: bool = False,
    ) -> list[int]:
        """Draw, with any plugins around it; call the rejected handler if nothing comes. `shown`: as a text, too."""
        try:
            if self._chain is None:
                return draw()
            strategy = self._run(self._issuing.strategy(tag), deadline, tag)
            if shown and self._chain.changes(strategy):
                raise transformed(tag)
            return self._chain.around(Call(tag, n, strategy, how.shard_key, how.key), draw)
        except IssuerError as error:
            self._tell(tag, error)
            raise

    def stream(self, tag: str, *, timeout: float | None = None) -> Iterator[int]:
        """Return an endless iterator over the tag's numbers, for one thread. Errors as `next`; `timeout` for each.

        A trend tag's numbers are drawn ahead, and come at the speed of an iterator in C; `next` and other streams of
        this process share them. How many at a time the tag or `connect` says; else 1000, and more while they are used
        up within 50 ms, as far as a fifth of a segment. A strict tag's come one by one,
        each drawn when it is asked for.
        """
        check_tag(tag)
        self._deadline(timeout)
        return chain.from_iterable(self._pieces(tag, timeout))

    def _pieces(self, tag: str, timeout: float | None) -> Iterator[Iterable[int]]:
        while True:
            deadline = self._deadline(timeout)
            combiner = self._registry.combiner(tag)  # after a fork another one
            try:
                if combiner.serving is None:
                    combiner.run(combiner.supply.draw_ahead(STREAM_LEASE), deadline)
            except IssuerError as error:
                self._registry.forget_if_unknown(combiner)
                self._tell(tag, error)
                raise
            yield (self.next(tag, timeout=timeout),)
            if self._chain is None:
                yield self._registry.combiner(
                    tag
                ).supply.open  # not of the parent's line: a fork may have come in between

    def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers straight from the store: one request, however many. Only for trend tags.

        n is 1..limit. Raises LimitReached if fewer are left, InvalidArgument for a strict tag.
        """
        wanted = whole(n, "n", 1, HIGHEST)
        deadline = self._deadline(timeout)
        combiner = self._registry.combiner(tag)
        try:
            if self._chain is not None:
                # Plugins don't see each of the n numbers; they only allow or refuse the call.
                strategy = self._run(self._issuing.strategy(tag), deadline, tag)
                if self._chain.changes(strategy):
                    raise transformed(tag)
                self._chain.before(Call(tag, wanted, strategy))
            return combiner.run(combiner.supply.reserve(wanted), deadline)
        except IssuerError as error:
            self._registry.forget_if_unknown(combiner)
            self._tell(tag, error)
            raise

    # ------------------------------------------------------------------ operations

    def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store. Errors as `next`."""
        deadline = self._deadline(timeout)
        combiner = self._registry.combiner(tag)
        try:
            try:
                combiner.run(combiner.supply.warm(deadline), deadline)
            except OtherStrategyError:
                self._generated(combiner, 1, deadline)
        except IssuerError as error:
            self._registry.forget_if_unknown(combiner)
            self._tell(tag, error)
            raise

    def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not. Returns them; call again for new ones."""
        if self._runner.redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, and none is set: name Redis")
        records = self.tags(timeout=timeout)
        self._registry.keep(records)
        self._attend()
        return records

    def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, in this thread: load what is due. Returns the number of segments loaded.

        A tag that can't be extended now is logged and does not keep the others waiting. Each has `timeout` for itself.
        """
        notice()
        loaded = 0
        for combiner in self._registry.in_use():
            deadline = self._deadline(timeout)
            try:
                if combiner.serving is not None:
                    combiner.run(combiner.serving.sweep(deadline), deadline)
                    continue
                combiner.run(combiner.supply.rejoin(), Deadline(min(deadline.left(), self._runtime.window)))
                loaded += combiner.run(combiner.supply.fetch(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._registry.troubled(combiner, error)
        return loaded

    def observe(self, observer: Observer) -> None:
        """Call the observer with each event of this issuer from now on: `events` has their classes.

        It runs in the thread that saw the event, after a fork in the child too: it must be quick, and draw no number.
        One that raises is logged.
        """
        self._config.events.add(observer)

    def close(self) -> None:
        """End an extension under way, give unused numbers back, close what we opened. Twice is harmless."""
        notice()  # at the end of a child, nothing of the parent's is given back
        combiners = self._registry.close()
        if combiners is None:
            return
        deadline = Deadline(CLOSING)
        with ExitStack() as ends:
            # In the opposite order, each of them even if others fail.
            ends.callback(_living.discard, self)
            ends.callback(self._runner.pool.close)
            if self._config.own_store:
                ends.callback(self._config.store.close)
            if self._runner.redis is not None:
                ends.callback(self._runner.redis.close)
            for combiner in combiners:
                ends.callback(combiner.run, combiner.supply.close(deadline), deadline)
                if combiner.serving is not None:
                    ends.callback(combiner.run, combiner.serving.close(deadline), deadline)
            ends.callback(self._scheduler.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._config.described("Issuer", self._runner.redis)

    # ------------------------------------------------------------------ inside

    def _make_combiner(self, tag: str) -> Combiner:
        return Combiner(tag, self._config.key(tag), self._runtime, self._runner, self._config.timeout)

    def _context(self, combiner: Combiner, record: Tag) -> Context:
        return self._config.context(
            record,
            run=combiner.run,
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

        def run() -> None:
            deadline = Deadline(self._runtime.window)
            self._runner.run(job(deadline), deadline)

        return self._scheduler.background(run)

    def _sweep(self) -> None:
        combiners = self._registry.in_use()
        for combiner in combiners:
            if self.closed:
                return
            deadline = Deadline(self._config.store_timeout)
            try:
                steps = combiner.supply.sweep() if combiner.serving is None else combiner.serving.sweep(deadline)
                combiner.run(steps, deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._registry.troubled(combiner, error)
        now = monotonic()
        if now > self._refresh_due and (self._prune_due() or any(combiner.supply.stale for combiner in combiners)):
            # Not here: a store that hangs would keep the sweep from what Redis is back for.
            self._refresh_due = now + REFRESH_LOST
            self._scheduler.background(self._refresh)

    def _refresh(self) -> None:
        """Ask the store for what may wait, up to the first time-out."""
        try:
            for combiner in self._registry.in_use():
                if self.closed:
                    return
                try:
                    combiner.run(combiner.supply.refresh(), Deadline(self._config.store_timeout))
                except StoreUnavailable as error:
                    self._registry.troubled(combiner, error)
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    self._registry.troubled(combiner, error)
            if self._prune_due():
                self._prune()
        finally:
            self._refresh_due = 0.0

    def _prune_due(self) -> bool:
        return now_ms() - self._pruned >= LEDGER_KEPT // 90

    def _prune(self) -> None:
        """Once a day: old ledger entries."""
        self._pruned = now = now_ms()
        steps = ask(lambda store, left: store.prune(before=now - LEDGER_KEPT, timeout=left))
        try:
            self._run(steps, Deadline(self._config.store_timeout), None)
        except IssuerError as error:
            log.debug("ledger not pruned: %s", error)

    def _put_away(self) -> None:
        """Before a fork that Python doesn't see: let the child find nothing that it could use without asking."""
        self._laid.clear()
        self._registry.shut()

    def _after_fork(self) -> None:
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
        spend_all(self._laid)
        self._registry.spend()
        if isinstance(self._chosen, BaseScheduler):
            # It says that it runs, but its thread is the parent's: here the callers extend by themselves.
            self._chosen = None
        self._runner.after_fork()
        self._start()
        self._config.store.after_fork()


#: Every issuer of this process that isn't closed: to be reset in a forked child, and closed at exit.
_living: weakref.WeakSet[Issuer] = living(
    lambda each: each._after_fork(),  # noqa: SLF001 - the hooks of the class
    unseen=lambda each: each._put_away(),  # noqa: SLF001 - the same
    unseen_over=lambda each: each._registry.settle(),  # noqa: SLF001 - the same
)


def close_all() -> None:
    """Close what is still open; at exit, so that unused numbers are handed back."""
    for issuer in list(_living):
        issuer.close()
