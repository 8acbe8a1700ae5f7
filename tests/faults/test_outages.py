"""Redis goes away, alone or with the store: strict callers ride it out, nobody storms, and all goes on by itself."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

import pytest
import redis

import issuer
from issuer import Issuer, clock
from issuer.core import flight, supply
from issuer.drivers import breaker
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.servers.mongo import MongoServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stolen import Stopwatch
from tests.waiting import until

#: Seconds within which service is back once the servers are.
BACK = 2.0

#: What a call may take above its deadline.
GRACE = 0.5

#: Processes, as far as Redis can tell: each issuer has its own connections, and knows nothing of the others.
PROCESSES = 8
#: Seconds after which the pauses have grown.
SETTLED = 0.7
CALLERS = 25

#: How long an outage lasts, in seconds; and the longest, where it has to do harm first.
OUTAGE = 2.3
LONGEST = 10.0


class Waiting:
    """A thread that draws one number, and when it came."""

    def __init__(self, ids: Issuer, tag: str, timeout: float) -> None:
        self.tag = tag
        self.number: int | None = None
        self.error: issuer.IssuerError | None = None
        self.began = time.monotonic()
        self.ended = 0.0
        self.drawing = False
        self._thread = threading.Thread(target=self._draw, args=(ids, tag, timeout))
        self._thread.start()

    def _draw(self, ids: Issuer, tag: str, timeout: float) -> None:
        self.drawing = True
        try:
            self.number = ids.next(tag, timeout=timeout)
        except issuer.IssuerError as error:
            self.error = error
        self.ended = time.monotonic()

    def join(self) -> None:
        self._thread.join()


def passed(began: float, seconds: float) -> None:
    """Wait until so many seconds have gone by since then."""
    until(lambda: time.monotonic() - began >= seconds, timeout=seconds + 5)


@pytest.mark.covers("3.20")
@pytest.mark.parametrize("fault", ["refuse", "blackhole", "drop_requests"])
def test_strict_callers_ride_out_an_outage_and_go_on_at_once(connect: Connect, proxy: FaultProxy, fault: str) -> None:
    with connect(redis=proxy.url, store=MemoryStore()) as ids:
        ids.create("a", step=1000)
        assert ids.next("a") == 1
        getattr(proxy, fault)()
        callers = [Waiting(ids, "a", 10) for _ in range(5)]
        late = Waiting(ids, "a", 1.0)
        passed(late.began, 2.0)
        proxy.pass_through()
        back = time.monotonic()
        for caller in (*callers, late):
            caller.join()
        assert isinstance(late.error, issuer.RedisUnavailable)
        assert 0 < late.error.retry_after <= 0.5
        assert late.ended - late.began < 1.0 + GRACE
        assert repeats([caller.number for caller in callers if caller.number]) == []
        assert all(caller.error is None for caller in callers)
        assert max(caller.ended for caller in callers) - back < BACK


def test_a_strict_caller_is_not_slowed_by_what_others_found_out(connect: Connect, server: RedisServer) -> None:
    with connect(redis=server.url, store=MemoryStore()) as ids:
        for tag in range(20):
            ids.create(f"s{tag}", step=1000)
            ids.create(f"t{tag}", step=1000, order="trend")
            ids.next(f"s{tag}")
            ids.next(f"t{tag}")
        server.kill()
        for tag in range(20):
            ids.next(f"t{tag}")  # direct
        callers = [Waiting(ids, f"s{tag}", 20) for tag in range(20)]
        passed(callers[0].began, 1.0)
        server.start()
        back = time.monotonic()
        for caller in callers:
            caller.join()
        assert max(caller.ended for caller in callers) - back < BACK
        # Whoever asks for what is in hand only gets it as soon as it is there.
        assert ids.next("s0", timeout=0) > 0


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When each connection was tried, as its caller's clock says: a busy proxy may accept many at once."""
    times: list[float] = []
    connect = redis.connection.Connection.connect

    def noted(self: redis.connection.Connection) -> None:
        times.append(time.monotonic())
        connect(self)  # type: ignore[no-untyped-call]  # redis-py has no types here

    monkeypatch.setattr(redis.connection.Connection, "connect", noted)
    return times


def busiest(times: Sequence[float], width: float) -> int:
    """Return the most of these times that lie within so many seconds."""
    ordered = sorted(times)
    return max((bisect_left(ordered, first + width) - at for at, first in enumerate(ordered)), default=0)


