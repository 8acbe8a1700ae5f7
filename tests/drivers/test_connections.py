"""Connections to Redis: never more than the setting, whatever is asked, and calls wait for one in their order."""

import asyncio
import gc
import signal
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

import issuer
from issuer import clock
from issuer.clock import Deadline
from issuer.drivers.aio.link import AsyncLink
from issuer.drivers.aio.runner import AsyncRunner
from issuer.drivers.blocking.connections import Node
from issuer.drivers.blocking.link import Link, Waker
from issuer.drivers.servers import Permit, Pool
from issuer.drivers.topology import Address
from issuer.errors import RedisUnavailable
from issuer.threads import finished
from tests.servers.cluster import ClusterServers
from tests.servers.proxy import FaultProxy
from tests.waiting import eventually, run, until

MOST = 4


TAGS = [f"tag-{number}" for number in range(40)]


def settings(redis: str, tmp_path: Path, **others: Any) -> dict[str, Any]:
    # Without a scheduler: a sweep whose reply is held closes its connection, and another one is opened.
    patient = {"timeout": 60.0, "redis_timeout": 50.0, "store_timeout": 40.0, "scheduler": None}
    return {"redis": redis, "store": f"sqlite:///{tmp_path / 'ids.db'}", **patient, "redis_connections": MOST, **others}


def several(ids: issuer.Issuer, tag: str) -> list[int]:
    return [ids.next(tag) for _ in range(20)]


def test_threads_that_draw_from_many_tags_share_the_connections(redis_proxy: FaultProxy, tmp_path: Path) -> None:
    with issuer.connect(**settings(redis_proxy.url, tmp_path)) as ids, ThreadPoolExecutor(len(TAGS)) as pool:
        for tag in TAGS:
            ids.create(tag)
        queue = ids.engine.runner.redis.pool.waiting  # type: ignore[union-attr]
        redis_proxy.hold(times=MOST)
        drawn = [pool.submit(several, ids, tag) for tag in TAGS]
        until(lambda: len(queue) == len(TAGS) - MOST, message="all others wait for their turn")
        until(lambda: len(redis_proxy.held) == MOST)
        redis_proxy.release()
        assert [each.result() for each in drawn] == [[*range(1, 21)]] * len(TAGS)
        assert not queue
        assert redis_proxy.accepted == MOST


async def test_tasks_that_draw_from_many_tags_share_the_connections(redis_proxy: FaultProxy, tmp_path: Path) -> None:
    async with issuer.aconnect(**settings(redis_proxy.url, tmp_path)) as ids:
        for tag in TAGS:
            await ids.create(tag)
        queue = ids.engine.runner.redis.pool.waiting  # type: ignore[union-attr]

        async def draw(tag: str) -> list[int]:
            return [await ids.next(tag) for _ in range(20)]

        await asyncio.to_thread(redis_proxy.hold, times=MOST)
        drawn = [asyncio.create_task(draw(tag)) for tag in TAGS]
        await eventually(lambda: len(queue) == len(TAGS) - MOST, message="all others wait for their turn")
        # One that is cancelled while it waits leaves no gap in the queue.
        gone = asyncio.create_task(ids.peek(TAGS[-1]))
        await eventually(lambda: len(queue) == len(TAGS) - MOST + 1)
        gone.cancel()
        await eventually(lambda: len(queue) == len(TAGS) - MOST)
        await asyncio.to_thread(redis_proxy.release)
        assert await asyncio.gather(*drawn) == [[*range(1, 21)]] * len(TAGS)
        assert not queue
        assert redis_proxy.accepted == MOST


async def test_the_reply_to_a_call_that_was_cancelled_is_not_taken_for_the_next_ones(
    redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    async with issuer.aconnect(**settings(redis_proxy.url, tmp_path, redis_connections=1)) as ids:
        for number, tag in enumerate(TAGS[:2]):
            await ids.create(tag, start=100 * number + 1)
            await ids.next(tag)
        redis_proxy.hold(times=1)
        gone = asyncio.create_task(ids.peek(TAGS[0]))
        await eventually(lambda: redis_proxy.held)
        gone.cancel()
        await asyncio.wait([gone])
        redis_proxy.release()
        assert [(await ids.peek(tag)).counter for tag in (TAGS[1], TAGS[0])] == [102, 2]


@pytest.mark.parametrize("what", ["take", "key"])
async def test_draws_that_are_cancelled_while_they_wait_for_a_connection_are_not_sent(
    redis_proxy: FaultProxy, tmp_path: Path, what: str
) -> None:
    """They stood in the queue until they had a connection. New calls waited behind them, for seconds."""
    async with issuer.aconnect(**settings(redis_proxy.url, tmp_path, redis_connections=1, scheduler=None)) as ids:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "take": lambda: ids.take("a", 200),
            "key": lambda: ids.next("a", key="k"),
        }
        await ids.create("a")
        assert await ids.next("a") == 1
        pool = ids.engine.runner.redis.pool  # type: ignore[union-attr]
        redis_proxy.hold(times=1)
        sent = asyncio.create_task(ids.take("a", 1))
        await eventually(lambda: redis_proxy.held)
        waiting = [asyncio.ensure_future(calls[what]()) for _ in range(20)]
        await eventually(lambda: len(pool.waiting) == len(waiting))
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        await eventually(lambda: not pool.waiting, message="they have left the queue")
        redis_proxy.release()
        assert await sent == [2]
        assert await ids.next("a") == 3
        assert redis_proxy.accepted == 1


