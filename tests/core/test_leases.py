"""Leases on a real Redis, for threads and for tasks: what is drawn ahead, when, how it goes on, and what comes back."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core.supply import supply
from issuer.core.supply.supply import Supply
from issuer.gateway.commands import script
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST
from tests import colours
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.core.test_extension import in_threads
from tests.programs import PIPE, Program
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.proxy import FaultProxy
from tests.waiting import run, until

pytestmark = pytest.mark.colours("blocking")

Cur = Callable[..., int]


@pytest.fixture
def other(redis_url: str, redis_client: redis.Redis, store: MemoryStore) -> Iterator[Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 100 000."""
    redis_client.script_load(script("lease").text)  # whoever has to bring it sends two requests
    with issuer.connect(redis=redis_url, store=store) as made:
        made.create("a", step=100_000, order="trend")
        made.warm("a")
        yield made


@pytest.fixture
def cur(redis_client: redis.Redis) -> Cur:
    """Where the hash in Redis stands."""
    return lambda tag="a": int(redis_client.hget(f"issuer:{{{tag}}}", "cur") or 0)


@pytest.fixture
def opened(connect: Connect, redis_url: str, store: MemoryStore) -> Make:
    return partial(connect, redis=redis_url, store=store)


LEASE = script("lease").sha.encode()


def supply_of(ids: Any, tag: str = "a") -> Supply:
    found: Supply = ids.engine.registry.combiner(tag).supply
    return found


def until_held(ids: Any) -> None:
    """Return when two leases are in hand."""
    until(lambda: len(supply_of(ids).state.buffer.held) == 2, 60)  # type: ignore[union-attr]  # it has one


@BOTH
def test_redis_moves_by_a_lease_and_the_next_one_is_fetched_at_exactly_a_fifth(
    make_live: Make, other: Issuer, cur: Cur, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "AHEAD", 0)
    ids = make_live(lease=100)
    for start in (0, 100, 200):
        assert [ids.next("a") for _ in range(19)] == list(range(start + 1, start + 20))
        assert cur() == start + 100
        assert ids.next("a") == start + 20
        until_held(ids)
        assert [ids.next("a") for _ in range(80)] == list(range(start + 21, start + 101))
        assert cur() == start + 200
    assert other.inspect("a").store.max == 100_000


