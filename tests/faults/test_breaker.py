"""Redis is dead to a process with many tags: the first call finds out, all others know."""

import threading
import time
from collections.abc import Iterator

import pytest

import issuer
from issuer import Issuer
from issuer.drivers.breaker import Breaker
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.faults.hanging import HangingStore
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

TAGS = 40

#: What a round trip to a dead Redis costs: far above what anything else here takes.
TIMEOUT = 0.6


@pytest.fixture
def ids(connect: Connect, proxy: FaultProxy) -> Iterator[Issuer]:
    with connect(redis=proxy.url, store=MemoryStore(), redis_timeout=TIMEOUT, timeout=10) as made:
        for tag in range(TAGS):
            made.create(f"t{tag}", step=100, order="trend")
            made.next(f"t{tag}")
        yield made


def slow_calls(ids: Issuer, tags: range, *, timeout: float | None = None) -> list[float]:
    """Draw once from each tag; return how long each call took that met a time-out."""
    took = []
    for tag in tags:
        began = time.monotonic()
        ids.next(f"t{tag}", timeout=timeout)
        took.append(time.monotonic() - began)
    return [each for each in took if each > TIMEOUT * 0.7]


@pytest.mark.covers("3.21")
@pytest.mark.parametrize("fault", ["blackhole", "refuse", "drop_requests"])
def test_a_dead_redis_costs_one_time_out_however_many_tags_there_are(
    ids: Issuer, proxy: FaultProxy, fault: str
) -> None:
    before = proxy.accepted
    getattr(proxy, fault)()
    slow = slow_calls(ids, range(TAGS)) + slow_calls(ids, range(TAGS))
    assert len(slow) <= (fault == "blackhole")
    assert proxy.accepted - before <= 4  # and the scheduler's trials
    proxy.pass_through()
    until(lambda: not any(line.supply._direct for line in ids._roster.lines.values()), message="back on Redis")
    numbers = [ids.next(f"t{tag}") for tag in range(TAGS) for _ in range(3)]
    assert repeats(numbers[0::TAGS]) == []


@pytest.mark.covers("3.21")
def test_without_the_breaker_each_tag_pays_its_own_time_out(
    ids: Issuer, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out."""
    monkeypatch.setattr(Breaker, "admit", lambda _self, **_options: False)
    proxy.blackhole()
    assert len(slow_calls(ids, range(5))) == 5


def test_of_many_threads_each_meets_one_time_out_at_most(server: RedisServer, proxy: FaultProxy) -> None:
    assert server.running
    with issuer.connect(redis=proxy.url, store=MemoryStore(), redis_timeout=TIMEOUT, timeout=10) as ids:
        for tag in range(TAGS):
            ids.create(f"t{tag}", step=100, order="trend")
            ids.next(f"t{tag}")
        proxy.blackhole()
        slow: list[int] = []
        share = TAGS // 8
        threads = [
            threading.Thread(target=lambda first=first: slow.append(len(slow_calls(ids, range(first, first + share)))))
            for first in range(0, TAGS, share)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(slow) == 8
        assert max(slow) <= 1


def test_tags_that_nobody_has_drawn_from_go_direct_at_once(ids: Issuer, proxy: FaultProxy) -> None:
    for tag in range(TAGS, 2 * TAGS):
        ids.create(f"t{tag}", step=100, order="trend")
    proxy.blackhole()
    assert len(slow_calls(ids, range(2 * TAGS))) <= 1


@pytest.mark.covers("3.31")
@pytest.mark.parametrize("fault", ["blackhole", "refuse"])
def test_redis_back_with_the_store_away_serves_what_redis_holds(
    connect: Connect, server: RedisServer, proxy: FaultProxy, fault: str
) -> None:
    store = HangingStore()
    with (
        issuer.connect(redis=server.url, store=store, scheduler=None) as other,
        connect(redis=proxy.url, store=store, timeout=10, redis_timeout=0.5) as ids,
    ):
        ids.create("t", step=100, order="trend")
        numbers = [ids.next("t")]
        getattr(proxy, fault)()
        numbers += ids.take("t", 50)
        until(lambda: store.top("t") == 300, message="both segments of its own")
        numbers += other.take("t", 150)  # the last of them out of 301..400
        store.hang()
        numbers += [ids.next("t") for _ in range(150)]
        with pytest.raises(issuer.StoreUnavailable) as error:
            ids.next("t", timeout=0.3)
        assert 0 < error.value.retry_after < 1
        waiting: list[int] = []
        caller = threading.Thread(target=lambda: waiting.append(ids.next("t")))
        caller.start()
        until(lambda: ids._roster.line("t").supply.waiting)
        proxy.pass_through()
        began = time.monotonic()
        caller.join()
        assert time.monotonic() - began < 2.0
        assert waiting > [300]
        numbers += [*waiting, *(ids.next("t") for _ in range(5))]
        store.resume()
        assert repeats([*numbers, *ids.take("t", 300)]) == []
