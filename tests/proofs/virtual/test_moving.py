"""Tags from Leaf, tinyid and CosId: a database that stops for 20 seconds fails no call, as before the move."""

from collections.abc import Callable
from typing import Any

import pytest

from issuer.care.importing.layouts import LAYOUTS, Choice
from issuer_persistence.records import HIGHEST
from tests.proofs.virtual.world import World

pytestmark = pytest.mark.live

#: Numbers a second, seconds before the outage, and its seconds.
RATE, BEFORE, OUTAGE = 130, 300, 20

#: How many numbers are drawn one after the other.
PART = 26

#: Rows of the tables, and the option `--step` where the table has no step.
ROWS: dict[str, tuple[tuple[Any, ...], dict[str, int]]] = {
    "leaf": (("a", 1, 1000, None), {}),
    "tinyid": (("a", 0, 1000, 1, 0), {}),
    "cosid": (("a", 0), {}),
    "cosid-step": (("a", 0), {"step": 1000}),
}


def drawn(made: World, seconds: int, work: Callable[[], list[int]]) -> list[Any]:
    """Draw PART numbers, again and again, for that long. Return the errors."""
    calls = []
    for _ in range(seconds * RATE // PART):
        calls.append(made.call(work))
        made.turns.sleep(PART / RATE)
    return [each.answer for each in calls if not isinstance(each.done.answer, list)]


@pytest.mark.covers("U.29")
@pytest.mark.parametrize("redis", ["redis", "direct"])
@pytest.mark.parametrize("origin", ROWS)
def test_a_database_that_stops_for_20_seconds_fails_no_call(made: World, origin: str, redis: str) -> None:
    row, step = ROWS[origin]
    layout = LAYOUTS[origin.partition("-")[0]]
    [found] = layout.tags([row], Choice())
    with made.connect(**({"redis": "none"} if redis == "direct" else {})) as ids:
        ids.create("a", **{**found.options(HIGHEST), **layout.settings, **step})
        assert drawn(made, BEFORE, lambda: ids.take("a", PART)) == []
        made.store.hang()
        assert drawn(made, OUTAGE, lambda: [ids.next("a", timeout=2.0) for _ in range(PART)]) == []
        made.store.resume()
