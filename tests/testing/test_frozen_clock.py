"""Programs whose tests stop or move the clock by a library: durations go on, and only dates follow."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import freezegun
import pytest
import time_machine

import issuer
from issuer import clock
from issuer.drivers.topology import TRIAL
from issuer.testing import Double
from tests.waiting import run

pytestmark = pytest.mark.live

THEN = datetime(2031, 5, 1, 12, tzinfo=UTC)

FROZEN = pytest.mark.parametrize(
    "frozen",
    [
        lambda: freezegun.freeze_time(THEN, real_asyncio=True),
        lambda: freezegun.freeze_time(THEN, tick=True, real_asyncio=True),
        lambda: time_machine.travel(THEN, tick=False),
        lambda: time_machine.travel(THEN),
    ],
    ids=["freezegun", "freezegun-tick", "time-machine", "time-machine-tick"],
)
Frozen = Callable[[], AbstractContextManager[Any]]


@FROZEN
def test_no_library_reaches_the_clock_of_durations(frozen: Frozen) -> None:
    before = clock.monotonic(), clock.monotonic_ns() / 1e9
    with frozen():
        after = clock.monotonic(), clock.monotonic_ns() / 1e9
    assert all(0 < late - early < 3600 for early, late in zip(before, after, strict=True))


@FROZEN
@pytest.mark.parametrize("fault", ["redis", "store"])
def test_a_timeout_ends(frozen: Frozen, fault: str) -> None:
    with Double() as double, frozen():
        double.ids.create("a")
        away, error = {
            "redis": (double.redis_away, issuer.RedisUnavailable),
            "store": (double.store_away, issuer.StoreUnavailable),
        }[fault]
        with away(), pytest.raises(error) as refused:
            double.ids.next("a", timeout=2)  # the other server answers in this time, also on a busy machine
        assert 0 < refused.value.retry_after <= TRIAL
        assert double.ids.next("a", timeout=60) == 1


@FROZEN
def test_a_timeout_of_a_task_ends(frozen: Frozen) -> None:
    async def main() -> None:
        async with double.aconnect() as ids:
            with frozen():
                await ids.create("a")
                with double.redis_away(), pytest.raises(issuer.RedisUnavailable) as refused:
                    await ids.next("a", timeout=0.3)
                assert 0 < refused.value.retry_after <= TRIAL
                assert await ids.next("a", timeout=60) == 1

    with Double() as double:
        run(main())


@FROZEN
def test_after_the_freeze_everything_is_as_before(frozen: Frozen) -> None:
    with Double() as double:
        double.ids.create("a")
        with frozen(), double.redis_away(), pytest.raises(issuer.RedisUnavailable):
            double.ids.next("a", timeout=0.1)
        assert double.ids.next("a", timeout=60) == 1
        with double.redis_away(), pytest.raises(issuer.RedisUnavailable) as refused:
            double.ids.next("a", timeout=0.1)
        assert 0 < refused.value.retry_after <= TRIAL


@FROZEN
def test_a_double_may_be_made_and_its_clock_moved_while_the_clock_stands_still(frozen: Frozen) -> None:
    with frozen(), Double() as double:
        double.clock.set(THEN)
        double.ids.create("bills", restart="daily", format="{date:%Y%m%d}-{seq}")
        assert double.ids.issue("bills").text == "20310501-1"
        double.ids.create("dated", format="{date:%Y%m%d}-{seq}")
        assert double.ids.issue("dated").text == "20310501-1"
        made = double.ids.inspect("dated").store
        assert made is not None
        assert abs(made.timestamp - THEN.timestamp() * 1000) < 600_000


@FROZEN
def test_segments_are_loaded_in_the_background_while_the_clock_stands_still(frozen: Frozen) -> None:
    with Double() as double, frozen(), double.connect(scheduler="background") as ids:
        ids.create("a", step=10)
        assert ids.take("a", 100, timeout=60) == list(range(1, 101))
