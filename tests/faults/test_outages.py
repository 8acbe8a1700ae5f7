"""Redis goes away, alone or with the store: strict callers ride it out, nobody storms, and all goes on by itself."""

import threading
import time
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import Any, Literal

import pytest

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


class Waiting:
    """A thread that draws one number, and when it came."""

    def __init__(self, ids: Issuer, tag: str, timeout: float) -> None:
        self.tag = tag
        self.number: int | None = None
        self.error: issuer.IssuerError | None = None
        self.began = time.monotonic()
        self.ended = 0.0
        self._thread = threading.Thread(target=self._draw, args=(ids, tag, timeout))
        self._thread.start()

    def _draw(self, ids: Issuer, tag: str, timeout: float) -> None:
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


def attempts(proxy: FaultProxy, tags: int, seconds: float) -> tuple[float, int, int]:
    """Let 200 callers of so many tags wait through an outage.

    Returns the connections tried per second of it, the most within 0.1 s, and the most within 0.1 s of its end.
    """
    store = MemoryStore()
    seen: list[tuple[float, int]] = []
    stop = threading.Event()
    with ExitStack() as ends:
        crews = [ends.enter_context(issuer.connect(redis=proxy.url, store=store)) for _ in range(PROCESSES)]
        for tag in range(tags):
            crews[0].create(f"a{tag}", step=10_000)
            for ids in crews:
                ids.next(f"a{tag}")
        proxy.drop_requests()  # a connection is accepted, counted, and then cut
        began = time.monotonic()
        callers = [Waiting(ids, f"a{caller % tags}", 20) for ids in crews for caller in range(CALLERS)]

        def watch() -> None:
            while not stop.wait(0.1):
                seen.append((time.monotonic(), proxy.accepted))

        watcher = threading.Thread(target=watch)
        watcher.start()
        passed(began, seconds)
        proxy.pass_through()
        back = time.monotonic()
        for caller in callers:
            caller.join()
        stop.set()
        watcher.join()
        assert all(caller.number for caller in callers), [caller.error for caller in callers if caller.error][:3]
        assert max(caller.ended for caller in callers) - back < BACK
        for tag in range(tags):
            assert repeats(each.number for each in callers if each.tag == f"a{tag}" and each.number) == []
    steps = [(at, after - sooner) for (_, sooner), (at, after) in pairwise(seen)]
    # Those who were drawing when it began have tried once each, before anybody knew.
    during = [count for at, count in steps if began + SETTLED < at < back]
    return sum(during) / (back - began - SETTLED), max(during), max((n for at, n in steps if at >= back), default=0)


#: Each process tries five times a second, whatever it waits for: 0.12 to 0.25 s apart.
A_SECOND = PROCESSES * 9
#: Attempts within 0.1 s. Jittered: not all processes at once, and none twice but by chance.
AT_ONCE = PROCESSES * 3


@pytest.mark.covers("3.20")
@pytest.mark.parametrize("tags", [1, 25])
def test_two_hundred_waiting_callers_make_no_storm(proxy: FaultProxy, tags: int) -> None:
    per_second, most, back = attempts(proxy, tags, 3.0)
    assert per_second < A_SECOND
    assert most < AT_ONCE
    # Nor do they all come back in the same 0.1 s.
    assert back < PROCESSES * CALLERS / 2


def test_without_pauses_the_same_callers_storm(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard taken out: neither pauses between attempts nor a breaker."""
    for module in (clock, flight, supply, breaker):
        monkeypatch.setattr(module, "pause", lambda _attempt: 0.001)
    monkeypatch.setattr(breaker.Breaker, "admit", lambda _self, **_options: False)
    # One tag: the callers of a process share a leader, and don't keep each other from the processor.
    per_second, most, _ = attempts(proxy, 1, 2.0)
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
