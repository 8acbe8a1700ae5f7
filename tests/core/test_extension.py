"""Extension: exactly at the mark, once, and nobody waits for it; what callers see when it can't be had; steps ahead."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from math import inf
from typing import Any, Literal

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer
from issuer.drivers.store_pool import StorePool
from issuer.engine.scheduler import Threads
from issuer.gateway import tag_scripts
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.colours import BOTH, Connect
from tests.deadlines import refused_by_store
from tests.refusals import refused
from tests.schemes import Make
from tests.waiting import until

pytestmark = pytest.mark.colours("blocking")

#: Seconds that a call may take whose wrong behaviour is to wait for a store that is silent, as long as `unhurried` has.
SOON = 15


class SlowStore(MemoryStore):
    """A memory store whose reservations fail, or wait for the test; it counts and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: float = 0
        self.gate = threading.Event()
        self.gate.set()
        self.reserved: list[Reservation] = []
        self.asked = 0

    def reserve(self, tag: str, n: int | None, **rest: Any) -> Reservation:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise Unconfirmed("the store is down")
        if not self.gate.wait(rest["timeout"]):
            raise Unconfirmed("timed out")
        self.reserved.append(super().reserve(tag, n, **rest))
        return self.reserved[-1]


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def ids(redis_url: str, store: SlowStore) -> Iterator[Issuer]:
    with issuer.connect(redis=redis_url, store=store) as made:
        yield made
        store.gate.set()


def in_threads(count: int, call: Callable[[int], object]) -> list[Any]:
    """Run the call in that many threads at once and return what they returned, or raised."""
    barrier = threading.Barrier(count)

    def work(number: int) -> object:
        barrier.wait()
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(work, number) for number in range(count)]
    return [each.exception() or each.result() for each in calls]


def buffers(ids: Issuer) -> tuple[int | None, ...]:
    """Return `cur`, and where both buffers end, as they are in Redis."""
    state = ids.inspect("a").redis
    assert state is not None
    return state.cur, state.max, state.next_max


@pytest.mark.covers("3.19", "0.18", "4.10")
def test_the_draw_that_reaches_the_mark_fetches_the_next_segment_and_none_before(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    ids.warm("a")
    assert [ids.next("a") for _ in range(199)] == list(range(1, 200))
    assert store.asked == 1
    assert ids.next("a") == 200
    until(lambda: len(store.reserved) == 2, 30, "the next segment is reserved")
    assert [ids.next("a") for _ in range(799)] == list(range(201, 1000))
    assert store.asked == 2
    until(lambda: buffers(ids) == (999, 1000, 2000), 30)


@pytest.mark.covers("4.10", "3.19", "0.18")
@pytest.mark.parametrize("used", [0.2, 0.8, 0.1, 0.01, 0.9], ids=["20 % used", "20 % left", "Leaf", "first", "last"])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 10, 1000])
def test_the_refill_is_due_at_exactly_one_number_whether_used_or_left_is_counted(
    make: Make, step: int, used: float
) -> None:
    """The first number that uses at least that share: a share left is its complement used, and no second rule."""
    ids, share = make(), Fraction(str(used))
    ids.create("a", step=step, refill_at=used)
    ids.warm("a")
    for segment in range(0, min(2 * step, 1000), step):
        due = [number for number in range(1, step + 1) if ids.next("a") == segment + number and ids.tick()]
        assert due == [next(number for number in range(1, step + 1) if number >= share * step)]


@pytest.mark.covers("4.10", "U.5")
def test_a_changed_share_holds_from_the_next_segment_on(make: Make) -> None:
    ids = make()
    ids.create("a", step=10)
    ids.warm("a")
    assert ids.configure("a", refill_at=0.8).refill_at == 0.8
    assert [number for number in range(1, 31) if ids.next("a") == number and ids.tick()] == [2, 18, 28]
    assert ids.inspect("a").store.refill_at == 0.8


