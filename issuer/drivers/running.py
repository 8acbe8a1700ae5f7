"""Base class of the runners: the store and Redis of one process, and the steps that run there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from issuer.drivers.store_pool import StorePool
from issuer.errors import ConfigurationError
from issuer.forks import GENERATION, refuse_inherited

if TYPE_CHECKING:
    from collections.abc import Generator

    from issuer.clock import Deadline
    from issuer.core.steps import Ask, Step, Steps
    from issuer.drivers.relay import Relay
    from issuer_persistence.contract import Store

R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


#: Shortest timeout of a round trip, in seconds. So a call that has no time left can still get buffered numbers.
SHORTEST = 0.05


class Unanswered(Exception):
    """Redis did not answer a draw in time. Not TimeoutError, which a signal handler of the user may raise."""


def thrown(steps: Generator[S, Any, Any], error: BaseException, generation: int, tag: str | None) -> S:
    """Throw the error into the steps, and return their next step.

    Steps of another generation, in a forked child, are ended: they would be refused, and try again, until the deadline.
    """
    wanted = steps.throw(error)
    if generation != GENERATION.now:
        steps.close()
        refuse_inherited(generation, tag)
    return wanted


class Run(Protocol):
    """A function that runs steps: generators that yield the requests to Redis and to the store."""

    async def __call__(self, steps: Steps[T], deadline: Deadline, tag: str | None) -> T:
        """Run the steps within the deadline, and return their result. `tag` is the tag that errors name, or None."""


class AnyRunner(Generic[R]):
    """A runner belongs to one process: in a forked child, it refuses all steps."""

    def __init__(self, store: Store, redis: R | None, store_timeout: float, relay: Relay | None = None) -> None:
        """`store_timeout`: longest duration of one call to the store, in seconds. `relay`: the server of a client."""
        self._relay = relay
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout
        self.generation = GENERATION.now
        self.pool = StorePool(store, store_timeout)

    def instead(self, step: Step) -> Ask:
        """Return the request to the server of a client that does the same as this step for Redis.

        Raises ConfigurationError if there is neither Redis nor a server.
        """
        if self._relay is None:
            raise ConfigurationError("this issuer has no Redis")
        return self._relay.ask(step)
