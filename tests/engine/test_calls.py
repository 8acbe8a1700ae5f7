"""What each call of an issuer returns and leaves alone, on the fake server and the memory store."""

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

import issuer
from issuer import Issuer
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer

pytestmark = pytest.mark.colours("blocking")

LAST = 2**63 - 1


@pytest.mark.covers("0.13", "3.4", "0.23", "U.15")
def test_start_is_the_first_number_issued_and_above_the_one_before_it(ids: Issuer) -> None:
    assert ids.create("a", start=100).max == 99
    assert [ids.next("a"), ids.next("a")] == [100, 101]
    ids.create("b", above=123_456)
    assert ids.next("b") == 123_457


@pytest.mark.covers("1.6", "4.20")
def test_a_tag_without_settings_gets_the_documented_defaults_and_shows_what_it_is(ids: Issuer) -> None:
    tag = ids.create("a", description="orders of the shop")
    assert (tag.max, tag.step, tag.limit, tag.order) == (0, 1000, LAST, "strict")
    assert (ids.create("b", step="auto").step, ids.create("c").description) == (1000, "")
    assert [ids.inspect(tag).store.step_mode for tag in ("b", "c")] == ["auto", "auto"]
    steps: list[int | Literal["auto"] | None] = [5, None, "auto", 9]
    changed = [ids.configure("b", step=step, description=str(step)) for step in steps]
    expected = [(5, "fixed"), (5, "fixed"), (1000, "auto"), (9, "fixed")]
    assert [(each.step, each.step_mode) for each in changed] == expected
    made = ids.inspect("a")
    assert (made.store.step, made.description, made.store.max) == (1000, "orders of the shop", 0)
    assert 0 < made.store.created <= made.store.timestamp
    assert ids.next("a") == 1
    used = ids.inspect("a").store
    assert (used.created, used.max) == (made.store.created, 1000), "one reservation, of the default step"
    assert used.timestamp >= made.store.timestamp


@BOTH
@pytest.mark.covers("1.5", "4.19")
def test_a_tag_can_be_made_once_only_and_making_it_again_changes_nothing(ids: Issuer) -> None:
    ids.create("a", description="orders of the shop", step=7)
    ids.next("a")
    before = ids.tags(), ids.inspect("a")
    with pytest.raises(issuer.TagExists) as error:
        ids.create("a", step=8, start=500, limit=1000, description="others")
    assert error.value.tag == "a"
    assert (ids.tags(), ids.inspect("a")) == before
    assert ids.next("a") == 2


@pytest.mark.covers("U.1")
def test_take_returns_exactly_n_increasing_numbers_over_segment_borders(ids: Issuer) -> None:
    ids.create("a", step=1000)
    numbers = ids.take("a", 2500)
    assert numbers == list(range(1, 2501))
    assert ids.next("a") == 2501


@pytest.mark.covers("U.2")
def test_reserve_returns_one_contiguous_range_that_nobody_else_gets(make: Make) -> None:
    ids, other = make(), make()
    ids.create("bulk", order="trend", step=10)
    ranges = [ids.reserve("bulk", 500), ids.reserve("bulk", 1)]
    assert ranges == [range(1, 501), range(501, 502)]
    assert ids.next("bulk") == 502
    with ThreadPoolExecutor(8) as pool:
        ranges = list(pool.map(lambda n: (ids, other)[n % 2].reserve("bulk", n), range(1, 41)))
    assert [(len(each), each.step) for each in ranges] == [(n, 1) for n in range(1, 41)]
    assert repeats(number for each in ranges for number in each) == []


@pytest.mark.covers("U.5", "1.9")
def test_a_changed_step_holds_from_the_next_reservation_on_every_process(make: Make) -> None:
    ids, other = make(), make()
    ids.create("a", step=10)
    assert other.take("a", 10)[-1] == 10
    assert ids.configure("a", step=100).step == 100
    assert other.next("a") == 11
    assert other.inspect("a").store.max == 110
    assert other.inspect("a").redis.mark == 30  # type: ignore[union-attr]  # drawn from, so it is there


@pytest.mark.covers("U.10", "4.17")
def test_a_retired_tag_comes_back_above_every_earlier_number(ids: Issuer) -> None:
    ids.create("a", step=10)
    last = ids.take("a", 25)[-1]
    ids.delete("a")
    for call in (ids.next, ids.inspect, ids.delete):
        with pytest.raises(issuer.UnknownTag):
            call("a")
    assert ids.tags() == []
    again = ids.create("a", start=3)
    assert again.max >= last
    assert ids.next("a") > last


