"""The tags that an issuer has used, and their published numbers."""

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
    """Interface of both drivers' combiners. Calls return the result, or an awaitable for it."""

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
        """Run steps for a caller in a thread, which is blocked in both drivers."""


L = TypeVar("L", bound=AnyCombiner)

log = logging.getLogger("issuer")

#: A tag that was not used for this many seconds is not swept.
IDLE_AFTER = 900.0

#: How long a fork waits for a thread that takes a number, in seconds. It may be the thread that forks, in a signal
#: handler.
SHUT_WITHIN = 0.1


class TagRegistry(Generic[L]):
    """One combiner per tag, created at its first use."""

    def __init__(self, make: Callable[[str], L], fast_path: FastPath) -> None:
        """`fast_path`: where the numbers of the tags are published."""
        self._make = make
        self._fast_path = fast_path
        self._lock = CallLock()
        self._sparing = Sparing()
        #: The error that prevents this process from sweeping a tag, as last logged. It needs a change of settings.
        self._unable: dict[str, str] = {}
        #: Dropped combiners with a strategy that must still release its resources.
        self._leaving: list[L] = []
        self.combiners: dict[str, L] = {}
        self.closed = False

    def combiner(self, tag: str) -> L:
        """Return the tag's combiner. Raises InvalidArgument, or IssuerError if this issuer is closed."""
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
        """Drop the combiner of a tag that does not exist or was never seen, as clients may invent names.

        It is kept while other callers use it. After an outage they would get numbers at the same time as callers with a
        new combiner, and not in order (seen: 682, then 651). A strategy issues nothing more, and the next sweep
        releases it.
        """
        combiner = self.combiners.get(tag) if isinstance(tag, str) else None
        if combiner is not None and combiner.supply.disposable:
            self._remove(combiner)

    def drop(self, tag: str) -> L | None:
        """Drop the combiner of a deleted tag and return it. It issues no more numbers."""
        combiner = self.combiners.get(tag)
        if combiner is not None:
            self._end(combiner, UnknownTag(tag))
        return combiner

    def _end(self, combiner: L, why: IssuerError) -> None:
        """Drop a combiner. It issues no more numbers, and its waiting callers get the error."""
        combiner.supply.origin.retire(why)  # first, as it can publish draws until then
        self._remove(combiner)

    def _remove(self, combiner: L) -> None:
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner:
                del self.combiners[combiner.tag]
                self._fast_path.unpublish(combiner.tag)
                if combiner.serving is not None:
                    combiner.serving.end()
                    self._leaving.append(combiner)

    def publish(self, combiner: L, numbers: Iterator[int]) -> None:
        """Publish these numbers for `next`, unless the combiner was dropped meanwhile."""
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner and not under_way():
                self._fast_path.publish(combiner.tag, numbers)

    def unpublish(self) -> None:
        """Unpublish all numbers until a caller draws again.

        Called before a fork that Python does not see, so that the child finds no published numbers.
        """
        self._fast_path.unpublish_all()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.unpublish(SHUT_WITHIN)

    def discard(self) -> None:
        """Discard all published numbers in a forked child, also those about to be published."""
        self._fast_path.discard()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.discard()

    def settle(self) -> None:
        """Publish the numbers of all tags again."""
        for combiner in list(self.combiners.values()):
            combiner.supply.origin.publish()

    def keep(self, records: Sequence[Tag]) -> None:
        """Sweep these tags from now on, even if unused, and no others that were kept before."""
        names = {record.tag for record in records}
        self._unable = {tag: why for tag, why in self._unable.items() if tag in names}
        for combiner in list(self.combiners.values()):
            combiner.supply.kept = combiner.tag in names
        for record in records:
            combiner = self.combiner(record.tag)
            try:
                combiner.supply.origin.use(record)
                combiner.supply.kept = True
            except ConfigurationError as error:  # e.g. a key is missing, which does not concern the other tags
                self.troubled(combiner, error)
            else:
                self._unable.pop(record.tag, None)

    def in_use(self) -> list[L]:
        """Return the combiners that must be swept."""
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
        """Drop the combiners of parts that were not used since then and hold no numbers.

        There may be a part for each customer, at 5 KB each. A caller that still has such a combiner can draw with it.
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
        """Log that a sweep could not handle a tag.

        An error of the settings is logged once, any other error once a minute, as sweeps run every second.
        """
        if self.closed:
            return
        if isinstance(error, UnknownTag):
            self.forget_if_unknown(combiner.tag)
        if isinstance(error, ForeignHash):
            self._end(combiner, error)  # the next caller gets a new combiner, which checks the hash first
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
        """Create no more combiners. Returns the existing ones, None if it was closed before."""
        with self._lock.thread, self._lock.call():
            if self.closed:
                return None
            self.closed = True
            combiners = [*self.combiners.values(), *self._leaving]
            self.combiners.clear()
            for combiner in combiners:
                combiner.supply.end()
            self._fast_path.unpublish_all()
        return combiners
