"""AsyncIssuer: the public face for asyncio."""

from __future__ import annotations

import asyncio
import logging
import weakref
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, TypeVar

from apscheduler.schedulers.asyncio import AsyncIOScheduler

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
from issuer.drivers.asyncio.connections import Connections
from issuer.drivers.asyncio.line import Line
from issuer.drivers.asyncio.runner import Runner, new_flight
from issuer.drivers.forks import PARENTS, living
from issuer.drivers.roster import Roster
from issuer.drivers.terms import CLOSING, REFRESH_LOST, STREAM_LEASE, Terms
from issuer.errors import ConfigurationError, IssuerError, StoreUnavailable, UnknownTag
from issuer.keys import check_tag
from issuer.scheduler import Scheduler, Tasks
from issuer.settings import seconds
from persistence.records import HIGHEST, LEDGER_KEPT, Order, Tag, now_ms

T = TypeVar("T")

log = logging.getLogger("issuer")


class AsyncIssuer:
    """Hands out unique, increasing 64-bit numbers per tag, to the tasks of an event loop. Made by `issuer.aconnect`.

    The methods of Issuer, to be awaited; they mean the same and raise the same. It never blocks the loop: stores are
    asked in threads. It serves one loop at a time, and begins anew when that one has been closed; each running loop
    needs an AsyncIssuer of its own. A task that is cancelled while it waits gets no number, and nobody else gets its.
    """

    def __init__(
        self, terms: Terms, redis: Connections | None, scheduler: Literal["background"] | AsyncIOScheduler | None
    ) -> None:
        self._terms = terms
        self._runner = Runner(terms.store, redis, terms.store_timeout)
        self._chosen = scheduler
        #: The numbers in hand that are laid open, by tag.
        self._open: dict[str, Iterator[int]] = {}
        self._pruned = 0
        self._refresh_due = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stay: AsyncGenerator[None, None] | None = None
        self._start()
        _living.add(self)

    def _start(self) -> None:
        self._roster = Roster(self._make_line, self._open)
        self._lines = self._roster.lines
        theirs = self._chosen if isinstance(self._chosen, AsyncIOScheduler) else None
        self._scheduler = Scheduler(self._sweep, Tasks, theirs)
        self._means = self._terms.means(
            redis=self._runner.redis is not None,
            background=self._background,
            scheduled=self._chosen is not None,
            flight=new_flight,
            attend=self._attend,
            open=self._open,
        )

    # ------------------------------------------------------------------ numbers

    async def next(self, tag: str, timeout: float | None = None) -> int:
        """Return the next number of the tag; see Issuer.next."""
        try:
            line = self._lines[tag]
        except (KeyError, TypeError):
            line = self._line(tag)
        try:
            return await line.next(timeout)
        except asyncio.CancelledError:
            line.left = True
            raise
        except RuntimeError:
            # Another loop's line, if anything. Asking for the running loop before each draw would cost 0.4 us of 2.4:
            # up to Python 3.11 that is a system call.
            if line.loop is get_running_loop():
                raise
            return await self._line(tag).next(timeout)
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

    async def take(self, tag: str, n: int, *, timeout: float | None = None) -> list[int]:
        """Return exactly n numbers, 1..1 000 000; see Issuer.take."""
        wanted = whole(n, "n", 1, TAKE_MOST)
        deadline = self._deadline(timeout)
        line = self._line(tag)
        numbers: list[int] = []
        try:
            while len(numbers) < wanted:
                numbers += await line.draw(wanted - len(numbers), deadline)
        except IssuerError as error:
            error.drawn = numbers
            self._roster.forget_if_unknown(line)
            raise
        return numbers

    def stream(self, tag: str, *, timeout: float | None = None) -> AsyncIterator[int]:
        """Iterate over the tag's numbers without end; see Issuer.stream."""
        check_tag(tag)
        self._deadline(timeout)
        return self._stream(tag, timeout)

    async def _stream(self, tag: str, timeout: float | None) -> AsyncIterator[int]:
        while True:
            line = self._line(tag)
            deadline = self._deadline(timeout)
            # With numbers in hand nothing below waits: the loop's other tasks get their turn here.
            await asyncio.sleep(0)
            try:
                await line.run(line.supply.draw_ahead(STREAM_LEASE), deadline)
                number = (await line.draw(1, deadline))[0]
            except IssuerError:
                self._roster.forget_if_unknown(line)
                raise
            yield number
            for number in self._line(tag).supply.open:  # a fork may have come in between
                yield number

    async def reserve(self, tag: str, n: int, *, timeout: float | None = None) -> range:
        """Return n contiguous numbers of a trend tag straight from the store; see Issuer.reserve."""
        wanted = whole(n, "n", 1, HIGHEST)
        deadline = self._deadline(timeout)
        line = self._line(tag)
        try:
            return await line.run(line.supply.reserve(wanted), deadline)
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

    # ------------------------------------------------------------------ tags

    async def create(
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
        """Make a tag; see Issuer.create."""
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
        return await self._run(steps, self._deadline(timeout), tag)

    async def configure(
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
        """Change what is given, while running; see Issuer.configure."""
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
        return await self._run(steps, self._deadline(timeout), tag)

    async def delete(self, tag: str, *, timeout: float | None = None) -> None:
        """Retire a tag: its calls raise UnknownTag from now on; see Issuer.delete."""
        await self._run(retire.delete(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)
        self._roster.drop(tag)

    async def tags(self, *, timeout: float | None = None) -> list[Tag]:
        """Return all tags of the store, by name; see Issuer.tags."""
        return await self._run(ask(lambda store, left: store.tags(timeout=left)), self._deadline(timeout), None)

    async def inspect(self, tag: str, *, timeout: float | None = None) -> Inspection:
        """Return all that is to be seen of the tag, changing nothing; see Issuer.inspect."""
        seen = await self._run(inspect(check_tag(tag), self._key(tag)), self._deadline(timeout), tag)
        line = self._roster.lines.get(tag)
        return seen if line is None else replace(seen, waiting=line.waiting)

    # ------------------------------------------------------------------ operations

    async def verify(self, tag: str | None = None, *, timeout: float | None = None) -> list[Discrepancy]:
        """Hold the tag's ledger, the store and Redis against each other; see Issuer.verify."""
        findings: list[Discrepancy] = []
        names = [check_tag(tag)] if tag is not None else [record.tag for record in await self.tags(timeout=timeout)]
        for name in names:
            audit = Audit(name, self._key(name))
            try:
                while await self._run(audit.go_on(), self._deadline(timeout), name):
                    pass
            except UnknownTag:
                if tag is not None:
                    raise
            else:
                findings += audit.findings
        return findings

    async def who(self, tag: str, number: int, *, timeout: float | None = None) -> Provenance:
        """Return what is known of a number; see Issuer.who."""
        wanted = whole(number, "number", 1, HIGHEST)
        return await self._run(who(check_tag(tag), self._key(tag), wanted), self._deadline(timeout), tag)

    async def halt(self, tag: str, *, timeout: float | None = None) -> None:
        """Stop the tag's reservations at once, for every process, until `recover`; see Issuer.halt."""
        await self._run(retire.halt(check_tag(tag)), self._deadline(timeout), tag)

    async def recover(
        self,
        tag: str | None = None,
        *,
        at_least: int = 0,
        from_journal: Named = (),
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> list[Recovery]:
        """Make sure that nothing up to the highest number known is issued again; see Issuer.recover."""
        lowest = requests.floor(tag, at_least)
        journals = await self._run(requests.journals(from_journal), self._deadline(timeout), tag)
        said = await self._run(retire.witnesses(journals), self._deadline(timeout), tag)
        names = [tag] if tag is not None else sorted({*said, *(each.tag for each in await self.tags(timeout=timeout))})
        done: list[Recovery] = []
        failed: list[IssuerError] = []
        for name in names:
            steps = retire.recover(name, self._key(name), at_least=lowest, dry_run=dry_run, said=said.get(name))
            try:
                done.append(await self._run(steps, self._deadline(timeout), name))
            except IssuerError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return done

    async def doctor(
        self,
        *,
        most: int | None = None,
        progress: Callable[[int, int], object] | None = None,
        timeout: float | None = None,
    ) -> list[Finding]:
        """Examine Redis, the store, the settings and the tags; see Issuer.doctor."""
        redis = self._runner.redis
        facts = self._terms.facts(redis.name if redis is not None else None)
        for steps in Examination(facts, self._terms.key, most=most, progress=progress).rounds():
            await self._run(steps, self._deadline(timeout), None)
        return judge(facts)

    async def warm(self, tag: str, *, timeout: float | None = None) -> None:
        """Return when the tag has numbers in hand, so that the first `next` needs no store; see Issuer.warm."""
        line = self._line(tag)
        deadline = self._deadline(timeout)
        try:
            await line.run(line.supply.warm(deadline), deadline)
        except IssuerError:
            self._roster.forget_if_unknown(line)
            raise

    async def keep(self, *, timeout: float | None = None) -> list[Tag]:
        """From now on extend every tag of the store, drawn from here or not; see Issuer.keep."""
        if self._runner.redis is None:
            raise ConfigurationError("a keeper loads segments into Redis, and none is set")
        records = await self.tags(timeout=timeout)
        self._roster.keep(records)
        self._attend()
        return records

    async def tick(self, *, timeout: float | None = None) -> int:
        """Sweep once over the tags in use, load what is due; see Issuer.tick."""
        self._enter()
        loaded = 0
        for line in self._roster.in_use():
            deadline = self._deadline(timeout)
            try:
                await line.run(line.supply.rejoin(), Deadline(min(deadline.left(), self._means.window)))
                loaded += await line.run(line.supply.fetch(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._roster.troubled(line, error)
        return loaded

    async def close(self) -> None:
        """End an extension under way, give unused numbers back, close what we opened. Twice is harmless."""
        self._enter()
        lines = self._roster.close()
        if lines is None:
            return
        async with AsyncExitStack() as ends:
            # In the opposite order, each of them whatever becomes of the others.
            ends.callback(_living.discard, self)
            if self._terms.own_store:
                ends.push_async_callback(asyncio.to_thread, self._terms.store.close)
            if self._runner.redis is not None:
                ends.push_async_callback(self._runner.redis.close)
            if self._stay is not None:
                ends.push_async_callback(self._stay.aclose)
            ends.push_async_callback(self._leave, lines)

    async def _leave(self, lines: Iterable[Line]) -> None:
        """End and give back what belongs to this loop."""
        deadline = Deadline(CLOSING)
        async with AsyncExitStack() as ends:
            if self._runner.redis is not None:
                ends.push_async_callback(self._runner.redis.drop_idle)
            ends.push_async_callback(self._scheduler.cancel)
            for line in lines:
                ends.push_async_callback(line.end, deadline)
            ends.callback(self._scheduler.stop)

    async def _staying(self) -> AsyncGenerator[None, None]:
        """Leave the loop in order when it ends: a loop that is shut down closes its async generators."""
        try:
            yield
        finally:
            if not self.closed:
                await self._leave(self._roster.lines.values())

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._roster.closed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._terms.described("AsyncIssuer", self._runner.redis)

    # ------------------------------------------------------------------ inside

    def _line(self, tag: str) -> Line:
        if self._loop is not get_running_loop():
            self._enter()
        return self._roster.line(tag)

    def _enter(self) -> None:
        """Begin in the running loop; what belonged to a loop that was closed is gone with it."""
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
        forgotten = self._roster, self._scheduler, self._stay
        self._stay = None
        self._start()
        return forgotten, self._runner.redis and self._runner.redis.begin()

    def _make_line(self, tag: str) -> Line:
        return Line(tag, self._terms.key(tag), self._means, self._runner, self._terms.timeout)

    def _key(self, tag: str) -> str | None:
        return self._terms.key(tag) if self._runner.redis is not None else None

    def _seconds(self, timeout: float | None) -> float:
        return self._terms.timeout if timeout is None else seconds(timeout, "timeout", zero=True)

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._seconds(timeout))

    async def _run(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        self._enter()
        if self.closed:
            raise IssuerError("this issuer is closed", tag=tag)
        return await self._runner.run(steps, deadline, tag)

    def _attend(self) -> None:
        if self._chosen is not None:
            self._scheduler.start()

    def _background(self, job: Job) -> bool:
        if self._chosen is None:
            return False

        async def run() -> None:
            deadline = Deadline(self._means.window)
            await self._runner.run(job(deadline), deadline)

        return self._scheduler.background(run)

    async def _sweep(self) -> None:
        # The issuer is closed, or the loop ends: APScheduler would report it as a job that failed.
        with suppress(asyncio.CancelledError):
            await self._sweep_lines()

    async def _sweep_lines(self) -> None:
        lines = self._roster.in_use()
        for line in lines:
            if self.closed:
                return
            deadline = Deadline(self._terms.store_timeout)
            try:
                await line.run(line.supply.sweep(), deadline)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others must not wait for it
                self._roster.troubled(line, error)
        wanted = now_ms() - self._pruned >= LEDGER_KEPT // 90 or any(line.supply.stale for line in lines)
        if wanted and monotonic() > self._refresh_due:
            # Not here: a store that hangs would keep the sweep from what Redis is back for.
            self._refresh_due = monotonic() + REFRESH_LOST
            self._scheduler.background(self._refresh)

    async def _refresh(self) -> None:
        """Ask the store for what may wait, up to the first time-out."""
        try:
            for line in self._roster.in_use():
                if self.closed:
                    return
                try:
                    await line.run(line.supply.refresh(), Deadline(self._terms.store_timeout))
                except StoreUnavailable as error:
                    self._roster.troubled(line, error)
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    self._roster.troubled(line, error)
            if now_ms() - self._pruned >= LEDGER_KEPT // 90:
                await self._prune()
        finally:
            self._refresh_due = 0.0

    async def _prune(self) -> None:
        """Once a day: old ledger entries."""
        self._pruned = now = now_ms()
        steps = ask(lambda store, left: store.prune(before=now - LEDGER_KEPT, timeout=left))
        try:
            await self._run(steps, Deadline(self._terms.store_timeout), None)
        except IssuerError as error:
            log.debug("ledger not pruned: %s", error)

    def _after_fork(self) -> None:
        if isinstance(self._chosen, AsyncIOScheduler):
            # It says that it runs, but its loop is the parent's: here the callers extend by themselves.
            self._chosen = None
        # First what could repeat numbers: Python swallows what an at-fork hook raises.
        PARENTS.append(self._begin_anew())
        self._loop = None
        self._terms.store.after_fork()


#: Every AsyncIssuer of this process: to be reset in a forked child.
_living: weakref.WeakSet[AsyncIssuer] = living()
