"""Background work is done for tags that are used. A tag that nobody draws from costs nothing until its next use."""

from typing import Any

import pytest
import redis

from issuer import Issuer
from issuer.core.supply.supply import Supply
from issuer.engine.scheduler import Scheduler
from issuer_persistence.memory import MemoryStore
from tests.colours import BOTH, Connect
from tests.schemes import Make

pytestmark = [pytest.mark.live, BOTH]


def assert_costs_nothing(ids: Issuer, client: redis.Redis) -> None:
    """No sweep sends a command to Redis."""
    client.config_resetstat()
    for _ in range(5):
        ids.tick()
    commands: Any = client.info("commandstats")
    assert {"cmdstat_hmget", "cmdstat_evalsha"}.isdisjoint(commands)


@pytest.mark.covers("U.19")
def test_tags_that_nobody_draws_from_any_more_cost_no_commands(make_live: Make, redis_client: redis.Redis) -> None:
    ids = make_live(scheduler=None)
    for number in range(60):
        ids.create(f"tag-{number}", step=50, order="trend", lease=5 if number % 2 else 0)
        ids.next(f"tag-{number}")
    for _ in range(2):
        ids.tick()
    assert_costs_nothing(ids, redis_client)
    assert [ids.next(f"tag-{number}") for number in range(60)] == [2] * 60
    assert len(ids.engine.registry.moving()) == 60


def test_a_tag_that_is_used_while_a_sweep_finds_it_at_rest_is_looked_after(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make()
    ids.create("a")
    ids.next("a")

    def used_meanwhile(supply: Supply) -> bool:
        supply.used()
        return False

    with monkeypatch.context() as patched:
        patched.setattr(Supply, "moved", property(used_meanwhile))
        assert ids.engine.registry.moving() == []
    assert [each.tag for each in ids.engine.registry.moving()] == ["a"]


def test_a_tag_whose_draw_elects_this_process_is_looked_after(make_live: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep may put the tag at rest while the draw is on its way, and the job may not start."""
    monkeypatch.setattr(Scheduler, "background", lambda *_: False)
    monkeypatch.setattr(Scheduler, "start", lambda _: None)
    ids = make_live()
    ids.create("a", step=10)
    assert ids.next("a") == 1
    ids.engine.runtime.moving.clear()
    assert ids.next("a") == 2
    assert ids.engine.runtime.moving == {"a"}
    assert ids.tick() == 1


@pytest.mark.covers("1.24")
@pytest.mark.parametrize("direct", [False, True])
def test_a_tag_that_is_kept_is_not_drained_and_costs_nothing(
    connect: Connect, redis_url: str, redis_client: redis.Redis, store: MemoryStore, direct: bool
) -> None:
    where = {"redis": "none" if direct else redis_url, "store": store, "scheduler": None}
    with connect(**where, idle_after=0) as ids:
        for tag in ("kept", "drained"):
            ids.create(tag, step=50, order="trend", lease=10, drain=tag == "drained")
            assert ids.take(tag, 2) == [1, 2]
        for _ in range(3):
            ids.tick()
        registry = ids.engine.registry
        assert [*registry.combiners] == ["kept"]
        assert not registry.idle
        reserved = store.get("kept", timeout=10)
        assert_costs_nothing(ids, redis_client)
        assert ids.next("kept") == 3
        assert store.get("kept", timeout=10) == reserved
        assert ids.next("drained") == 3
    # At its end, the process returns all numbers that it kept.
    with connect(**where) as ids:
        assert [ids.next(tag) for tag in ("kept", "drained")] == [4, 4]


def test_kept_tags_leave_the_bound_and_the_order_of_the_others_as_they_are(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.operations.registry.RESTING_MOST", 2)
    ids = make(redis="none")
    order = ["kept-1", "a", "kept-2", "b", "kept-3", "c", "d"]
    for tag in order:
        ids.create(tag, drain=not tag.startswith("kept"))
        ids.next(tag)
        for _ in range(2):  # it begins to rest
            ids.tick()
    assert [*ids.engine.registry.combiners] == ["kept-1", "kept-2", "kept-3", "c", "d"]
    assert not ids.engine.registry.idle
    assert [ids.next(tag) for tag in order] == [2] * len(order)


@pytest.mark.colours("blocking")
def test_restart_keys_that_nobody_uses_any_more_leave_nothing_behind(make_live: Make) -> None:
    ids = make_live(scheduler=None, idle_after=0)
    ids.create("a", keyed=True, format="{key}-{seq}", step=5)
    texts = [str(ids.issue("a", restart_key=f"x{which}")) for which in range(20)]
    assert len(ids.engine.registry.combiners) == 21
    for _ in range(2):  # the first one finds that they were used
        ids.tick()
    assert len(ids.engine.registry.combiners) <= 1
    texts += [str(ids.issue("a", restart_key=f"x{which}")) for which in range(20)]
    assert texts == [f"x{which}-{number}" for number in (1, 2) for which in range(20)]


@pytest.mark.colours("blocking")
@pytest.mark.covers("1.24")
def test_tags_that_nobody_uses_any_more_are_forgotten_and_come_back_without_a_gap(make_live: Make) -> None:
    ids = make_live(scheduler=None, idle_after=0)
    ids.create("leased", order="trend", lease=10, keyed=True, format="{key}-{seq}")
    ids.create("plain")
    numbers = [*(ids.issue("leased", restart_key="x").value for _ in range(2)), ids.next("plain")]
    ids.tick()
    assert {"leased#x", "plain"} <= set(ids.engine.registry.combiners), "they were used since"
    for _ in range(2):
        ids.tick()
    assert not ids.engine.registry.combiners
    # If the lease of ten numbers was not returned, eight of them would be a gap.
    numbers += [ids.issue("leased", restart_key="x").value, ids.next("plain")]
    assert numbers == [1, 2, 1, 3, 2]
