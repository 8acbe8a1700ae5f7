"""Many at once: threads on one store object, on several, and processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest

from issuer_persistence.errors import StoreError, TagPresent
from issuer_persistence.records import Tag
from tests.stores.benches import TIMEOUT, Bench, check_contiguous, create, get, ranges, reserve, spans
from tests.stores.processes import finish, kill, let_go, lines, segments, start_loaders

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from issuer_persistence.contract import Store
    from issuer_persistence.ledger import Reservation
    from tests.stores.benches import MongoBench, SQLiteBench

T = TypeVar("T")
THREADS = 6


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


def stores_of(bench: Bench) -> list[Store]:
    """A store for each thread: the first three share one, the others have their own."""
    return [*[bench.store] * 3, *[bench.open() for _ in range(THREADS - 3)]]


@pytest.mark.covers("0.9", "2.12", "3.28")
def test_threads_never_get_the_same_segment(bench: Bench) -> None:
    create(bench.store, step=5, ahead=2)

    def some(store: Store) -> list[Reservation]:
        return [reserve(store, None if turn % 2 else 7) for turn in range(6)]

    got: list[tuple[int, int]] = []
    for answer in at_once([partial(some, store) for store in stores_of(bench)]):
        assert isinstance(answer, list), answer
        got += spans(answer)
    check_contiguous(got, 0, THREADS * (3 * 10 + 3 * 7))
    assert sorted(got) == ranges(bench.store)
    assert get(bench.store).max == max(high for _, high in got)


@pytest.mark.live
@pytest.mark.covers("3.16", "0.9", "0.10", "1.1")
def test_two_loaders_never_get_the_same_segment(shared_bench: SQLiteBench | MongoBench) -> None:
    create(shared_bench.store, step=1000)
    loaders = start_loaders(shared_bench.url, 4, 10)
    let_go(loaders)
    got = [segments(finish(loader)) for loader in loaders]
    assert [len(each) for each in got] == [10] * 4  # four times as many as one would have drawn
    known = sorted(each for segments in got for each in segments)
    check_contiguous(known, 0, 40_000)
    assert known == ranges(shared_bench.store)


@pytest.mark.covers("1.5", "2.11")
def test_creating_a_tag_at_once_makes_one_and_so_does_bringing_it_back(bench: Bench) -> None:
    opened, top = stores_of(bench), 0
    for _ in range(2):
        answers = at_once([partial(create, store, above=i) for i, store in enumerate(opened)])
        [made] = [each for each in answers if isinstance(each, Tag)]
        assert [type(each) for each in answers if isinstance(each, StoreError)] == [TagPresent] * (THREADS - 1)
        assert bench.store.tags(count=1000, timeout=TIMEOUT) == [made]
        assert made.max >= top
        # And whoever was told that it is there gets blocks of the same one.
        top = made.max + 1000 * THREADS
        check_contiguous(spans(reserve(store) for store in opened), made.max, top)
        bench.store.delete("orders", timeout=TIMEOUT)


@pytest.mark.live
@pytest.mark.covers("2.9", "2.13")
def test_a_loader_killed_in_the_middle_leaves_nothing_to_be_given_twice(shared_bench: SQLiteBench | MongoBench) -> None:
    create(shared_bench.store, step=10)
    got: list[tuple[int, int]] = []
    loaders = start_loaders(shared_bench.url, 2, 0)
    let_go(loaders)
    for loader in loaders:
        got += segments(lines(loader, 10))
    for loader in loaders:
        got += kill(loader)
    known = ranges(shared_bench.store)
    opened = shared_bench.open()
    got += spans(reserve(opened) for _ in range(5))
    assert all(older[1] <= newer[0] for older, newer in pairwise(sorted(got)))
    # What was given is in the ledger, and a gap is at most what was on its way: one segment for each that died.
    assert set(got[:-5]) <= set(known)
    top = get(shared_bench.store).max
    assert top - 20 <= sum(high - low for low, high in got) <= top