@pytest.mark.covers("4.10")
def test_direct_mode_fetches_at_the_share_that_the_tag_names(make: Make) -> None:
    ids = make(redis="none")
    ids.create("a", step=10, refill_at=0.8)
    ids.warm("a")
    assert [number for number in range(1, 31) if ids.next("a") == number and ids.tick()] == [8, 18, 28]


@pytest.mark.covers("1.19", "0.18")
def test_a_hundred_threads_at_the_mark_start_one_extension(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    ids.take("a", 195)
    store.gate.clear()
    assert sorted(in_threads(100, lambda _: ids.next("a"))) == list(range(196, 296))
    store.gate.set()
    until(lambda: len(store.reserved) == 2, 30)
    in_threads(100, lambda _: ids.next("a"))
    assert store.asked == 2


@pytest.mark.covers("1.16", "4.13")
def test_a_hundred_threads_on_a_cold_tag_cause_one_reservation_and_all_succeed(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        drawing = pool.submit(in_threads, 100, lambda _: ids.next("a"))
        until(lambda: store.asked, 30)
        store.gate.set()
        assert sorted(drawing.result()) == list(range(1, 101))
    assert store.asked == 1


@pytest.mark.covers("0.15", "3.18", "0.19", "3.19")
@pytest.mark.parametrize("scheduler", ["background", None])
def test_at_ten_borders_nobody_waits_exactly_if_the_next_segment_was_fetched_ahead(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, scheduler: Literal["background"] | None
) -> None:
    """Which calls of the store, and which `open`, each border makes its caller do; in microseconds: `make bench`."""
    caller = threading.get_ident()
    asked: list[str] = []

    def note(owner: object, name: str) -> None:
        call = getattr(owner, name)

        def noting(*args: Any, **options: Any) -> Any:
            if scheduler is None or threading.get_ident() == caller:  # the store is asked in threads of their own
                asked.append(name)
            return call(*args, **options)

        monkeypatch.setattr(owner, name, noting)

    store = MemoryStore()
    for name in ("reserve", "get", "store_id", "configure"):
        note(store, name)
    note(tag_scripts, "open")
    note(StorePool, "ask")  # which waits for a thread of the store's
    with issuer.connect(redis=redis_url, store=store, scheduler=scheduler) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 30)
        for _ in range(10):
            if scheduler is not None:
                until(lambda: buffers(ids)[2], 30, "the next segment is loaded")
            asked.clear()
            numbers += [ids.next("a") for _ in range(100)]
            assert not asked if scheduler else {"open", "ask"} <= set(asked)
    assert numbers == list(range(1, 1031))


@pytest.mark.covers("0.17", "4.6", "1.17")
def test_a_slow_store_makes_nobody_wait_while_numbers_are_in_hand(make: Make, store: SlowStore) -> None:
    ids = make(scheduler="background")
    ids.create("a", step=1000)
    ids.warm("a")
    store.gate.clear()
    numbers = ids.take("a", 300)
    until(lambda: store.asked == 2, 30, "a reservation is under way")
    numbers += ids.take("a", 700)
    assert len(store.reserved) == 1, "still under way"
    refused(issuer.StoreUnavailable, "", ids.next, "a", timeout=0.1)
    assert buffers(ids) == (1000, 1000, None), "what is not loaded is not switched to"
    store.gate.set()
    assert [*numbers, ids.next("a")] == list(range(1, 1002))


@pytest.mark.covers("1.21", "U.3", "3.27", "0.16")
def test_callers_wait_for_a_segment_until_their_own_deadline_and_no_longer(make: Make, store: SlowStore) -> None:
    ids = make(scheduler="background")  # whose Redis is in this process: no round trip is late
    ids.create("a", step=10)
    ids.warm("a")
    store.gate.clear()
    ids.take("a", 10)
    began = time.monotonic()
    processor = time.process_time()
    results = in_threads(50, lambda number: ids.next("a", timeout=1 if number % 2 else 2.5))
    lasted = time.monotonic() - began
    assert all(isinstance(result, issuer.StoreUnavailable) for result in results)
    assert 2.5 <= lasted < SOON
    assert time.process_time() - processor < lasted / 2  # they sleep, they don't spin
    assert results[0].retry_after > 0
    store.gate.set()
    assert ids.next("a") == 11


@pytest.mark.covers("1.21", "1.20")
def test_waiters_get_numbers_when_the_store_fails_first_and_then_answers(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=100)
    store.failures = 3
    numbers = in_threads(20, lambda _: ids.next("a"))
    assert sorted(numbers) == list(range(1, 21))


@pytest.mark.covers("0.21")
def test_a_fetch_that_failed_at_the_mark_is_tried_again_and_succeeds_before_the_numbers_run_out(
    ids: Issuer, store: SlowStore
) -> None:
    ids.create("a", step=100)
    numbers = ids.take("a", 19)
    store.failures = 2
    numbers.append(ids.next("a"))
    until(lambda: store.asked >= 2, 30, "it has failed")
    while len(store.reserved) < 2:
        numbers.append(ids.next("a"))
        asked = store.asked
        until(lambda asked=asked: store.asked > asked or len(store.reserved) == 2, 30)  # type: ignore[misc]  # bound at once
    assert (store.failures, store.asked) == (0, 4)
    assert len(numbers) < 30, "most of the first segment is left"
    until(lambda: buffers(ids) == (len(numbers), 100, 200), 30)
    assert [*numbers, *ids.take("a", 100)] == list(range(1, len(numbers) + 101))


@pytest.mark.covers("0.22")
def test_one_slow_tag_does_not_keep_another_waiting(ids: Issuer, store: SlowStore) -> None:
    ids.create("slow", step=10)
    ids.create("quick", step=10)
    ids.warm("quick")
    store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(in_threads, 3, lambda _: ids.next("slow"))
        until(lambda: store.asked == 2, 30)
        assert ids.next("quick") == 1
        assert not slow.done()
        store.gate.set()
        assert sorted(slow.result()) == [1, 2, 3]


@pytest.mark.covers("0.7", "0.4", "2.8")
def test_n_numbers_cost_n_over_step_reservations_and_one_ahead(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=100)
    ids.warm("a")
    assert ids.inspect("a").store.max == 100
    assert ids.take("a", 19)[-1] == 19
    assert store.asked == 1
    assert [ids.next("a") for _ in range(981)][-1] == 1000
    assert 10 <= store.asked <= 11


#: How numbers come, as arguments of `connect` and of `create`.
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strict": ({}, {"order": "strict"}),
    "leased": ({"lease": 100}, {"order": "trend"}),
    "direct": ({"redis": "none"}, {"order": "trend"}),
}


