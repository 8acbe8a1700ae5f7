"""Calls in the middle of other calls: of finalizers, callbacks of weakref and gc, log handlers. None of them hangs."""

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

import issuer
import issuer.metrics
from issuer.reentry import CallLock
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.programs import fresh
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live

#: Draws in several threads, and wherever the garbage collector runs in one of them, or in the issuer's own.
PROGRAM = """
import gc, json, random, sys, threading, weakref
import issuer
import issuer.metrics

way, redis, store = sys.argv[1:]
drawn, refused, made, within, tags = [], [], [0], [], ["strict", "trend", "leased"]
ids = issuer.connect(redis=redis, store=store, lease=0)
alone = issuer.connect(redis="none", store=f"{store}.alone")
ids.create("strict", step=5)
ids.create("trend", step=5, order="trend")
ids.create("leased", step=20, order="trend", lease=5)
alone.create("direct", step=5)

def draw(of, tag):
    drawn.append((tag, of.next(tag, timeout=20)))

def inside(*_):
    if within or ended:
        return
    within.append(None)
    try:
        made[0] += 1
        of, tag = random.choice([*((ids, tag) for tag in tags), (alone, "direct")])
        if made[0] % 10 == 0:
            of.inspect(tag, timeout=20)  # asks the store and Redis
        draw(of, tag)
    except issuer.CalledWithin:
        refused.append(None)
    finally:
        within.clear()

class Garbage:
    def __init__(self):
        self.me = self

    def __del__(self):
        if way == "finalizer":
            inside()

def drawing():
    kept = []
    for each in range(400):
        garbage = Garbage()
        if way == "weakref":
            kept = [*kept[-50:], weakref.ref(garbage, inside)]
        of, tag = random.choice([*((ids, tag) for tag in tags), (alone, "direct")])
        draw(of, tag)

ended = False
ids.inspect("strict")  # loads its code: with so many collections this takes up to 20 s, and others wait for the draw
gc.set_threshold(20)
if way == "gc":
    gc.callbacks.append(inside)
threads = [threading.Thread(target=drawing) for _ in range(3)]
for each in threads:
    each.start()
for each in threads:
    each.join()
ended = True
print(json.dumps([made[0], len(refused), drawn]))
ids.close()
alone.close()
"""


@pytest.mark.parametrize("way", ["finalizer", "weakref", "gc"])
def test_what_the_garbage_collector_calls_may_draw(server: RedisServer, tmp_path: Path, way: str) -> None:
    done = fresh("-c", PROGRAM, way, server.url, f"sqlite:///{tmp_path}/s.db")
    made, refused, drawn = json.loads(done.stdout)
    assert made > refused > 0
    for tag in ("strict", "trend", "leased", "direct"):
        assert not repeats([number for of, number in drawn if of == tag])
    assert len(drawn) >= 1200 + made - refused - 1  # one may be under way yet, in a thread of the issuer's
    assert "Exception in thread" not in done.stderr


class Away(MemoryStore):
    """A store that can be away."""

    away = False

    def reserve(self, *arguments: object, **options: object) -> object:  # type: ignore[override]  # passed on
        if self.away:
            raise Unconfirmed("away")
        return super().reserve(*arguments, **options)  # type: ignore[arg-type]


