"""Redis is killed in each way of persistence: no number comes twice, and the gap is two segments of the tag at most."""

from collections.abc import Callable

import pytest

import issuer
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from tests.drawers import Drawers, assert_sound
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.usefixtures("patient")

#: The arguments of redis-server. The snapshots of a test are made by `SAVE`, between its draws.
MODES = {
    "none": (),
    "snapshots": ("--save", "3600 1"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "no": ("--appendonly", "yes", "--appendfsync", "no"),
    "both": ("--appendonly", "yes", "--save", "3600 1"),
}
KILLS, STEP, AHEAD = 3, 50, 2


@pytest.mark.covers("3.23")
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_costs_two_segments_at_most_and_repeats_nothing(
    start_redis: Callable[..., RedisServer], store: MemoryStore, mode: str
) -> None:
    server = start_redis(*MODES[mode])
    with issuer.connect(redis=server.url, store=store) as ids:
        ids.create("a", step=STEP, ahead=AHEAD)
        with Drawers([ids], "a") as drawers:
            for _ in range(KILLS):
                drawers.more(130)
                if "--save" in MODES[mode]:
                    server.snapshot()
                drawers.more(170)
                server.kill()
                issued = max(drawers.numbers)
                server.start()
                if mode == "always":
                    with server.client() as client:
                        known = client.hget(redis_key("issuer", "a"), "cur")
                    assert int(known) >= issued, "what was issued is on the disk"
                drawers.more(100)
        assert_sound(drawers, store)
        assert max(drawers.numbers) - len(drawers.numbers) <= KILLS * 2 * STEP * AHEAD
        assert ids.verify() == []
