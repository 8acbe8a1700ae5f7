"""`issuer configure --above` and `--start`: numbers that are skipped never come back, so it asks."""

import pytest

from tests.cli.conftest import Cli
from tests.cli.terminal import answered


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


def test_a_script_says_yes_or_changes_nothing_and_what_skips_nothing_asks_nobody(orders: Cli) -> None:
    refused = orders("configure", "orders", "--above", "500", "--description", "new")
    assert (refused.code, refused.out, "give --yes" in refused.err) == (2, "", True)
    for option in ("--above", "--start"):
        below = orders("configure", "orders", option, "15")
        assert (below.code, "no number is skipped: the numbers up to 20 are" in below.err) == (0, True)
    assert stands(orders) == (20, "")
    assert orders("configure", "orders", "--above", "500", "--description", "new", "--yes").code == 0
    assert stands(orders) == (500, "new")
    assert orders("next", "orders").out == "501\n"


FAR = 9 * 10**18


@pytest.mark.live
def test_numbers_are_skipped_by_a_yes_only_and_a_no_changes_nothing_else_either(orders: Cli, store: str) -> None:
    for option, above, cost, answer, code in (
        ("--above", 500, "", "\n", 1),
        ("--start", 500, "", "n\n", 1),
        # Over more than a thousand segments it says what it costs.
        ("--above", 10_030, ": 10,010 numbers (1,001 segments, 0 % of all that are left)", "n\n", 1),
        ("--above", FAR, f": {FAR - 20:,} numbers ({FAR // 10 - 2:,} segments, 97 % of all", "n\n", 1),
        ("--above", 10_020, "? [y/N]", "y\n", 0),
    ):
        line = ("configure", "orders", option, str(above + (option == "--start")), "--description", "new")
        question = f"Skip the numbers of orders up to {above} for ever{cost}"
        assert answered(question, answer, "--store", store, *line) == code
        assert stands(orders) == ((20, "") if code else (above, "new"))
