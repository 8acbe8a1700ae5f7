"""Streams on a real Redis: endless, fast, shared with everything else that draws, and new after a fork."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.gateway.commands import script
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST
from tests.audit import repeats
from tests.colours import Connect
from tests.forks import in_child
from tests.refusals import refused
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def some(stream: Iterator[int], n: int) -> list[int]:
    return list(itertools.islice(stream, n))


@pytest.mark.parametrize(("order", "direct"), [("strict", False), ("trend", False), ("trend", True)])
def test_streams_next_and_take_share_the_numbers_and_each_is_higher_than_the_one_before(
    connect: Connect, redis_url: str, order: Any, direct: bool
) -> None:
    with connect(redis="none" if direct else redis_url, store="memory://", lease=9) as ids:
        ids.create("a", step=40, order=order)
        one, two = ids.stream("a"), ids.stream("a")
        numbers: list[int] = []
        for turn in range(60):
            numbers += [next(one), ids.next("a"), next(two), *some(one, turn % 5), *ids.take("a", turn % 7 + 1)]
        assert numbers == sorted(set(numbers))


def test_streams_in_many_threads_repeat_nothing_and_each_increases(redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", lease=100) as ids:
        ids.create("a", step=1000, order="trend")
        runs: list[list[int]] = [[] for _ in range(8)]

        def draw(run: list[int], number: int) -> None:
            run += some(ids.stream("a"), 1500) if number % 2 else [ids.next("a") for _ in range(1500)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(draw, runs, range(8)))
        assert repeats(itertools.chain(*runs)) == []
        assert all(run == sorted(run) for run in runs)
        assert max(map(max, runs)) <= ids.inspect("a").store.max


def test_a_stream_ends_with_the_error_that_next_would_raise_and_a_new_one_goes_on(
    connect: Connect, redis_url: str
) -> None:
    with connect(redis=redis_url, store="memory://") as ids:
        ids.create("a", step=10, limit=25, order="trend")
        stream = ids.stream("a")
        assert some(stream, 25) == list(range(1, 26))
        refused(issuer.LimitReached, "", next, stream)
        ids.configure("a", limit=30)
        assert some(ids.stream("a"), 5) == list(range(26, 31))
        with pytest.raises(issuer.InvalidArgument):
            next(ids.stream(""))
        with pytest.raises(issuer.InvalidArgument):
            next(ids.stream("a", timeout=-1))
        high = ids.stream("high")
        ids.create("high", start=HIGHEST - 2, order="trend")
        assert some(high, 3) == [HIGHEST - 2, HIGHEST - 1, HIGHEST]


def test_an_abandoned_stream_loses_nothing_nor_does_one_whose_issuer_is_closed(
    connect: Connect, redis_url: str
) -> None:
    store = MemoryStore()
    with connect(redis=redis_url, store=store) as ids:
        ids.create("a", step=10_000, order="trend")
        stream = ids.stream("a")
        assert some(stream, 5) == [1, 2, 3, 4, 5]
        del stream
        assert ids.next("a") == 6
        stream = ids.stream("a")
        assert some(stream, 3) == [7, 8, 9]
        ids.close()
        refused(issuer.IssuerError, "closed", next, stream)
    with connect(redis=redis_url, store=store) as ids:
        assert ids.next("a") == 10


def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


def test_forks_while_other_threads_stream_repeat_nothing(redis_url: str, tmp_path: Path) -> None:
    with issuer.connect(redis=redis_url, store=sqlite(tmp_path), lease=50) as ids:
        ids.create("a", step=10**6, order="trend")
        stop = threading.Event()
        streams = [ids.stream("a") for _ in range(3)]
        runs: list[list[int]] = [[] for _ in streams]

        def draw(stream: Iterator[int], run: list[int]) -> None:
            while not stop.is_set():
                run += some(stream, 7)

        threads = [threading.Thread(target=draw, args=pair) for pair in zip(streams, runs, strict=True)]
        for thread in threads:
            thread.start()
        mine = ids.stream("a")
        numbers = some(mine, 3)
        try:
            answers = [in_child(lambda: [*some(mine, 60), ids.next("a")])() for _ in range(12)]
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        for answer in answers:
            assert isinstance(answer, list), answer
            numbers += answer
        assert repeats(itertools.chain(numbers, *runs)) == []


def test_a_child_goes_on_with_an_async_stream_of_its_parent(redis_url: str, tmp_path: Path) -> None:
    async def made() -> Any:
        ids = issuer.aconnect(redis=redis_url, store=sqlite(tmp_path), scheduler=None)
        await ids.create("a", step=5000, order="trend")
        return ids

    async def drawn(stream: Any, n: int) -> list[int]:
        return [await anext(stream) for _ in range(n)]

    with asyncio.Runner() as parent:
        ids = parent.run(made())
        stream = ids.stream("a")
        numbers = parent.run(drawn(stream, 20))
        results = [in_child(lambda: asyncio.run(drawn(stream, 50))) for _ in range(3)]
        numbers += parent.run(drawn(stream, 20))
        for result in results:
            answer = result()
            assert isinstance(answer, list), answer
            numbers += answer
        assert repeats(numbers) == []
        parent.run(ids.close())


def test_a_fork_while_another_thread_closes_the_issuer_repeats_nothing(redis_proxy: FaultProxy, tmp_path: Path) -> None:
    ids = issuer.connect(redis=redis_proxy.url, store=sqlite(tmp_path), lease=100)
    ids.create("a", step=10**6, order="trend")
    stream = ids.stream("a")
    assert some(stream, 10) == list(range(1, 11))
    redis_proxy.hold(match=script("lease").sha.encode(), times=1)
    numbers = some(stream, 15)  # the mark is passed, so a lease is on its way, and the rest of this one lies open
    until(lambda: redis_proxy.held, 60)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(ids.close)
        until(lambda: ids.closed, 60)
        child = in_child(lambda: some(stream, 5))
        with suppress(issuer.IssuerError):
            numbers += some(stream, 5)
        theirs = child()
        redis_proxy.release()
        closing.result()
    assert isinstance(theirs, list), theirs
    assert repeats([*numbers, *theirs]) == []
    with issuer.connect(redis=redis_proxy.url, store=sqlite(tmp_path), lease=100) as after:
        assert after.next("a") > max(numbers + theirs)
