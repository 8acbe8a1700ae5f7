"""Services that fetch a segment per step from a store and serve it over HTTP, as the articles' proxy servers do."""

from contextlib import AsyncExitStack

import pytest

from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import DEFAULT_STEP
from tests.doors.http.doors import Door, open_door


def place(tag: str) -> str:
    return f"/v1/tags/{tag}"


async def taken(service: Door, tag: str, n: int) -> list[int]:
    found: list[int] = (await service.good("POST", f"{place(tag)}/take", {"n": n}))["numbers"]
    return found


@pytest.mark.covers("1.15")
async def test_three_services_fetch_a_segment_per_step_and_keep_tags_apart() -> None:
    """The ranges are those of the articles' example: 1..1000 of the first service, and 3001..4000 after them."""
    store = MemoryStore()
    async with AsyncExitStack() as ends:
        services = [await ends.enter_async_context(open_door(store=store)) for _ in range(3)]
        for tag, step in (("orders", 1000), ("users", 10)):
            await services[0].good("POST", "/v1/tags", {"tag": tag, "step": step})
        for node, service in enumerate(services):
            assert await taken(service, "orders", 1) == [1000 * node + 1]
        assert store.snapshot().tags["orders"].max == 3000
        for node, service in enumerate(services):
            assert await taken(service, "orders", 999) == [*range(1000 * node + 2, 1000 * node + 1001)]
            assert await taken(service, "users", 10) == [*range(10 * node + 1, 10 * node + 11)]
        assert len(store.snapshot().ledger) == 6, "a reservation for each segment, none for a number"
        assert await taken(services[0], "orders", 1) == [3001]
        maxima = {tag: record.max for tag, record in store.snapshot().tags.items()}
        assert maxima == {"orders": 4000, "users": 30}


@pytest.mark.covers("1.15")
async def test_a_step_of_a_service_grows_with_the_use_of_its_tag_alone() -> None:
    """To 600 times the rate: tests/proofs/simulation looks at this for days, in programs of the same mode."""
    store = MemoryStore()
    async with open_door(store=store) as service:
        for tag in ("busy", "quiet"):
            made = await service.good("POST", "/v1/tags", {"tag": tag, "step": "auto"})
            assert made["step"] == DEFAULT_STEP
        await taken(service, "quiet", 1)
        for _ in range(8):
            await taken(service, "busy", DEFAULT_STEP)
        steps = {tag: record.step for tag, record in store.snapshot().tags.items()}
        assert steps["busy"] > DEFAULT_STEP
        assert steps["quiet"] == DEFAULT_STEP
        shown = await service.good("GET", place("busy"))
        assert shown["store"]["step_mode"] == "auto"
        assert shown["store"]["step"] == steps["busy"]
