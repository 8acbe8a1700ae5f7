"""The tags that an issuer has drawn from, and what is laid open of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from issuer.clock import Deadline
from issuer.core.sparing import Sparing
from issuer.core.steps import Steps
from issuer.core.supply.local_buffer import FastPath
from issuer.core.supply.supply import Supply
from issuer.errors import ConfigurationError, ForeignHash, IssuerError, Unavailable, UnknownTag
from issuer.forks import under_way
from issuer.gateway.keys import PART, check_tag
from issuer.reentry import CallLock
from issuer.strategies.serving import StrategyRunner
from issuer_persistence.records import Tag


class AnyCombiner(Protocol):
    """The interface of both drivers' combiners: what a call returns is the answer, or has to be awaited for it."""

    tag: str
    supply: Supply
    serving: StrategyRunner | None

    @property
    def waiting(self) -> int:
        """How many callers wait now."""

    def draw(self, n: int, deadline: Deadline) -> Any:
        """Draw up to n numbers, at least one, as a range, waiting until the deadline."""

    def run(self, steps: Steps[Any], deadline: Deadline) -> Any:
        """Run the protocol's steps to their end."""

    def run_in_thread(self, steps: Steps[Any], deadline: Deadline) -> Any:
        """Do the same for a caller in a thread, which is kept waiting in either colour."""


L = TypeVar("L", bound=AnyCombiner)

log = logging.getLogger("issuer")

#: A tag that wasn't drawn from for this many seconds is left out of the sweep.
IDLE_AFTER = 900.0

#: A fork waits this many seconds for a thread that takes a number: it may be the one that forks, in a signal's handler.
SHUT_WITHIN = 0.1


