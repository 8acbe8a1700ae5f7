"""A store that is read on a server that lags, as on a primary that was deposed and doesn't know it yet."""

from typing import Any

import pytest

import issuer
from issuer.operations import tags
from issuer_persistence.errors import MaxBehind
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag, TagChanges
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


class Busy(MemoryStore):
    """Another process changes the tag before each change."""

    refused = 0

    def configure(self, tag: str, changes: TagChanges, *, timeout: float) -> Tag:
        self.refused += 1
        super().configure(tag, TagChanges(description=str(self.refused)), timeout=timeout)
        return super().configure(tag, changes, timeout=timeout)


def test_a_change_of_a_tag_that_others_change_each_time_is_given_up(connect: Connect) -> None:
    store = Busy()
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", order="trend")
        with pytest.raises(issuer.StoreUnavailable, match="read the tag again"):
            ids.configure("a", limit=10**6)
    assert store.refused == tags.ATTEMPTS


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