def test_a_delete_changes_nothing_while_redis_is_away(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    ids.next("a")
    fake_server.connected = False
    with pytest.raises(issuer.RedisUnavailable):
        ids.delete("a")
    fake_server.connected = True
    assert ids.next("a") == 2
    ids.delete("a")


def test_deleting_again_floors_a_hash_that_was_not_reached(fake_server: FencedFakeServer) -> None:
    class Cutting(MemoryStore):
        def delete(self, tag: str, *, timeout: float) -> issuer.values.Tag:
            fake_server.connected = False
            return super().delete(tag, timeout=timeout)

    with issuer.connect(redis=fake_server.client(), store=Cutting(), scheduler=None) as ids:
        ids.create("a", step=10)
        ids.next("a")
        with pytest.raises(issuer.RedisUnavailable):
            ids.delete("a")
        fake_server.connected = True
        assert ids.next("a") == 2  # the hash was not reached
        ids.engine.config.store.__class__ = MemoryStore
        with pytest.raises(issuer.UnknownTag):
            ids.delete("a")
        with pytest.raises(issuer.UnknownTag):
            ids.next("a")


@pytest.mark.covers("1.7")
def test_after_warm_the_first_number_needs_no_store(
    ids: Issuer, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids.create("a")
    ids.warm("a")
    with monkeypatch.context() as away:
        for name in ("get", "reserve", "store_id"):
            away.setattr(store, name, None)
        assert ids.next("a") == 1


def test_inspect_shows_both_buffers_and_changes_nothing(ids: Issuer, fake_server: FencedFakeServer) -> None:
    ids.create("a", step=10)
    seen = ids.inspect("a")
    assert seen.redis == issuer.values.RedisState(None, None, None, None, None, None, None)
    assert (seen.remaining, seen.rate, seen.runway) == (0, None, None)
    ids.take("a", 3)
    assert ids.tick() == 1
    seen = ids.inspect("a")
    assert seen.redis is not None
    assert (seen.redis.cur, seen.redis.max, seen.redis.mark) == (3, 10, 2)
    assert (seen.redis.next_cur, seen.redis.next_max) == (10, 20)
    assert seen.redis.fence == fake_server.master_replid
    assert seen.remaining == 17
    assert seen.store.max == 20


@pytest.mark.covers("0.5", "2.1")
def test_tags_have_unbroken_runs_of_their_own(ids: Issuer) -> None:
    for tag in ("a", "b", "{a}", "a b", "名"):
        ids.create(tag, step=3)
    runs = [[ids.next(tag) for tag in ("a", "b", "{a}", "a b", "名")] for _ in range(10)]
    assert runs == [[number] * 5 for number in range(1, 11)]


def test_without_redis_every_tag_is_trend_and_a_strict_one_is_not_served(direct: Issuer, make: Make) -> None:
    assert direct.create("a").order == "trend"
    with pytest.raises(issuer.ConfigurationError, match="Redis"):
        direct.create("b", order="strict")
    assert [tag.tag for tag in direct.tags()] == ["a"]
    make().create("a")
    without = make(redis="none")
    with pytest.raises(issuer.ConfigurationError, match="strict"):
        without.next("a")
    assert without.inspect("a").store.max == 0
    assert without.inspect("a").redis is None


@BOTH
@pytest.mark.covers("U.4", "N.4", "0.12")
def test_the_unused_tail_is_handed_back_on_close_two_segments_in_one(connect: Connect) -> None:
    store = MemoryStore()
    for expected in (1, 4, 7):
        with connect(redis="none", store=store, scheduler=None) as one:
            if expected == 1:
                one.create("a", step=10)
            assert one.take("a", 3)[0] == expected
            assert one.tick() == 1
            assert store.get("a", timeout=10).max == expected + 19  # type: ignore[union-attr]  # made above
        assert store.get("a", timeout=10).max == expected + 2  # type: ignore[union-attr]  # a store passed in stays open


@BOTH
@pytest.mark.covers("U.1")
def test_a_take_that_fails_part_way_tells_what_it_had_drawn(ids: Issuer) -> None:
    ids.create("few", limit=3)
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert caught.value.drawn == [1, 2, 3]
    with pytest.raises(issuer.LimitReached) as caught:
        ids.take("few", 5)
    assert list(caught.value.drawn) == []


# -------------------------------------------------------------------------------- promises that users ask for first


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
