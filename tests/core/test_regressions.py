"""What a hostile reader made it do once, and must never make it do again."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from apscheduler.executors.pool import ThreadPoolExecutor as SchedulersPool
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import clock
from issuer.clock import Deadline
from issuer.core.floor import floor
from issuer.core.supply import rejoin
from issuer.core.supply.mode import Mode
from issuer.threads import finished
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.forks import in_child
from tests.schemes import Make, processes
from tests.servers.fake import FencedFakeServer
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def make_live(fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers without a scheduler, each of which stands for a process of its own."""
    with processes(issuer.connect, store=store, scheduler=None) as made:
        yield lambda **settings: made(redis=fake_server.client(), **settings)


def test_recover_listens_to_every_field_of_a_hash_that_can_be_read(
    make_live: Make, store: MemoryStore, fake_redis: redis.Redis
) -> None:
    ids = make_live()
    ids.create("a", step=100)
    ids.next("a")
    backup = store.snapshot()
    numbers = ids.take("a", 350)
    store.restore(backup)
    fake_redis.hset("issuer:{a}", "max", "x")
    fresh = make_live()
    fresh.recover("a")
    assert repeats(numbers + fresh.take("a", 200)) == []


def test_a_tag_made_again_as_strict_is_not_served_direct(make_live: Make, fake_server: FencedFakeServer) -> None:
    one, two = make_live(), make_live()
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


