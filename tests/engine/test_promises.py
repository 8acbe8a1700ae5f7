"""Promises that users of such systems ask for first, each shown on its own."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

import issuer
from issuer_persistence.memory import MemoryStore
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]


@pytest.mark.covers("0.1")
def test_a_million_draws_repeat_nothing_where_date_and_random_digits_do() -> None:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a", step=50_000)
        assert len(set(ids.take("a", 1_000_000))) == 1_000_000
    chance = random.Random(1)
    assert len({chance.randrange(10**9) for _ in range(1_000_000)}) < 1_000_000, "on one day"


@pytest.mark.covers("0.3")
def test_numbers_are_exact_integers_that_increase_up_to_2_to_63_minus_1(make: Make) -> None:
    ids = make()
    for last in (107, 2**53 + 4, 2**63 - 1):
        ids.create(f"to {last}", above=last - 100, limit=last, step=7)
        numbers = ids.take(f"to {last}", 100)
        assert numbers == list(range(last - 99, last + 1))
        assert {type(number) for number in numbers} == {int}
        with pytest.raises(issuer.LimitReached):
            ids.next(f"to {last}")


@pytest.mark.covers("0.8", "0.11", "1.2", "2.10")
@pytest.mark.parametrize("step", [10, 1000])
def test_three_processes_get_the_ranges_of_the_classic_example_in_the_order_of_their_reservation(step: int) -> None:
    store = MemoryStore()
    with ExitStack() as ends:
        nodes = [ends.enter_context(issuer.connect(redis="none", store=store, scheduler=None)) for _ in range(3)]
        nodes[0].create("a", step=step)
        runs = [[node.next("a")] for node in nodes]
        assert store.tags(count=1000, timeout=10)[0].max == 3 * step
        for node, run in zip(nodes, runs, strict=True):
            run += [node.next("a") for _ in range(step - 1)]
        assert runs == [[*range(first, first + step)] for first in (1, step + 1, 2 * step + 1)]
        assert nodes[0].next("a") == 3 * step + 1
        assert store.tags(count=1000, timeout=10)[0].max == 4 * step


@pytest.mark.covers("0.10")
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_each_process_more_adds_as_many_numbers_at_the_same_cost_and_no_two_ranges_overlap(nodes: int) -> None:
    """What that is in numbers a second: `make bench`."""
    store = MemoryStore()
    with ExitStack() as ends:
        made = [ends.enter_context(issuer.connect(redis="none", store=store, scheduler=None)) for _ in range(nodes)]
        made[0].create("a", step=50)
        with ThreadPoolExecutor(nodes) as pool:
            drawn = list(pool.map(lambda ids: [ids.next("a") for _ in range(1000)], made))
        numbers = [number for each in drawn for number in each]
        assert len(numbers) == len(set(numbers)) == nodes * 1000
        ranges = sorted((entry.low, entry.high) for entry in store.ledger("a", newest=1000, timeout=10))
        assert len(ranges) == nodes * 1000 / 50, "reservations, as many for each process"
        assert all(one[1] <= other[0] for one, other in pairwise(ranges))


@pytest.mark.covers("0.6")
def test_tags_live_in_two_stores_side_by_side_and_one_that_moves_goes_on_above(
    fake_server: FencedFakeServer, tmp_path: Path
) -> None:
    with (
        issuer.connect(redis=fake_server.client(), store=MemoryStore(), prefix="one", scheduler=None) as one,
        issuer.connect(redis=fake_server.client(), store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=None) as other,
    ):
        for ids, tag in ((one, "orders"), (other, "users")):
            ids.create(tag, step=10)
        assert [(one.next("orders"), other.next("users")) for _ in range(25)] == [(n, n) for n in range(1, 26)]
        for ids, unknown in ((one, "users"), (other, "orders")):
            with pytest.raises(issuer.UnknownTag):
                ids.next(unknown)
        last = one.take("orders", 5)[-1]
        one.delete("orders")
        other.create("orders", above=last)
        assert [(other.next("orders"), other.next("users")) for _ in range(3)] == [(31, 26), (32, 27), (33, 28)]
        with pytest.raises(issuer.UnknownTag):
            one.next("orders")
