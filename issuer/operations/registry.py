"""The tags that an issuer has used: one combiner for each. A combiner groups concurrent draws of a tag."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from issuer.clock import Deadline, monotonic
from issuer.core.sparing import Sparing
from issuer.core.steps import Steps
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.supply import Supply
from issuer.errors import ConfigurationError, ForeignHash, IssuerError, Unavailable, UnknownTag
from issuer.forks import under_way
from issuer.gateway.keys import check_tag
from issuer.reentry import CallLock
from issuer.strategies.serving import StrategyRunner


class AnyCombiner(Protocol):
    """Interface of the combiners of both drivers. Their methods return a result, or for asyncio an awaitable."""

    tag: str
    supply: Supply
    serving: StrategyRunner | None

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a number now."""

    def draw(self, n: int, deadline: Deadline) -> Any:
        """Draw at least one number, and at most n, as a range. If necessary, wait until the deadline."""

    def rest(self) -> None:
        """Let the next draw take the slow path, because the tag was not used for a while."""

    def run(self, steps: Steps[Any], deadline: Deadline) -> Any:
        """Run steps, which yield requests to Redis and the store, and return their result."""

    def run_in_thread(self, steps: Steps[Any], deadline: Deadline) -> Any:
        """Run steps for a caller in a thread. In both drivers, this thread is blocked until the steps are done."""


L = TypeVar("L", bound=AnyCombiner)

log = logging.getLogger("issuer")

#: Most tags that were not used for a while and stay in memory. Each takes 6 KB. Beyond it, those that were not used for
#: the longest time are forgotten early.
RESTING_MOST = 5000

#: How long a fork waits for a thread that is taking a number, in seconds. The limit is needed because a signal handler
#: can fork in this very thread.
SHUT_WITHIN = 0.1


class TagRegistry(Generic[L]):
    """The combiners of an issuer, one per tag. Each is created at the first use of its tag."""

    def __init__(self, make: Callable[[str], L], runtime: Runtime) -> None:
        """`make` creates the combiner of a tag."""
        self._make = make
        self._runtime = runtime
        self._fast_path = runtime.fast_path
        #: Tags that were not used for a while, and since when, on the monotonic clock. The first is the oldest.
        self._resting: dict[str, float] = {}
        self._lock = CallLock()
        self._sparing = Sparing()
        #: For each tag, the last logged error of its background work that only a change of the settings can solve.
        self._unable: dict[str, str] = {}
        #: Removed combiners of strategies that must still release resources, such as machine numbers.
        self._leaving: list[L] = []
        self.combiners: dict[str, L] = {}
        self.closed = False

    def combiner(self, tag: str) -> L:
        """Return the combiner, which draws the numbers of a tag. If the issuer is closed, raise IssuerError."""
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
        """Remove the combiner of a tag unless the tag is known to exist. Clients can send many invented names.

        While other callers use the combiner, it is kept. Otherwise, after an outage, they and the callers of a new
        combiner would get numbers at the same time, out of order (seen: 682, then 651). If the tag has a strategy, it
        issues no more numbers, and the next background work releases its resources.
        """
        combiner = self.combiners.get(tag) if isinstance(tag, str) else None
        if combiner is not None and combiner.supply.disposable:
            self._remove(combiner)

    def drop(self, tag: str) -> L | None:
        """Remove the combiner of a deleted tag, and return it. It issues no more numbers."""
        combiner = self.combiners.get(tag)
        if combiner is not None:
            self._end(combiner, UnknownTag(tag))
        return combiner

    def _end(self, combiner: L, why: IssuerError) -> None:
        """Remove a combiner. It issues no more numbers. Its waiting callers get the error `why`."""
        combiner.supply.origin.retire(why)  # must be first: until then the combiner can offer numbers
        self._remove(combiner)

    def _remove(self, combiner: L) -> None:
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner:
                del self.combiners[combiner.tag]
                self._unable.pop(combiner.tag, None)
                self._fast_path.unpublish(combiner.tag)
                if combiner.serving is not None:
                    combiner.serving.end()
                    self._leaving.append(combiner)

    def publish(self, combiner: L, numbers: Iterator[int]) -> None:
        """Publish numbers: let `next` take them without a lock. If the combiner was removed meanwhile, do nothing."""
        with self._lock.thread, self._lock.call():
            if self.combiners.get(combiner.tag) is combiner and not under_way():
                self._fast_path.publish(combiner.tag, numbers)

    def unpublish(self) -> None:
        """Stop publishing numbers: `next` can no longer take them without a lock, until a caller draws again.

        It is called before a fork in C code, in which Python's hooks do not run. So the child finds no such numbers.
        """
        self._fast_path.unpublish_all()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.unpublish(SHUT_WITHIN)

    def discard(self) -> None:
        """Discard all numbers in memory in a forked child. The parent issues them."""
        self._fast_path.discard()
        for combiner in list(self.combiners.values()):
            if combiner.supply.state.buffer is not None:
                combiner.supply.state.buffer.discard()

    def settle(self) -> None:
        """Let `next` take numbers of all tags without a lock again, after `unpublish`."""
        for combiner in list(self.combiners.values()):
            combiner.supply.origin.publish()

    def moving(self) -> list[L]:
        """Return the combiners that need background work: those whose tag was used since the last call.

        A tag that was not used is left out from the next call on, until its next use. So the work does not grow with
        the number of tags that this process has ever used.
        """
        found: list[L] = []
        for tag in self._runtime.moving.copy():
            # First discard: a caller that uses the tag from now on adds it again.
            self._runtime.moving.discard(tag)
            combiner = self.combiners.get(tag)
            if combiner is None:
                continue
            if combiner.serving or combiner.supply.moved:
                self._runtime.moving.add(tag)
                found.append(combiner)
            else:
                combiner.rest()
                self._resting.pop(tag, None)
                self._resting[tag] = monotonic()
        with self._lock.thread, self._lock.call():
            self._leaving = [
                combiner for combiner in self._leaving if combiner.serving is not None and not combiner.serving.left
            ]
            return found + self._leaving

    @property
    def idle(self) -> bool:
        """Whether a tag in memory should be forgotten: nobody has used it for long, or too many rest."""
        resting = self._resting
        return len(resting) > RESTING_MOST or (
            bool(resting) and next(iter(resting.values())) < monotonic() - self._runtime.settings.idle_after
        )

    def take_idle(self) -> Iterator[L]:
        """Return the combiners of these tags, each once."""
        while self.idle:
            tag = next(iter(self._resting))
            del self._resting[tag]
            combiner = self.combiners.get(tag)
            if combiner is not None and tag not in self._runtime.moving:
                yield combiner

    def forget(self, combiner: L) -> None:
        """Remove the combiner of an idle tag if it has no numbers in memory: each takes 6 KB.

        Only the highest number that this process has seen is kept. A caller that is still using the combiner can draw
        with it.
        """
        supply = combiner.supply
        if supply.idle and combiner.tag not in self._runtime.moving:
            self._runtime.seen[combiner.tag] = supply.state.taken()
            self._remove(combiner)

    def troubled(self, combiner: L, error: Exception) -> None:
        """Log an error of the background work for a tag.

        The background work runs every second. So an error of the settings is logged once, other errors once a minute.
        """
        if self.closed:
            return
        if isinstance(error, UnknownTag):
            self.forget_if_unknown(combiner.tag)
        if isinstance(error, ForeignHash):
            self._end(combiner, error)  # the next caller gets a new combiner, which first checks the hash in Redis
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
        """Close the registry: it creates no more combiners. Return the existing ones, or None at the second call."""
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
