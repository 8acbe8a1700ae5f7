"""Processes that reserve in the store themselves: without Redis, while it is away, and when they return to it."""

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from apscheduler.executors.pool import ThreadPoolExecutor as SchedulersPool
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer, clock
from issuer.clock import Deadline
from issuer.core.floor import floor
from issuer.core.supply import rejoin
from issuer.core.supply.mode import Mode
from issuer.core.supply.supply import Supply
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.colours import run
from tests.core.test_leases import supply_of
from tests.forks import in_child
from tests.schemes import Make
from tests.servers.fake import FencedFakeServer
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")


def test_a_tag_made_again_as_strict_is_not_served_direct(make: Make, fake_server: FencedFakeServer) -> None:
    one, two = make(), make()
    one.create("a", step=10, order="trend")
    one.next("a")
    one.tick()
    two.delete("a")
    two.create("a", step=10, order="strict")
    two.next("a")
    fake_server.connected = False
    with pytest.raises(issuer.RedisUnavailable):  # in so little time, the store may not have answered either
        until(lambda: one.next("a", timeout=0.2), 60, ignoring=(issuer.StoreUnavailable,))
    fake_server.connected = True
    assert_increasing([one.next("a"), two.next("a"), one.next("a")])


def rejoined(ids: Issuer) -> Supply:
    """Let the process return to Redis, if it can, and return its supply."""
    supply = supply_of(ids)
    run(ids, "a", supply.rejoin(), Deadline(20))
    return supply


@pytest.mark.parametrize("when", ["before it", "after it", "asked before it and reserved after it"])
def test_a_range_reserved_beside_a_hand_back_halts_nothing(
    make: Make, fake_server: FencedFakeServer, when: str
) -> None:
    """Another thread's `reserve`, at each moment around the hand back of a process that returns to Redis."""

    class Beside(MemoryStore):
        beside: Callable[[], object] | None = None

        def hand_back(self, *args: Any, **options: Any) -> bool:
            if when == "before it":
                self._meanwhile()
            taken = super().hand_back(*args, **options)
            if when == "after it":
                self._meanwhile()
            return taken

        def reserve(self, *args: Any, **options: Any) -> Reservation:
            if options["purpose"].reason == "reserve" and when.startswith("asked"):
                self._meanwhile()
            return super().reserve(*args, **options)

        def _meanwhile(self) -> None:
            beside, self.beside = self.beside, None
            if beside is not None:
                with ThreadPoolExecutor() as another:
                    another.submit(beside).result(60)

    store = Beside()
    ids = make(store=store)
    ids.create("a", step=100, order="trend")
    numbers = [ids.next("a")]
    fake_server.connected = False
    numbers.append(ids.next("a"))
    fake_server.connected = True

    def returned() -> bool:
        return rejoined(ids).origin.mode is not Mode.DIRECT

    if when.startswith("asked"):
        store.beside = lambda: until(returned)
        numbers += ids.reserve("a", 5)
    else:
        store.beside = lambda: numbers.extend(ids.reserve("a", 5))
        until(returned)
    assert store.beside is None
    assert repeats([*numbers, *ids.take("a", 5)]) == []
    assert not ids.inspect("a").store.halted


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_store_that_fails_in_the_fork_hook_does_not_leave_the_child_its_parents_numbers(make: Make) -> None:
    class Broken(MemoryStore):
        def after_fork(self) -> None:
            raise RuntimeError("broken")

    both = [make(redis="none", store=each) for each in (Broken(), MemoryStore())]
    for ids in both:
        ids.create("a", step=100)
        ids.next("a")
    for ids in both:
        assert "ConfigurationError" in str(in_child(partial(ids.take, "a", 3))())


@pytest.mark.live
def test_a_schedulers_pool_that_is_full_leaves_extension_to_the_caller(make: Make) -> None:
    theirs = BackgroundScheduler(timezone="UTC", executors={"default": SchedulersPool(1)})
    release = threading.Event()
    theirs.start()
    try:
        theirs.add_job(release.wait, args=(60,))
        ids = make(redis="none", scheduler=theirs)
        ids.create("a", step=10)
        assert ids.take("a", 30, timeout=40)[-1] == 30
    finally:
        release.set()
        theirs.shutdown()


# APScheduler's own shutdown empties its job store under the feet of its thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_close_hands_back_whatever_became_of_the_callers_scheduler(make: Make, store: MemoryStore) -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    ids = make(redis="none", scheduler=theirs)
    ids.create("a", step=1000)
    ids.next("a")
    theirs.shutdown()
    ids.close()
    assert store.snapshot().tags["a"].max == 1