def test_a_log_handler_that_draws_makes_no_outage_of_its_own() -> None:
    store = Away()
    seen: list[type] = []

    class Handler(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            store.away = False
            try:
                ids.next("a")
            except issuer.IssuerError as error:
                seen.append(type(error))

    log, handler = logging.getLogger("issuer"), Handler()
    with issuer.connect(redis="none", store=store) as ids:
        ids.create("a", step=5)
        ids.take("a", 5)
        store.away = True
        log.addHandler(handler)
        try:
            ids.take("a", 100)
        finally:
            log.removeHandler(handler)
    assert set(seen) == {issuer.CalledWithin}


def test_a_draw_in_the_middle_of_another_one_waits_for_nothing_that_this_one_holds(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a finalizer that runs while its thread leads a draw for others."""
    monkeypatch.setattr("issuer.drivers.blocking.combiner.TURN", 1000.0)
    with issuer.connect(redis=server.url, store=MemoryStore()) as ids:
        ids.create("a")
        ids.next("a")
        combiner = ids.engine.registry.combiner("a")
        numbers: list[int] = []
        draw, begun = combiner._draw, time.monotonic()

        def within(n: int, deadline: object) -> Sequence[int]:
            combiner._draw = draw  # type: ignore[method-assign]
            numbers.extend([ids.next("a"), ids.next("a", timeout=40), *ids.take("a", 3)])
            return draw(n, deadline)  # type: ignore[arg-type]

        combiner._draw = within  # type: ignore[method-assign]
        combiner._queued = True  # as if others were drawing: it leads a batch
        numbers.append(ids.next("a"))
        assert len(numbers) == 6
        assert not repeats(numbers)
        assert time.monotonic() - begun < 40


def test_a_batch_is_led_once(server: RedisServer) -> None:
    """A finalizer's draw sits in the batch that its own thread is about to lead."""
    with issuer.connect(redis=server.url, store=MemoryStore()) as ids:
        ids.create("a")
        ids.next("a")
        combiner = ids.engine.registry.combiner("a")
        numbers: list[int] = []
        lead = combiner._lead

        def within(batch: object, deadline: object) -> None:
            combiner._lead = lead  # type: ignore[method-assign]
            numbers.append(ids.next("a"))
            assert not batch.finished, "and is drawn for by the one that leads it"  # type: ignore[attr-defined]
            lead(batch, deadline)  # type: ignore[arg-type]

        combiner._lead = within  # type: ignore[method-assign]
        combiner._queued = True
        numbers.append(ids.next("a"))
        assert not repeats(numbers)


@pytest.mark.parametrize("name", ["next", "take", "inspect"])
def test_a_call_between_the_two_locks_of_another_waits_for_no_third_one(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As of a finalizer that runs there: the thread that holds the third lock may wait for the first one."""
    with issuer.connect(redis=server.url, store=MemoryStore(), lease=0) as ids:
        ids.create("a", step=50, order="trend", lease=5)
        ids.take("a", 5)
        supply = ids.engine.registry.combiner("a").supply
        assert supply.state.buffer is not None
        first, call, waits = supply.state.buffer._lock, CallLock.call, threading.Event()
        held, outcome = threading.Event(), list[object]()

        def holding() -> None:
            with supply.origin.lock.thread:
                held.set()
                outcome.append(waits.wait(20))

        def interrupted(lock: CallLock) -> threading.Lock:
            if lock is first and not other.is_alive() and not outcome:
                other.start()
                held.wait()
                arguments = {"next": [], "take": [20], "inspect": []}[name]
                with pytest.raises(issuer.CalledWithin):
                    getattr(ids, name)("a", *arguments, timeout=40)
                waits.set()
                other.join()
            return call(lock)

        other = threading.Thread(target=holding)
        monkeypatch.setattr(CallLock, "call", interrupted)
        assert ids.take("a", 2) == [6, 7]
        assert outcome == [True]


def test_what_is_being_changed_is_not_read_by_a_draw_in_the_middle() -> None:
    with issuer.connect(redis="none", store=MemoryStore()) as ids:
        ids.create("a", step=5)
        ids.next("a")
        ids.create("b")
        supply = ids.engine.registry.combiner("a").supply
        assert supply.state.buffer is not None
        for lock in (supply.state.buffer._lock, supply.refill.segments.flights._lock):
            with lock.thread, lock.call(), pytest.raises(issuer.CalledWithin):
                ids.take("a", 100)
        with supply.origin.lock.thread, supply.origin.lock.call(), pytest.raises(issuer.CalledWithin):
            supply.origin.publish()
        registry = ids.engine.registry._lock
        with registry.thread, registry.call(), pytest.raises(issuer.CalledWithin):
            ids.next("b")
        hand = supply.state.buffer._lock
        with hand.thread, hand.call():
            before = supply.state.buffer._state
            supply.state.buffer.unpublish(0.1)  # a fork in the middle
            assert supply.state.buffer._state is before
        assert ids.next("b") == 1
        assert ids.next("a") > 1


def test_what_runs_in_the_middle_of_prometheus_client_is_not_counted() -> None:
    """As of a finalizer's draw there: it would wait for the lock of the metric that is being counted or shown."""
    shown = prometheus_client.CollectorRegistry()
    with issuer.connect(redis="none", store=MemoryStore(), scheduler=None) as ids:
        book = issuer.metrics.install(ids, registry=shown)._book
        ids.create("a", step=5)
        locks = [each._lock for each in book._families._made.values() if hasattr(each, "_lock")]
        scope: dict[str, Any] = {"__name__": "prometheus_client.metrics"}
        exec("def draw(ids):\n    return ids.take('a', 20)", scope)  # noqa: S102 - a function of that module
        with ExitStack() as held:
            for each in locks:
                held.enter_context(each)
            drawing = threading.Thread(target=scope["draw"], args=[ids], daemon=True)
            drawing.start()
            drawing.join(60)
            assert not drawing.is_alive()
        assert ids.take("a", 1) == [21]
