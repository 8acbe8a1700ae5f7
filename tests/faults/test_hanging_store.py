"""The store hangs: no number in hand waits for it, then callers are refused, then it goes on."""

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import issuer
from issuer import Issuer
from issuer.core.retire import identity
from issuer.core.source import Source
from tests.colours import Connect
from tests.faults.hanging import HangingStore
from tests.servers.mongo import MongoServer
from tests.servers.proxy import FaultProxy
from tests.stolen import Stopwatch
from tests.waiting import until

#: Longer than a round trip takes, on a busy machine too (10 ms, seldom 125), and half of the store's shortest time-out.
QUICK = 0.3

#: What a dead wire has swallowed is waited for as long, and the service is back within 2 s all the same.
STORE_TIMEOUT = 0.9

#: How the numbers come, as arguments of `connect` and of `create`.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strict": ({}, {"order": "strict"}),
    "trend": ({}, {"order": "trend"}),
    "leased": ({"lease": 20}, {"order": "trend"}),
    "direct": ({"redis": None}, {"order": "trend"}),
}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@dataclass
class Outage:
    """What hangs, and how."""

    store: Any
    hang: Callable[[], object]
    resume: Callable[[], object]


def drained(ids: Issuer, numbers: list[int]) -> tuple[float, issuer.StoreUnavailable]:
    """Draw until nothing is left; return how long the slowest number took, and the error at the end."""
    slowest = 0.0
    while True:
        try:
            slowest = max(slowest, _took(ids, numbers))
        except issuer.StoreUnavailable as error:
            return slowest, error


def check(connect: Connect, redis_url: str, mode: str, outage: Outage) -> None:
    settings, tag = MODES[mode]
    settings = {"redis": redis_url, "store": outage.store, "timeout": 0.6, "store_timeout": STORE_TIMEOUT, **settings}
    with connect(**settings) as ids:
        ids.create("a", step=500, timeout=20, **tag)
        numbers = [ids.next("a", timeout=20) for _ in range(120)]
        until(lambda: ids.inspect("a", timeout=20).store.max == 1000, message="both segments are there")
        without = max(_took(ids, numbers) for _ in range(200))
        outage.hang()
        slowest, error = drained(ids, numbers)
        assert numbers == list(range(1, 1001))  # exactly what was in hand
        assert slowest < max(QUICK, 3 * without)
        assert 0 < error.retry_after <= 0.25
        for timeout in (0, 0.3):
            asked = time.monotonic()
            with pytest.raises(issuer.StoreUnavailable):
                ids.next("a", timeout=timeout)
            assert time.monotonic() - asked < timeout + 0.5
        outage.resume()
        with Stopwatch() as back:
            more = [ids.next("a", timeout=10) for _ in range(100)]
        assert back.seconds < 2.0
        assert more[0] > 1000
        assert more == sorted(set(more))


def _took(ids: Issuer, numbers: list[int]) -> float:
    with Stopwatch() as call:
        numbers.append(ids.next("a"))
    return call.seconds


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
def test_no_number_in_hand_waits_for_a_store_that_hangs(connect: Connect, redis_url: str, mode: str) -> None:
    store = HangingStore()
    check(connect, redis_url, mode, Outage(store, store.hang, store.resume))


@pytest.mark.covers("3.26")
def test_an_outage_is_told_once_and_so_is_its_end(
    connect: Connect, redis_url: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings, tag = MODES[mode]
    store = HangingStore()
    with connect(**{"redis": redis_url, "store": store, "store_timeout": 0.1, **settings}) as ids:
        ids.create("a", step=100, **tag)
        ids.next("a")
        store.hang()
        ids.take("a", 50)
        until(lambda: ids.next("a") and ids._roster.line("a").supply._segments._failures > 2)
        assert [each.levelname for each in caplog.records if "no segment comes" in each.message] == ["WARNING"]
        store.resume()
        until(lambda: "segments come again" in caplog.text)
        ids.take("a", 300)
        assert caplog.text.count("no segment comes") == caplog.text.count("segments come again") == 1


@pytest.fixture
def mongo_proxy(standing_mongo: MongoServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", standing_mongo.port)) as proxy:
        yield proxy


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
def test_no_number_in_hand_waits_for_a_mongodb_behind_a_dead_wire(
    connect: Connect, redis_url: str, mode: str, mongo_proxy: FaultProxy
) -> None:
    url = f"mongodb://127.0.0.1:{mongo_proxy.port}/hanging_{secrets.token_hex(4)}?directConnection=true"
    check(connect, redis_url, mode, Outage(url, mongo_proxy.blackhole, mongo_proxy.pass_through))


def test_a_leased_process_that_begins_while_the_store_hangs_draws_at_once(connect: Connect, redis_url: str) -> None:
    store = HangingStore()
    with issuer.connect(redis=redis_url, store=store) as other:
        other.create("a", step=1000, order="trend")
        assert other.next("a") == 1
        store.hang()
        with connect(redis=redis_url, store=store, lease=50, timeout=10) as ids:
            numbers: list[int] = []
            assert max(_took(ids, numbers) for _ in range(100)) < QUICK
            assert numbers == list(range(2, 102))
            store.resume()
            until(lambda: ids.next("a") and ids._roster.line("a").supply.hand is not None, message="leased after all")


def test_leases_are_checked_without_the_store(connect: Connect, redis_url: str) -> None:
    store = HangingStore()
    with connect(redis=redis_url, store=store, lease=50, timeout=10, scheduler=None) as ids:
        ids.create("a", step=1000, order="trend")
        numbers = [ids.next("a")]
        store.hang()
        ids._roster.line("a").supply._checked_at -= 60
        assert _took(ids, numbers) < QUICK


def test_with_the_id_of_the_store_not_kept_a_lease_waits_for_the_store(
    connect: Connect, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out."""
    monkeypatch.setattr(Source, "_identity", lambda self: self._public(identity()))
    store = HangingStore()
    with connect(redis=redis_url, store=store, lease=50, timeout=10, scheduler=None) as ids:
        ids.create("a", step=1000, order="trend")
        numbers = [ids.next("a")]
        store.hang()
        ids._roster.line("a").supply._checked_at -= 60
        assert _took(ids, numbers) > 1.0
