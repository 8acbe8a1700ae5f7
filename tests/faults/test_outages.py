"""Real servers go away, alone or together, and come back. What that costs in time is in tests/virtual."""

import secrets
import threading
from typing import Any, Literal

import pytest

import issuer
from issuer import Issuer
from issuer.persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import COLOURS, Connect
from tests.servers.mongo import MongoServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

#: What goes on by itself does so long before; what doesn't never would.
PATIENT = 60.0
SURE: dict[str, Any] = {"timeout": PATIENT, "redis_timeout": PATIENT}


class Waiting:
    """A thread that draws one number."""

    def __init__(self, ids: Issuer, tag: str) -> None:
        self.answer: int | issuer.IssuerError | None = None
        self._thread = threading.Thread(target=self._draw, args=(ids, tag))
        self._thread.start()

    def _draw(self, ids: Issuer, tag: str) -> None:
        try:
            self.answer = ids.next(tag, timeout=2 * PATIENT)
        except issuer.IssuerError as error:
            self.answer = error

    def ended(self) -> int | issuer.IssuerError | None:
        self._thread.join(PATIENT)
        return self.answer


@pytest.mark.covers("3.20", "3.21")
@pytest.mark.parametrize("fault", ["refuse", "blackhole", "drop_requests"])
def test_an_outage_is_ridden_out_by_strict_callers_and_served_directly_to_others(
    connect: Connect, proxy: FaultProxy, fault: str
) -> None:
    with connect(redis=proxy.url, store=MemoryStore(), timeout=PATIENT, redis_timeout=0.5) as ids:
        ids.create("s", step=1000)
        ids.create("t", step=1000, order="trend")
        assert [ids.next("s"), ids.next("t")] == [1, 1]
        getattr(proxy, fault)()
        direct = ids.take("t", 10)
        assert direct[0] > 1000
        callers = [Waiting(ids, "s") for _ in range(5)]
        with pytest.raises(issuer.RedisUnavailable) as error:
            ids.next("s", timeout=0.1)
        assert 0 < error.value.retry_after <= 0.5
        proxy.pass_through()
        numbers = [number for caller in callers if isinstance(number := caller.ended(), int)]
        assert len(numbers) == 5
        assert repeats([1, *numbers]) == []
        until(lambda: not ids._roster.line("t").supply._direct, timeout=PATIENT, message="back on Redis")
        assert ids.next("t") > direct[-1]


def test_callers_that_wait_for_redis_are_told_of_the_close(connect: Connect, proxy: FaultProxy) -> None:
    with connect(redis=proxy.url, store=MemoryStore(), timeout=2 * PATIENT) as ids:
        ids.create("a", step=1000)
        ids.next("a")
        proxy.blackhole()
        callers = [Waiting(ids, "a") for _ in range(5)]
        until(lambda: ids._roster.line("a").supply.waiting, timeout=PATIENT)
        ids.close()
        assert {type(caller.ended()) for caller in callers} <= {issuer.IssuerError, issuer.RedisUnavailable}


def refused(ids: Issuer, error: type[issuer.IssuerError]) -> None:
    """Draw in vain."""
    with pytest.raises(error) as refusal:
        ids.next("a", timeout=0.3)
    assert refusal.value.retry_after > 0  # type: ignore[attr-defined]  # both have it


@pytest.mark.covers("3.31", "3.27", "0.16")
@pytest.mark.parametrize(("colour", "order"), [("blocking", "strict"), ("asyncio", "trend")])
def test_with_both_killed_what_is_held_is_served_then_refused_and_it_goes_on(
    server: RedisServer, mongo_server: MongoServer, colour: str, order: Literal["strict", "trend"]
) -> None:
    with COLOURS[colour](redis=server.url, store=f"{mongo_server.url}/both", **SURE) as ids:
        ids.create("a", step=100, order=order)
        numbers = ids.take("a", 5)
        server.kill()
        hand: Any = None
        if order == "trend":
            numbers += ids.take("a", 30)  # direct, and past its mark
            hand = ids._roster.line("a").supply.hand
            until(lambda: len(hand.held) == 2, timeout=PATIENT, message="both segments of its own")
        mongo_server.kill()
        while order == "trend" and hand.upcoming:
            numbers.append(ids.next("a"))
        assert len(numbers) == (205 if order == "trend" else 5)
        refused(ids, issuer.StoreUnavailable if order == "trend" else issuer.RedisUnavailable)
        waiting = Waiting(ids, "a")
        mongo_server.start()
        server.start()
        number = waiting.ended()
        assert isinstance(number, int), number
        numbers += [number, *ids.take("a", 200)]
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)
        assert max(numbers) <= ids.inspect("a").store.max
        until(lambda: not ids._roster.line("a").supply._direct, timeout=PATIENT, message="back on Redis")


@pytest.mark.covers("0.12", "0.16", "3.26", "3.27")
@pytest.mark.parametrize(("colour", "lease"), [("blocking", 0), ("asyncio", 20)])
def test_no_number_in_hand_waits_for_a_mongodb_behind_a_dead_wire(
    redis_url: str, standing_mongo: MongoServer, colour: str, lease: int
) -> None:
    """Whoever waited for it would do so for two minutes, which no caller has."""
    with FaultProxy(("127.0.0.1", standing_mongo.port)) as proxy:
        url = f"mongodb://127.0.0.1:{proxy.port}/hanging_{secrets.token_hex(4)}?directConnection=true"
        with COLOURS[colour](redis=redis_url, store=url, lease=lease, store_timeout=2 * PATIENT, **SURE) as ids:
            ids.create("a", step=500, order="trend")
            numbers = ids.take("a", 120)
            until(lambda: ids.inspect("a").store.max == 1000, timeout=PATIENT, message="both segments are there")
            proxy.blackhole()
            numbers += ids.take("a", 880)
            assert numbers == list(range(1, 1001))  # exactly what was in hand
            refused(ids, issuer.StoreUnavailable)
            proxy.pass_through()
            assert ids.next("a", timeout=2 * PATIENT) > 1000
