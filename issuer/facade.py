"""Issuer: the public face for threads."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from types import TracebackType
from typing import Literal, Self, TypeVar

from apscheduler.schedulers.base import BaseScheduler

from issuer.clock import Deadline, monotonic
from issuer.core import requests, retire
from issuer.core.discrepancies import Discrepancy
from issuer.core.doctor.diagnosis import judge
from issuer.core.doctor.examination import Examination
from issuer.core.doctor.finding import Finding
from issuer.core.hand import spend_all
from issuer.core.inspection import Inspection, inspect
from issuer.core.requests import TAKE_MOST, Named, whole
from issuer.core.retire import Recovery
from issuer.core.source import Job
from issuer.core.steps import Steps, ask
from issuer.core.verification import Audit, Provenance, who
from issuer.drivers.blocking.connections import Connections
from issuer.drivers.blocking.line import Line
from issuer.drivers.blocking.runner import Runner, new_flight
from issuer.drivers.forks import living
from issuer.drivers.roster import Roster
from issuer.drivers.terms import CLOSING, REFRESH_LOST, STREAM_LEASE, Terms
from issuer.errors import ConfigurationError, IssuerError, StoreUnavailable, UnknownTag
from issuer.keys import check_tag
from issuer.scheduler import Scheduler, Threads
from issuer.settings import seconds
from persistence.records import HIGHEST, LEDGER_KEPT, Order, Tag, now_ms

T = TypeVar("T")

log = logging.getLogger("issuer")


class Issuer:
    """Hands out unique, increasing 64-bit numbers per tag. Made by `issuer.connect`; safe to share among threads.

    After a fork the child has an Issuer of its own: it shares no number, connection or thread with its parent. Every
    call takes `timeout=` in seconds: past it StoreUnavailable or RedisUnavailable is raised, whichever was waited for.
    0 means only what is in hand: one round trip to Redis, or the process's own segment. Every method may raise
    ConfigurationError, and CorruptState or FenceError where Redis or the store can't be trusted.
    """

    def __init__(
        self, terms: Terms, redis: Connections | None, scheduler: Literal["background"] | BaseScheduler | None
    ) -> None:
        self._terms = terms
        self._runner = Runner(terms.store, redis, terms.store_timeout)
        self._chosen = scheduler
        #: What `next` looks at first: numbers in hand, or the line to draw from.
        self._open: dict[str, Iterator[int]] = {}
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._roster = Roster(self._make_line, self._open)
        self._pruned = 0
        self._refresh_due = 0.0
        theirs = self._chosen if isinstance(self._chosen, BaseScheduler) else None
        self._scheduler = Scheduler(self._sweep, Threads, theirs)
        self._means = self._terms.means(
            redis=self._runner.redis is not None,
            background=self._background,
            scheduled=self._chosen is not None,
            flight=new_flight,
            attend=self._attend,
            open=self._open,
        )

    # ------------------------------------------------------------------ numbers

    # Not keyword-only like every other `timeout`: that would cost 10 of the 70 ns that a number in hand takes.
    def next(self, tag: str, timeout: float | None = None) -> int:
        """Return the next number of the tag, above every number that a call which returned before has got (strict).

        Raises UnknownTag, LimitReached, StoreUnavailable, RedisUnavailable, StoreBehind.
        """
        if timeout is None:
            try:
                return next(self._open[tag])  # a number in hand, or a draw: drivers/blocking/line.py
            except (KeyError, StopIteration, TypeError):
                pass
        line = self._roster.line(tag)
        try:
            return line.next(self._deadline(timeout))
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

    def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000, increasing, over segment borders. Errors as `next`.

        After an error part-way, as at the tag's limit, the numbers already drawn are in its `drawn`.
        """
        wanted = whole(n, "n", 1, TAKE_MOST)
        deadline = self._deadline(timeout)
        line = self._roster.line(tag)
        numbers: list[int] = []
        try:
            while len(numbers) < wanted:
                numbers += line.draw(wanted - len(numbers), deadline)
        except IssuerError as error:
            error.drawn = numbers
            self._roster.forget_if_unknown(line)
            raise
        return numbers

    def stream(self, tag: str, *, timeout: float | None = None) -> Iterator[int]:
        """Return an endless iterator over the tag's numbers, for one thread. Errors as `next`; `timeout` for each.

        A trend tag's numbers are drawn ahead, 1000 at a time unless the tag or `connect` says how many, and come at the
        speed of an iterator in C; `next` and other streams of this process share them. A strict tag's come one by one,
        each drawn when it is asked for.
        """
        check_tag(tag)
        self._deadline(timeout)
        return chain.from_iterable(self._pieces(tag, timeout))

    def _pieces(self, tag: str, timeout: float | None) -> Iterator[Iterable[int]]:
        while True:
            line = self._roster.line(tag)  # after a fork another one
            deadline = self._deadline(timeout)
            try:
                line.run(line.supply.draw_ahead(STREAM_LEASE), deadline)
                number = line.next(deadline)
            except IssuerError:
                self._roster.forget_if_unknown(line)
                raise
            yield (number,)
            yield self._roster.line(tag).supply.open  # not of the parent's line: a fork may have come in between

    def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers straight from the store: one request, however many. Only for trend tags.

        n is 1..limit. Raises LimitReached if fewer are left, InvalidArgument for a strict tag.
        """
        wanted = whole(n, "n", 1, HIGHEST)
        deadline = self._deadline(timeout)
        line = self._roster.line(tag)
        try:
            return line.run(line.supply.reserve(wanted), deadline)
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

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
        lease: int | None = None,
        ahead: int = 1,
        description: str = "",
        timeout: float | None = None,
    ) -> Tag:
        """Make a tag. Its first number is `start` (1..limit), or `above` + 1 (`above` 0..limit-1), or 1.

        step: numbers per segment, 1..2^63-1; None or "auto": 1000. limit: the last number there will be. order:
        "strict" (the default with Redis) or "trend" (the only one without). lease: how many numbers of a trend tag each
        process draws ahead from Redis, 0 (none) .. 1 000 000; None: as `connect` says. ahead: how many steps a segment
        holds, 1..1000: if a step lasts ten minutes, ahead=6 makes an outage of the store of most of an hour cost
        nothing. A deleted tag, made again, goes on above its old numbers. Raises TagExists, InvalidArgument.
        """
        steps = requests.create(
            tag,
            start=start,
            above=above,
            step=step,
            limit=limit,
            order=order,
            lease=lease,
            ahead=ahead,
            description=description,
            redis=self._runner.redis is not None,
        )
        return self._run(steps, self._deadline(timeout), tag)

    def configure(
        self,
        tag: str,
        *,
        step: int | Literal["auto"] | None = None,
        limit: int | None = None,
        start: int | None = None,
        above: int | None = None,
        lease: int | None = None,
        ahead: int | None = None,
        description: str | None = None,
        timeout: float | None = None,
    ) -> Tag:
        """Change what is given, while running: every process follows at its next reservation. Returns the tag after.

        `start` and `above` only raise: numbers below are skipped, in Redis too. A `limit` below `max` is refused. A
        changed `lease` reaches every process within a minute.
        """
        steps = requests.configure(
            tag,
            self._key(tag),
            step=step,
            limit=limit,
            start=start,
            above=above,
            lease=lease,
            ahead=ahead,
            description=description,
        )
        return self._run(steps, self._deadline(timeout), tag)

    def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on. Made again, it goes on above. Raises UnknownTag."""
        self._run(retire.delete(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)
        self._roster.drop(tag)

    def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name."""
        return self._run(ask(lambda store, left: store.tags(timeout=left)), self._deadline(timeout), None)

    def inspect(self, tag: str, *, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing. Raises UnknownTag.

        Redis that can't be reached is told in `redis_error`; a store that can't be reached raises StoreUnavailable.
        """
        seen = self._run(inspect(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)
        line = self._roster.lines.get(tag)
        return seen if line is None else replace(seen, waiting=line.waiting)

    # ------------------------------------------------------------------ operations

    def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Hold the tag's ledger, the store and Redis against each other, changing nothing; return what is wrong.

        An empty list: no two segments overlap, and nothing lies above the store's max. No tag: all of them. At most 100
        findings a tag. Reads the whole ledger, 2000 entries at a time; `timeout` is for each such piece. Safe under
        load: what others do meanwhile is no finding. Raises UnknownTag, StoreUnavailable, RedisUnavailable.
        """
        findings: list[Discrepancy] = []
        names = [check_tag(tag)] if tag is not None else [record.tag for record in self.tags(timeout=timeout)]
        for name in names:
            audit = Audit(name, self._key(name))
            try:
                while self._run(audit.go_on(), self._deadline(timeout), name):
                    pass
            except UnknownTag:
                if tag is not None:
                    raise
            else:
                findings += audit.findings
        return findings

    def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return what is known of a number, 1..2^63-1: who reserved its segment, when, and what for.

        With Redis away only the store is asked. Raises UnknownTag.
        """
        wanted = whole(number, "number", 1, HIGHEST)
        return self._run(who(check_tag(tag), self._key(tag), wanted), self._deadline(timeout), tag)

    def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop the tag's reservations at once, for every process, until `recover`; then StoreBehind is raised.

        What has been reserved is issued still: both buffers in Redis, leases, segments of processes. Twice is harmless.
        Raises UnknownTag.
        """
        self._run(retire.halt(check_tag(tag)), self._deadline(timeout), tag)

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

        The highest number known: what the store, its ledger, Redis, the journals and `at_least` (one tag only) say. No
        tag: all of them; each has `timeout` for itself, and the first error is raised when all have been tried.
        Idempotent; safe from several machines at once and under load. `dry_run` changes nothing.

        from_journal: paths of journals, in any order, or what `persistence.journal.read` returned. A tag that they know
        and the store has lost is made again. Journals of another store count if this one is empty, or was made from
        them; ConfigurationError otherwise. Raises UnknownTag, JournalDamaged, StoreUnavailable, RedisUnavailable.
        """
        lowest = requests.floor(tag, at_least)
        journals = self._run(requests.journals(from_journal), self._deadline(timeout), tag)
        said = self._run(retire.witnesses(journals), self._deadline(timeout), tag)
        names = [tag] if tag is not None else sorted({*said, *(each.tag for each in self.tags(timeout=timeout))})
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        for name in names:
            steps = retire.recover(name, self._key(name), at_least=lowest, dry_run=dry_run, said=said.get(name))
            try:
                done.append(self._run(steps, self._deadline(timeout), name))
            except IssuerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

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
        redis = self._runner.redis
        facts = self._terms.facts(redis.name if redis is not None else None)
        for steps in Examination(facts, self._terms.key, most=most, progress=progress).rounds():
            self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store. Errors as `next`."""
        line = self._roster.line(tag)
        deadline = self._deadline(timeout)
        try:
            line.run(line.supply.warm(deadline), deadline)
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

    def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not. Returns them; call again for new ones."""
        if self._runner.redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, and none is set")
        records = self.tags(timeout=timeout)
        self._roster.keep(records)
        self._attend()
        return records

    def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, in this thread: load what is due. Returns the number of segments loaded.

        A tag that can't be extended now is logged and does not keep the others waiting. Each has `timeout` for itself.
        """
        loaded = 0
        for line in self._roster.in_use():
            deadline = self._deadline(timeout)
            try:
                line.run(line.supply.rejoin(), Deadline(min(deadline.left(), self._means.window)))
                loaded += line.run(line.supply.fetch(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._roster.troubled(line, error)
        return loaded

    def close(self) -> None:
        """End an extension under way, give unused numbers back, close what we opened. Twice is harmless."""
        lines = self._roster.close()
        if lines is None:
            return
        deadline = Deadline(CLOSING)
        with ExitStack() as ends:
            # In the opposite order, each of them whatever becomes of the others.
            ends.callback(_living.discard, self)
            if self._terms.own_store:
                ends.callback(self._terms.store.close)
            if self._runner.redis is not None:
                ends.callback(self._runner.redis.close)
            for line in lines:
                ends.callback(line.run, line.supply.close(deadline), deadline)
            ends.callback(self._scheduler.stop)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._roster.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._terms.described("Issuer", self._runner.redis)

    # ------------------------------------------------------------------ inside

    def _make_line(self, tag: str) -> Line:
        return Line(tag, self._terms.key(tag), self._means, self._runner, self._terms.timeout)

    def _key(self, tag: str) -> str | None:
        return self._terms.key(tag) if self._runner.redis is not None else None

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._terms.timeout if timeout is None else seconds(timeout, "timeout", zero=True))

    def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        if self.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return self._runner.run(steps, deadline, tag)

    def _attend(self) -> None:
        if self._chosen is not None:
            self._scheduler.start()

    def _background(self, job: Job) -> bool:
        if self._chosen is None:
            return False

        def run() -> None:
            deadline = Deadline(self._means.window)
            self._runner.run(job(deadline), deadline)

        return self._scheduler.background(run)

    def _sweep(self) -> None:
        lines = self._roster.in_use()
        for line in lines:
            if self.closed:
                return
            deadline = Deadline(self._terms.store_timeout)
            try:
                line.run(line.supply.sweep(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._roster.troubled(line, error)
        now = monotonic()
        if now > self._refresh_due and (self._prune_due() or any(line.supply.stale for line in lines)):
            # Not here: a store that hangs would keep the sweep from what Redis is back for.
            self._refresh_due = now + REFRESH_LOST
            self._scheduler.background(self._refresh)

    def _refresh(self) -> None:
        """Ask the store for what may wait, up to the first time-out."""
        try:
            for line in self._roster.in_use():
                if self.closed:
                    return
                try:
                    line.run(line.supply.refresh(), Deadline(self._terms.store_timeout))
                except StoreUnavailable as error:
                    self._roster.troubled(line, error)
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    self._roster.troubled(line, error)
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
            self._run(steps, Deadline(self._terms.store_timeout), None)
        except IssuerError as error:
            log.debug("ledger not pruned: %s", error)

    def _after_fork(self) -> None:
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
        spend_all(self._open)
        if isinstance(self._chosen, BaseScheduler):
            # It says that it runs, but its thread is the parent's: here the callers extend by themselves.
            self._chosen = None
        self._start()
        if self._runner.redis is not None:
            self._runner.redis.after_fork()
        self._terms.store.after_fork()


#: Every issuer of this process that isn't closed: to be reset in a forked child, and closed at exit.
_living: weakref.WeakSet[Issuer] = living()


def close_all() -> None:
    """Close what is still open; at exit, so that unused numbers are handed back."""
    for issuer in list(_living):
        issuer.close()
