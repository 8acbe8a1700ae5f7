"""Redis has lost its numbers: the log says so, and what it has cost."""

import pytest

from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order
from tests.colours import Connect
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def _unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep never: a sweep just after the flush makes the loss good before anybody draws, and nothing is told then."""
    monkeypatch.setattr("issuer.engine.scheduler.SWEEP_EVERY", 3600.0)


@pytest.mark.usefixtures("redis_url", "_unswept")  # the first empties it
@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_redis_that_has_lost_its_data_is_warned_of_with_the_size_of_the_gap(
    connect: Connect,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    order: Order,
    scheduler: str | None,
) -> None:
    with connect(redis=redis_server.url, store=MemoryStore(), scheduler=scheduler, timeout=30) as ids:
        ids.create("a", step=1000, order=order)
        numbers = ids.take("a", 30)
        assert not [each for each in caplog.records if each.levelname == "WARNING"], (
            "a tag that is new has lost nothing"
        )
        with redis_server.client() as client:
            client.flushall()
        numbers.append(ids.next("a"))
        assert numbers == [*range(1, 31), 1001]
        [told] = [each for each in caplog.records if "gap" in each.message]
        assert told.levelname == "WARNING"
        lost = "at most 970 numbers after 30, the last one that this process saw, are a gap"
        assert told.message == f"tag 'a': Redis has lost its data; new numbers are above 1000, and {lost}"