def test_an_interrupt_while_a_lease_is_drawn_leaves_the_tag_to_others(
    make_live: Make, other: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert other.inspect("a").order == "trend"
    ids = make_live(lease=5, scheduler=None)
    numbers = [ids.next("a") for _ in range(5)]

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    combiner = ids.engine.registry.combiner("a")
    with monkeypatch.context() as patch:
        patch.setattr(type(combiner._node), "draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ids.next("a")
    assert combiner.supply.refill.leases.flights.flight is None
    with ThreadPoolExecutor(1) as pool:
        numbers.append(pool.submit(ids.next, "a").result(60))
    assert numbers == [1, 2, 3, 4, 5, 6]


@BOTH
def test_a_hundred_callers_at_the_mark_start_one_fetch_and_nobody_waits_for_it(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, cur: Cur
) -> None:
    assert other.next("a") == 1
    with opened(redis=redis_proxy.url, lease=1000) as ids:
        ids.next("a")
        redis_proxy.hold(match=LEASE)
        numbers = in_threads(300, lambda _: ids.next("a"))  # the mark is the 200th of the lease
        numbers += [ids.next("a") for _ in range(698)]  # all but one
        until(lambda: redis_proxy.held, 60)
        assert cur() == 1001
        redis_proxy.release()
        until_held(ids)
        numbers += in_threads(100, lambda _: ids.next("a"))
        assert sorted(numbers) == list(range(3, 1101))
        assert (redis_proxy.hits, cur()) == (1, 2001)


@BOTH
def test_a_tags_own_lease_wins_and_0_means_never(make_live: Make, other: Issuer, cur: Cur) -> None:
    other.create("own", order="trend", lease=7)
    other.create("never", order="trend", lease=0)
    ids = make_live(lease=100)
    for tag, moved in (("own", 7), ("never", 1), ("a", 100)):
        assert ids.next(tag) == 1
        assert cur(tag) == moved


@BOTH
def test_a_strict_tag_is_never_leased(make_live: Make, other: Issuer, cur: Cur) -> None:
    other.create("s")
    ids = make_live(lease=100)
    assert [ids.next("s"), *ids.take("s", 5), other.next("s"), ids.next("s")] == list(range(1, 9))
    assert next(iter(ids.stream("s"))) == 9
    assert cur("s") == 9


def test_tasks_that_draw_in_loops_have_equal_shares_of_leases_that_are_smaller_than_their_number(
    redis_url: str, store: MemoryStore
) -> None:
    """The task that fetches a lease goes on at once, and would have both its numbers again and again."""
    drawn = [0] * 21

    async def caller(ids: issuer.AsyncIssuer, me: int) -> None:
        while sum(drawn) < 420:
            await ids.next("a")
            drawn[me] += 1

    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=store, lease=2) as ids:
            await ids.create("a", step=100, order="trend")
            await asyncio.gather(*(caller(ids, me) for me in range(21)))

    run(main(), 120)
    assert max(drawn) - min(drawn) <= 2, drawn


@BOTH
def test_take_and_reserve_beside_leases_repeat_nothing(make_live: Make) -> None:
    ids = make_live(lease=10)
    ids.create("b", step=100, order="trend")
    numbers = ids.take("b", 35)
    assert numbers == list(range(1, 36))
    reserved = ids.reserve("b", 500)
    numbers += ids.take("b", 1)
    assert numbers[-1] == 36
    numbers += [*reserved, *ids.take("b", 300), ids.next("b"), *ids.reserve("b", 5), ids.next("b")]
    assert repeats(numbers) == []
    assert max(numbers) <= ids.inspect("b").store.max


@BOTH
@pytest.mark.parametrize(("limit", "scheduler"), [(2**53 + 12, None), (HIGHEST, "background"), (25, "background")])
def test_leases_are_exact_up_to_the_limit_and_end_there(make_live: Make, limit: int, scheduler: Any) -> None:
    start = limit - 24
    ids = make_live(lease=20, scheduler=scheduler)
    ids.create("b", start=start, limit=limit, step=10, order="trend")
    numbers = [ids.next("b") for _ in range(12)]
    numbers += ids.take("b", 13)
    assert numbers == list(range(start, limit + 1))
    for draw in [partial(ids.next, "b")] * 3 + [lambda: next(iter(ids.stream("b")))]:
        refused(issuer.LimitReached, "", draw)


@BOTH
@pytest.mark.covers("N.4")
def test_what_is_left_of_leases_comes_back_at_close_two_end_to_end_in_one(
    opened: Make, other: Issuer, cur: Cur
) -> None:
    with opened(lease=1000) as ids:
        assert [ids.next("a") for _ in range(10)] == list(range(1, 11))
        assert cur() == 1000
    assert cur() == 10
    with opened(lease=50) as ids:
        assert ids.take("a", 10) == list(range(11, 21))
        until_held(ids)
        assert cur() == 110
    assert cur() == 20
    assert other.next("a") == 21


@BOTH
def test_of_two_leases_with_a_hole_between_them_only_the_later_one_comes_back(
    opened: Make, other: Issuer, cur: Cur
) -> None:
    with opened(lease=50) as ids:
        assert ids.next("a") == 1
        assert other.next("a") == 51
        assert ids.take("a", 10) == list(range(2, 12))
        until_held(ids)
        assert cur() == 101
    assert cur() == 51
    assert other.next("a") == 52


@BOTH
def test_a_lease_that_arrives_while_the_issuer_closes_comes_back_too(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, cur: Cur
) -> None:
    with ThreadPoolExecutor(1) as pool, opened(redis=redis_proxy.url, lease=50) as ids:
        ids.next("a")
        redis_proxy.hold(match=LEASE)
        ids.take("a", 10)
        until(lambda: redis_proxy.held, 60)
        closing = pool.submit(ids.close)
        until(lambda: ids.closed, 60)
        redis_proxy.release()
        closing.result()
    assert cur() == 11
    assert other.next("a") == 12


DRAWING = """
import issuer, sys
redis, store, lease, count = sys.argv[1:]
ids = issuer.connect(redis=redis, store=store, lease=int(lease))
print(*(ids.next("a") for _ in range(int(count))), flush=True)
sys.stdin.readline()
"""


def test_processes_with_leases_and_without_repeat_nothing_and_one_that_is_killed_loses_two_leases_at_most(
    redis_url: str, tmp_path: Path
) -> None:
    url, program = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "drawing.py"
    program.write_text(DRAWING)
    plans = [(700, 10_000), (33, 5000), (0, 500)]
    everything: list[int] = []
    with issuer.connect(redis=redis_url, store=url) as ids, ExitStack() as ends:
        ids.create("a", step=20_000, order="trend")
        arguments = [(str(program), redis_url, url, str(lease), str(count)) for lease, count in plans]
        running = [ends.enter_context(Program(*each, stdin=PIPE, stdout=PIPE)) for each in arguments]
        for process, (_, count) in zip(running, plans, strict=True):
            assert process.stdout is not None
            numbers = [int(number) for number in process.stdout.readline().split()]
            process.kill()
            assert len(numbers) == count
            assert numbers == sorted(numbers)
            everything += numbers
        everything.append(ids.next("a"))
        assert repeats(everything) == []
        assert everything[-1] == max(everything) <= ids.inspect("a").store.max
        assert everything[-1] - len(everything) <= sum(2 * lease for lease, _ in plans)


@BOTH
def test_what_is_in_hand_of_a_tag_that_is_deleted_is_served_no_more(
    connect: Connect, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Redis nothing but the store tells of it, once the record is read again."""
    monkeypatch.setattr("issuer.core.supply.supply.LEARN_AFTER", -1.0)
    with connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("d", step=1000)
        assert ids.take("d", 10) == [*range(1, 11)]
        store.delete("d", timeout=10)
        assert ids.next("d") == 11, "no look at the store for each number"
        refresh = supply_of(ids, "d").refresh()
        for call in (lambda: colours.run(ids, "d", refresh, Deadline(60)), lambda: ids.next("d")):
            refused(issuer.UnknownTag, "", call)
