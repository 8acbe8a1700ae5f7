"""A store that is read on a server that lags, as on a primary that was deposed and doesn't know it yet."""

from typing import Any

import pytest

import issuer
from issuer_persistence.errors import MaxBehind
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect

pytestmark = pytest.mark.usefixtures("patient")


class Stale(MemoryStore):
    """Refuses the next reservations by a `max` of long ago."""

    times = 0

    def reserve(self, tag: str, n: int | None, **options: Any) -> Reservation:
        if self.times and options["at_least"]:
            self.times -= 1
            raise MaxBehind(tag, 0, options["at_least"])
        return super().reserve(tag, n, **options)


def test_a_stale_read_halts_no_tag_and_is_not_taken_for_a_restored_store(connect: Connect) -> None:
    store = Stale()
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=10, order="trend")
        numbers = ids.take("a", 10)
        store.times = 2
        numbers += ids.take("a", 10)
        assert numbers == list(range(1, 21))
        store.times = 10**6
        with pytest.raises(issuer.StoreUnavailable, match="returns outdated data"):
            ids.reserve("a", 5)
        store.times = 0
        assert ids.reserve("a", 5) == range(21, 26)
        assert not ids.inspect("a").store.halted
        # One that did go back is halted still.
        backup = store.snapshot()
        ids.reserve("a", 5)
        store.restore(backup)
        with pytest.raises(issuer.StoreBehind):
            ids.reserve("a", 5)
        assert ids.inspect("a").store.halted


def test_a_stale_read_halts_no_tag_on_redis_either(connect: Connect, redis_url: str) -> None:
    store = Stale()
    with connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=10)
        numbers = ids.take("a", 10)
        store.times = 1
        numbers += [ids.next("a") for _ in range(10)]
        assert numbers == list(range(1, 21))
        assert store.times == 0
        assert not ids.inspect("a").store.halted
