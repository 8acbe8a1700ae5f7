"""close() while callers wait and extensions are under way: everybody gets an answer, and no number comes after it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.audit import repeats
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import Heartbeat, eventually, run, until

pytestmark = pytest.mark.live

WAITERS = 30


class Slow(MemoryStore):
    """A store whose reservations take a while from the moment on that it is told to."""

    seconds = 0.0
    begun = 0

    def reserve(self, *args: Any, **options: Any) -> Reservation:
        self.begun += 1
        threading.Event().wait(self.seconds)
        return super().reserve(*args, **options)


@pytest.fixture
def store() -> Slow:
    return Slow()


# ---------------------------------------------------------------------------------------------- threads


def test_an_extension_that_ends_after_close_opens_nothing_again(fake_server: FencedFakeServer, store: Slow) -> None:
    ids = issuer.connect(redis=fake_server.client(), store=store)
    ids.create("a", step=100)
    ids.take("a", 25)
    until(lambda: ids.inspect("a").redis.next_max == 200)  # type: ignore[union-attr]  # drawn from, so it is there
    store.seconds = 0.3
    ids.take("a", 100)
    until(lambda: store.begun == 3, message="the extension is under way")
    ids.close()
    with pytest.raises(issuer.IssuerError, match="closed"):
        ids.next("a")
    assert ids._open == {}


@pytest.mark.parametrize("scheduler", ["background", None])
def test_threads_that_wait_for_a_segment_are_told_of_the_close(store: Slow, scheduler: Any) -> None:
    ids = issuer.connect(redis=None, store=store, scheduler=scheduler, timeout=8)
    ids.create("a", step=3)
    store.seconds = 0.3
    answers: list[object] = []

    def draw() -> None:
        try:
            answers.append(ids.next("a"))
        except issuer.IssuerError as error:
            answers.append(error)

    threads = [threading.Thread(target=draw) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    until(lambda: store.begun)
    began = time.monotonic()
    ids.close()
    for thread in threads:
        thread.join(5)
    assert time.monotonic() - began < 1.5
    assert len(answers) == WAITERS
    assert repeats(answer for answer in answers if isinstance(answer, int)) == []
    assert all("closed" in str(answer) for answer in answers if not isinstance(answer, int))
    # What came too late for them went back to the store.
    record = store.get("a", timeout=1)
    assert record is not None
    assert record.max == sum(isinstance(answer, int) for answer in answers)


def test_threads_that_wait_for_redis_are_told_of_the_close(start_redis: Callable[..., RedisServer]) -> None:
    server = start_redis()
    ids = issuer.connect(redis=server.url, store="memory://", timeout=20, redis_timeout=0.3)
    ids.create("a", step=3)
    ids.next("a")
    server.pause()
    errors: list[issuer.IssuerError] = []

    def draw() -> None:
        try:
            ids.next("a")
        except issuer.IssuerError as error:
            errors.append(error)

    threads = [threading.Thread(target=draw) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    until(lambda: ids._roster.line("a")._batch.claimed or ids._roster.line("a")._turn.locked())
    began = time.monotonic()
    ids.close()
    for thread in threads:
        thread.join(10)
    server.resume()
    assert time.monotonic() - began < 4
    assert len(errors) == WAITERS


# ---------------------------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("order", ["strict", "trend"])
def test_tasks_that_wait_for_a_segment_are_told_of_the_close(
    fake_server: FencedFakeServer, store: Slow, order: Any, scheduler: Any
) -> None:
    async def main() -> None:
        redis = fake_server.async_client() if order == "strict" else None
        ids = issuer.aconnect(redis=redis, store=store, scheduler=scheduler, timeout=8)
        await ids.create("a", step=3, order=order)
        store.seconds = 0.3
        tasks = [asyncio.create_task(ids.next("a")) for _ in range(WAITERS)]
        await eventually(lambda: store.begun)
        began = time.monotonic()
        async with Heartbeat() as heart:
            await ids.close()
            answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - began < 1.5
        assert heart.longest < 0.2
        assert repeats(answer for answer in answers if isinstance(answer, int)) == []
        rest = Counter(str(answer) for answer in answers if not isinstance(answer, int))
        assert list(rest) in ([], ["tag 'a': this issuer is closed"])
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main())


@pytest.mark.parametrize("scheduler", ["background", None])
def test_tasks_that_wait_for_redis_are_told_of_the_close_at_once(
    start_redis: Callable[..., RedisServer], scheduler: Any
) -> None:
    server = start_redis()

    async def main() -> None:
        ids = issuer.aconnect(redis=server.url, store=MemoryStore(), scheduler=scheduler, timeout=20)
        await ids.create("a", step=3)
        await ids.create("t", step=3, order="trend", lease=2)
        assert [await ids.next("a"), await ids.next("t")] == [1, 1]
        server.pause()
        tasks = [asyncio.create_task(call) for _ in range(WAITERS) for call in (ids.next("a"), ids.take("t", 3))]
        await eventually(lambda: ids._roster.line("a")._server is not None)
        began = time.monotonic()
        await ids.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert time.monotonic() - began < 6
        assert not [answer for answer in answers if not isinstance(answer, issuer.IssuerError | list)]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        run(main())
    finally:
        server.resume()


def test_a_loop_that_is_closed_right_after_close_has_no_task_left(
    fake_server: FencedFakeServer, store: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store hangs for longer than close waits for it."""
    monkeypatch.setattr("issuer.async_facade.CLOSING", 0.2)

    async def begin() -> issuer.AsyncIssuer:
        ids = issuer.aconnect(redis=fake_server.async_client(), store=store)
        await ids.create("a", step=3)
        store.seconds = 1.0
        task = asyncio.create_task(ids.next("a"))
        await eventually(lambda: store.begun)
        await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        return ids

    loop = asyncio.new_event_loop()
    try:
        ids = loop.run_until_complete(begin())
        began = time.monotonic()
        loop.run_until_complete(ids.close())
        assert time.monotonic() - began < 0.8
        assert asyncio.all_tasks(loop) == set()
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_close_is_harmless_twice_and_at_once(store: Slow) -> None:
    async def main() -> None:
        ids = issuer.aconnect(redis=None, store=store)
        await ids.create("a", step=3)
        await ids.next("a")
        await asyncio.gather(*(ids.close() for _ in range(10)))
        await ids.close()

    run(main())


