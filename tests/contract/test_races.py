"""Many at once: threads on one store object, on several, and processes; and stores that don't answer."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

from persistence.errors import LimitHit, StoreError, TagPresent
from persistence.records import Reservation, Tag
from tests.contract.benches import (
    TIMEOUT,
    Bench,
    MongoBench,
    SQLiteBench,
    check_contiguous,
    create,
    get,
    ranges,
    reserve,
)
from tests.contract.processes import finish, let_go, segments, start_loaders
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from persistence.contract import Store

T = TypeVar("T")
THREADS = 8


def at_once(calls: Sequence[Callable[[], T]]) -> list[T | StoreError]:
    """Make the calls from a thread each, all starting together; an error of the store is an answer too."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T | StoreError:
        gate.wait()
        try:
            return call()
        except StoreError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def url_of(bench: Bench) -> str:
    if isinstance(bench, SQLiteBench):
        return f"sqlite:///{bench.path}"
    assert isinstance(bench, MongoBench)
    return bench.url


@pytest.mark.covers("0.9", "1.16")
@pytest.mark.parametrize("stores", [1, THREADS])
def test_threads_never_get_the_same_segment(bench: Bench, stores: int) -> None:
    create(bench.store, step=10)
    opened = [bench.open() for _ in range(stores)]

    def some(store: Store) -> list[Reservation]:
        return [reserve(store, None if turn % 2 else 7) for turn in range(10)]

    calls = [partial(some, opened[i % stores]) for i in range(THREADS)]
    got: list[tuple[int, int]] = []
    for answer in at_once(calls):
        assert isinstance(answer, list), answer
        got += [(each.low, each.high) for each in answer]
    check_contiguous(got, 0, THREADS * (5 * 10 + 5 * 7))
    assert sorted(got) == ranges(bench.store)
    assert get(bench.store).max == max(high for _, high in got)


@pytest.mark.live
@pytest.mark.covers("3.16", "0.9", "0.10", "1.1")
def test_two_loaders_never_get_the_same_segment(shared_bench: Bench) -> None:
    create(shared_bench.store, step=1000)
    loaders = start_loaders(url_of(shared_bench), 4, 25)
    let_go(loaders)
    got = [each for loader in loaders for each in segments(finish(loader))]
    assert len(got) == 100
    check_contiguous(got, 0, 100_000)
    assert sorted(got) == ranges(shared_bench.store)


@pytest.mark.covers("1.5", "2.11")
def test_creating_a_tag_at_once_makes_one(bench: Bench) -> None:
    opened = [bench.open() for _ in range(THREADS)]
    answers = at_once([partial(create, store, above=i) for i, store in enumerate(opened)])
    [made] = [each for each in answers if isinstance(each, Tag)]
    assert sum(isinstance(each, TagPresent) for each in answers) == THREADS - 1
    assert get(bench.store) == made


def test_bringing_a_tag_back_at_once_makes_one(bench: Bench) -> None:
    create(bench.store, above=500)
    bench.store.delete("orders", timeout=TIMEOUT)
    answers = at_once([lambda: create(bench.store)] * THREADS)
    [made] = [each for each in answers if isinstance(each, Tag)]
    assert get(bench.store) == made
    assert made.max == 500


def test_the_last_numbers_below_the_limit_are_given_once(bench: Bench) -> None:
    create(bench.store, step=10, limit=35)
    answers = at_once([lambda: reserve(bench.store)] * THREADS)
    got = [(each.low, each.high) for each in answers if isinstance(each, Reservation)]
    check_contiguous(got, 0, 35)
    assert [type(each) for each in answers if isinstance(each, StoreError)] == [LimitHit] * (THREADS - 4)


def test_handing_back_beside_reserving_gives_nothing_twice(bench: Bench) -> None:
    """A number that is kept belongs to one reservation only, however many tails are given back beside it."""
    create(bench.store, step=10)

    def keep_half() -> list[int]:
        kept: list[int] = []
        for _ in range(8):
            got = reserve(bench.store)
            kept += range(got.low + 1, got.low + 6)
            bench.store.hand_back([got], got.low + 5, timeout=TIMEOUT)
        return kept

    numbers: list[int] = []
    for answer in at_once([keep_half] * THREADS):
        assert isinstance(answer, list), answer
        numbers += answer
    assert len(numbers) == len(set(numbers)) == THREADS * 8 * 5
    assert max(numbers) <= get(bench.store).max
    # And the ledger names one owner for each.
    kept = [number for low, high in ranges(bench.store) for number in range(low + 1, high + 1)]
    assert sorted(kept) == sorted(numbers)


def test_settings_change_beside_reserving(bench: Bench) -> None:
    create(bench.store, step=10)
    done = threading.Event()

    def load() -> list[Reservation]:
        got = []
        while not done.is_set():
            got.append(reserve(bench.store))
        return got

    def change() -> list[Reservation]:
        try:
            for step in range(11, 21):
                bench.store.configure("orders", step=step, raise_to=get(bench.store).max + 1, timeout=TIMEOUT)
                bench.store.recover("orders", at_least=0, timeout=TIMEOUT)
        finally:
            done.set()
        return []

    got: list[Reservation] = []
    for answer in at_once([load, load, load, change]):
        assert isinstance(answer, list), answer
        got += answer
    edges = sorted((each.low, each.high) for each in got)
    assert all(older[1] <= newer[0] for older, newer in pairwise(edges))
    assert reserve(bench.store).tag.step == 20


@pytest.mark.live
@pytest.mark.covers("2.13")
def test_a_loader_killed_in_the_middle_leaves_nothing_to_be_given_twice(shared_bench: Bench) -> None:
    create(shared_bench.store, step=10)
    killed = start_loaders(url_of(shared_bench), 2, 0)
    let_go(killed)
    until(lambda: get(shared_bench.store).max > 200, timeout=TIMEOUT)
    got: list[tuple[int, int]] = []
    for loader in killed:
        loader.send_signal(signal.SIGKILL)
        printed, _ = loader.communicate(timeout=TIMEOUT)
        whole, _, _ = printed.rpartition("\n")
        got += segments(whole)
    got += [(each.low, each.high) for each in (reserve(shared_bench.store) for _ in range(5))]
    edges = sorted(got)
    assert all(older[1] <= newer[0] for older, newer in pairwise(edges))
    # A gap is at most what was on its way: one segment for each that died.
    top = get(shared_bench.store).max
    assert top - 20 <= sum(high - low for low, high in got) <= top
