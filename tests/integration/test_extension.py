"""Extension: exactly at the mark, once, and nobody waits for it; and what callers see when it can't be had."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import Issuer
from issuer.clock import Deadline
from issuer.core.refill import Refill
from issuer.core.steps import Steps
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.audit import repeats
from tests.servers.fake import FencedFakeServer
from tests.waiting import until


class SlowStore(MemoryStore):
    """A memory store whose reservations take a while, fail, or wait for the test; it counts and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.delay = 0.0
        self.failures = 0
        self.gate = threading.Event()
        self.gate.set()
        self.reserved: list[Reservation] = []
        self.asked = 0

    def reserve(self, tag: str, n: int | None, **rest: Any) -> Reservation:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise Unavailable("the store is down")
        if not self.gate.wait(rest["timeout"]):
            raise Unavailable("timed out")
        if self.delay:
            if self.delay > rest["timeout"]:
                threading.Event().wait(rest["timeout"])
                raise Unavailable("timed out")
            threading.Event().wait(self.delay)
        reservation = super().reserve(tag, n, **rest)
        self.reserved.append(reservation)
        return reservation


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
    results: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def work(number: int) -> None:
        barrier.wait()
        try:
            results[number] = call(number)
        except issuer.IssuerError as error:
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.covers("3.19", "0.18", "4.10")
def test_the_draw_that_reaches_the_mark_fetches_the_next_segment_and_none_before(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    ids.warm("a")
    for expected in range(1, 200):
        assert ids.next("a") == expected
    assert store.asked == 1
    assert ids.next("a") == 200
    until(lambda: len(store.reserved) == 2, message="the next segment is reserved")
    for expected in range(201, 1000):
        assert ids.next("a") == expected
    assert store.asked == 2
    state = ids.inspect("a").redis
    assert state is not None
    assert (state.max, state.next_cur, state.next_max) == (1000, 1000, 2000)


@pytest.mark.covers("1.19", "0.18")
def test_a_hundred_threads_at_the_mark_start_one_extension(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    ids.take("a", 195)
    store.gate.clear()
    numbers = in_threads(100, lambda _: ids.next("a"))
    assert sorted(numbers) == list(range(196, 296))
    store.gate.set()
    until(lambda: len(store.reserved) == 2)
    in_threads(100, lambda _: ids.next("a"))
    assert store.asked == 2


@pytest.mark.covers("1.16", "4.13")
def test_a_hundred_threads_on_a_cold_tag_cause_one_reservation_and_all_succeed(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    store.delay = 0.1
    numbers = in_threads(100, lambda _: ids.next("a"))
    assert sorted(numbers) == list(range(1, 101))
    assert store.asked == 1


@pytest.mark.covers("0.19", "3.19", "0.17")
def test_ten_switches_of_the_buffers_without_a_wait(ids: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[Refill] = []
    wait = Refill.await_segment

    def watched(supply: Refill, deadline: Deadline) -> Steps[bool]:
        waits.append(supply)
        return wait(supply, deadline)

    def both_buffers_are_full() -> bool:
        state = ids.inspect("a").redis
        return state is not None and state.next_max is not None

    ids.create("a", step=100)
    ids.warm("a")
    monkeypatch.setattr(Refill, "await_segment", watched)
    for segment in range(11):
        numbers = [ids.next("a") for _ in range(30)]
        until(both_buffers_are_full, message="the next segment is loaded")
        numbers += [ids.next("a") for _ in range(70)]
        assert numbers == list(range(segment * 100 + 1, segment * 100 + 101))
    assert waits == []


@pytest.mark.covers("0.17")
def test_a_slow_store_makes_nobody_wait_while_numbers_are_in_hand(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=1000)
    ids.warm("a")
    store.gate.clear()
    began = time.monotonic()
    assert ids.take("a", 1000)[-1] == 1000
    assert time.monotonic() - began < 1.0
    store.gate.set()
    assert ids.next("a") == 1001


@pytest.mark.covers("1.21", "U.3", "3.27", "0.16", "1.17")
def test_callers_wait_for_a_segment_until_their_own_deadline_and_no_longer(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=10)
    ids.warm("a")
    store.gate.clear()
    ids.take("a", 10)
    began = time.monotonic()
    processor = time.process_time()
    results = in_threads(50, lambda number: ids.next("a", timeout=0.2 if number % 2 else 0.5))
    lasted = time.monotonic() - began
    assert all(isinstance(result, issuer.StoreUnavailable) for result in results)
    assert 0.5 <= lasted < 1.5
    assert time.process_time() - processor < lasted / 2  # they sleep, they don't spin
    assert results[0].retry_after > 0
    store.gate.set()
    assert ids.next("a") == 11


@pytest.mark.covers("1.21", "1.20", "0.21")
def test_waiters_get_numbers_when_the_store_fails_first_and_then_answers(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=100)
    store.failures = 3
    numbers = in_threads(20, lambda _: ids.next("a"))
    assert sorted(numbers) == list(range(1, 21))


def test_timeout_zero_means_what_is_in_hand(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=10)
    ids.warm("a")
    store.gate.clear()
    assert [ids.next("a", timeout=0) for _ in range(10)][-1] == 10
    began = time.monotonic()
    with pytest.raises(issuer.StoreUnavailable):
        ids.next("a", timeout=0)
    assert time.monotonic() - began < 0.2
    store.gate.set()
    # The refused call has woken the scheduler all the same.
    until(lambda: ids.inspect("a").remaining)
    assert ids.next("a", timeout=0) > 10


def test_an_error_part_way_through_take_leaves_a_gap_and_no_repeat(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=10)
    ids.warm("a")
    store.gate.clear()
    with pytest.raises(issuer.StoreUnavailable):
        ids.take("a", 25, timeout=0.1)
    store.gate.set()
    assert ids.next("a") == 11


@pytest.mark.covers("0.22")
def test_one_slow_tag_does_not_keep_another_waiting(ids: Issuer, store: SlowStore) -> None:
    ids.create("slow", step=10)
    ids.create("quick", step=10)
    ids.warm("quick")
    store.gate.clear()
    waiting = threading.Thread(target=in_threads, args=(3, lambda _: ids.next("slow")))
    waiting.start()
    assert ids.next("quick") == 1
    store.gate.set()
    waiting.join()


@pytest.mark.covers("0.7")
def test_n_numbers_cost_n_over_step_reservations_and_one_ahead(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=100)
    for _ in range(1000):
        ids.next("a")
    assert 10 <= store.asked <= 11


@pytest.mark.covers("0.4")
def test_one_reservation_serves_step_numbers(ids: Issuer, store: SlowStore) -> None:
    ids.create("a", step=500)
    ids.warm("a")
    assert ids.inspect("a").store.max == 500
    assert ids.take("a", 99)[-1] == 99
    assert store.asked == 1


def test_a_dead_scheduler_thread_is_replaced(ids: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    ids.create("a", step=10)
    ids.next("a")
    first = ids._scheduler._ours
    assert first is not None
    # What a thread that died looks like: APScheduler still says that it runs.
    first._event.set()
    state, first.state = first.state, 0
    first._event.set()
    until(lambda: not first._thread.is_alive())
    first.state = state
    assert ids.take("a", 100)[-1] == 101
    assert ids._scheduler._ours is not first
    assert "died" in caplog.text


def test_without_a_scheduler_the_caller_extends_when_nothing_is_left(redis_url: str, store: SlowStore) -> None:
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as ids:
        ids.create("a", step=10)
        assert ids.take("a", 10)[-1] == 10
        assert store.asked == 1
        assert ids.next("a") == 11
        assert store.asked == 2


def test_a_process_without_a_scheduler_is_never_elected_at_the_mark(redis_url: str, store: SlowStore) -> None:
    with (
        issuer.connect(redis=redis_url, store=store, scheduler=None) as drawer,
        issuer.connect(redis=redis_url, store=store) as extender,
    ):
        drawer.create("a", step=10)
        drawer.take("a", 9)
        assert extender.next("a") == 10
        began = time.monotonic()
        assert drawer.next("a") == 11
        assert time.monotonic() - began < 1.0  # nobody waited for an election to lapse


def test_the_callers_own_scheduler_is_used_and_left_running(redis_url: str, store: SlowStore) -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    try:
        with issuer.connect(redis=redis_url, store=store, scheduler=theirs) as ids:
            ids.create("a", step=10)
            assert ids.take("a", 5) == [1, 2, 3, 4, 5]
            until(lambda: len(store.reserved) == 2)
            assert len(theirs.get_jobs()) == 1
        assert theirs.running
        assert theirs.get_jobs() == []
    finally:
        theirs.shutdown()


def test_a_scheduler_that_does_not_run_leaves_extension_to_the_caller(redis_url: str, store: SlowStore) -> None:
    with issuer.connect(redis=redis_url, store=store, scheduler=BackgroundScheduler(timezone="UTC")) as ids:
        ids.create("a", step=10)
        assert ids.take("a", 35)[-1] == 35


def test_close_ends_an_extension_under_way(redis_url: str, store: SlowStore) -> None:
    ids = issuer.connect(redis=redis_url, store=store)
    ids.create("a", step=10)
    store.delay = 0.3
    ids.take("a", 2)
    until(lambda: store.asked == 2)
    ids.close()
    assert len(store.reserved) == 2
    with issuer.connect(redis=redis_url, store=store, scheduler=None) as after:
        assert after.inspect("a").redis.next_max == 20  # type: ignore[union-attr]  # drawn from, so it is there


@pytest.mark.covers("0.8")
def test_three_nodes_get_the_ranges_of_the_classic_example() -> None:
    store = MemoryStore()
    nodes = [issuer.connect(redis=None, store=store, scheduler=None) for _ in range(3)]
    nodes[0].create("a", step=1000)
    assert [node.next("a") for node in nodes] == [1, 1001, 2001]
    assert store.get("a", timeout=1).max == 3000  # type: ignore[union-attr]  # just made
    assert nodes[0].take("a", 999)[-1] == 1000
    assert nodes[0].next("a") == 3001
    assert store.get("a", timeout=1).max == 4000  # type: ignore[union-attr]  # just made
    for node in nodes:
        node.close()


@pytest.mark.covers("0.12")
def test_with_the_store_down_exactly_the_numbers_in_hand_are_issued(fake_server: FencedFakeServer) -> None:
    store = SlowStore()
    with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as ids:
        ids.create("a", step=100)
        ids.take("a", 20)
        assert ids.tick() == 1
        store.failures = 10**9
        assert ids.take("a", 180)[-1] == 200
        with pytest.raises(issuer.StoreUnavailable):
            ids.next("a", timeout=0.3)
        store.failures = 0
        assert ids.next("a") == 201


@pytest.mark.covers("3.8", "0.2", "2.3")
def test_fifty_threads_get_each_number_once(ids: Issuer) -> None:
    ids.create("a", step=500)
    numbers = [number for part in in_threads(50, lambda _: [ids.next("a") for _ in range(200)]) for number in part]
    assert len(numbers) == 10_000
    assert repeats(numbers) == []
