"""`create(..., exist_ok=True)`: what a program says at each start, whoever has made the tag before."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from issuer import InvalidArgument, Issuer, TagDiffers, TagExists
from issuer.strategies import Instance
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.days import DAILY
from tests.schemes import KEYS, Make

#: Settings of a tag, and others that aren't the same, by the name that the error has for them.
SETTINGS: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    ({}, {"limit": {"limit": "js"}, "order": {"order": "trend"}, "above": {"start": 10**6}}),
    ({}, {"format": {"format": "A{seq}"}}),
    ({"order": "trend", "lease": 50}, {"keyed": {"keyed": True, "format": "{key}/{seq}"}}),
    (
        {"start": 100, "limit": 10_000},
        {"above": {"start": 9000, "limit": 10_000}, "limit": {"start": 100, "limit": 999}},
    ),
    ({"stride": 2, "offset": 1}, {"stride": {"stride": 3, "offset": 1}}),
    ({"start": 1000, "limit": 9999, "scramble": "k1", "order": "trend"}, {"scramble": {}}),
    (DAILY, {"restart": {**DAILY, "restart": "weekly"}, "timezone": {**DAILY, "timezone": "UTC"}}),
    ({"shards": {"shard_bits": 1, "app_bits": 1, "app": 1}}, {"shards": {"shards": {"shard_bits": 2, "app_bits": 1}}}),
    ({"strategy": "snowflake", "options": {"epoch": "2026-01-01"}}, {"options": {"strategy": "snowflake"}}),
]


@pytest.mark.parametrize(("settings", "others"), SETTINGS)
def test_the_same_settings_give_the_tag_as_it_is_and_others_an_error_that_names_them(
    make: Make, store: MemoryStore, settings: dict[str, Any], others: dict[str, dict[str, Any]]
) -> None:
    ids, other = make(), make()
    made = ids.create("a", exist_ok=True, **settings)
    for _ in range(2):
        before = store.tags(count=1000, timeout=5)
        assert other.create("a", exist_ok=True, **settings) == made
        for name, different in others.items():
            with pytest.raises(TagDiffers, match=f"{name} is .*not") as caught:
                other.create("a", exist_ok=True, **different)
            assert name in caught.value.differences
            assert isinstance(caught.value, TagExists)
        assert store.tags(count=1000, timeout=5) == before
        if "shards" not in settings:
            ids.issue("a")
            made = ids.create("a", exist_ok=True, **settings)
    with pytest.raises(TagExists):
        other.create("a", **settings)


def test_what_is_not_said_is_as_it_is(make: Make) -> None:
    ids = make()
    ids.create("a", step=10, order="trend", lease=5, description="x", limit=500)
    ids.configure("a", step=20)
    assert ids.create("a", exist_ok=True).step == 20
    with pytest.raises(TagDiffers) as caught:
        ids.create("a", exist_ok=True, order="strict", limit=400)
    assert caught.value.differences == {"order": ("strict", "trend"), "limit": (400, 500)}
    assert "order is 'trend', not 'strict', limit is 500, not 400" in str(caught.value)


def test_what_operators_change_while_programs_run_lets_these_start_again(make: Make) -> None:
    ids = make()
    said: dict[str, Any] = {"order": "trend", "step": 10, "lease": 5, "ahead": 2, "description": "x"}
    ids.create("a", exist_ok=True, **said)
    changed = ids.configure("a", step=20, lease=7, ahead=3, description="y")
    assert ids.create("a", exist_ok=True, **said) == changed
    for wrong in ({"step": 0}, {"ahead": 1001}, {"lease": -1}, {"description": "x" * 1001}):
        with pytest.raises(InvalidArgument):
            ids.create("a", exist_ok=True, **{**said, **wrong})


def test_a_part_is_not_taken_for_a_tag_of_the_callers(make: Make) -> None:
    ids = make()
    ids.create("a", shards={"shard_bits": 1, "app_bits": 1, "app": 1})
    with pytest.raises(TagDiffers, match="part_of"):
        ids.create("a#1", exist_ok=True)


def test_where_machine_numbers_come_from_is_as_the_first_process_has_settled_it(
    connect: Connect, store: MemoryStore
) -> None:
    def opened(machine: int | None) -> Issuer:
        return connect(redis="none", store=store, scheduler=None, instance=Instance(machine=machine))

    with opened(3) as first, opened(None) as second:
        assert first.create("a", exist_ok=True, strategy="snowflake").scheme["options"] == {"machine": "fixed"}
        assert second.create("a", exist_ok=True, strategy="snowflake").scheme["options"] == {"machine": "fixed"}
        with pytest.raises(TagDiffers, match="options"):
            second.create("a", exist_ok=True, strategy="snowflake", options={"machine": "store"})


def test_all_that_come_at_once_get_the_tag_and_it_is_made_once(connect: Connect, store: MemoryStore) -> None:
    with (
        connect(redis="none", store=store, scheduler=None, keys=KEYS) as ids,
        ThreadPoolExecutor(8) as pool,
    ):
        made = list(pool.map(lambda _: ids.create("a", exist_ok=True, step=7), range(16)))
    assert len({each.version for each in made}) == 1
