"""Redis goes back in time, away, or empty, under real issuers: numbers may be lost, none comes twice."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.gateway.commands import script
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.colours import Awaited, Connect
from tests.drawers import Drawers, assert_sound
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import eventually, until

pytestmark = pytest.mark.usefixtures("patient")

LOAD, NEXT = script("load").sha.encode(), script("next").sha.encode()


@pytest.fixture
def ids(server: RedisServer, store: MemoryStore) -> Iterator[Issuer]:
    with issuer.connect(redis=server.url, store=store) as made:
        made.create("a", step=100)
        yield made


@pytest.mark.covers("N.1", "1.11")
def test_kill_9_and_an_older_snapshot_repeat_nothing(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with Drawers([ids], "a") as drawers:
        for _ in range(2):
            drawers.more(200)
            snapshot = server.snapshot()
            drawers.more(300)
            server.restore(snapshot)
            drawers.more(200)
    assert_sound(drawers, store)


@pytest.mark.covers("3.24", "3.25")
def test_a_wiped_redis_goes_on_above_everything(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with Drawers([ids], "a") as drawers, server.client() as client:
        for wipe in (client.flushall, server.wipe, lambda: client.delete("issuer:{a}")):
            drawers.more(200)
            wipe()
            drawers.more(200)
    assert_sound(drawers, store)


@pytest.mark.covers("N.6", "3.25")
def test_two_recovers_at_once_under_load_repeat_nothing(ids: Issuer, server: RedisServer, store: MemoryStore) -> None:
    with (
        issuer.connect(redis=server.url, store=store) as other,
        Drawers([ids, other], "a") as drawers,
        ThreadPoolExecutor(2) as pool,
    ):
        for _ in range(10):
            drawers.more(50)
            list(pool.map(lambda one: one.recover("a"), (ids, other)))
        drawers.more(200)
    assert_sound(drawers, store)


@pytest.fixture
def behind(redis_proxy: FaultProxy, store: MemoryStore) -> Iterator[Issuer]:
    """An issuer behind the proxy, without a scheduler; tag "a" has steps of 100."""
    with issuer.connect(redis=redis_proxy.url, store=store, scheduler=None) as made:
        made.create("a", step=100)
        yield made


@pytest.mark.covers("N.6", "4.14")
def test_a_load_on_its_way_while_recover_runs_is_refused(
    behind: Issuer, redis_proxy: FaultProxy, redis_url: str, store: MemoryStore
) -> None:
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        numbers = ids.take("a", 95)
        redis_proxy.hold(match=LOAD)
        late = threading.Thread(target=behind.tick)
        behind.take("a", 1)
        late.start()
        until(lambda: redis_proxy.held, timeout=30)
        assert ids.recover("a")[0].new == 200
        before = ids.take("a", 5)
        assert before[0] > 200
        redis_proxy.release()
        late.join()
        after = ids.take("a", 300)
        assert after[0] == before[-1] + 1
        assert repeats(numbers + before + after) == []


@pytest.mark.covers("3.16")
def test_what_arrives_twice_or_is_answered_in_vain_costs_a_gap_and_no_repeat(
    behind: Issuer, redis_proxy: FaultProxy
) -> None:
    numbers = [behind.next("a")]
    for _ in range(5):
        redis_proxy.drop_replies(match=NEXT, times=1)
        numbers.append(behind.next("a"))
    assert numbers == [1, 3, 5, 7, 9, 11]
    redis_proxy.duplicate(match=LOAD)
    numbers += [behind.next("a") for _ in range(500)]
    assert redis_proxy.hits
    for _ in range(5):
        redis_proxy.drop_replies(match=LOAD, times=1)
        numbers += behind.take("a", 100)
    assert_increasing(numbers)


# ---------------------------------------------------------------------------------------------- late replies


async def _cancelled(proxy: FaultProxy, call: Coroutine[Any, Any, object]) -> None:
    """Cancel the call when its request is on its way."""
    task = asyncio.ensure_future(call)
    await eventually(lambda: proxy.held, timeout=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("connect", "how"),
    [("blocking", "timeout"), ("asyncio", "timeout"), ("asyncio", "cancel")],
    indirect=["connect"],
)
def test_a_reply_that_comes_late_is_never_taken_for_another_calls(
    connect: Connect, redis_proxy: FaultProxy, how: str
) -> None:
    with connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        ids.create("low")
        ids.create("high", start=1_000_001)
        ids.take("low", 2)
        ids.warm("high")
        redis_proxy.hold(match=NEXT, times=1)
        if how == "timeout":

            def given_up() -> list[bytes]:
                with suppress(issuer.RedisUnavailable):  # once a request is on its way, it is
                    ids.take("low", 2, timeout=0)
                return redis_proxy.held

            until(given_up, 60, "a request was held")
        else:
            assert isinstance(ids, Awaited)
            ids.wait(_cancelled(redis_proxy, ids._ids.take("low", 2)))
        redis_proxy.release()
        assert ids.next("high") == 1_000_001
