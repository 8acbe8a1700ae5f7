"""The tags that an issuer has used. Each has a combiner: an object that groups concurrent draws of the tag."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core.sparing import Sparing
from issuer.errors import ConfigurationError, ForeignHash, IssuerError, Unavailable, UnknownTag
from issuer.gateway.keys import check_tag
from issuer.reentry import CallLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from issuer.core.steps import Steps
    from issuer.core.supply.runtime import Runtime
    from issuer.core.supply.supply import Supply

T = TypeVar("T")


class AnyCombiner(Protocol):
    """Interface of the combiners of both drivers."""

    tag: str
    supply: Supply

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a number now."""

    def rest(self) -> None:
        """Make the next draw take the slow path, which reports that the tag is in use again.

        Called if the tag was not used for a while.
        """

    async def run(self, steps: Steps[T], deadline: Deadline) -> T:
        """Run steps (a generator that yields requests to Redis and the store), and return their result."""


L = TypeVar("L", bound=AnyCombiner)

log = logging.getLogger("issuer")

#: Maximum number of resting tags, tags that were not used for a while, in memory. Each takes 6 KB. If there are more,
#: those that were not used for the longest time are forgotten before `idle_after` has passed.
RESTING_MOST = 5000

#: How long a fork waits for a thread that is taking a number, in seconds. Without a limit, a fork could wait for ever:
#: a signal handler can fork in the very thread that is taking the number.
SHUT_WITHIN = 0.1


