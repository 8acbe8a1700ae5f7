"""The border of two segments, with a store that takes 300 ms: a caller doesn't notice it."""

import time
from typing import Literal

import pytest

import issuer
from persistence.records import Reservation
from tests.benchmarks.border import SlowStore

pytestmark = pytest.mark.live

#: Of which the part behind the mark takes longer to draw than the store to reserve.
STEP = 20_000
BORDERS = 3


class Watched(SlowStore):
    """Notes when each reservation began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.reservations: list[tuple[float, float]] = []

    def reserve(
        self, tag: str, n: int | None, *, at_least: int = 0, exact: bool = False, reason: str, timeout: float
    ) -> Reservation:
        began = time.perf_counter()
        try:
            return super().reserve(tag, n, at_least=at_least, exact=exact, reason=reason, timeout=timeout)
        finally:
            self.reservations.append((began, time.perf_counter()))


def waits_for_the_store(redis: str, scheduler: Literal["background"] | None) -> list[int]:
    """Return the numbers whose calls lasted through a whole reservation, the first left out: a cold tag has to wait."""
    store = Watched()
    waited = []
    with issuer.connect(redis=redis, store=store, scheduler=scheduler) as ids:
        ids.create("a", step=STEP)
        ids.next("a")
        for _ in range(STEP * BORDERS):
            began = time.perf_counter()
            number = ids.next("a")
            ended = time.perf_counter()
            if store.reservations and any(began <= first and last <= ended for first, last in store.reservations):
                waited.append(number)
    return waited


@pytest.mark.covers("0.15", "3.18", "0.17", "3.19", "4.6")
def test_nobody_waits_at_a_border_when_the_next_segment_was_fetched_ahead(redis_url: str) -> None:
    assert waits_for_the_store(redis_url, "background") == []


@pytest.mark.covers("0.15", "3.18")
def test_everybody_would_wait_at_each_border_if_it_were_not(redis_url: str) -> None:
    assert waits_for_the_store(redis_url, None) == [STEP * border + 1 for border in range(1, BORDERS + 1)]
