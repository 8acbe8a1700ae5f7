"""Runs a protocol generator: sends its Redis calls, asks the store, within a deadline."""

from __future__ import annotations

from typing import TypeVar

from issuer.clock import Deadline
from issuer.core.outcomes import store_error
from issuer.core.steps import Ask, Steps
from issuer.drivers.blocking.connections import Connections
from issuer.errors import ConfigurationError, StoreUnavailable
from persistence.contract import Store
from persistence.errors import StoreError

T = TypeVar("T")


class Runner:
    """A store and, unless it is direct, Redis: what a protocol generator works with."""

    def __init__(self, store: Store, redis: Connections | None, store_timeout: float) -> None:
        """`store_timeout`: the longest that one call of the store may take, in seconds."""
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout

    def run(self, steps: Steps[T], deadline: Deadline, tag: str | None = None) -> T:
        """Run it to its end and return its value. What a store raises is thrown in, and comes out as a public error."""
        try:
            step = next(steps)
            while True:
                try:
                    result = (
                        self._ask(step, deadline, tag)
                        if isinstance(step, Ask)
                        else self._redis().call(step.call, deadline, tag)
                    )
                except Exception as error:  # noqa: BLE001 - the generator decides what an error means
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            value: T = end.value
            return value
        except StoreError as error:
            raise store_error(error, tag) from error

    def _ask(self, step: Ask, deadline: Deadline, tag: str | None) -> object:
        timeout = min(self.store_timeout, deadline.left())
        if timeout <= 0:
            raise StoreUnavailable(f"no time was left to ask the store {self.store.url}", tag=tag)
        return step.question(self.store, timeout)

    def _redis(self) -> Connections:
        if self.redis is None:
            raise ConfigurationError("this issuer has no Redis")
        return self.redis
