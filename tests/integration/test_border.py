"""The border of two segments, with a store that takes 300 ms: a caller doesn't notice it."""

import time
from typing import Literal

import pytest

import issuer
from tests.benchmarks.border import DELAY, SlowStore

pytestmark = pytest.mark.live

#: Of which the part behind the mark takes longer to draw than the store to reserve.
STEP = 20_000
BORDERS = 3


def waits_for_the_store(redis: str, scheduler: Literal["background"] | None) -> list[int]:
    """Return the numbers that took as long as the store takes, the first one left out: a cold tag has to wait."""
    waited = []
    with issuer.connect(redis=redis, store=SlowStore(), scheduler=scheduler) as ids:
        ids.create("a", step=STEP)
        ids.next("a")
        for _ in range(STEP * BORDERS):
            began = time.perf_counter()
            number = ids.next("a")
            if time.perf_counter() - began >= DELAY:
                waited.append(number)
    return waited


@pytest.mark.covers("0.15", "3.18", "0.17", "3.19")
def test_nobody_waits_at_a_border_when_the_next_segment_was_fetched_ahead(redis_url: str) -> None:
    assert waits_for_the_store(redis_url, "background") == []


@pytest.mark.covers("0.15", "3.18")
def test_everybody_would_wait_at_each_border_if_it_were_not(redis_url: str) -> None:
    # A machine may be held up elsewhere, too.
    assert {STEP * border + 1 for border in range(1, BORDERS + 1)} <= set(waits_for_the_store(redis_url, None))