class TagRegistry(Generic[L]):
    """The combiners of an issuer, one per tag. A combiner is created at the first use of its tag."""

    def __init__(self, make: Callable[[str], L], runtime: Runtime) -> None:
        self._make = make
        self._runtime = runtime
        self._fast_path = runtime.fast_path
        #: Resting tags: tags that were not used for a while. The value is the time on the monotonic clock at which the
        #: rest began. The first tag has rested longest.
        self._resting: dict[str, float] = {}
        self._lock = CallLock()
        self._sparing = Sparing()
        #: For each tag, the last ConfigurationError of its background work that was logged.
        self._unable: dict[str, str] = {}
        #: Removed combiners with work left: strategies that must still release resources, such as machine numbers, and
        #: fetches in progress. `close` waits for them.
        self._leaving: list[L] = []
        self.combiners: dict[str, L] = {}
        self.closed = False

    def combiner(self, tag: str) -> L:
        """Return the combiner of a tag. If there is none, create it. If the issuer is closed, raise IssuerError."""
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
                self._runtime.moving.add(tag)
            return combiner

    def forget_if_unknown(self, tag: object) -> None:
        """Remove the combiner of a tag, unless the tag is known to exist: clients can send many invented names.

        The combiner is kept while other callers use it. Otherwise later callers would get a new combiner. After an
        outage, the callers of both would get numbers at the same time, out of order (seen: 682, then 651). If the tag
        has a strategy, it issues no more numbers, and the next background work releases its resources.
        """
        combiner = self.combiners.get(tag) if isinstance(tag, str) else None
        if combiner is not None and combiner.supply.disposable:
            self._remove(combiner)

    def drop(self, tag: str) -> L | None:
        """Remove the combiner of a deleted tag, and return it, or None if there is none. It issues no more numbers."""
        combiner = self.combiners.get(tag)
        if combiner is not None:
            self._end(combiner, UnknownTag(tag))
        return combiner

    def _end(self, combiner: L, why: IssuerError) -> None:
        """Remove a combiner. It issues no more numbers. Its waiting callers get the error `why`."""
        combiner.supply.origin.retire(why)  # first of all: from here on, nobody gets a number of this combiner
        self._remove(combiner)

    def _remove(self, combiner: L) -> None:
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner:
                del self.combiners[combiner.tag]
                self._unable.pop(combiner.tag, None)
                self._fast_path.unpublish(combiner.tag)
                if combiner.supply.state.source is not None:
                    combiner.supply.state.source.end()
                # Also without sweeps, those whose work has ended must not stay in memory.
                self._leaving = [each for each in (*self._leaving, combiner) if each.supply.leaving]

    def unpublish(self) -> None:
        """Take back published numbers: `next` can no longer take them without a lock, until a caller draws again.

        Called before a fork in C code, for which Python's fork hooks do not run. Otherwise the child would have the
        published numbers too, and parent and child would issue the same ones.
        """
        self._fast_path.unpublish_all()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.unpublish(SHUT_WITHIN)

    def discard(self) -> None:
        """Discard all numbers in memory. A forked child calls this, because the parent issues these numbers."""
        self._fast_path.discard()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.discard()

    def settle(self) -> None:
        """Publish the numbers of all tags again, after `unpublish`: `next` then takes them without a lock."""
        for combiner in list(self.combiners.values()):
            combiner.supply.origin.publish()

    def moving(self) -> list[L]:
        """Return the combiners that need background work: their tags were used since the last call, or work is left.

        A tag that was not used since the last call begins to rest. It is left out until its next use. So the work does
        not grow with the number of tags that this process has ever used.
        """
        found: list[L] = []
        for tag in self._runtime.moving.copy():
            # Discard the tag before the check: a caller that uses the tag during the check adds it again. In the other
            # order, this use would be lost, and the tag would rest although it is used.
            self._runtime.moving.discard(tag)
            combiner = self.combiners.get(tag)
            if combiner is None:
                continue
            if combiner.supply.moved:
                self._runtime.moving.add(tag)
                found.append(combiner)
            else:
                combiner.rest()
                self._resting.pop(tag, None)
                self._resting[tag] = monotonic()
        with self._lock.thread, self._lock.call():
            self._leaving = [combiner for combiner in self._leaving if combiner.supply.leaving]
            return found + [each for each in self._leaving if each.supply.state.source is not None]

    @property
    def idle(self) -> bool:
        """Whether a resting tag should be forgotten: it was not used for `idle_after`, or too many tags rest."""
        resting = self._resting
        return len(resting) > RESTING_MOST or (
            bool(resting) and next(iter(resting.values())) < monotonic() - self._runtime.settings.idle_after
        )

    def take_idle(self) -> Iterator[L]:
        """Yield the combiners of the resting tags that should be forgotten. The tags no longer count as resting.

        A tag with `drain=False` is left out: this process keeps its numbers until the process ends.
        """
        while self.idle:
            tag = next(iter(self._resting))
            del self._resting[tag]
            combiner = self.combiners.get(tag)
            if combiner is not None and tag not in self._runtime.moving and combiner.supply.drains:
                yield combiner

    def forget(self, combiner: L) -> None:
        """Remove the combiner of a tag that nobody uses, if it has no numbers in memory. A combiner takes 6 KB.

        Of the tag, only the highest number that this process has seen stays in memory. If a caller still uses the
        removed combiner, it can draw with it.
        """
        supply = combiner.supply
        if supply.idle and combiner.tag not in self._runtime.moving:
            self._runtime.seen[combiner.tag] = supply.state.taken()
            self._remove(combiner)

    def troubled(self, combiner: L, error: Exception) -> None:
        """Handle an error of the background work for a tag, and log it.

        The background work runs every second. So a ConfigurationError is logged once, and other errors once a minute.
        No warning is logged for an unknown tag: its callers get the error, or one of them is creating the tag.
        """
        if self.closed:
            return
        if isinstance(error, UnknownTag):
            self.forget_if_unknown(combiner.tag)
        if isinstance(error, ForeignHash):
            self._end(combiner, error)  # the next caller gets a new combiner, which first checks the hash in Redis
        if isinstance(error, Unavailable | UnknownTag):
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
        """Close the registry. From then on, it creates no combiners.

        Return the existing combiners. Return None if the registry was closed before.
        """
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
