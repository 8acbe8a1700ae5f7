"""All that may happen within small bounds keeps the promises."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.search import Found, search
from tests.model.state import World
from tests.model.worlds import LARGE, SMALL

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")


def assert_kept(name: str, world: World) -> None:
    found = search(world)
    assert not found.harm, str(found)
    # The count shows that the search went where it should: a step that is no longer possible makes it smaller.
    assert f"| {name} | {found.states} |" in README, f"tests/model/README.md: {name} has {found.states} states now"


@pytest.mark.covers("0.9", "1.1", "1.3", "1.11", "N.6")
@pytest.mark.parametrize("name", SMALL)
def test_no_order_of_events_breaks_a_promise(name: str) -> None:
    assert_kept(name, SMALL[name])


@pytest.mark.live
@pytest.mark.parametrize("name", LARGE)
def test_no_order_of_events_breaks_a_promise_in_larger_bounds(name: str) -> None:
    assert_kept(name, LARGE[name])


def test_a_fault_costs_no_less_than_the_bound_that_is_watched() -> None:
    """Two segments a fault is what the design allows: it does happen."""
    world = SMALL["what one fault costs"]
    assert search(replace(world, gap=world.gap - 1)).harm.startswith("GAP 4 lost by 1 ")


def test_a_search_that_outgrows_its_bounds_fails() -> None:
    with pytest.raises(AssertionError, match="more than 100 states"):
        search(SMALL["forked"], most=100)


def test_what_was_found_is_told_step_by_step() -> None:
    assert str(Found(7, "REPEAT 1", ["P0 draws 1 from A", "P1 draws 1 from A"])).splitlines() == [
        "REPEAT 1",
        "7 states",
        "  1. P0 draws 1 from A",
        "  2. P1 draws 1 from A",
    ]
