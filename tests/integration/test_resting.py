"""Background work is done for tags that are used. A tag that nobody draws from costs nothing until its next use."""

from typing import Any

import pytest
import redis

from issuer.core.supply.supply import Supply
from issuer.engine.scheduler import Scheduler
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect

pytestmark = [pytest.mark.live, pytest.mark.colours(*COLOURS)]


@pytest.mark.covers("U.19")
def test_tags_that_nobody_draws_from_any_more_cost_no_commands(
    connect: Connect, redis_url: str, redis_client: redis.Redis
) -> None:
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        for number in range(60):
            ids.create(f"tag-{number}", step=50, order="trend", lease=5 if number % 2 else 0)
            ids.next(f"tag-{number}")
        for _ in range(2):
            ids.tick()
        redis_client.config_resetstat()
        for _ in range(5):
            ids.tick()
        commands: Any = redis_client.info("commandstats")
        assert {"cmdstat_hmget", "cmdstat_evalsha"}.isdisjoint(commands)
        assert [ids.next(f"tag-{number}") for number in range(60)] == [2] * 60
        assert len(ids.engine.registry.moving()) == 60


def test_a_tag_that_is_used_while_a_sweep_finds_it_at_rest_is_looked_after(
    connect: Connect, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a")
        ids.next("a")

        def used_meanwhile(supply: Supply) -> bool:
            supply.used()
            return False

        with monkeypatch.context() as patched:
            patched.setattr(Supply, "moved", property(used_meanwhile))
            assert ids.engine.registry.moving() == []
        assert [each.tag for each in ids.engine.registry.moving()] == ["a"]


def test_a_tag_whose_draw_elects_this_process_is_looked_after(
    connect: Connect, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may put the tag at rest while the draw is on its way, and the job may not start."""
    monkeypatch.setattr(Scheduler, "background", lambda *_: False)
    monkeypatch.setattr(Scheduler, "start", lambda _: None)
    with connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("a", step=10)
        assert ids.next("a") == 1
        ids.engine.runtime.moving.clear()
        assert ids.next("a") == 2
        assert ids.engine.runtime.moving == {"a"}
        assert ids.tick() == 1
