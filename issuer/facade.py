"""Issuer: the public face for threads."""

from __future__ import annotations

import logging
import operator
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self, TypeVar

from apscheduler.schedulers.base import BaseScheduler

from issuer.clock import Deadline
from issuer.core import retire
from issuer.core.extend import DEFAULT_STEP
from issuer.core.inspection import Inspection, inspect
from issuer.core.retire import Recovery
from issuer.core.steps import Steps, ask
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.blocking.line import Line, Means
from issuer.drivers.blocking.runner import Runner
from issuer.errors import (
    ConfigurationError,
    InvalidArgument,
    IssuerError,
    Unavailable,
    UnknownTag,
)
from issuer.keys import check_description, check_tag, redis_key
from issuer.scheduler import Scheduler
from issuer.settings import seconds
from persistence.contract import Store
from persistence.records import HIGHEST, Order, Tag, now_ms

T = TypeVar("T")

log = logging.getLogger("issuer")

#: Most numbers that one `take` returns: they come as a list, 8 MB of it.
TAKE_MOST = 1_000_000

#: A tag that nobody has drawn from for so many seconds is left out of the sweep.
IDLE_AFTER = 900.0

#: An elected loader that is silent for so many seconds longer than the store's timeout is replaced.
GRACE = 1.0

#: How long a `close` or an exit may take to hand numbers back, in seconds.
CLOSING = 3.0

#: Ledger entries are kept for so many milliseconds: 90 days. The newest of each tag stays for ever.
LEDGER_KEPT = 90 * 24 * 3600 * 1000