@BOTH
@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("mode", MODES)
def test_whoever_wants_more_than_is_left_has_it_reserved_at_once(
    connect: Connect, redis_url: str, store: SlowStore, monkeypatch: pytest.MonkeyPatch, *, mode: str, scheduler: Any
) -> None:
    # A sweep that comes before the caller doesn't know how many numbers it wants.
    monkeypatch.setattr("issuer.engine.scheduler.SWEEP_EVERY", 3600.0)
    settings, tag = MODES[mode]
    with connect(**{"redis": redis_url, "store": store, "scheduler": scheduler, **settings}) as ids:
        ids.create("a", step=1000, **tag)
        assert ids.take("a", 100_000) == list(range(1, 100_001))
        assert (store.reserved[0].low, store.reserved[0].high) == (0, 100_000)
        assert store.asked <= 2  # and one ahead
        numbers = [ids.next("a"), *ids.take("a", 50_000)]
        assert numbers == sorted(set(numbers))
        assert store.asked <= 6  # what was in hand, what was being fetched, and the rest
        top = max(each.high for each in store.reserved)
        assert top - numbers[-1] <= 50_000  # a gap of no more than was asked for, whatever fails now
        ids.create("b", step=1000, limit=30_500, **tag)
        error = refused(issuer.LimitReached, "", ids.take, "b", 60_000)
        assert error.drawn == list(range(1, 30_501))
        assert [(each.low, each.high) for each in store.reserved if each.tag.tag == "b"] == [(0, 30_500)]