def attempts(
    proxy: FaultProxy, fault: str, tried: list[float], tags: int, over: Callable[[Sequence[float], float], bool]
) -> tuple[float, int, int]:
    """Let 200 callers of so many tags wait through an outage until it is `over`, told its attempts and its length.

    Returns the connections tried per second of it, the most within 0.1 s, and the most within 0.1 s of its end. Those
    who were drawing when it began have tried once each, before anybody knew: that is over some time after the last of
    200 threads has begun.
    """
    store = MemoryStore()
    with ExitStack() as ends:
        crews = [ends.enter_context(issuer.connect(redis=proxy.url, store=store)) for _ in range(PROCESSES)]
        for tag in range(tags):
            crews[0].create(f"a{tag}", step=10_000)
            for ids in crews:
                ids.next(f"a{tag}")
        getattr(proxy, fault)()
        callers = [Waiting(ids, f"a{caller % tags}", 20) for ids in crews for caller in range(CALLERS)]
        until(lambda: all(caller.drawing for caller in callers), message="200 callers are drawing")
        began = time.monotonic() + SETTLED

        def during() -> list[float]:
            return [at for at in tried if at >= began]

        until(lambda: over(during(), time.monotonic() - began), timeout=20, message="the outage is over")
        back, seen = time.monotonic(), during()
        proxy.pass_through()
        with Stopwatch() as rest:
            for caller in callers:
                caller.join()
        assert all(caller.number for caller in callers), [caller.error for caller in callers if caller.error][:3]
        assert max(caller.ended for caller in callers) - back < BACK + rest.stolen
        for tag in range(tags):
            assert repeats(each.number for each in callers if each.tag == f"a{tag}" and each.number) == []
    assert len(tried) >= proxy.accepted  # none went another way
    return len(seen) / (back - began), busiest(seen, 0.1), busiest([at for at in tried if at >= back], 0.1)


#: Each process tries five times a second, whatever it waits for: 0.12 to 0.25 s apart.
A_SECOND = PROCESSES * 9
#: Attempts within 0.1 s. Jittered: not all processes at once, and none twice but by chance.
AT_ONCE = PROCESSES * 3


@pytest.mark.covers("3.20")
@pytest.mark.parametrize("fault", ["drop_requests", "refuse"])
@pytest.mark.parametrize("tags", [1, 25])
def test_two_hundred_waiting_callers_make_no_storm(
    proxy: FaultProxy, tried: list[float], tags: int, fault: str
) -> None:
    per_second, most, back = attempts(proxy, fault, tried, tags, lambda _, seconds: seconds > OUTAGE)
    assert per_second < A_SECOND
    assert most < AT_ONCE
    # Nor do they all come back in the same 0.1 s.
    assert back < PROCESSES * CALLERS / 2


def test_without_pauses_the_same_callers_storm(
    proxy: FaultProxy, tried: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard taken out: neither pauses between attempts nor a breaker."""
    for module in (clock, flight, supply, breaker):
        monkeypatch.setattr(module, "pause", lambda _attempt: 0.001)
    monkeypatch.setattr(breaker.Breaker, "admit", lambda _self, **_options: False)

    def stormed(seen: Sequence[float], seconds: float) -> bool:
        # A busy machine may be late with it.
        return seconds > LONGEST or (seconds > OUTAGE and busiest(seen, 0.1) > PROCESSES * 8)

    # One tag: the callers of a process share a leader, and don't keep each other from the processor. Nor does the
    # proxy, which is in this process too: it refuses them without a turn of its own.
    per_second, most, _ = attempts(proxy, "refuse", tried, 1, stormed)
    assert per_second > PROCESSES * 24
    assert most > PROCESSES * 8


@pytest.mark.covers("3.31", "3.27", "0.16")
@pytest.mark.parametrize("order", ["strict", "trend"])
def test_with_both_killed_what_is_held_is_served_then_refused_and_it_goes_on(
    connect: Connect, server: RedisServer, mongo_server: MongoServer, order: Literal["strict", "trend"]
) -> None:
    with connect(redis=server.url, store=f"{mongo_server.url}/both", timeout=0.6) as ids:
        ids.create("a", step=100, order=order, timeout=20)
        numbers = [ids.next("a", timeout=20) for _ in range(5)]
        server.kill()
        if order == "trend":
            numbers += [ids.next("a", timeout=20) for _ in range(30)]  # direct, and past its mark
            hand: Any = ids._roster.line("a").supply.hand
            until(lambda: len(hand.held) == 2, message="both segments of its own")
        mongo_server.kill()
        held = 0
        with suppress(issuer.StoreUnavailable, issuer.RedisUnavailable):
            while True:
                numbers.append(ids.next("a"))
                held += 1
        assert held == (170 if order == "trend" else 0)
        for timeout in (0, 0.3, 1.0):
            asked = Waiting(ids, "a", timeout)
            asked.join()
            assert isinstance(asked.error, issuer.StoreUnavailable if order == "trend" else issuer.RedisUnavailable)
            assert 0 < asked.error.retry_after <= 0.5
            assert asked.ended - asked.began < timeout + GRACE
        waiting = Waiting(ids, "a", 60)
        mongo_server.start()
        server.start()
        back = time.monotonic()
        waiting.join()
        assert waiting.number
        assert waiting.ended - back < BACK
        numbers += [waiting.number, *(ids.next("a", timeout=20) for _ in range(200))]
        assert repeats(numbers) == []
        assert numbers == sorted(numbers)
        assert max(numbers) <= ids.inspect("a", timeout=20).store.max
        until(lambda: not ids._roster.line("a").supply._direct, message="back on Redis")