class Issuer:
    """Hands out unique, increasing 64-bit numbers per tag. Made by `issuer.connect`; safe to share among threads.

    After a fork the child has an Issuer of its own: it shares no number, connection or thread with its parent. Every
    call takes `timeout=` in seconds: past it StoreUnavailable or RedisUnavailable is raised, whichever was waited for.
    0 means only what is in hand: one round trip to Redis, or the process's own segment. Every method may raise
    ConfigurationError, and CorruptState or FenceError where Redis or the store can't be trusted.
    """

    def __init__(
        self,
        store: Store,
        redis: Connections | None,
        *,
        own_store: bool,
        prefix: str,
        timeout: float,
        store_timeout: float,
        auto_create: bool,
        scheduler: Literal["background"] | BaseScheduler | None,
    ) -> None:
        self._store = store
        self._own_store = own_store
        self._runner = Runner(store, redis, store_timeout)
        self._prefix = prefix
        self._timeout = timeout
        self._store_timeout = store_timeout
        self._auto_create = auto_create
        self._chosen = scheduler
        self._closed = False
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self._pruned = 0
        theirs = self._chosen if isinstance(self._chosen, BaseScheduler) else None
        self._scheduler = Scheduler(self._sweep, theirs)
        self._means = Means(
            runner=self._runner,
            background=self._scheduler.background if self._chosen is not None else _nobody,
            scheduled=self._chosen is not None,
            window=self._store_timeout + GRACE,
            auto_create=self._auto_create,
        )

    # ------------------------------------------------------------------ numbers

    def next(self, tag: str, *, timeout: float | None = None) -> int:
        """Return the next number of the tag, above every number that a call which returned before has got (strict).

        Raises UnknownTag, LimitReached, StoreUnavailable, RedisUnavailable, StoreBehind.
        """
        line = self._line(tag)
        try:
            return line.draw(1, self._deadline(timeout))[1]
        except IssuerError:
            self._forget_if_unknown(line)
            raise

    def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000, increasing, over segment borders. Errors as `next`.

        After an error part-way the numbers already drawn are a gap.
        """
        wanted = _whole(n, "n", 1, TAKE_MOST)
        deadline = self._deadline(timeout)
        line = self._line(tag)
        numbers: list[int] = []
        try:
            while len(numbers) < wanted:
                low, high = line.draw(wanted - len(numbers), deadline)
                numbers.extend(range(low + 1, high + 1))
        except IssuerError:
            self._forget_if_unknown(line)
            raise
        return numbers

    def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers straight from the store: one request, however many. Only for trend tags.

        n is 1..limit. Raises LimitReached if fewer are left, InvalidArgument for a strict tag.
        """
        wanted = _whole(n, "n", 1, HIGHEST)
        deadline = self._deadline(timeout)
        line = self._line(tag)
        try:
            record = line.learn(deadline)
        except IssuerError:
            self._forget_if_unknown(line)
            raise
        if record.order == "strict":
            raise InvalidArgument(f"tag {tag!r} is strict; ranges are reserved of trend tags only", tag=tag, value=n)
        if wanted > record.limit:
            raise InvalidArgument(f"n is {wanted}, above the limit {record.limit} of tag {tag!r}", tag=tag, value=n)
        return line.reserve(wanted, deadline)

    # ------------------------------------------------------------------ tags

    def create(
        self,
        tag: str,
        *,
        start: int | None = None,
        above: int | None = None,
        step: int | Literal["auto"] | None = None,
        limit: int = HIGHEST,
        order: Order | None = None,
        description: str = "",
        timeout: float | None = None,
    ) -> Tag:
        """Make a tag. Its first number is `start` (1..limit), or `above` + 1 (`above` 0..limit-1), or 1.

        step: numbers per segment, 1..2^63-1; None or "auto": 1000. limit: the last number there will be. order:
        "strict" (the default with Redis) or "trend" (the only one without). A deleted tag, made again, goes on above
        its old numbers. Raises TagExists, InvalidArgument.
        """
        check_tag(tag)
        last = _whole(limit, "limit", 1, HIGHEST)
        if start is not None and above is not None:
            raise InvalidArgument("give start or above, not both", tag=tag, value=(start, above))
        first = _above(start, above, last) or 0
        size = DEFAULT_STEP if step is None or step == "auto" else _whole(step, "step", 1, HIGHEST)
        chosen: Order = order if order is not None else ("strict" if self._runner.redis else "trend")
        if chosen not in ("strict", "trend"):
            raise InvalidArgument(f"order is 'strict' or 'trend', not {order!r}", tag=tag, value=order)
        if chosen == "strict" and self._runner.redis is None:
            raise ConfigurationError(
                f"tag {tag!r}: strict order needs Redis, and none is set; use order='trend'", tag=tag
            )
        text = check_description(description)
        return self._ask(
            lambda store, left: store.create(
                tag, above=first, step=size, limit=last, order=chosen, description=text, timeout=left
            ),
            timeout,
            tag,
        )

    def configure(
        self,
        tag: str,
        *,
        step: int | Literal["auto"] | None = None,
        limit: int | None = None,
        start: int | None = None,
        above: int | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> Tag:
        """Change what is given, while running: every process follows at its next reservation. Returns the tag after.

        `start` and `above` only raise: numbers below are skipped, in Redis too. A `limit` below `max` is refused.
        """
        check_tag(tag)
        if all(value is None for value in (step, limit, start, above, description)):
            raise InvalidArgument("nothing to change: give step, limit, start, above or description", tag=tag)
        size = DEFAULT_STEP if step == "auto" else step if step is None else _whole(step, "step", 1, HIGHEST)
        last = None if limit is None else _whole(limit, "limit", 1, HIGHEST)
        if start is not None and above is not None:
            raise InvalidArgument("give start or above, not both", tag=tag, value=(start, above))
        raise_to = _above(start, above, last or HIGHEST)
        if description is not None:
            check_description(description)
        steps = retire.configure(
            tag,
            self._key(tag),
            change=lambda store, left: store.configure(
                tag, step=size, limit=last, description=description, raise_to=raise_to, timeout=left
            ),
            raise_to=raise_to,
        )
        return self._run(steps, self._deadline(timeout), tag)

    def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on. Made again, it goes on above. Raises UnknownTag."""
        self._run(retire.delete(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)
        self._lines.pop(tag, None)

    def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name."""
        return self._ask(lambda store, left: store.tags(timeout=left), timeout)

    def inspect(self, tag: str, *, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing. Raises UnknownTag.

        Redis that can't be reached is told in `redis_error`; a store that can't be reached raises StoreUnavailable.
        """
        return self._run(inspect(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)

    # ------------------------------------------------------------------ operations

    def recover(
        self, tag: str | None = None, *, at_least: int = 0, dry_run: bool = False, timeout: float | None = None
    ) -> list[Recovery]:
        """Make sure that nothing up to the highest number known is issued again, then let reservations go on.

        The highest number known: what the store, its ledger, Redis, and `at_least` (one tag only) say. No tag: all of
        them; each has `timeout` for itself, and the first error is raised when all have been tried. Idempotent; safe
        from several machines at once and under load.
        `dry_run` changes nothing. Raises UnknownTag, StoreUnavailable, RedisUnavailable.
        """
        lowest = _whole(at_least, "at_least", 0, HIGHEST)
        if tag is None and lowest:
            raise InvalidArgument("at_least needs a tag: each has numbers of its own", value=at_least)
        names = [check_tag(tag)] if tag is not None else [record.tag for record in self.tags(timeout=timeout)]
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        for name in names:
            steps = retire.recover(name, self._key(name), at_least=lowest, dry_run=dry_run)
            try:
                done.append(self._run(steps, self._deadline(timeout), name))
            except IssuerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

    def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store. Errors as `next`."""
        line = self._line(tag)
        try:
            line.warm(self._deadline(timeout))
        except IssuerError:
            self._forget_if_unknown(line)
            raise

    def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not. Returns them; call again for new ones."""
        if self._runner.redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, and none is set")
        records = self.tags(timeout=timeout)
        names = {record.tag for record in records}
        for line in list(self._lines.values()):
            line.kept = line.tag in names
        for record in records:
            line = self._line(record.tag)
            line.record, line.kept = record, True
        if self._chosen is not None:
            self._scheduler.start()
        return records

    def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, in this thread: load what is due. Returns the number of segments loaded.

        A tag that can't be extended now is logged and does not keep the others waiting. Each has `timeout` for itself.
        """
        loaded = 0
        for line in self._in_use():
            deadline = self._deadline(timeout)
            try:
                line.rejoin(deadline)
                loaded += line.fetch(deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._troubled(line, error)
        return loaded

    def close(self) -> None:
        """End an extension under way, hand unused numbers back, close what we opened. Twice is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            lines, self._lines = list(self._lines.values()), {}
        deadline = Deadline(CLOSING)
        with ExitStack() as ends:
            # In the opposite order, each of them whatever becomes of the others.
            ends.callback(_living.discard, self)
            if self._own_store:
                ends.callback(self._store.close)
            if self._runner.redis is not None:
                ends.callback(self._runner.redis.close)
            for line in lines:
                ends.callback(line.close, deadline)
            ends.callback(self._scheduler.stop)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        redis = self._runner.redis
        return f"<Issuer redis={redis.name if redis else None!r} store={self._store.url!r} prefix={self._prefix!r}>"

    # ------------------------------------------------------------------ inside

    def _line(self, tag: str) -> Line:
        try:
            return self._lines[tag]
        except (KeyError, TypeError):
            check_tag(tag)
        with self._lock:
            if self._closed:
                raise IssuerError("this issuer is closed")
            line = self._lines.get(tag)
            if line is None:
                line = self._lines[tag] = Line(tag, redis_key(self._prefix, tag), self._means)
            return line

    def _forget_if_unknown(self, line: Line) -> None:
        """Drop the line of a tag that isn't there, or never was seen, so that made-up tags leave nothing behind."""
        if line.disposable:
            with self._lock:
                if self._lines.get(line.tag) is line:
                    del self._lines[line.tag]

    def _key(self, tag: str) -> str | None:
        return redis_key(self._prefix, tag) if self._runner.redis is not None else None

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    def _ask(self, question: Callable[[Store, float], T], timeout: float | None, tag: str | None = None) -> T:
        return self._run(ask(question), self._deadline(timeout), tag)

    def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        if self._closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return self._runner.run(steps, deadline, tag)

    def _in_use(self) -> list[Line]:
        since = Deadline(-IDLE_AFTER).at
        return [line for line in list(self._lines.values()) if line.kept or line.used_at > since]

    def _sweep(self) -> None:
        for line in self._in_use():
            if self._closed:
                return
            try:
                line.sweep(Deadline(self._store_timeout))
            except Exception as error:  # noqa: BLE001 - the same
                self._troubled(line, error)
        self._prune()

    def _troubled(self, line: Line, error: Exception) -> None:
        if self._closed:
            return
        if isinstance(error, UnknownTag):
            self._forget_if_unknown(line)
        level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
        log.log(level, "tag %r: sweep: %s", line.tag, error)

    def _prune(self) -> None:
        """Once a day: old ledger entries."""
        now = now_ms()
        if now - self._pruned < LEDGER_KEPT // 90:
            return
        self._pruned = now
        try:
            self._ask(lambda store, left: store.prune(before=now - LEDGER_KEPT, timeout=left), self._store_timeout)
        except IssuerError as error:
            log.debug("ledger not pruned: %s", error)

    def _after_fork(self) -> None:
        if isinstance(self._chosen, BaseScheduler):
            # It says that it runs, but its thread is the parent's: here the callers extend by themselves.
            self._chosen = None
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
        self._start()
        if self._runner.redis is not None:
            self._runner.redis.after_fork()
        self._store.after_fork()


def _nobody(_job: Callable[[], object]) -> bool:
    return False


def _whole(value: int, name: str, lowest: int, highest: int) -> int:
    """Return a whole number in lowest..highest; InvalidArgument for anything else, a bool included."""
    try:
        if isinstance(value, bool):
            raise TypeError  # noqa: TRY301 - handled like every other wrong type, below
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(f"{name} must be a whole number, not {value!r}", value=value) from error
    if not lowest <= number <= highest:
        raise InvalidArgument(f"{name} must be {lowest}..{highest}, not {number}", value=value)
    return number


def _above(start: int | None, above: int | None, limit: int) -> int | None:
    """Return the number below the first one, whichever way it was given."""
    if start is not None:
        return _whole(start, "start", 1, limit) - 1
    return None if above is None else _whole(above, "above", 0, limit - 1)


#: Every issuer of this process that isn't closed: to be reset in a forked child, and closed at exit.
_living: weakref.WeakSet[Issuer] = weakref.WeakSet()


def close_all() -> None:
    """Close what is still open; at exit, so that unused numbers are handed back."""
    for living in list(_living):
        living.close()


def _reset_in_child() -> None:
    for living in list(_living):
        try:
            living._after_fork()  # noqa: SLF001 - the hook belongs to the class
        except Exception:
            log.exception("%r: not all of it was reset in the forked child", living)


os.register_at_fork(after_in_child=_reset_in_child)
