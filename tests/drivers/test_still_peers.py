"""A peer stands still: a call to it, and a call that waits beside it, end by their own deadline.

Each call runs in a thread of its own, so that a test of a call that never ends fails, and does not hang.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer.strategies import Strategy, registry
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.holding import acquired
from issuer_persistence.memory import MemoryStore
from issuer_persistence.opening import open_store
from issuer_persistence.sqlite import SQLiteStore
from tests.colours import Connect
from tests.deadlines import ENDLESS, refused
from tests.hanging import HangingStore
from tests.servers.redis import RedisServer
from tests.waiting import ended, eventually, until

#: Deadline of a call, in seconds. It is too short to count as silence of Redis, which would close all connections.
SHORT = 0.2

#: How many connections a process may have.
MOST = 3

#: No deadline but that of the call.
FAR: dict[str, Any] = {**ENDLESS, "store_timeout": 60, "insist": 60}


class Deaf(MemoryStore):
    """A store whose reads ignore their timeout until the test resumes them."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.begun = 0

    def get(self, tag: str, *, timeout: float) -> Any:
        self.begun += 1
        self.answers.wait(120)
        return super().get(tag, timeout=timeout)


def stands_still(connect: Connect, server: RedisServer, store: MemoryStore, tag: str) -> None:
    """Draw "a" once. Then the server stands still. A draw of the tag ends by its deadline, and drops its link."""
    with connect(redis=server.url, store=store, scheduler=None, redis_connections=MOST, **FAR) as ids:
        for each in ("a", "b"):
            ids.create(each)
        assert ids.next("a") == 1
        server.pause()
        try:
            ended(lambda: refused(ids, tag, SHORT))
            redis = ids.engine.runner.redis
            assert redis is not None
            until(lambda: len(redis.pool.free) == MOST, 30, "the connection that owes a reply was closed")
        finally:
            server.resume()


@pytest.mark.parametrize("tag", ["a", "b"], ids=["warm", "first"])
def test_a_redis(connect: Connect, server: RedisServer, store: MemoryStore, tag: str) -> None:
    stands_still(connect, server, store, tag)


def test_a_redis_behind_tls(connect: Connect, start_tls: Callable[..., RedisServer], store: MemoryStore) -> None:
    stands_still(connect, start_tls(), store, "a")


@contextmanager
def beside(call: Callable[[], object], under_way: Callable[[], object], resume: Callable[[], object]) -> Iterator[None]:
    """Make the call in another thread. In the block, it is under way. After the block, `resume` lets it end."""
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(call)
        try:
            until(under_way)
            yield
            assert not other.done()
        finally:
            resume()
        other.result()


def test_the_connections_to_redis_are_all_in_use(connect: Connect, server: RedisServer, store: MemoryStore) -> None:
    with connect(redis=server.url, store=store, scheduler=None, redis_connections=1, **FAR) as ids:
        for tag in ("a", "b"):
            ids.create(tag)
            assert ids.next(tag) == 1
        server.pause()
        redis = ids.engine.runner.redis
        assert redis is not None
        with (
            beside(lambda: ids.next("a"), lambda: not redis.node("").idle, server.resume),
            pytest.raises(issuer.RedisUnavailable, match="all 1 connections"),
        ):
            ended(lambda: ids.peek("b", timeout=SHORT))


def test_a_store_that_ignores_its_timeout(connect: Connect) -> None:
    store = Deaf()
    with connect(redis="none", store=store, scheduler=None, **FAR) as ids:
        with pytest.raises(issuer.StoreUnavailable, match="gave no answer within"):
            ended(lambda: ids.inspect("a", timeout=SHORT))
        store.answers.set()


def test_another_caller_fetches_the_segment(connect: Connect) -> None:
    store = HangingStore()
    with connect(redis="none", store=store, scheduler=None, **FAR) as ids:
        ids.create("a", order="trend", step=1)
        assert ids.next("a") == 1
        store.hang()
        with (
            beside(lambda: ids.take("a", 5), lambda: store.begun[-1] == "reserve", store.resume),
            pytest.raises(issuer.StoreUnavailable),
        ):
            ended(lambda: ids.take("a", 5, timeout=SHORT))


def test_the_scheduler_of_the_program_has_no_free_thread(store: MemoryStore) -> None:
    begun, go = threading.Event(), threading.Event()

    def still() -> None:
        begun.set()
        go.wait(120)

    theirs = BackgroundScheduler(executors={"default": {"type": "threadpool", "max_workers": 1}})
    theirs.add_job(still)
    theirs.start()
    try:
        assert begun.wait(60)
        with issuer.connect(redis="none", store=store, scheduler=theirs, **FAR) as ids:
            ids.create("a", order="trend", step=1)
            assert ended(lambda: ids.take("a", 3)) == [1, 2, 3]
    finally:
        go.set()
        theirs.shutdown()


def test_a_loop_ends_beside_a_draw_whose_caller_was_cancelled(server: RedisServer, store: MemoryStore) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=store, scheduler=None, **FAR) as ids:
            await ids.create("a")
            assert await ids.next("a") == 1
            server.pause()
            draw = asyncio.create_task(ids.take("a", 2))
            redis = ids.engine.runner.redis
            node = None if redis is None else redis.node("")
            assert node is not None
            await eventually(lambda: not node.idle)
            draw.cancel()
            await asyncio.gather(draw, return_exceptions=True)

    try:
        ended(lambda: asyncio.run(main()))
    finally:
        server.resume()


def test_another_caller_is_in_a_blocking_strategy(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(Strategy):
        def generate(self, n: int) -> list[int]:
            begun.set()
            assert go.wait(120)
            return list(range(1, n + 1))

    monkeypatch.setitem(registry._registered, "slow", Slow)
    with connect(redis="none", store=MemoryStore(), scheduler=None, **FAR) as ids:
        ids.create("a", strategy="slow")
        with beside(lambda: ids.take("a", 3), begun.is_set, go.set), pytest.raises(issuer.Unavailable, match="is busy"):
            ended(lambda: ids.take("a", 3, timeout=SHORT))


STORES: dict[str, Callable[[Path], MemoryStore | SQLiteStore]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SQLiteStore(folder / "ids.db"),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_thread_in_the_middle_of_a_call_of_the_store(kind: str, tmp_path: Path) -> None:
    with (
        closing(STORES[kind](tmp_path)) as store,
        store.transaction(60),
        pytest.raises(Unconfirmed, match=r"for 0.2 s"),
    ):
        ended(lambda: store.get("a", timeout=SHORT))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_an_sql_server_that_accepts_no_connection(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, ExitStack() as ends:
        for _ in range(4):  # more than the kernel keeps for a server that does not accept them
            client = ends.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        store = ends.enter_context(closing(open_store(f"{scheme}://tester@127.0.0.1:{full.getsockname()[1]}/test")))
        with pytest.raises(Unconfirmed):
            ended(lambda: store.get("a", timeout=SHORT))


def test_a_thread_that_holds_a_lock() -> None:
    lock, held = threading.Lock(), list[Any]()
    with lock:
        assert not ended(lambda: acquired(lock, SHORT, held))
    assert held == []
