"""A forked child has nothing of its parent's: no segment, connection, thread, lock or call that goes on there."""

import asyncio
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core.steps import Send, Steps, ask
from issuer.core.supply import fetcher
from issuer.drivers.aio.link import AsyncLink
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.blocking.runner import Runner
from issuer.drivers.inherited import LINKS, AnyLink
from issuer.drivers.topology import Address, Exchange
from issuer.drivers.wire import RoundTrips
from issuer.forks import GENERATION
from issuer.gateway import tag_scripts
from issuer.threads import finished
from issuer_persistence.memory import MemoryStore
from issuer_persistence.sqlite import SQLiteStore
from tests.audit import repeats
from tests.colours import COLOURS, Awaited, Connect, covering
from tests.forks import in_child
from tests.servers.proxy import FaultProxy
from tests.waiting import run

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


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
@pytest.mark.colours("blocking")  # asyncio: tests/core/test_streams.py
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


# ---------------------------------------------------------------------------------------------- fork


def collected() -> str:
    warnings.simplefilter("ignore")  # in the child, and only there
    gc.collect()
    return "collected"


@pytest.mark.covers("U.14")
def test_a_fork_costs_the_parents_loop_none_of_its_connections(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that collects them cuts its parent off: a connection is dropped when its reply is overdue."""
    dropped: list[AsyncLink] = []
    drop = AsyncLink.drop

    def counted(link: AsyncLink) -> None:
        dropped.append(link)
        drop(link)

    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store="memory://", timeout=50, redis_timeout=50) as ids:
            await ids.create("a", step=100_000)
            await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))
            assert in_child(collected)() == "collected"
            with monkeypatch.context() as counting:
                counting.setattr(AsyncLink, "drop", counted)
                await asyncio.gather(*(ids.take("a", 2) for _ in range(5)))

    run(main(), 60)
    assert dropped == []


@pytest.mark.live
async def test_a_child_of_a_loop_does_not_wait_for_a_scheduler_of_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "UNCLAIMED", 60.0)  # what a caller waits for it, for each of six segments
    theirs = AsyncIOScheduler(timezone="UTC")
    theirs.start()
    ids = issuer.aconnect(redis="none", store=f"sqlite:///{tmp_path / 'a.db'}", scheduler=theirs)
    async with ids:
        await ids.create("a", step=5)
        assert await ids.next("a") == 1
        answer = await asyncio.to_thread(in_child(lambda: run(ids.take("a", 30, timeout=40), 50)))
        assert isinstance(answer, list), answer
        assert len(answer) == 30
    theirs.shutdown()


# -------------------------------------------------------------------------------- calls of the parent


@pytest.fixture
def younger(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Make this process a child, as far as what was made before can tell."""
    return lambda: monkeypatch.setattr(GENERATION, "now", GENERATION.now + 1)


@pytest.mark.parametrize("colour", COLOURS)
def test_steps_of_the_parent_run_no_further(colour: str, younger: Callable[[], None]) -> None:
    done: list[str] = []

    def steps() -> Steps[None]:
        try:
            yield from ask(lambda _store, _timeout: younger())  # the fork comes while this request is on its way
            done.append("its answer was used")
        except issuer.Unavailable:
            yield from ask(lambda _store, _timeout: done.append("another request was sent"))

    def run() -> None:
        if colour == "blocking":
            Runner(MemoryStore(), None, 60.0).run(steps(), Deadline(60))
        else:
            asyncio.run(AsyncRunner(MemoryStore(), None, 60.0).run(steps(), Deadline(60)))

    with pytest.raises(issuer.Unavailable, match="began in the parent process"):
        run()
    assert done == []


@pytest.mark.live
def test_a_child_reads_nothing_from_connections_of_its_parent(connect: Connect, redis_url: str) -> None:
    with connect(redis=redis_url, store=MemoryStore()) as ids:
        ids.create("a")
        ids.next("a")
        connected = [link.connection.socket.fileno() for link in LINKS if link.connection.socket is not None]
        assert connected
        assert in_child(lambda: {os.read(each, 1) for each in connected})() == {b""}
        assert ids.next("a") == 2


def test_a_file_with_the_number_of_a_closed_connection_stays_open_in_a_child() -> None:
    read, write = os.pipe()
    link = AnyLink(SimpleNamespace(socket=SimpleNamespace(fileno=lambda: write)), None)
    assert link in LINKS
    assert in_child(lambda: os.write(write, b"still"))() == 5
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"still"


@pytest.mark.live
def test_a_call_of_the_parent_is_not_sent_again(redis_url: str, younger: Callable[[], None]) -> None:
    with issuer.connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        redis, call = ids.engine.runner.redis, tag_scripts.read_hash(ids.engine.config.key("a"))
        assert redis is not None
        trips = RoundTrips(redis, Send(call), Deadline(60))
        finished(lambda: trips.exchange(Exchange(Address(), call)))
        younger()
        with pytest.raises(issuer.Unavailable, match="began in the parent process"):
            finished(lambda: trips.exchange(Exchange(Address(), call)))


async def dropped(link: Any) -> None:
    """Drop a connection in the loop that has made it."""
    link.drop()


@pytest.mark.live
def test_a_child_does_not_log_in_over_a_connection_that_its_parent_makes(
    connect: Connect, redis_url: str, younger: Callable[[], None]
) -> None:
    """The server would answer twice, and the parent would take each reply for that of its next call."""
    with connect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        ids.create("a")
        ids.next("a")
        redis = ids.engine.runner.redis
        assert redis is not None
        (node,) = redis.nodes.values()
        idle = [node.idle.pop() for _ in range(len(node.idle))]
        wait = getattr(ids, "wait", lambda done: finished(lambda: done))
        link, reused = wait(redis.connection(node, Deadline(60), connects=True))
        assert not reused
        younger()
        try:
            with pytest.raises(issuer.Unavailable, match="began in the parent process"):
                wait(link.connect(Deadline(60)))
        finally:
            wait(dropped(link)) if hasattr(ids, "wait") else link.drop()
            node.idle.extend(idle)


# ---------------------------------------------------------------------------------------------- forks in C below it


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def called_by(fork: Callable[[], int]) -> set[str]:
    """Fork, and return the names of the functions that ran in the parent."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            names.add(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        pid = fork()
    finally:
        sys.setprofile(None)
    if pid == 0:
        os._exit(0)
    assert ended(pid) == 0
    return names


def test_a_fork_that_python_sees_runs_no_python_code_below_it() -> None:
    assert issuer.__version__
    for _ in range(2):
        called = called_by(os.fork)
        assert {"_before", "_in_parent"} <= called
        assert not {"_before_unseen", "_in_parent_unseen", "_Call.__get__"} & called


def test_a_child_of_such_a_fork_forks_in_the_same_way() -> None:
    called = in_child(lambda: called_by(os.fork))()
    assert isinstance(called, set), called
    assert "_before" in called
    assert "_before_unseen" not in called


@pytest.mark.soak
def test_forks_beside_threads_that_begin_and_end_come_back() -> None:
    stop = threading.Event()

    def bustle() -> None:
        while not stop.is_set():
            threading.Thread(target=sum, args=(range(100),)).start()

    threads = [threading.Thread(target=bustle) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(300):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            assert ended(pid) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