@pytest.mark.parametrize("when", ["before it", "after it", "asked before it and reserved after it"])
def test_a_range_reserved_beside_a_hand_back_halts_nothing(
    make_live: Make, fake_server: FencedFakeServer, when: str
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
                beside()

    store = Beside()
    ids = make_live(store=store)
    ids.create("a", step=100, order="trend")
    numbers = [ids.next("a")]
    fake_server.connected = False
    numbers.append(ids.next("a"))
    fake_server.connected = True

    def returned() -> bool:
        line = ids.engine.registry.combiner("a")
        finished(lambda: line.run(line.supply.rejoin(), Deadline(20)))
        return line.supply.origin.mode is not Mode.DIRECT

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
def test_a_store_that_fails_in_the_fork_hook_does_not_leave_the_child_its_parents_numbers() -> None:
    class Broken(MemoryStore):
        def after_fork(self) -> None:
            raise RuntimeError("broken")

    with (
        issuer.connect(redis="none", store=Broken(), scheduler=None) as first,
        issuer.connect(redis="none", store="memory://", scheduler=None) as second,
    ):
        for ids in (first, second):
            ids.create("a", step=100)
            ids.next("a")
        for ids in (first, second):
            answer = in_child(lambda ids=ids: ids.take("a", 3))()  # type: ignore[misc]  # bound at once
            assert "ConfigurationError" in str(answer)


def test_more_connections_are_made_than_redis_pys_pool_counts_to(redis_proxy: FaultProxy) -> None:
    with issuer.connect(redis=redis_proxy.url, store="memory://") as ids:
        ids.create("a", step=10_000)
        for _ in range(130):  # one after the other; the pool counts to 100
            redis_proxy.cut()
            ids.next("a")
        assert redis_proxy.accepted > 100
        redis_proxy.delay_replies(0.2)
        with ThreadPoolExecutor(130) as pool:  # and at once
            assert len(set(pool.map(lambda _: ids.next("a"), range(130)))) == 130


@pytest.mark.parametrize("url", ["", "?client_name=a&protocol=3"])
def test_a_slow_redis_costs_a_call_its_deadline_and_not_each_of_its_replies(redis_proxy: FaultProxy, url: str) -> None:
    with issuer.connect(redis=redis_proxy.url + url, store="memory://", scheduler=None) as ids:
        ids.create("a")
        redis_proxy.delay_replies(0.6)
        with pytest.raises(issuer.Unavailable):
            ids.next("a", timeout=1)
        # With a second for each reply, the handshake alone would have gone on beyond these.
        assert redis_proxy.hits <= 2


@pytest.mark.live
def test_a_schedulers_pool_that_is_full_leaves_extension_to_the_caller() -> None:
    theirs = BackgroundScheduler(timezone="UTC", executors={"default": SchedulersPool(1)})
    release = threading.Event()
    theirs.start()
    try:
        theirs.add_job(release.wait, args=(60,))
        with issuer.connect(redis="none", store="memory://", scheduler=theirs) as ids:
            ids.create("a", step=10)
            assert ids.take("a", 30, timeout=40)[-1] == 30
            release.set()
    finally:
        release.set()
        theirs.shutdown()


# APScheduler's own shutdown empties its job store under the feet of its thread.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_close_hands_back_whatever_became_of_the_callers_scheduler() -> None:
    theirs = BackgroundScheduler(timezone="UTC")
    theirs.start()
    store = MemoryStore()
    ids = issuer.connect(redis="none", store=store, scheduler=theirs)
    ids.create("a", step=1000)
    ids.next("a")
    theirs.shutdown()
    ids.close()
    record = store.get("a", timeout=10)
    assert record is not None
    assert record.max == 1


@pytest.mark.live
@pytest.mark.parametrize("limited", [True, False])
def test_a_store_that_gives_nothing_is_not_asked_at_every_draw(limited: bool) -> None:
    class Counted(MemoryStore):
        asked = 0

        def reserve(self, *args: Any, **options: Any) -> Reservation:
            self.asked += 1
            if self.asked > 1 and not limited:
                raise Unconfirmed("down")
            return super().reserve(*args, **options)

    store = Counted()
    with issuer.connect(redis="none", store=store) as ids:
        ids.create("a", step=5000, limit=5000 if limited else 50_000)
        for _ in range(4000):
            ids.next("a")
    assert store.asked < 200


def test_connections_that_redis_has_closed_fail_no_change(redis_server: RedisServer, redis_url: str) -> None:
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids, redis_server.client() as admin:
        ids.create("a", step=1000)
        for change in (lambda: ids.configure("a", start=500), lambda: ids.recover("a"), lambda: ids.delete("a")):
            ids.next("a")
            admin.client_kill_filter(_type="normal", skipme=True)
            change()


@pytest.mark.parametrize(
    "call",
    [
        lambda ids: ids.next("a", timeout=1e10),
        lambda ids: ids.next("a", timeout=10**400),
        lambda _: issuer.connect(redis="redis://127.0.0.1:1/0?protocol=9", store="memory://"),
        lambda _: issuer.connect(redis="redis://a..b:1", store="memory://", scheduler=None).warm("a"),
        lambda _: issuer.connect(redis="none", store="mongodb://h/x?tls=true&tlsCAFile=/nope").tags(),
    ],
)
def test_no_foreign_error_comes_out(call: Callable[[issuer.Issuer], object]) -> None:
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("a")
        with pytest.raises(issuer.IssuerError):
            call(ids)


def test_a_field_of_five_thousand_digits_is_corrupt(make_live: Make, fake_redis: redis.Redis) -> None:
    ids = make_live()
    ids.create("a", step=10)
    ids.next("a")
    fake_redis.hset("issuer:{a}", "cur", "9" * 5000)
    with pytest.raises(issuer.CorruptState):
        ids.inspect("a")
    assert ids.recover("a")[0].new == 10
    assert ids.next("a") == 11


def test_a_tag_that_was_never_seen_leaves_nothing_behind_while_the_store_is_away(make_live: Make) -> None:
    class Away(MemoryStore):
        def get(self, *_args: object, **_options: object) -> None:
            raise Unconfirmed("away")

    ids = make_live(store=Away(), timeout=0)
    for number in range(20):
        with pytest.raises(issuer.StoreUnavailable):
            ids.next(f"made-up-{number}")
    assert ids.engine.registry.combiners == {}


def test_recover_of_all_goes_on_after_a_tag_that_fails(make_live: Make, fake_redis: redis.Redis) -> None:
    ids = make_live()
    for tag in ("a", "b", "c"):
        ids.create(tag, step=10)
        ids.next(tag)
    fake_redis.delete("issuer:{a}")
    fake_redis.set("issuer:{a}", "1")
    with pytest.raises(issuer.CorruptState):
        ids.recover()
    assert [ids.next(tag) for tag in ("b", "c")] == [11, 11]


def test_warm_of_a_trend_tag_goes_direct_and_of_a_strict_one_names_redis(
    make_live: Make, fake_server: FencedFakeServer
) -> None:
    ids = make_live()
    ids.create("strict")
    ids.create("trend", order="trend")
    fake_server.connected = False
    ids.warm("trend")
    assert ids.next("trend", timeout=0) == 1

    def warmed() -> bool:
        ids.warm("strict", timeout=0.5)
        return True

    with pytest.raises(issuer.RedisUnavailable):  # in so little time, the store may not have answered either
        until(warmed, 60, ignoring=(issuer.StoreUnavailable,))


@pytest.mark.live
def test_callers_that_never_wait_get_numbers_from_the_scheduler() -> None:
    with issuer.connect(redis="none", store="memory://") as ids:
        ids.create("a", step=10)
        got: list[int] = []

        def drawn() -> bool:
            got.append(ids.next("a", timeout=0))
            return len(got) == 50

        until(drawn, 60, ignoring=(issuer.StoreUnavailable,))
        assert got == list(range(1, 51))


def test_a_far_store_and_a_short_timeout_burn_no_segment_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, real = 0.0, clock.monotonic
    monkeypatch.setattr(clock, "monotonic", lambda: real() + passed)

    class FarAway(MemoryStore):
        def get(self, tag: str, *, timeout: float) -> issuer.values.Tag | None:
            nonlocal passed
            passed += 50
            return super().get(tag, timeout=timeout)

    store = FarAway()
    with issuer.connect(redis="none", store=store, scheduler=None) as ids:
        ids.create("a", step=1000)
        got = []
        for _ in range(30):
            with contextlib.suppress(issuer.StoreUnavailable):
                got.append(ids.next("a", timeout=40))
        assert len(got) > 20
        assert store.snapshot().tags["a"].max <= 2000


def test_numbers_that_are_drawn_as_a_process_returns_to_redis_keep_it_direct(
    make_live: Make, fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis was told what was issued, for the second time, and gives numbers below what was drawn since."""
    other, ids = make_live(), make_live()
    ids.create("a", step=10, order="trend")
    numbers = [ids.next("a")]
    fake_server.connected = False
    numbers += [ids.next("a") for _ in range(5)]
    fake_server.connected = True
    other.take("a", 15)  # from Redis, which has a segment between those of this process
    line = ids.engine.registry.combiner("a")
    flights: Any = line.supply.refill.segments.flights
    floors = 0

    def then_drawn(*args: Any, **options: Any) -> Any:
        nonlocal floors
        yield from floor(*args, **options)
        floors += 1
        if floors == 2:
            flights._flight.begun -= 100  # its own has taken too long, so that another one begins
            with ThreadPoolExecutor(1) as beside:
                numbers.extend(beside.submit(lambda: [ids.next("a") for _ in range(6)]).result())

    def tried() -> int:
        finished(lambda: line.run(line.supply.rejoin(), Deadline(20)))
        return floors

    monkeypatch.setattr(rejoin, "floor", then_drawn)
    until(tried, message="Redis is asked again")
    assert numbers[6:] == list(range(31, 37))
    assert_increasing([*numbers, *(ids.next("a") for _ in range(20))])


def test_what_is_left_goes_back_to_the_store_when_the_hash_is_corrupted_in_mid_rejoin(
    make_live: Make,
    store: MemoryStore,
    fake_server: FencedFakeServer,
    fake_redis: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised = []

    def then_corrupted(*args: Any, **options: Any) -> Any:
        yield from floor(*args, **options)
        raised.append(fake_redis.hset("issuer:{a}", "max", "x"))

    ids = make_live()
    ids.create("a", step=10, order="trend")
    fake_server.connected = False
    assert ids.next("a") == 1
    fake_server.connected = True
    monkeypatch.setattr(rejoin, "floor", then_corrupted)
    until(lambda: ids.tick() or raised, message="Redis is asked again")
    (record,) = store.snapshot().tags.values()
    assert record.max == 1
    ids.recover("a")
    assert ids.next("a") == 2