class TagRegistry(Generic[L]):
    """One combiner per tag, made at its first use."""

    def __init__(self, make: Callable[[str], L], fast_path: FastPath) -> None:
        """`fast_path`: what is laid open of a tag goes with its combiner."""
        self._make = make
        self._fast_path = fast_path
        self._lock = CallLock()
        self._sparing = Sparing()
        #: The error that keeps this process from looking after a tag, as it was logged last: it won't pass by itself.
        self._unable: dict[str, str] = {}
        #: Dropped with a strategy at work, which has something to give back yet.
        self._leaving: list[L] = []
        self.combiners: dict[str, L] = {}
        self.closed = False

    def combiner(self, tag: str) -> L:
        """Return the tag's combiner. Raises InvalidArgument, and IssuerError if this issuer is closed."""
        try:
            return self.combiners[tag]
        except (KeyError, TypeError):
            check_tag(tag)
        with self._lock.thread, self._lock.call():
            if self.closed:
                raise IssuerError("this issuer is closed")
            combiner = self.combiners.get(tag)
            if combiner is None:
                combiner = self.combiners[tag] = self._make(tag)
            return combiner

    def forget_if_unknown(self, tag: object) -> None:
        """Drop the combiner of a tag that isn't there, or never was seen, so that made-up tags leave nothing behind.

        Not while others draw by it: after an outage they would get numbers beside the next callers, who have another
        combiner, and in no order with theirs (seen: 682, then 651). A strategy at work gives no numbers any more, and
        the next sweep has it give back what it took.
        """
        combiner = self.combiners.get(tag) if isinstance(tag, str) else None
        if combiner is not None and combiner.supply.disposable:
            self._remove(combiner)

    def drop(self, tag: str) -> L | None:
        """Forget a tag that was deleted; return its combiner, which gives no numbers any more."""
        combiner = self.combiners.get(tag)
        if combiner is not None:
            self._end(combiner, UnknownTag(tag))
        return combiner

    def _end(self, combiner: L, why: IssuerError) -> None:
        """Forget a combiner: it gives no numbers any more, and callers that wait at it get the error."""
        combiner.supply.origin.retire(why)  # first, as it lays its draws open until then
        self._remove(combiner)

    def _remove(self, combiner: L) -> None:
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner:
                del self.combiners[combiner.tag]
                self._fast_path.withdraw(combiner.tag)
                if combiner.serving is not None:
                    combiner.serving.end()
                    self._leaving.append(combiner)

    def lay_open(self, combiner: L, numbers: Iterator[int]) -> None:
        """Let `next` find these, unless the combiner was dropped meanwhile."""
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner and not under_way():
                self._fast_path.lay(combiner.tag, numbers)

    def shut(self) -> None:
        """Lay nothing open any more, until a caller asks again.

        Before a fork that Python doesn't see: its child finds nothing that it could use without asking.
        """
        self._fast_path.withdraw_all()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.hand is not None:
                combiner.supply.state.hand.shut(SHUT_WITHIN)

    def spend(self) -> None:
        """In a forked child: spend what lies open, also what was about to be laid where `next` looks."""
        self._fast_path.spend()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.hand is not None:
                combiner.supply.state.hand.spend()

    def settle(self) -> None:
        """Lay open again what each tag lays open."""
        for combiner in list(self.combiners.values()):
            combiner.supply.origin.lay_open()

    def keep(self, records: Sequence[Tag]) -> None:
        """Look after these tags from now on, drawn from here or not; no more after others that were kept before."""
        names = {record.tag for record in records}
        self._unable = {tag: why for tag, why in self._unable.items() if tag in names}
        for combiner in list(self.combiners.values()):
            combiner.supply.kept = combiner.tag in names
        for record in records:
            combiner = self.combiner(record.tag)
            try:
                combiner.supply.origin.know(record)
                combiner.supply.kept = True
            except ConfigurationError as error:  # without its key, say, and none of the others' business
                self.troubled(combiner, error)
            else:
                self._unable.pop(record.tag, None)

    def in_use(self) -> list[L]:
        """Return the combiners that a sweep has to look after."""
        for combiner in list(self.combiners.values()):
            combiner.supply.notice_use()
        since = Deadline(-IDLE_AFTER).at
        self._forget_parts(since)
        used = [
            combiner
            for combiner in list(self.combiners.values())
            if combiner.supply.kept or combiner.serving or combiner.supply.used_at > since
        ]
        with self._lock.thread, self._lock.call():
            self._leaving = [
                combiner for combiner in self._leaving if combiner.serving is not None and not combiner.serving.left
            ]
            return used + self._leaving

    def _forget_parts(self, since: float) -> None:
        """Drop the combiners of parts that weren't used since then, of which this process holds nothing.

        There may be a part for each customer: 5 KB apiece, for ever. A caller that still has hold of a combiner
        draws from Redis with it as before.
        """
        for combiner in list(self.combiners.values()):
            supply = combiner.supply
            if (
                supply.used_at <= since
                and PART in combiner.tag
                and supply.idle
                and not supply.kept
                and not combiner.serving
            ):
                self._remove(combiner)

    def troubled(self, combiner: L, error: Exception) -> None:
        """Take note of a sweep that could not look after a tag.

        An error of the settings is logged once, any other one once a minute: sweeps come every second.
        """
        if self.closed:
            return
        if isinstance(error, UnknownTag):
            self.forget_if_unknown(combiner.tag)
        if isinstance(error, ForeignHash):
            self._end(combiner, error)  # the next caller has a new combiner, which looks before it draws
        if isinstance(error, Unavailable):
            log.debug("tag %r: background work failed: %s", combiner.tag, error)
            return
        if isinstance(error, ConfigurationError):
            told = self._unable.get(combiner.tag)
            self._unable[combiner.tag] = str(error)
            if told == str(error):
                return
        self._sparing.say(
            log.warning, combiner.tag, str(error), "tag %r: background work failed: %s", combiner.tag, error
        )

    def close(self) -> list[L] | None:
        """Make no more combiners; return those that there are, None if it was closed before."""
        with self._lock.thread, self._lock.call():
            if self.closed:
                return None
            self.closed = True
            combiners = [*self.combiners.values(), *self._leaving]
            self.combiners.clear()
            for combiner in combiners:
                combiner.supply.end()
            self._fast_path.withdraw_all()
        return combiners