def test_a_dead_scheduler_thread_is_replaced(ids: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    ids.create("a", step=10)
    ids.next("a")
    crew = ids.engine.scheduler._crew
    assert isinstance(crew, Threads)
    first = crew._timer
    assert first is not None
    # What a thread that died looks like: APScheduler still says that it runs.
    state, first.state = first.state, 0
    first.wakeup()
    until(lambda: not first.thread.is_alive(), 30)
    first.state = state
    assert ids.take("a", 100)[-1] == 101
    assert crew._timer is not first
    assert "the scheduler ended unexpectedly" in caplog.text


def test_without_a_scheduler_the_caller_extends_when_nothing_is_left(redis_url: str, store: SlowStore) -> None:
    idle = BackgroundScheduler(timezone="UTC")  # never started: as good as none
    for scheduler in (None, idle):
        with issuer.connect(redis=redis_url, store=store, scheduler=scheduler) as ids:
            ids.create(f"a {scheduler}", step=10)
            asked = store.asked
            assert ids.take(f"a {scheduler}", 10)[-1] == 10
            assert store.asked == asked + 1
            assert ids.next(f"a {scheduler}") == 11
            assert store.asked == asked + 2


def test_a_process_without_a_scheduler_is_never_elected_at_the_mark(
    ids: Issuer, redis_url: str, store: SlowStore
) -> None:
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as drawer:
        drawer.create("a", step=10)
        drawer.take("a", 9)
        assert ids.next("a") == 10
        began = time.monotonic()
        assert drawer.next("a") == 11
        assert time.monotonic() - began < SOON  # nobody waited for an election to lapse


def test_the_callers_own_scheduler_is_used_and_left_running(redis_url: str, store: SlowStore) -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    try:
        with issuer.connect(redis=redis_url, store=store, scheduler=theirs) as ids:
            ids.create("a", step=10)
            assert ids.take("a", 5) == [1, 2, 3, 4, 5]
            until(lambda: len(store.reserved) == 2, 30)
            until(lambda: len(theirs.get_jobs()) == 1, 60, "but for the sweep all are begun, and so are none any more")
        assert theirs.running
        until(lambda: theirs.get_jobs() == [], 60)
    finally:
        theirs.shutdown()


@BOTH
@pytest.mark.covers("3.26", "0.12")
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "redis"])
def test_an_outage_of_known_length_costs_nothing(
    connect: Connect, redis_url: str, store: SlowStore, direct: bool
) -> None:
    with connect(redis="none" if direct else redis_url, store=store) as ids:
        ids.create("a", step=10, ahead=5)
        numbers = ids.take("a", 11)  # past the mark of 50: the next 50 come
        until(lambda: ids.inspect("a").store.max == 100, 30)
        store.failures = inf
        numbers += [ids.next("a") for _ in range(89)]
        assert numbers == list(range(1, 101))
        refused_by_store(ids, "a", 0.3)
        store.failures = 0
        assert ids.next("a") == 101


@pytest.mark.covers("3.28")
def test_two_processes_that_reserve_ahead_never_overlap_and_both_live_through_an_outage(
    make: Make, store: SlowStore
) -> None:
    two = [make(redis="none") for _ in range(2)]
    two[0].create("a", step=10, ahead=5)
    numbers = [ids.next("a") for _ in range(12) for ids in two]
    assert [ids.tick() for ids in two] == [1, 1]
    store.failures = inf
    numbers += [ids.next("a") for _ in range(88) for ids in two]
    assert sorted(numbers) == list(range(1, 201))
    for ids in two:
        refused(issuer.StoreUnavailable, "", ids.next, "a", timeout=0.1)
    ranges = sorted((entry.low, entry.high) for entry in store.ledger("a", newest=9, timeout=10))
    assert ranges == [(low, low + 50) for low in range(0, 200, 50)]
