"""`issuer set --above` and `--start`: numbers that are skipped never come back, so it asks."""

import pytest

from tests.e2e.conftest import Cli
from tests.e2e.terminal import Terminal


@pytest.fixture
def orders(direct: Cli) -> Cli:
    """`cli` on a store whose `orders` has segments of 10 numbers, 20 of which are reserved."""
    direct("create", "orders", "--step", "10")
    direct("next", "orders", "-n", "20")
    return direct


def stands(cli: Cli) -> tuple[int, str]:
    """Return the tag's max, and its description."""
    (tag,) = cli("tags", "--json").json()
    return tag["max"], tag["description"]


@pytest.mark.parametrize("option", [["--above", "500"], ["--start", "501"]])
def test_numbers_are_skipped_by_a_yes_only_and_a_no_changes_nothing_else_either(
    orders: Cli, store: str, option: list[str]
) -> None:
    for answer, code, after in (("\n", 1, (20, "")), ("n\n", 1, (20, "")), ("y\n", 0, (500, "new"))):
        with Terminal("--store", store, "set", "orders", *option, "--description", "new", columns=200) as terminal:
            terminal.shows("Skip the numbers of orders up to 500 for ever? [y/N]")
            assert stands(orders) == (20, "")
            terminal.types(answer)
            assert terminal.ends() == code
        assert stands(orders) == after


def test_a_script_says_yes_or_changes_nothing(orders: Cli) -> None:
    refused = orders("set", "orders", "--above", "500", "--description", "new")
    assert (refused.code, refused.out, "give --yes to go on" in refused.err) == (2, "", True)
    assert stands(orders) == (20, "")
    assert orders("set", "orders", "--above", "500", "--description", "new", "--yes").code == 0
    assert stands(orders) == (500, "new")
    assert orders("next", "orders").out == "501\n"


def test_a_jump_over_more_than_a_thousand_segments_says_what_it_costs(orders: Cli, store: str) -> None:
    for above, cost in (
        (20 + 1000 * 10, ""),
        (20 + 1001 * 10, ": 10010 numbers are lost, 1001 segments, 0 % of all that are left"),
        (
            9 * 10**18,
            f": {9 * 10**18 - 20} numbers are lost, {(9 * 10**18 - 20) // 10} segments, 97 % of all that are left",
        ),
    ):
        with Terminal("--store", store, "set", "orders", "--above", str(above), columns=200) as terminal:
            terminal.shows(f"Skip the numbers of orders up to {above} for ever{cost}? [y/N]")
            terminal.types("n\n")
            assert terminal.ends() == 1
    assert stands(orders) == (20, "")


def test_what_skips_nothing_asks_nobody(orders: Cli) -> None:
    assert orders("set", "orders", "--step", "30").code == 0
    below = orders("set", "orders", "--above", "15")
    assert (below.code, "nothing is skipped" in below.err) == (0, True)
    assert stands(orders) == (20, "")
