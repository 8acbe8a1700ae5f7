"""Issuer: the public face for threads."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from operator import call
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

from apscheduler.schedulers.base import BaseScheduler

from issuer.api.scheduler import Scheduler, Threads
from issuer.clock import Deadline
from issuer.core import recovery
from issuer.core.events import Observer
from issuer.core.inspect import inspection
from issuer.core.inspect.discrepancies import Discrepancy
from issuer.core.inspect.doctor.finding import Finding
from issuer.core.inspect.inspection import Inspection, Readiness
from issuer.core.inspect.verification import Provenance, who
from issuer.core.issued import Issued
from issuer.core.recovery import Recovery
from issuer.core.requests import TAKE_MOST, TTL, Named, only_one, whole
from issuer.core.scheme_record import OtherStrategyError
from issuer.core.steps import Calls, Steps
from issuer.drivers.blocking.combiner import Combiner
from issuer.drivers.blocking.connections import Connections, drive
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.errors import IssuerError
from issuer.forks import living, notice
from issuer.gateway.keys import check_tag
from issuer.numbers.codec import Decoded
from issuer.numbers.given import SchemeOptions
from issuer.operations import tags
from issuer.operations.config import CLOSING, IssuerConfig
from issuer.operations.maintenance import Rounds, Upkeep, doctor, ready, recover, upgrade, verify
from issuer.operations.numbers import PLAIN, DrawOptions, Issuing
from issuer.operations.registry import TagRegistry
from issuer.operations.tag_options import TagOptions
from issuer.persistence.records import HIGHEST, LedgerPage, Order, Position, Tag, Upgrade
from issuer.plugins.chain import Chain
from issuer.plugins.rejected import Handler
from issuer.settings import seconds
from issuer.strategies.aside import MachineNumber, MachineNumbers

T = TypeVar("T")


class Issuer:
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
        self._chain = Chain(config.plugins) if config.plugins else None
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._scheduler = Scheduler(self._sweep, Threads, self._chosen)
        background = partial(self._scheduler.background, self._runner.work)
        self._runtime = self._config.runtime(new_flight, background, self._scheduler.start, scheduler=self._chosen)
        #: What `next` reads. Empty if plugins are registered: then each call takes the slow path.
        self._open = self._runtime.fast_path.numbers if self._chain is None else {}
        self._registry = TagRegistry(self._make_combiner, self._runtime.fast_path)
        shared = self._registry, self._config, self._runtime
        self._issuing = Issuing(
            *shared, self._chain, combiner=self._registry.combiner, run=self._run, drive=partial(drive, do=call)
        )
        self._upkeep = Upkeep(*shared, self._run)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._registry.closed

    @property
    def rejected(self) -> Handler:
        """The handler of refusals: called with the tag and the error whenever no number can be given. Replaceable."""
        return self._config.rejections.handler

    @rejected.setter
    def rejected(self, handler: Handler) -> None:
        self._config.rejections.handler = handler

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
        only_one(key)
        kept_for, deadline = seconds(ttl, "ttl", zero=False), self._deadline(timeout)
        if key is None and shard_key is None:
            return self._drawn(tag, 1, deadline)[0]
        return self._attempt(tag, self._issuing.number(tag, DrawOptions(key, kept_for, shard_key), deadline))

    def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000, increasing, over segment borders. Errors as `next`.

        After an error part-way, as at the tag's limit, the numbers already drawn are in its `drawn`.
        """
        return self._drawn(tag, whole(n, "n", 1, TAKE_MOST), self._deadline(timeout))

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
        return self._attempt(tag, self._issuing.issue(tag, how, self._deadline(timeout)))

    def composed(self, tag: str, *, timeout: float | None = None) -> bool:
        """Whether a number of the tag is more than its value: `issue` tells its text, period or shard, `next` doesn't.

        As far as this process knows, which asks the store if it knows nothing of the tag, and makes it as `next` would.
        Raises UnknownTag, StoreUnavailable.
        """
        return self._attempt(tag, self._issuing.composed(tag, self._deadline(timeout)))

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

    def _drawn(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        """Draw exactly n numbers, with any plugins around it."""
        if self._chain is None:
            return self._many(tag, n, deadline)
        draw = partial(self._many, tag, n, deadline)
        return self._attempt(tag, self._issuing.around(tag, n, PLAIN, deadline, draw))

    # Nothing is shared here with the other colour: a generator more costs a draw 2 to 6 us.
    def _many(self, tag: str, n: int, deadline: Deadline) -> list[int]:
        numbers: list[int] = []
        try:
            combiner = self._registry.combiner(tag)
            try:
                while len(numbers) < n and combiner.serving is None:
                    drawn = combiner.draw(n - len(numbers), deadline)
                    numbers += drawn if combiner.state.scheme is None else map(combiner.state.value, drawn)
            except OtherStrategyError:
                pass
            return numbers or drive(self._issuing.generated(combiner, n, deadline), call)
        except IssuerError as error:
            error.drawn = numbers
            if self._chain is None:
                self._issuing.failed(tag, error)
            raise

    def _attempt(self, tag: str, calls: Calls[T]) -> T:
        """Run the calls of an operation that is to bring numbers."""
        try:
            return drive(calls, call)
        except IssuerError as error:
            self._issuing.failed(tag, error)
            raise

    def _tell_raised(self, tag: str) -> None:
        error = sys.exception()
        if isinstance(error, IssuerError):
            self._issuing.failed(tag, error)

    def stream(self, tag: str, *, timeout: float | None = None) -> Iterator[int]:
        """Return an endless iterator over the tag's numbers, for one thread. Errors as `next`; `timeout` for each.

        A trend tag's numbers are drawn ahead, and come at the speed of an iterator in C; `next` and other streams of
        this process share them. How many at a time the tag or `connect` says; else 1000, and more while they are used
        up within 50 ms, as far as a fifth of a segment. A strict tag's come one by one, each drawn when it is asked
        for.
        """
        check_tag(tag)
        self._deadline(timeout)
        return chain.from_iterable(self._pieces(tag, timeout))

    def _pieces(self, tag: str, timeout: float | None) -> Iterator[Iterable[int]]:
        while True:
            self._attempt(tag, self._issuing.lease_for_stream(tag, self._deadline(timeout)))
            yield (self.next(tag, timeout=timeout),)
            if self._chain is None:
                # Looked up now: a fork may have come in between, and this is not the parent's combiner.
                yield self._registry.combiner(tag).supply.open

    def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers straight from the store: one request, however many. Only for trend tags.

        n is 1..limit. Raises LimitReached if fewer are left, InvalidArgument for a strict tag.
        """
        return self._attempt(tag, self._issuing.reserve(tag, n, self._deadline(timeout)))

    # ------------------------------------------------------------------ tags

    def create(
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
        """Make a tag. Its first number is `start` (1..limit), or `above` + 1 (`above` 0..limit-1), or 1.

        step: numbers per segment, 1..2^63-1; None or "auto": 1000, and the tag's `step_mode` is "auto". limit: the last
        number there will be. order: "strict" (the default with Redis) or "trend" (the only one without, and where a
        strategy has no counter). lease: how many numbers of a trend tag each process draws ahead from Redis, 0 (none)
        .. 1 000 000; None: as `connect` says. ahead: how many steps a segment holds, 1..1000: if a step lasts ten
        minutes, ahead=6 makes an outage of the store of most of an hour cost nothing. A deleted tag, made again, goes
        on above its old numbers. exist_ok: a tag that is there is returned as it is, unless its numbers are others than
        said here, by order, limit, scheme or strategy, or begin lower: then TagDiffers names the differences. Its step,
        lease, ahead and description may differ: operators change those. Raises TagExists, InvalidArgument.
        """
        asked = TagOptions(start, above, step, limit, order, lease, ahead, description, given)
        deadline = self._deadline(timeout)
        founded = partial(self._issuing.founded, deadline=deadline)
        return self._run(tags.create(tag, asked, self._config, founded, exist_ok=exist_ok), deadline, tag)

    def configure(
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
        """Change what is given, while running: every process follows at its next reservation. Returns the tag after.

        `start` and `above` only raise: numbers below are skipped, in Redis too, from the moment when this returns. A
        process that holds numbers of a trend tag goes on with them: with a lease until its next look at Redis, a second
        or two later; if it can't reach Redis, or serves direct, until they are used up (two segments at most). If
        numbers begin again, as in a tag with periods or a cycle, they are refused. With a stride they are numbers that
        users see, as the limit is. A `limit` below `max` is refused, unless the tag has periods: then it holds in each,
        at once. A changed `lease` reaches every process within a minute. Of a tag that is in parts `step`, `lease` and
        `ahead` are changed in each of them; a part alone can't be changed.
        """
        asked = TagOptions(start, above, step, limit, None, lease, ahead, description, given)
        return self._run(tags.configure(tag, asked, self._config), self._deadline(timeout), tag)

    def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on. Made again, it goes on above.

        Raises UnknownTag; InvalidArgument for a part of a tag, which goes with its tag.
        """
        deadline = self._deadline(timeout)
        self._run(self._issuing.delete(tag, deadline), deadline, tag)

    def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name."""
        return self._run(inspection.tags(), self._deadline(timeout), None)

    def inspect(self, tag: str, *, deleted: bool = False, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing. Raises UnknownTag.

        deleted: what a deleted tag has left, as it was; then UnknownTag means that there is no deleted tag of the name.
        If Redis can't be reached, `redis_error` says so; if the store can't, StoreUnavailable is raised.
        """
        return self._run(self._upkeep.inspect(tag, deleted=deleted), self._deadline(timeout), tag)

    def segments(
        self,
        tag: str,
        count: int = 100,
        *,
        beyond: Position | None = None,
        upward: bool = False,
        timeout: float | None = None,
    ) -> LedgerPage:
        """Return a page of the tag's ledger: its segments, the highest numbers first; `upward`: the lowest first.

        `count`: how many, 1..1000; there may be fewer, as damaged entries stand apart. `beyond`: the `last` of the page
        before, None: from the start; where a page's `last` is None it was the last one. Raises UnknownTag.
        """
        steps = inspection.segments(tag, count, beyond, upward=upward)
        return self._run(steps, self._deadline(timeout), tag)

    def machines(self, tag: str, *, timeout: float | None = None) -> MachineNumbers:
        """Return the machine numbers of a snowflake tag that were ever used, and which of them in the future.

        Changes nothing. Raises UnknownTag; InvalidArgument where none are kept in Redis or the store.
        """
        return self._run(self._issuing.machines(tag), self._deadline(timeout), tag)

    def set_aside(self, tag: str, *, timeout: float | None = None) -> list[MachineNumber]:
        """Set aside the machine numbers of a snowflake tag that were used in the future; return them.

        For when a clock that was far ahead has been set right: a process that had one of them gets another, and need
        not wait until that time is over. No number comes again, as what was used stays written down; no process takes
        those numbers until then, unless there is no other. Until then the tag's numbers lie below those of the future.
        Stop the processes before, and start them after. Raises UnknownTag, InvalidArgument.
        """
        return self._run(self._issuing.set_aside(tag), self._deadline(timeout), tag)

    # ------------------------------------------------------------------ operations

    def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store. Errors as `next`."""
        self._attempt(tag, self._issuing.warm(tag, self._deadline(timeout)))

    def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not. Returns them; call again for new ones."""
        return self._run(self._upkeep.keep(), self._deadline(timeout), None)

    def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, in this thread: load what is due. Returns the number of segments loaded.

        A tag that can't be extended now is logged and does not keep the others waiting. Each has `timeout` for itself.
        """
        notice()
        return drive(self._upkeep.tick(lambda: self._deadline(timeout)), call)

    def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Compare the tag's ledger, the store and Redis, changing nothing; return what is wrong.

        An empty list: no two segments overlap, and nothing lies above the store's max. No tag: all of them. At most 100
        findings a tag; of one that is in parts, each of them is verified. Reads the whole ledger, 2000 entries at a
        time; `timeout` is for each such piece. Safe under load: what others do meanwhile is no finding. With Redis away
        the rest is looked at, and RedisUnseen is in the list. Raises UnknownTag, StoreUnavailable.
        """
        return self._perform(verify(self._config, tag), timeout)

    def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return what is known of a number, 1..2^63-1: who reserved its segment, when, and what for.

        With Redis away only the store is asked. Raises UnknownTag.
        """
        return self._run(who(self._config.hash_key, tag, number), self._deadline(timeout), tag)

    def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop the tag's reservations at once, for every process, until `recover`; then StoreBehind is raised.

        What has been reserved is issued still: both buffers in Redis, leases, segments of processes. With its parts, if
        it has any. Twice is harmless. Raises UnknownTag.
        """
        self._run(recovery.halt(tag), self._deadline(timeout), tag)

    def upgrade(self, *, timeout: float | None = None) -> Upgrade:
        """Bring the layout of the store up to that of this version, and return its version before and after.

        The first call that reserves does so too. Programs of an older version may refuse the store from then on, and
        calls that only read never do it.
        """
        return self._run(upgrade(), self._deadline(timeout), None)

    def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that nothing up to the highest number known is issued again, then let reservations go on.

        The highest number known: what the store, its ledger, Redis, the journals and `at_least` (one tag only) say, as
        the tag's counter counts: `decode` tells it of a number that is made of it. No tag: all of them; a tag in parts:
        it and these; each has `timeout` for itself, and the first error is raised when all have been tried.
        It holds for processes that hold numbers of their own from when it does in `configure`.
        Idempotent; safe from several machines at once and under load. `dry_run` changes nothing, and goes on
        without a Redis that is away: see `Recovery.redis_error`. Replicas and old masters are asked too, if they answer
        soon: see `Recovery.unasked`.

        from_journal: paths of journals, in any order, or what `issuer.persistence.journal.read` returned. A tag that
        they know and the store has lost is made again. Journals of another store count if this one is empty, or was
        made from them; ConfigurationError otherwise. Raises UnknownTag, JournalDamaged, StoreUnavailable,
        RedisUnavailable.
        """
        rounds = recover(self._config, tag, at_least, from_journal, dry_run=dry_run)
        return self._perform(rounds, timeout)

    def ready(self, *, timeout: float | None = None) -> Readiness:
        """Look whether numbers can be had: whether the store and Redis answer, and which tags are halted.

        Nothing is changed, and what is wrong is no error but in the result, which is true if nothing is. The store and
        Redis have `timeout` each.
        """
        return self._perform(ready(self._config), timeout)

    def doctor(
        self,
        *,
        most: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> list[Finding]:
        """Examine Redis, the store, the settings and the tags; return what is found, the worst first. Changes nothing.

        A Finding of level "weak" names what weakens the promise; nothing is raised for what can't be seen or reached.
        `most`: how many tags to look at closely, those used last first, 0..2^63-1; None: 1000. `progress` is called
        after each of them, with how many were looked at and how many will be. Each request has `timeout` for itself.
        """
        return self._perform(doctor(self._config, most, progress), timeout)

    def observe(self, observer: Observer) -> None:
        """Call the observer with each event of this issuer from now on: `events` has their classes.

        It runs in the thread that saw the event, after a fork in the child too: it must be quick, and draw no number.
        One that raises is logged.
        """
        self._config.events.add(observer)

    def close(self) -> None:
        """End an extension under way, give unused numbers back, close what we opened. Twice is harmless."""
        notice()  # at the end of a child, nothing of the parent's is given back
        self._config.events.come_round(at_once=True)
        combiners = self._registry.close()
        if combiners is None:
            return
        deadline = Deadline(CLOSING)
        with ExitStack() as ends:
            # In the opposite order, each of them even if others fail.
            ends.callback(self._config.events.come_round, at_once=True)
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
        return self._config.described("Issuer")

    # ------------------------------------------------------------------ inside

    def _deadline(self, timeout: float | None) -> Deadline:
        notice()  # every call that isn't answered out of hand comes here before anything else
        return Deadline(self._config.timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        if self._registry.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return self._runner.run(steps, deadline, tag)

    def _perform(self, rounds: Rounds[T], timeout: float | None) -> T:
        return drive(rounds, lambda each: self._run(each[0], self._deadline(timeout), each[1]))

    def _make_combiner(self, tag: str) -> Combiner:
        return Combiner(tag, self._config.key(tag), self._runtime, self._runner, self._config.timeout)

    def _sweep(self) -> None:
        if drive(self._upkeep.sweep(), call):
            self._scheduler.background(self._refresh)

    def _refresh(self) -> None:
        drive(self._upkeep.refresh(), call)

    def _after_fork(self) -> None:
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
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
    unseen=lambda each: each._registry.shut(),  # noqa: SLF001 - the same
    unseen_over=lambda each: each._registry.settle(),  # noqa: SLF001 - the same
)


def close_all() -> None:
    """Close what is still open; at exit, so that unused numbers are handed back."""
    for issuer in list(_living):
        issuer.close()


atexit.register(close_all)
