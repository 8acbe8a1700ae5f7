"""A forked child starts with nothing of its parent's: no segment, connection, thread or lock."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer
from issuer.core.supply import fetcher
from issuer_persistence.sqlite import SQLiteStore
from tests.audit import repeats
from tests.colours import COLOURS, Awaited, Connect, covering
from tests.forks import in_child
from tests.servers.proxy import FaultProxy

# CPython warns that a fork in a process with threads may deadlock: that it does not is what is shown here.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.usefixtures("patient"),
]


def drawn_in_child(ids: Issuer, n: int) -> list[int]:
    """Draw in a child, and end it in order: left alone, an election that it has won would stand for seconds."""
    if not isinstance(ids, Awaited):
        with ids:
            return [*(ids.next("a", timeout=40) for _ in range(n)), *ids.take("a", n, timeout=40)]

    async def drawn() -> list[int]:
        async with ids._ids as own:
            together = await asyncio.gather(*(own.next("a", timeout=40) for _ in range(n)))
            return [*together, *await own.take("a", n, timeout=40)]

    return asyncio.run(drawn())


@pytest.fixture(params=["a lease", "a segment of its own"])
def holder(request: pytest.FixtureRequest, connect: Connect, tmp_path: Path) -> Iterator[Issuer]:
    """An issuer that has issued 1 and 2, and holds 3..100."""
    leased = request.param == "a lease"
    redis = request.getfixturevalue("redis_url") if leased else "none"
    with connect(redis=redis, store=f"sqlite:///{tmp_path / 'a.db'}", lease=100 * leased) as ids:
        ids.create("a", step=1000 if leased else 100, order="trend")
        assert ids.take("a", 2) == [1, 2]
        yield ids


@pytest.mark.live
@pytest.mark.covers("U.14")
def test_what_its_parent_holds_is_not_a_childs(holder: Issuer) -> None:
    child = in_child(lambda: drawn_in_child(holder, 2))
    assert child() == [101, 102, 103, 104]
    assert holder.take("a", 3) == [3, 4, 5]


@pytest.mark.live
@pytest.mark.covers("U.14")
@pytest.mark.colours("blocking")  # asyncio: integration/test_streams
def test_a_stream_that_lies_open_at_the_fork_goes_on_with_the_childs_own_numbers(holder: Issuer) -> None:
    stream = holder.stream("a")
    assert [next(stream) for _ in range(2)] == [3, 4]
    child = in_child(lambda: [next(stream) for _ in range(3)])
    assert child() == [101, 102, 103]
    assert next(stream) == 5


@pytest.mark.covers("U.14")
def test_a_child_draws_over_connections_of_its_own_and_costs_its_parent_none(
    connect: Connect, redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    with connect(redis=redis_proxy.url, store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=None) as ids:
        ids.create("a", step=1000)
        numbers = ids.take("a", 2)
        before = redis_proxy.accepted
        theirs = in_child(lambda: drawn_in_child(ids, 2))()
        assert isinstance(theirs, list), theirs
        assert redis_proxy.accepted > before
        before = redis_proxy.accepted
        numbers += ids.take("a", 2)
        assert redis_proxy.accepted == before
        assert sorted(numbers + theirs) == list(range(1, 9))


@pytest.mark.live
@pytest.mark.covers("U.14")
@covering("connect, behind", [("blocking", "a store"), ("asyncio", "redis")], COLOURS, ["a store", "redis"])
def test_eight_children_repeat_nothing(
    request: pytest.FixtureRequest, connect: Connect, behind: str, tmp_path: Path
) -> None:
    redis = request.getfixturevalue("redis_url") if behind == "redis" else "none"
    with connect(redis=redis, store=f"sqlite:///{tmp_path / 'a.db'}", lease=30) as ids:
        ids.create("a", step=70, order="trend")
        numbers = ids.take("a", 50)
        results = [in_child(lambda: drawn_in_child(ids, 50)) for _ in range(8)]
        numbers += [ids.next("a") for _ in range(200)]
        for result in results:
            answer = result()
            assert isinstance(answer, list), answer
            assert len(answer) == 100
            numbers += answer
        assert repeats(numbers) == []


@pytest.mark.live
def test_a_child_is_not_stopped_by_locks_that_threads_of_the_parent_hold(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "a.db")
    with issuer.connect(redis="none", store=store, timeout=40) as ids:
        ids.create("a", step=10)
        stop = threading.Event()
        with ThreadPoolExecutor(4) as pool:
            for _ in range(4):
                pool.submit(lambda: [ids.next("a") for _ in iter(stop.is_set, True)])
            try:
                answers = [in_child(lambda: ids.next("a"))() for _ in range(10)]
            finally:
                stop.set()
        assert all(isinstance(answer, int) for answer in answers), answers
        assert repeats(answers) == []  # type: ignore[arg-type]  # integers, as was just checked
    store.close()


@pytest.mark.live
def test_a_child_does_not_wait_for_a_scheduler_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "UNCLAIMED", 60.0)  # what a caller waits for it, for each of five segments
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    try:
        with issuer.connect(redis="none", store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=theirs) as ids:
            ids.create("a", step=10)
            assert ids.next("a") == 1
            answer = in_child(lambda: ids.take("a", 50, timeout=40))()
            assert isinstance(answer, list), answer
            assert len(answer) == 50
    finally:
        theirs.shutdown()


def test_what_was_just_about_to_lie_open_at_the_fork_is_spent_too(connect: Connect, tmp_path: Path) -> None:
    with connect(redis="none", store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=None) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        inner = ids._ids if isinstance(ids, Awaited) else ids
        numbers = inner.engine.registry.combiners["a"].state.open
        inner.engine.runtime.fast_path.unpublish("a")  # the fork comes between the two assignments of a hand
        assert in_child(lambda: [*numbers])() == []
        assert next(iter(numbers)) == 2


def test_a_memory_store_refuses_to_serve_a_child() -> None:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        assert "ConfigurationError" in str(in_child(lambda: ids.next("a"))())
        assert ids.next("a") == 2
