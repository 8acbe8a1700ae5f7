"""Runs a tag's strategy: prepares it once, checks its numbers, and converts its errors to public ones."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

from issuer.clock import Deadline
from issuer.core.steps import Ask, SingleFlight, Steps, asking
from issuer.errors import IssuerError, StrategyFailed, Unavailable, brief
from issuer.forks import living
from issuer.strategies.contract import Context
from issuer.strategies.registry import make, wrapped
from issuer_persistence.contract import Store
from issuer_persistence.records import HIGHEST

T = TypeVar("T")

log = logging.getLogger("issuer.strategies")


class StrategyRunner:
    """Serves a tag from its strategy. Methods with a deadline return steps (see core/steps.py), which a driver runs.

    In a forked child the StrategyRunner starts again, with a new strategy object from the same factory.
    """

    def __init__(self, name: str, context: Context) -> None:
        """Create the strategy. `name`: its name in the registry. Raises ConfigurationError, StrategyFailed."""
        self._name = name
        self._context = context
        self._closed = False
        self.shared = False
        #: Whether the strategy's resources were released, or are being released.
        self.left = False
        self._begin()
        _living.add(self)

    def _begin(self) -> None:
        self.strategy = make(self._name, self._context)
        self._prepared = False
        self._preparing = SingleFlight(self._context.flight)
        #: Lock that a thread holds while it is in a blocking method of the strategy.
        self._turn = threading.Lock()
        self._highest = 0
        self._noting = threading.Lock()

    @property
    def ready(self) -> Iterator[int] | None:
        """The strategy's iterator over numbers that `next` can use without waiting, or None.

        Read this property again after a fork, because the child has another strategy object.
        """
        return None if self._closed else self.strategy.ready

    @property
    def equipped(self) -> bool | None:
        """Whether the strategy holds the machine number that its numbers need. None if they need none."""
        return self.strategy.equipped

    def take(self, n: int, deadline: Deadline) -> Steps[list[int]]:
        """Return exactly n numbers in increasing order. n: 1 or more. Raises IssuerError."""
        yield from self._ready(deadline)
        strategy, highest = self.strategy, self._highest
        numbers = yield from self._guarded(self.strategy.generating(n, deadline), deadline)
        if self._closed or strategy is not self.strategy:
            raise self._closed_error()
        return self._checked(numbers, n, highest)

    def warm(self, deadline: Deadline) -> Steps[None]:
        """Draw a number. It is a gap."""
        yield from self.take(1, deadline)

    def found(self, deadline: Deadline) -> Steps[None]:
        """Call `found` of the strategy. This process has just created the tag, and no tag had its name before."""
        yield from self._guarded(self.strategy.found(deadline), deadline)

    def sweep(self, deadline: Deadline) -> Steps[None]:
        """Do the periodic work of the strategy, about once a second. Raises IssuerError, which the caller logs."""
        if self._closed:
            yield from self.close(deadline)
        elif self._prepared:
            yield from self._guarded(self.strategy.sweep(deadline), deadline)

    def end(self) -> None:
        """Stop: each call raises an error from now on. `close` or a sweep then releases the resources."""
        self._closed = True

    def close(self, deadline: Deadline) -> Steps[None]:
        """Stop, and release the resources of the strategy. A second call does nothing."""
        self.end()
        if not self.left:
            self.left = True
            _living.discard(self)
            yield from self._guarded(self.strategy.closing(deadline), deadline)

    def _closed_error(self) -> IssuerError:
        return IssuerError(f"tag {self._context.tag!r}: this issuer is closed", tag=self._context.tag)

    def _ready(self, deadline: Deadline) -> Steps[None]:
        """Prepare the strategy if this was not done yet. If several callers need it, one does the work for all."""
        if not self._prepared and not self._closed:
            strategy, preparing = self.strategy, self._preparing

            def prepare() -> Steps[None]:
                yield from self._guarded(strategy.preparing(deadline), deadline)
                if preparing is self._preparing:
                    self._prepared = True

            tag, what = self._context.tag, "the strategy's preparation"
            yield from preparing.do(prepare, lambda: self._prepared or self._closed, deadline, tag=tag, what=what)
        if self._closed:
            raise self._closed_error()

    def _guarded(self, steps: Steps[T], deadline: Deadline) -> Steps[T]:
        """Run the strategy's steps. Blocking methods run one at a time. The strategy's errors become public ones."""
        with wrapped(self._name, self._context.tag):
            return (yield from asking(steps, partial(self._in_turn, deadline)))

    def _in_turn(self, deadline: Deadline, step: Ask) -> Ask:
        """Return a request that does the work of `step`, but waits while another thread is in a blocking method."""
        turn = self._turn

        def asked(store: Store, seconds: float) -> object:
            if not turn.acquire(timeout=deadline.left()):
                raise Unavailable(f"strategy {self._name!r} is busy with other calls", tag=self._context.tag)
            try:
                return step.question(store, seconds)
            finally:
                turn.release()

        return Ask(asked, step.within)

    def _checked(self, numbers: Sequence[int], n: int, highest: int) -> list[int]:
        """Reject numbers that break the contract. `highest`: highest number returned before this call began."""
        fault = ""
        try:
            found = list(numbers)
        except TypeError:
            found, fault = [], f"{brief(numbers)}, which is not a list"
        if not fault and len(found) != n:
            fault = f"{len(found)} numbers instead of {n}"
        for number in found:
            if type(number) is not int or not 0 < number <= HIGHEST:
                fault = fault or f"{brief(number)}, which is not a whole number 1..2^63-1"
            elif number <= highest:
                fault = fault or f"{number} after {highest}"
            else:
                highest = number
        if fault:
            problem = f"tag {self._context.tag!r}: strategy {self._name!r} returned {fault}; none of them was issued"
            raise StrategyFailed(problem, tag=self._context.tag, strategy=self._name)
        with self._noting:
            self._highest = max(self._highest, highest)
        return found

    def after_fork(self) -> None:
        """Drop the parent's strategy, and create a new one."""
        # Stop the old strategy first: it could issue the parent's numbers again.
        try:
            self.strategy.after_fork()
        except Exception:
            log.exception("tag %r: strategy %r failed in a forked child", self._context.tag, self._name)
        try:
            self._begin()
        except BaseException:
            self._closed = True  # issue no numbers: the old strategy could repeat those of the parent
            raise


_living: weakref.WeakSet[StrategyRunner] = living(lambda each: each.after_fork())