@pytest.mark.live
@pytest.mark.parametrize("limited", [True, False])
def test_a_store_that_gives_nothing_is_not_asked_at_every_draw(make: Make, limited: bool) -> None:
    class Counted(MemoryStore):
        asked = 0

        def reserve(self, *args: Any, **options: Any) -> Reservation:
            self.asked += 1
            if self.asked > 1 and not limited:
                raise Unconfirmed("down")
            return super().reserve(*args, **options)

    store = Counted()
    ids = make(redis="none", store=store, scheduler="background")
    ids.create("a", step=5000, limit=5000 if limited else 50_000)
    for _ in range(4000):
        ids.next("a")
    assert store.asked < 200


def test_warm_of_a_trend_tag_goes_direct_and_of_a_strict_one_names_redis(
    make: Make, fake_server: FencedFakeServer
) -> None:
    ids = make()
    ids.create("strict")
    ids.create("trend", order="trend")
    fake_server.connected = False
    ids.warm("trend")
    assert ids.next("trend", timeout=0) == 1
    with pytest.raises(issuer.RedisUnavailable):  # in so little time, the store may not have answered either
        until(partial(ids.warm, "strict", timeout=0.5), ignoring=(issuer.StoreUnavailable,))


@pytest.mark.live
def test_callers_that_never_wait_get_numbers_from_the_scheduler(make: Make) -> None:
    ids = make(redis="none", scheduler="background")
    ids.create("a", step=10)
    got = [until(lambda: ids.next("a", timeout=0), ignoring=(issuer.StoreUnavailable,)) for _ in range(50)]
    assert got == list(range(1, 51))


def test_a_far_store_and_a_short_timeout_burn_no_segment_a_call(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, real = 0.0, clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + passed)

    class FarAway(MemoryStore):
        def get(self, tag: str, *, timeout: float) -> issuer.values.Tag | None:
            nonlocal passed
            passed += 50
            return super().get(tag, timeout=timeout)

    store = FarAway()
    ids = make(redis="none", store=store)
    ids.create("a", step=1000)
    got = []
    for _ in range(30):
        with contextlib.suppress(issuer.StoreUnavailable):
            got.append(ids.next("a", timeout=40))
    assert len(got) > 20
    assert store.snapshot().tags["a"].max <= 2000


def test_numbers_that_are_drawn_as_a_process_returns_to_redis_keep_it_direct(
    make: Make, fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was told what was issued, for the second time, and gives numbers below what was drawn since."""
    other, ids = make(), make()
    ids.create("a", step=10, order="trend")
    numbers = [ids.next("a")]
    fake_server.connected = False
    numbers += [ids.next("a") for _ in range(5)]
    fake_server.connected = True
    other.take("a", 15)  # from Redis, which has a segment between those of this process
    flights: Any = supply_of(ids).refill.segments.flights
    floors = 0

    def then_drawn(*args: Any, **options: Any) -> Any:
        nonlocal floors
        yield from floor(*args, **options)
        floors += 1
        if floors == 2:
            flights._flight.begun -= 100  # its own has taken too long, so that another one begins
            with ThreadPoolExecutor(1) as beside:
                numbers.extend(beside.submit(lambda: [ids.next("a") for _ in range(6)]).result())

    monkeypatch.setattr(rejoin, "floor", then_drawn)
    until(lambda: rejoined(ids) is not None and floors, message="Redis is asked again")
    assert numbers[6:] == list(range(31, 37))
    assert_increasing([*numbers, *(ids.next("a") for _ in range(20))])


def test_what_is_left_goes_back_to_the_store_when_the_hash_is_corrupted_in_mid_rejoin(
    make: Make, store: MemoryStore, fake_server: FencedFakeServer, fake_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = []

    def then_corrupted(*args: Any, **options: Any) -> Any:
        yield from floor(*args, **options)
        raised.append(fake_redis.hset("issuer:{a}", "max", "x"))

    ids = make()
    ids.create("a", step=10, order="trend")
    fake_server.connected = False
    assert ids.next("a") == 1
    fake_server.connected = True
    monkeypatch.setattr(rejoin, "floor", then_corrupted)
    until(lambda: ids.tick() or raised, message="Redis is asked again")
    assert store.snapshot().tags["a"].max == 1
    ids.recover("a")
    assert ids.next("a") == 2
