"""The store hangs: no number in hand waits for it, then callers are refused, then it goes on."""

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
from tests.waiting import until

#: Longer than a round trip takes, on a busy machine too (10 ms, seldom 125), and half of the store's shortest time-out.
QUICK = 0.3

#: Of `connect`, unless it is told otherwise.
STORE_TIMEOUT = 3.0

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
    """What hangs, and how. `swallowed`: how long it is waited for what it will never answer: the store's time-out."""

    store: Any
    hang: Callable[[], object]
    resume: Callable[[], object]
    swallowed: float = 0.0


def drained(ids: Issuer, tag: str, numbers: list[int]) -> tuple[float, issuer.StoreUnavailable]:
    """Draw until nothing is left; return how long the slowest number took, and the error at the end."""
    slowest = 0.0
    while True:
        try:
            slowest = max(slowest, _took(ids, tag, numbers))
        except issuer.StoreUnavailable as error:
            return slowest, error


def check(connect: Connect, redis_url: str, mode: str, outage: Outage) -> None:
    settings, how = MODES[mode]
    with connect(**{"redis": redis_url, "store": outage.store, "timeout": 0.6, **settings}) as ids:
        # The machine pauses once; a number that waits for the store does so in each outage.
        assert any(unnoticed(ids, tag, how, outage) for tag in "abc")


def unnoticed(ids: Issuer, tag: str, how: dict[str, Any], outage: Outage) -> bool:
    """Draw through an outage, and return whether no number in hand took longer than one does without."""
    ids.create(tag, step=500, timeout=20, **how)
    numbers = [ids.next(tag, timeout=20) for _ in range(120)]
    until(lambda: ids.inspect(tag, timeout=20).store.max == 1000, message="both segments are there")
    without = max(_took(ids, tag, numbers) for _ in range(200))
    outage.hang()
    slowest, error = drained(ids, tag, numbers)
    assert numbers == list(range(1, 1001))  # exactly what was in hand
    assert 0 < error.retry_after <= 0.25
    for timeout in (0, 0.3):
        asked = time.monotonic()
        with pytest.raises(issuer.StoreUnavailable):
            ids.next(tag, timeout=timeout)
        assert time.monotonic() - asked < timeout + 0.5
    outage.resume()
    asked = time.monotonic()
    more = [ids.next(tag, timeout=10) for _ in range(100)]
    assert time.monotonic() - asked < 2.0 + outage.swallowed
    assert more[0] > 1000
    assert more == sorted(set(more))
    return slowest < max(QUICK, 3 * without)


def _took(ids: Issuer, tag: str, numbers: list[int]) -> float:
    began = time.monotonic()
    numbers.append(ids.next(tag))
    return time.monotonic() - began


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
def mongo_proxy(mongo_server: MongoServer) -> Iterator[FaultProxy]:
    with FaultProxy(("127.0.0.1", mongo_server.port)) as proxy:
        yield proxy


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
def test_no_number_in_hand_waits_for_a_mongodb_behind_a_dead_wire(
    connect: Connect, redis_url: str, mode: str, mongo_proxy: FaultProxy
) -> None:
    url = f"mongodb://127.0.0.1:{mongo_proxy.port}/hanging?directConnection=true"
    check(connect, redis_url, mode, Outage(url, mongo_proxy.blackhole, mongo_proxy.pass_through, STORE_TIMEOUT))


def test_a_leased_process_that_begins_while_the_store_hangs_draws_at_once(connect: Connect, redis_url: str) -> None:
    store = HangingStore()
    with issuer.connect(redis=redis_url, store=store) as other:
        other.create("a", step=1000, order="trend")
        assert other.next("a") == 1
        store.hang()
        with connect(redis=redis_url, store=store, lease=50, timeout=10) as ids:
            numbers: list[int] = []
            assert max(_took(ids, "a", numbers) for _ in range(100)) < QUICK
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
        assert _took(ids, "a", numbers) < QUICK


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
        assert _took(ids, "a", numbers) > 1.0
