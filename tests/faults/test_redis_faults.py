"""Redis goes back in time, away, or empty, under real issuers: numbers may be lost, none comes twice."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.drivers.asyncio import connections as async_connections
from issuer.drivers.asyncio.connections import Link as AsyncLink
from issuer.drivers.blocking import connections
from issuer.drivers.blocking.link import Link
from issuer.drivers.routes import Address
from issuer.persistence.errors import Unavailable
from issuer.persistence.memory import MemoryStore
from issuer.scripts import script
from tests.audit import repeats
from tests.colours import Awaited, Connect
from tests.drawers import Drawers, assert_sound
from tests.faults.conftest import StartRedis
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


@pytest.mark.covers("N.1", "3.20")
def test_failover_to_a_lagging_replica_repeats_nothing(start_redis: StartRedis, store: MemoryStore) -> None:
    master, replica = start_redis(), start_redis()
    replica.replicaof(master)
    with (
        FaultProxy((master.host, master.port)) as address,
        issuer.connect(redis=address.url, store=store) as ids,
    ):
        ids.create("a", step=1000)
        with Drawers([ids], "a") as drawers:
            drawers.more(300)
            replica.pause()
            drawers.more(1200)
            master.kill()
            replica.resume()
            replica.promote()
            address.upstream = (replica.host, replica.port)
            drawers.more(1200)
    assert_sound(drawers, store)


@pytest.mark.covers("N.1")
def test_old_and_new_master_both_alive_repeat_nothing(start_redis: StartRedis, store: MemoryStore) -> None:
    old, new = start_redis(), start_redis()
    new.replicaof(old)
    with (
        issuer.connect(redis=old.url, store=store) as first,
        FaultProxy((old.host, old.port)) as address,
        issuer.connect(redis=address.url, store=store) as second,
    ):
        first.create("a", step=1000)
        with Drawers([first, second], "a") as drawers:
            drawers.more(500)
            new.promote()
            address.upstream = (new.host, new.port)
            address.cut()
            drawers.more(3000)
    assert_sound(drawers, store, ordered=False)


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
def test_the_same_load_sent_twice_takes_effect_once(behind: Issuer, redis_proxy: FaultProxy) -> None:
    behind.next("a")
    redis_proxy.duplicate(match=LOAD)
    numbers = [behind.next("a") for _ in range(500)]
    assert redis_proxy.hits
    assert repeats(numbers) == []


def test_a_lost_reply_of_a_draw_costs_a_gap_and_no_repeat(behind: Issuer, redis_proxy: FaultProxy) -> None:
    numbers = [behind.next("a")]
    for _ in range(5):
        redis_proxy.drop_replies(match=NEXT, times=1)
        numbers.append(behind.next("a"))
    assert numbers == [1, 3, 5, 7, 9, 11]


def test_a_lost_reply_of_a_load_spends_the_segment_and_repeats_nothing(behind: Issuer, redis_proxy: FaultProxy) -> None:
    numbers = []
    for _ in range(5):
        redis_proxy.drop_replies(match=LOAD, times=1)
        numbers += behind.take("a", 100)
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)


@pytest.mark.covers("3.21")
def test_a_trend_tag_goes_on_direct_and_comes_back_increasing(
    connect: Connect, redis_proxy: FaultProxy, redis_url: str, store: MemoryStore
) -> None:
    with connect(redis=redis_proxy.url, store=store) as ids, connect(redis=redis_url, store=store) as other:
        ids.create("t", step=100, order="trend")
        mine, theirs = [ids.next("t")], [other.next("t")]
        for _ in range(2):
            redis_proxy.refuse()
            mine += [ids.next("t") for _ in range(250)]
            theirs += [other.next("t") for _ in range(50)]
            redis_proxy.pass_through()
            until(lambda: not ids._roster.line("t").supply._direct, timeout=30, message="the process is back on Redis")
            theirs += [other.next("t") for _ in range(50)]
            mine += [ids.next("t") for _ in range(50)]
        assert repeats(mine + theirs) == []
        assert mine == sorted(mine)
        assert theirs == sorted(theirs)


class Failing(MemoryStore):
    """A memory store that can be switched off."""

    down = False

    def __getattribute__(self, name: str) -> object:
        if name in {"reserve", "get", "hand_back", "store_id"} and object.__getattribute__(self, "down"):
            return _unavailable
        return object.__getattribute__(self, name)


def _unavailable(*_args: object, **_rest: object) -> None:
    raise Unavailable("switched off")


def test_with_both_down_what_is_held_is_issued_and_then_refused(redis_proxy: FaultProxy) -> None:
    store = Failing()
    with issuer.connect(redis=redis_proxy.url, store=store, scheduler=None) as ids:
        ids.create("t", step=10, order="trend")
        first = ids.next("t")
        redis_proxy.refuse()
        held = [ids.next("t")]
        store.down = True
        held += [ids.next("t") for _ in range(9)]
        assert held == list(range(11, 21))
        with pytest.raises((issuer.StoreUnavailable, issuer.RedisUnavailable)):
            ids.next("t", timeout=0.3)
        store.down = False
        redis_proxy.pass_through()
        until(lambda: ids.tick() >= 0 and not ids._roster.line("t").supply._direct, timeout=30)
        assert ids.next("t") > max(held) > first


# ------------------------------------------------------------------------------------------------ a dead one


@pytest.mark.parametrize("fault", ["refuse", "blackhole"])
def test_callers_wait_for_a_dead_redis_until_their_own_deadline_and_no_longer(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, fault: str
) -> None:
    with connect(redis=redis_proxy.url, store=store, redis_timeout=5) as ids, ThreadPoolExecutor(9) as pool:
        ids.create("a", step=1000)
        ids.next("a")
        getattr(redis_proxy, fault)()
        calls = [(timeout, pool.submit(ids.next, "a", timeout=timeout)) for timeout in [0, 0.1, 0.4, 50, 50]]
        for timeout, call in calls:
            if timeout < 1:  # ended by nothing but its deadline: Redis is still dead
                error = call.exception(30)
                assert isinstance(error, issuer.RedisUnavailable)
                assert error.retry_after > 0
            else:
                assert not call.done()
        redis_proxy.pass_through()
        assert repeats([call.result(55) for timeout, call in calls if timeout > 1]) == []


@pytest.mark.covers("4.16")
def test_a_wedged_loader_is_replaced_after_the_election_window(
    redis_proxy: FaultProxy, redis_url: str, store: MemoryStore
) -> None:
    with (
        issuer.connect(redis=redis_proxy.url, store=store, scheduler=None, store_timeout=0.5) as wedged,
        issuer.connect(redis=redis_url, store=store, store_timeout=0.5) as ids,
    ):
        ids.create("a", step=10)
        redis_proxy.drop_requests(match=LOAD)
        with pytest.raises(issuer.IssuerError):
            wedged.next("a", timeout=0.5)
        assert redis_proxy.hits, "it was elected, and its load never arrives"
        assert ids.next("a") > 10


# ---------------------------------------------------------------------------------------------- late replies


def late_then_other(connect: Connect, proxy: FaultProxy, how: str) -> int:
    """Draw of one tag until its caller gives up or is gone, then of another tag; return what that got."""
    with connect(redis=proxy.url, store="memory://", scheduler=None) as ids:
        ids.create("low")
        ids.create("high", start=1_000_001)
        ids.take("low", 2)
        ids.warm("high")
        proxy.hold(match=NEXT, times=1)
        if how == "timeout":
            with pytest.raises(issuer.RedisUnavailable):
                ids.take("low", 2, timeout=0)
        else:
            assert isinstance(ids, Awaited)
            ids.wait(_cancelled(proxy, ids._ids.take("low", 2)))
        return ids.next("high")


async def _cancelled(proxy: FaultProxy, call: Coroutine[Any, Any, object]) -> None:
    """Cancel the call when its request is on its way."""
    task = asyncio.ensure_future(call)
    await eventually(lambda: proxy.held, timeout=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


HOW = [("blocking", "timeout"), ("asyncio", "timeout"), ("asyncio", "cancel")]


@pytest.mark.parametrize(("connect", "how"), HOW, indirect=["connect"])
def test_a_reply_that_comes_late_is_never_taken_for_another_calls(
    connect: Connect, redis_proxy: FaultProxy, how: str
) -> None:
    assert late_then_other(connect, redis_proxy, how) == 1_000_001


@pytest.mark.parametrize(("connect", "how"), HOW, indirect=["connect"])
def test_kept_connections_would_take_it(
    connect: Connect, redis_proxy: FaultProxy, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out: what was given up in the middle of a call is used for the next one."""
    kept: list[object] = []
    drop, async_drop, ask = Link.drop, AsyncLink.drop, Link.ask
    node, async_node = connections.Node(Address()), async_connections.Node(Address())

    def keep(link: Link) -> None:
        if link in kept:  # the next time it means it
            drop(link)
        else:
            kept.append(link)
            node.release(link)

    async def async_keep(link: AsyncLink) -> None:
        if link in kept:
            await async_drop(link)
        else:
            kept.append(link)
            async_node.idle.append(link)

    def released(link: Link, packed: bytes, seconds: float) -> Any:
        if link in kept:
            redis_proxy.release()
        return ask(link, packed, seconds)

    async def async_released(link: AsyncLink, packed: bytes) -> Any:
        await link.connection.send_packed_command(packed)
        if link in kept:
            redis_proxy.release()
        # redis-py would disconnect by itself, and so be a guard of its own.
        return await link.connection.read_response(disable_decoding=True, disconnect_on_error=False)

    monkeypatch.setattr(connections, "Node", lambda _address: node)
    monkeypatch.setattr(async_connections, "Node", lambda _address: async_node)
    monkeypatch.setattr(Link, "drop", keep)
    monkeypatch.setattr(Link, "ask", released)
    monkeypatch.setattr(AsyncLink, "drop", async_keep)
    monkeypatch.setattr(AsyncLink, "ask", async_released)
    assert late_then_other(connect, redis_proxy, how) < 1000