def test_a_close_that_is_cancelled_closes_all_the_same(fake_server: FencedFakeServer, store: Slow) -> None:
    async def main() -> None:
        ids = issuer.aconnect(redis=fake_server.async_client(), store=store, timeout=8)
        await ids.create("a", step=3)
        store.seconds = 0.5
        waiting = asyncio.create_task(ids.next("a"))
        await eventually(lambda: store.begun)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ids.close(), 0.1)
        assert ids.closed
        with pytest.raises(issuer.IssuerError, match="closed"):
            await waiting

    run(main())


# ---------------------------------------------------------------------------------------------- what others wait for


@pytest.mark.parametrize("lease", [0, 15])
def test_an_election_that_close_finds_is_served_and_keeps_nobody_waiting(
    redis_server: RedisServer, redis_url: str, lease: int
) -> None:
    """The draw that reaches the mark elects this process, and its extension has not begun when it closes."""
    assert redis_server.running
    store = MemoryStore()

    async def main() -> list[int]:
        async with issuer.aconnect(redis=redis_url, store=store, lease=lease) as ids:
            await ids.create("a", step=70, order="trend")
            return await ids.take("a", 20)

    numbers = run(main())
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        began = time.monotonic()
        numbers += ids.take("a", 120)
        assert time.monotonic() - began < 1.5  # and not the 4 s for which an election stands
    assert numbers == list(range(1, 141))


def test_threads_serve_an_election_too_before_they_close(redis_server: RedisServer, redis_url: str) -> None:
    assert redis_server.running
    store = MemoryStore()
    last = 0
    began = time.monotonic()
    for _ in range(10):
        with issuer.connect(redis=redis_url, store=store) as ids:
            if not last:
                ids.create("a", step=50)
            numbers = ids.take("a", 45)
            assert numbers == list(range(last + 1, last + 46))
            last += 45
    assert time.monotonic() - began < 3
