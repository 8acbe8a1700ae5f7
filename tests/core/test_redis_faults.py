"""Redis goes back in time, away, or empty, and replies are lost: numbers may be a gap, none comes twice."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.gateway.commands import script
from issuer.gateway.keys import redis_key
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Order
from tests.audit import assert_increasing, repeats
from tests.colours import Awaited, Connect
from tests.drawers import Drawers, assert_sound
from tests.refusals import refused
from tests.schemes import Make
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import eventually, until

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


async def _cancelled(proxy: FaultProxy, call: Coroutine[Any, Any, object]) -> None:
    """Cancel the call when its request is on its way."""
    task = asyncio.ensure_future(call)
    await eventually(lambda: proxy.held, timeout=30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("connect", "how"), [("blocking", "timeout"), ("asyncio", "timeout"), ("asyncio", "cancel")], indirect=["connect"]
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


#: The arguments of redis-server. The snapshots of a test are made by `SAVE`, between its draws.
MODES = {
    "none": (),
    "snapshots": ("--save", "3600 1"),
    "always": ("--appendonly", "yes", "--appendfsync", "always"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec"),
    "no": ("--appendonly", "yes", "--appendfsync", "no"),
    "both": ("--appendonly", "yes", "--save", "3600 1"),
}
KILLS, SEGMENT, AHEAD = 3, 50, 2


@pytest.mark.covers("3.23")
@pytest.mark.parametrize("mode", MODES)
def test_a_kill_costs_two_segments_at_most_and_repeats_nothing(
    start_redis: Callable[..., RedisServer], store: MemoryStore, mode: str
) -> None:
    server = start_redis(*MODES[mode])
    with issuer.connect(redis=server.url, store=store) as ids:
        ids.create("a", step=SEGMENT, ahead=AHEAD)
        with Drawers([ids], "a") as drawers:
            for _ in range(KILLS):
                drawers.more(130)
                if "--save" in MODES[mode]:
                    server.snapshot()
                drawers.more(170)
                server.kill()
                issued = max(drawers.numbers)
                server.start()
                if mode == "always":
                    with server.client() as client:
                        known = client.hget(redis_key("issuer", "a"), "cur")
                    assert int(known) >= issued, "what was issued is on the disk"
                drawers.more(100)
        assert_sound(drawers, store)
        assert max(drawers.numbers) - len(drawers.numbers) <= KILLS * 2 * SEGMENT * AHEAD
        assert ids.verify() == []


@pytest.fixture
def _unswept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep never: a sweep just after the flush makes the loss good before anybody draws, and nothing is told then."""
    monkeypatch.setattr("issuer.engine.scheduler.SWEEP_EVERY", 3600.0)


@pytest.mark.usefixtures("_unswept")
@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_redis_that_has_lost_its_data_is_warned_of_with_the_size_of_the_gap(
    make_live: Make, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture, order: Order, scheduler: str | None
) -> None:
    ids = make_live(scheduler=scheduler)
    ids.create("a", step=1000, order=order)
    numbers = ids.take("a", 30)
    assert "WARNING" not in {each.levelname for each in caplog.records}, "a tag that is new has lost nothing"
    redis_client.flushall()
    numbers.append(ids.next("a"))
    assert numbers == [*range(1, 31), 1001]
    [told] = [each for each in caplog.records if "gap" in each.message]
    assert told.levelname == "WARNING"
    lost = "at most 970 numbers after 30, the last one that this process saw, are a gap"
    assert told.message == f"tag 'a': Redis has lost its data; new numbers are above 1000, and {lost}"