async def test_a_draw_that_is_cancelled_while_it_connects_is_not_sent_and_leaves_its_connection_to_others(
    redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    """If the connection was closed, callers with less patience than a login takes would never be served."""
    async with issuer.aconnect(**settings(redis_proxy.url, tmp_path, redis_connections=2, scheduler=None)) as ids:
        await ids.create("a")
        assert await ids.next("a") == 1
        redis = ids.engine.runner.redis
        assert redis is not None
        assert redis_proxy.accepted == 1
        redis_proxy.hold(times=2)
        sent = asyncio.create_task(ids.take("a", 1))
        await eventually(lambda: len(redis_proxy.held) == 1)
        connects = asyncio.create_task(ids.take("a", 1))
        await eventually(lambda: len(redis_proxy.held) == 2, message="its login")
        connects.cancel()
        await asyncio.wait([connects])
        redis_proxy.release()
        assert await sent == [2]
        await eventually(lambda: len(redis.node("").idle) == 2)  # type: ignore[union-attr]
        assert await ids.take("a", 1) == [3]
        assert redis_proxy.accepted == 2


async def test_a_draw_whose_connection_breaks_after_its_caller_has_left_is_not_sent_again(
    redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    given = settings(redis_proxy.url, tmp_path, scheduler=None)
    async with issuer.aconnect(**given) as ids, issuer.aconnect(**given) as other:
        await ids.create("a")
        assert await ids.next("a") == 1
        redis_proxy.hold(match=b"EVALSHA", times=1)
        gone = asyncio.create_task(other.take("a", 1))  # its first draw, which takes the long way
        await eventually(lambda: redis_proxy.held)
        gone.cancel()
        await asyncio.wait([gone])
        redis_proxy.cut()
        await eventually(lambda: not other.engine.runner._left)
        assert await ids.next("a") == 2


@pytest.mark.parametrize("distance", [1, 7])
async def test_takes_that_find_all_connections_in_use_share_a_draw(
    redis_proxy: FaultProxy, tmp_path: Path, distance: int
) -> None:
    async with issuer.aconnect(**settings(redis_proxy.url, tmp_path, redis_connections=1, scheduler=None)) as ids:
        await ids.create("a", step=100_000, stride=distance, offset=1)
        first = await ids.next("a")
        redis_proxy.hold(times=1)
        sent = asyncio.create_task(ids.take("a", 2))
        await eventually(lambda: redis_proxy.held)
        shared = [asyncio.create_task(ids.take("a", n)) for n in range(1, 41)]
        combiner = ids.engine.registry.combiner("a")
        await eventually(lambda: combiner.waiting == sum(range(1, 41)))
        shared[4].cancel()
        requests = redis_proxy.count()
        redis_proxy.release()
        taken = [await sent, *(await asyncio.gather(*shared, return_exceptions=True))]
        assert redis_proxy.hits - requests <= 3
        assert isinstance(taken.pop(5), asyncio.CancelledError)
        assert [len(each) for each in taken] == [2, 1, 2, 3, 4, *range(6, 41)]  # type: ignore[arg-type]
        numbers = [first, *(number for each in taken for number in each)]  # type: ignore[union-attr]
        assert len({*numbers}) == len(numbers)
        assert all((number - first) % distance == 0 for number in numbers)
        assert max(numbers) <= first + distance * (2 + sum(range(1, 41)))


def test_draws_that_wait_for_a_connection_take_the_short_way(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The long way takes 100 us more. So 160 tasks drew a third of what 28 tasks draw."""
    steps: list[str] = []

    async def main() -> None:
        async with issuer.aconnect(**settings(redis_url, tmp_path, scheduler=None)) as ids:
            await ids.create("a", step=100_000)
            # In the first round connections are made, and the tag becomes known.
            await asyncio.gather(*(ids.take("a", 200) for _ in range(10 * MOST)))
            steps.clear()
            taken = await asyncio.gather(*(ids.take("a", 200) for _ in range(10 * MOST)))
            assert len({number for each in taken for number in each}) == 2000 * MOST
            assert steps == []

    long = AsyncRunner.run

    def counted(self: AsyncRunner, *given: Any) -> Any:
        steps.append("")
        return long(self, *given)

    monkeypatch.setattr(AsyncRunner, "run", counted)
    run(main(), timeout=240.0)


class Interrupted(BaseException):
    """What the handler of a signal raises."""


def test_the_reply_to_a_call_that_a_signal_has_interrupted_is_not_taken_for_the_next_ones(
    redis_proxy: FaultProxy, tmp_path: Path
) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    def send(to: int) -> None:
        until(lambda: redis_proxy.held)
        signal.pthread_kill(to, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with issuer.connect(**settings(redis_proxy.url, tmp_path, redis_connections=1, scheduler=None)) as ids:
            for number, tag in enumerate(TAGS[:2]):
                ids.create(tag, start=100 * number + 1)
                ids.next(tag)
            redis_proxy.hold(times=1)
            sender = threading.Thread(target=send, args=(threading.get_ident(),))
            sender.start()
            with pytest.raises(Interrupted):
                ids.peek(TAGS[0])
            sender.join()
            redis_proxy.release()
            assert [ids.peek(tag).counter for tag in (TAGS[1], TAGS[0])] == [102, 2]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_call_that_waits_for_a_connection_gives_up_in_its_time(redis_proxy: FaultProxy, tmp_path: Path) -> None:
    with issuer.connect(**settings(redis_proxy.url, tmp_path, redis_connections=1)) as ids:
        for tag in TAGS[:2]:
            ids.create(tag)
        assert ids.next(TAGS[1]) == 1
        redis_proxy.hold(times=1)
        draws = threading.Thread(target=ids.next, args=(TAGS[0],))
        draws.start()
        connections = ids.engine.runner.redis
        assert connections is not None
        until(lambda: redis_proxy.held)
        assert not connections.node("").idle
        with pytest.raises(RedisUnavailable, match="all 1 connections to Redis of this process are in use"):
            ids.next(TAGS[1], timeout=0.5)
        # That says nothing of the server.
        assert not connections.route.breakers[connections.node("").address].failures
        redis_proxy.release()
        draws.join()
        assert [ids.next(tag) for tag in TAGS[:2]] == [2, 2]
        assert redis_proxy.accepted == 1


def test_connections_that_break_leave_their_place_to_others(redis_proxy: FaultProxy, tmp_path: Path) -> None:
    with issuer.connect(**settings(redis_proxy.url, tmp_path)) as ids, ThreadPoolExecutor(len(TAGS)) as pool:
        for tag in TAGS:
            ids.create(tag)
        for _ in range(3):
            drawn = [pool.submit(several, ids, tag) for tag in TAGS]
            redis_proxy.cut()
            assert all(len({*each.result()}) == 20 for each in drawn)
        connections = ids.engine.runner.redis
        assert connections is not None
        permits = connections.pool.free
        until(lambda: len(permits) + len(connections.node("").idle) == MOST, message="what extends ends too")


@pytest.mark.parametrize("most", [1, 2])
def test_a_cluster_of_more_nodes_than_connections_is_drawn_from(
    cluster: ClusterServers, tmp_path: Path, most: int
) -> None:
    with issuer.connect(**settings(cluster.url, tmp_path)) as ids:
        for tag in TAGS:
            ids.create(tag)
    with (
        issuer.connect(**settings(cluster.url, tmp_path, redis_connections=most)) as ids,
        ThreadPoolExecutor(8) as pool,
    ):
        assert [*map(ids.next, TAGS)] == [1] * len(TAGS)
        for expected in (2, 3):
            assert [*pool.map(ids.next, TAGS)] == [expected] * len(TAGS)


def test_the_default_bounds_a_process(redis_client: redis.Redis, redis_url: str, tmp_path: Path) -> None:
    tags = [f"tag-{number}" for number in range(200)]
    given = settings(redis_url, tmp_path)
    del given["redis_connections"]
    seen: list[int] = []

    async def main() -> None:
        async with issuer.aconnect(**given) as ids:
            await asyncio.gather(*(ids.create(tag) for tag in tags))
            drawn = [asyncio.create_task(ids.next(tag)) for tag in tags]
            while not all(each.done() for each in drawn):
                seen.append(len(await asyncio.to_thread(redis_client.client_list)) - 1)
            assert [await each for each in drawn] == [1] * len(tags)

    run(main(), timeout=240.0)
    assert 1 < max(seen) <= 32


# ---------------------------------------------------------------------------------------------- the pool of permits


@pytest.fixture
def pool() -> Pool[Waker]:
    return Pool(2, Waker)


def test_there_are_so_many_permits_and_one_that_is_lost_comes_back(pool: Pool[Waker]) -> None:
    held = [pool.permit(), pool.permit()]
    assert None not in held
    assert pool.permit() is None
    for _ in range(3):  # each time, and not only once
        held.pop()
        held.append(pool.permit())
        assert None not in held
        assert pool.permit() is None


def test_a_pool_that_nothing_refers_to_ends_with_its_permits(pool: Pool[Waker]) -> None:
    def alive() -> int:
        return sum(type(each) is Pool for each in gc.get_objects())

    before = alive()
    other = Pool(2, Waker)
    permit = other.permit()
    assert alive() == before + 1
    del other
    assert alive() == before
    del permit
    assert pool.permit() is not None


@pytest.fixture
def node(pool: Pool[Waker]) -> Node:
    return Node(Address("one"), pool)


def put_back(node: Node, permit: Permit) -> Link:
    """Return the connection of a call that has ended, as calls do."""
    link = Link(SimpleNamespace(health_check_interval=0, disconnect=lambda: None), permit)
    node.idle.append(link)
    node.settle()
    return link


def test_each_connection_that_is_free_goes_to_the_call_that_has_waited_longest(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    first, second, third = (pool.queue(node, Deadline(60.0)) for _ in range(3))
    links = [put_back(node, held.pop()) for _ in range(2)]  # type: ignore[arg-type]
    assert [turn.given for turn in (first, second, third)] == [[links[0]], [links[1]], []]
    for turn in (first, second):
        finished(lambda: turn.waker.wait(60.0))  # noqa: B023 - called at once
    assert [*pool.waiting] == [third]
    assert not node.idle, "what comes later finds nothing that these calls could use"


def test_a_permit_that_comes_back_goes_to_the_call_that_has_waited_longest(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    turns = [pool.queue(node, Deadline(60.0)) for _ in range(3)]
    held.clear()
    assert [[type(each) for each in turn.given] for turn in turns] == [[Permit], [Permit], []]
    finished(lambda: turns[1].waker.wait(60.0))
    assert not pool.free
    pool.leave(turns[0])
    assert [type(each) for each in turns[2].given] == [Permit], "a call that leaves passes on what it was given"


def test_a_call_that_leaves_passes_its_connection_on(pool: Pool[Waker], node: Node) -> None:
    held = [pool.permit(), pool.permit()]
    first, second = (pool.queue(node, Deadline(60.0)) for _ in range(2))
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    pool.leave(first)
    assert second.given == [link]
    pool.leave(second)
    assert [*node.idle] == [link]
    assert not pool.waiting


def test_a_connection_to_another_server_is_closed_for_the_call_that_has_waited_longest(
    pool: Pool[Waker], node: Node
) -> None:
    held = [pool.permit(), pool.permit()]
    turns = [pool.queue(each, Deadline(60.0)) for each in (Node(Address("two"), pool), node)]
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    assert link.permit is None
    assert [[type(each) for each in turn.given] for turn in turns] == [[Permit], []]


def test_a_call_that_was_interrupted_stands_in_nobodys_way(
    pool: Pool[Waker], node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [pool.permit(), pool.permit()]
    gone, waits = (pool.queue(node, Deadline(seconds)) for seconds in (60.0, 600.0))
    now: Callable[[], float] = clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: now() + 100.0)
    link = put_back(node, held.pop())  # type: ignore[arg-type]
    assert (gone.given, waits.given) == ([], [link])
    assert not pool.waiting


def test_a_draw_whose_time_ends_as_its_reply_comes_keeps_no_closed_connection(redis_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with issuer.aconnect(**settings(redis_url, tmp_path)) as ids:
            await ids.create("a")
            assert [await ids.next("a"), await ids.next("a")] == [1, 2]
            redis = ids.engine.runner.redis
            assert redis is not None
            (node,) = redis.nodes.values()
            ask, ended = AsyncLink.ask, list[AsyncLink]()

            async def late(link: AsyncLink, packed: bytes) -> Any:
                reply = await ask(link, packed)
                if redis._due.links.pop(link, None) is not None:
                    ended.append(link)
                return reply

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(AsyncLink, "ask", late)
                assert await ids.next("a") == 4
            assert ended
            assert not set(ended) & set(node.idle)

    run(main())
