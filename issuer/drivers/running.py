"""Base class of the runners: the store and Redis of one process, and the steps that run there."""

from __future__ import annotations

from typing import Generic, TypeVar

from issuer.drivers.store_pool import StorePool
from issuer.forks import GENERATION
from issuer_persistence.contract import Store

R = TypeVar("R")


class AnyRunner(Generic[R]):
    """A runner belongs to one process: in a forked child, it refuses all steps."""

    def __init__(self, store: Store, redis: R | None, store_timeout: float) -> None:
        """`store_timeout`: longest duration of one call to the store, in seconds."""
        self.store = store
        self.redis = redis
        self.store_timeout = store_timeout
        self.generation = GENERATION.now
        self.pool = StorePool(store, store_timeout)