#: An election stands for 21 s here: a caller that waits for it to lapse gets an error.
LESS = 8.0
STEP = 20


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("lost", ["open", "next"])
def test_an_election_whose_reply_is_lost_keeps_nobody_waiting(
    redis_proxy: FaultProxy, make_live: Make, lost: str, scheduler: str | None
) -> None:
    ids = make_live(redis=redis_proxy.url, scheduler=scheduler)
    ids.create("a", step=STEP)
    before = STEP // 5 - 1 if lost == "next" else 0  # the threshold of the first segment
    numbers = [ids.next("a") for _ in range(before)]
    redis_proxy.drop_replies(match=script(lost).sha.encode(), times=1)
    numbers += [ids.next("a", timeout=LESS) for _ in range(3 * STEP)]
    assert redis_proxy.hits == 1
    assert numbers == sorted(set(numbers))


def test_a_lease_whose_reply_is_lost_keeps_nobody_waiting(redis_proxy: FaultProxy, make_live: Make) -> None:
    ids = make_live(redis=redis_proxy.url, lease=2)
    ids.create("a", step=STEP, order="trend")
    redis_proxy.drop_replies(match=script("lease").sha.encode(), times=STEP)
    numbers = [number for _ in range(3 * STEP) for number in ids.take("a", 1, timeout=LESS)]
    assert repeats(numbers) == []


@pytest.mark.parametrize("way", ["next", "take", "key", "lease"])
def test_a_proxy_that_sends_each_command_twice_costs_only_numbers(
    redis_proxy: FaultProxy, make_live: Make, way: str
) -> None:
    lease = 2 if way == "lease" else 0
    ids = make_live(redis=redis_proxy.url, lease=lease)
    ids.create("a", step=STEP, order="trend" if lease else "strict")
    redis_proxy.duplicate(match=b"EVALSHA")
    numbers: list[int] = []
    while len(numbers) < 3 * STEP:
        key: Any = {"key": f"k{len(numbers)}"} if way == "key" else {}
        numbers += ids.take("a", 3, timeout=LESS) if way == "take" else [ids.next("a", timeout=LESS, **key)]
    assert redis_proxy.hits
    assert repeats(numbers) == []


def test_a_proxy_that_sends_each_command_twice_costs_no_machine_number(
    redis_proxy: FaultProxy, make_live: Make
) -> None:
    redis_proxy.duplicate(match=b"EVALSHA")
    ids = make_live(redis=redis_proxy.url)
    ids.create("s", strategy="snowflake")
    assert repeats([ids.next("s", timeout=LESS) for _ in range(5)]) == []
    assert len(ids.machines("s").used) == 1


def test_more_connections_are_made_than_redis_pys_pool_counts_to(redis_proxy: FaultProxy) -> None:
    with issuer.connect(redis=redis_proxy.url, store="memory://") as ids:
        ids.create("a", step=10_000)
        for _ in range(130):  # one after the other; the pool counts to 100
            redis_proxy.cut()
            ids.next("a")
        assert redis_proxy.accepted > 100
        redis_proxy.delay_replies(0.2)
        with ThreadPoolExecutor(130) as pool:  # and at once
            assert len(set(pool.map(lambda _: ids.next("a"), range(130)))) == 130


@pytest.mark.parametrize("url", ["", "?client_name=a&protocol=3"])
def test_a_slow_redis_costs_a_call_its_deadline_and_not_each_of_its_replies(redis_proxy: FaultProxy, url: str) -> None:
    with issuer.connect(redis=redis_proxy.url + url, store="memory://", scheduler=None) as ids:
        ids.create("a")
        redis_proxy.delay_replies(0.6)
        refused(issuer.Unavailable, "", ids.next, "a", timeout=1)
        # With a second for each reply, the handshake alone would have gone on beyond these.
        assert redis_proxy.hits <= 2


def test_connections_that_redis_has_closed_fail_no_change(redis_server: RedisServer, redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids, redis_server.client() as admin:
        ids.create("a", step=1000)
        for change in (lambda: ids.configure("a", start=500), lambda: ids.recover("a"), lambda: ids.delete("a")):
            ids.next("a")
            admin.client_kill_filter(_type="normal", skipme=True)
            change()
