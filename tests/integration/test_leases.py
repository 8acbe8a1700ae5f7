"""Leases on a real Redis, for threads and for tasks: what is drawn ahead, when, how it goes on, and what comes back."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer.core.supply import Supply
from issuer.scripts import script
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import HIGHEST
from tests.audit import repeats
from tests.colours import Connect
from tests.contract.processes import finish, run_python
from tests.integration.test_extension import in_threads
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.stolen import Stopwatch
from tests.waiting import until

Made = Callable[..., Any]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def other(redis_url: str, redis_client: redis.Redis, store: MemoryStore) -> Iterator[issuer.Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 100 000."""
    redis_client.script_load(script("lease").text)  # whoever has to bring it sends two requests
    with issuer.connect(redis=redis_url, store=store) as made:
        made.create("a", step=100_000, order="trend")
        made.warm("a")
        yield made


@pytest.fixture
def cur(redis_client: redis.Redis) -> Callable[..., int]:
    """Where the hash in Redis stands."""

    def read(tag: str = "a") -> int:
        return int(redis_client.hget(f"issuer:{{{tag}}}", "cur") or 0)

    return read


def sha(name: str) -> bytes:
    return script(name).sha.encode()


def supply_of(ids: Any, tag: str = "a") -> Supply:
    found: Supply = ids._roster.line(tag).supply
    return found


# ------------------------------------------------------------------ what is drawn ahead, and when


def test_redis_moves_by_a_lease_and_the_next_one_is_fetched_at_exactly_a_fifth(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_url, store=store, lease=100) as ids:
        for start in (0, 100, 200):
            assert [ids.next("a") for _ in range(19)] == list(range(start + 1, start + 20))
            assert cur() == start + 100
            assert ids.next("a") == start + 20
            until(lambda start=start: cur() == start + 200)  # type: ignore[misc]  # bound at once
            until(lambda: len(supply_of(ids).hand.held) == 2)  # type: ignore[union-attr]  # it has one
            assert [ids.next("a") for _ in range(80)] == list(range(start + 21, start + 101))
            assert cur() == start + 200
        assert other.inspect("a").store.max == 100_000


def test_a_hundred_callers_at_the_mark_start_one_fetch(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    assert other.next("a") == 1
    with connect(redis=redis_proxy.url, store=store, lease=1000) as ids:
        ids.next("a")
        redis_proxy.delay_replies(0.3, match=sha("lease"))
        numbers = in_threads(300, lambda _: ids.next("a"))  # the mark is the 200th of the lease
        until(lambda: len(supply_of(ids).hand.held) == 2)  # type: ignore[union-attr]  # it has one
        numbers += in_threads(100, lambda _: ids.next("a"))
        assert sorted(numbers) == list(range(3, 403))
        assert (redis_proxy.hits, cur()) == (1, 2001)


def test_a_hundred_callers_without_a_lease_in_hand_start_one_fetch(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    assert other.next("a") == 1
    with connect(redis=redis_proxy.url, store=store, lease=1000) as ids:
        # Who doesn't know yet that the tag is leased draws without one.
        ids.warm("a")
        redis_proxy.delay_replies(0.2, match=sha("lease"))
        assert sorted(in_threads(100, lambda _: ids.next("a"))) == list(range(2, 102))
        assert (redis_proxy.hits, cur()) == (1, 1001)


def test_nobody_waits_at_the_border_of_two_leases_however_slow_redis_is(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, other: issuer.Issuer
) -> None:
    assert other.next("a") == 1
    with connect(redis=redis_proxy.url, store=store, lease=1000) as ids:
        numbers = [ids.next("a")]
        redis_proxy.delay_replies(0.3)
        longest = 0.0
        for _ in range(5):
            until(lambda: len(supply_of(ids).hand.held) == 2 or not supply_of(ids).hand.due)  # type: ignore[union-attr]  # it has one
            for _ in range(900):
                if supply_of(ids).hand.due:  # type: ignore[union-attr]  # it has one
                    break
                with Stopwatch() as call:
                    numbers.append(ids.next("a"))
                longest = max(longest, call.seconds)
        assert longest < 0.2
        assert numbers == list(range(2, len(numbers) + 2))
        assert len(numbers) > 1000


def test_without_a_scheduler_the_caller_fetches_when_nothing_is_left(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    assert other.next("a") == 1
    with connect(redis=redis_url, store=store, lease=10, scheduler=None) as ids:
        assert [ids.next("a") for _ in range(10)] == list(range(2, 12))
        assert cur() == 11
        assert ids.next("a") == 12
        assert cur() == 21


def test_a_tags_own_lease_wins_and_0_means_never(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    other.create("own", order="trend", lease=7)
    other.create("never", order="trend", lease=0)
    with connect(redis=redis_url, store=store, lease=100) as ids:
        for tag, moved in (("own", 7), ("never", 1), ("a", 100)):
            assert ids.next(tag) == 1
            assert cur(tag) == moved


def test_a_strict_tag_is_never_leased(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    other.create("s")
    with connect(redis=redis_url, store=store, lease=100) as ids:
        assert [ids.next("s"), *ids.take("s", 5), other.next("s"), ids.next("s")] == list(range(1, 9))
        assert next(iter(ids.stream("s"))) == 9
        assert cur("s") == 9
        calls: list[tuple[Callable[..., Any], str, dict[str, Any]]] = [
            (ids.create, "leased", {"order": "strict"}),
            (ids.create, "leased", {}),
            (ids.configure, "s", {}),
        ]
        for call, tag, settings in calls:
            with pytest.raises(issuer.InvalidArgument, match="strict"):
                call(tag, lease=5, **settings)
        assert [tag.tag for tag in ids.tags()] == ["a", "s"]


@pytest.mark.parametrize("step", [1, 7])
def test_a_lease_larger_than_the_segment_is_granted_short_and_goes_on(
    connect: Connect, redis_url: str, store: MemoryStore, step: int
) -> None:
    with connect(redis=redis_url, store=store, lease=50) as ids:
        ids.create("small", step=step, order="trend")
        numbers = [ids.next("small") for _ in range(30)] + ids.take("small", 30)
        assert numbers == list(range(1, 61))
        assert ids.inspect("small").store.max <= 60 + 5 * step


def test_take_and_reserve_beside_leases_repeat_nothing(connect: Connect, redis_url: str, store: MemoryStore) -> None:
    with connect(redis=redis_url, store=store, lease=10) as ids:
        ids.create("b", step=100, order="trend")
        numbers = ids.take("b", 35)
        assert numbers == list(range(1, 36))
        reserved = ids.reserve("b", 500)
        numbers += ids.take("b", 1)
        assert numbers[-1] == 36
        numbers += [*reserved, *ids.take("b", 300), ids.next("b"), *ids.reserve("b", 5), ids.next("b")]
        assert repeats(numbers) == []
        assert max(numbers) <= ids.inspect("b").store.max


@pytest.mark.parametrize("scheduler", ["background", None])
@pytest.mark.parametrize("limit", [2**53 + 12, HIGHEST, 25])
def test_leases_are_exact_up_to_the_limit_and_end_there(
    connect: Connect, redis_url: str, store: MemoryStore, limit: int, scheduler: Any
) -> None:
    start = limit - 24
    with connect(redis=redis_url, store=store, lease=20, scheduler=scheduler) as ids:
        ids.create("b", start=start, limit=limit, step=10, order="trend")
        numbers = [ids.next("b") for _ in range(12)]
        numbers += ids.take("b", 13)
        assert numbers == list(range(start, limit + 1))
        for _ in range(3):
            with pytest.raises(issuer.LimitReached):
                ids.next("b", timeout=1)
        with pytest.raises(issuer.LimitReached):
            next(iter(ids.stream("b", timeout=1)))


# ------------------------------------------------------------------ what comes back


@pytest.mark.covers("N.4")
def test_after_ten_numbers_of_a_lease_of_1000_and_a_close_the_next_is_the_11th(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_url, store=store, lease=1000) as ids:
        assert [ids.next("a") for _ in range(10)] == list(range(1, 11))
        assert cur() == 1000
    assert cur() == 10
    with connect(redis=redis_url, store=store, lease=1000) as ids:
        assert ids.next("a") == 11
    assert other.next("a") == 12


@pytest.mark.covers("N.4")
def test_two_leases_end_to_end_come_back_in_one(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_url, store=store, lease=50) as ids:
        assert ids.take("a", 10) == list(range(1, 11))
        until(lambda: len(supply_of(ids).hand.held) == 2)  # type: ignore[union-attr]  # it has one
        assert [ids.next("a"), ids.next("a")] == [11, 12]
        assert cur() == 100
    assert cur() == 12
    assert other.next("a") == 13


def test_what_lies_below_a_number_that_others_have_drawn_stays_a_gap(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_url, store=store, lease=50) as ids:
        assert ids.next("a") == 1
        assert other.next("a") == 51
    assert cur() == 51
    assert other.next("a") == 52


def test_of_two_leases_with_a_hole_between_them_only_the_later_one_comes_back(
    connect: Connect, redis_url: str, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_url, store=store, lease=50) as ids:
        assert ids.next("a") == 1
        assert other.next("a") == 51
        assert ids.take("a", 10) == list(range(2, 12))
        until(lambda: len(supply_of(ids).hand.held) == 2)  # type: ignore[union-attr]  # it has one
        assert cur() == 101
    assert cur() == 51
    assert other.next("a") == 52


@pytest.mark.parametrize("fault", ["drop_replies", "drop_requests", "hold"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_giving_back_that_goes_astray_repeats_nothing(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, other: issuer.Issuer, fault: str
) -> None:
    with connect(redis=redis_proxy.url, store=store, lease=50, redis_timeout=0.3) as ids:
        numbers = [ids.next("a") for _ in range(5)]
        getattr(redis_proxy, fault)(match=sha("giveback"))
    assert redis_proxy.hits == 1  # once, whatever came back
    numbers += other.take("a", 20)
    redis_proxy.release()
    numbers += [other.next("a") for _ in range(100)]
    assert repeats(numbers) == []


def test_a_lease_that_arrives_while_the_issuer_closes_comes_back_too(
    connect: Connect, redis_proxy: FaultProxy, store: MemoryStore, other: issuer.Issuer, cur: Callable[..., int]
) -> None:
    with connect(redis=redis_proxy.url, store=store, lease=50) as ids:
        ids.next("a")
        redis_proxy.delay_replies(0.3, match=sha("lease"))
        ids.take("a", 10)
        until(lambda: cur() == 100)
    assert cur() == 11
    assert other.next("a") == 12


class LateStore(MemoryStore):
    """Its records can't be read before the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = threading.Event()

    def get(self, tag: str, *, timeout: float) -> issuer.Tag | None:
        if not self.ready.wait(timeout):
            raise Unavailable("timed out")
        return super().get(tag, timeout=timeout)


def test_what_a_process_draws_before_it_knows_that_the_tag_is_leased_is_no_gap(
    connect: Connect, redis_url: str, redis_proxy: FaultProxy
) -> None:
    store = LateStore()
    with (
        issuer.connect(redis=redis_url, store=store) as other,
        connect(redis=redis_proxy.url, store=store, lease=20, redis_timeout=5) as ids,
    ):
        other.create("a", step=1000, order="trend")
        store.ready.set()
        assert other.take("a", 2) == [1, 2]
        store.ready.clear()
        redis_proxy.delay_replies(2.5, match=sha("next"), times=1)
        numbers: list[int] = []
        caller = threading.Thread(target=lambda: numbers.append(ids.next("a")))
        caller.start()
        until(lambda: redis_proxy.hits)
        store.ready.set()
        until(lambda: supply_of(ids).hand is not None, message="it knows")
        assert caller.is_alive()
        caller.join()
        assert [*numbers, *ids.take("a", 9)] == list(range(3, 13))


@pytest.mark.parametrize("lease", [5, 100])
def test_a_killed_process_loses_two_leases_at_most(
    redis_url: str, redis_server: RedisServer, tmp_path: Path, lease: int
) -> None:
    assert redis_server.running
    url = f"sqlite:///{tmp_path / 'a.db'}"
    program = f"""
import issuer, sys
ids = issuer.connect(redis={redis_url!r}, store={url!r}, lease={lease})
for _ in range(253):
    number = ids.next("a")
print(number, flush=True)
sys.stdin.readline()
"""
    with issuer.connect(redis=redis_url, store=url) as ids:
        ids.create("a", step=10_000, order="trend")
        killed = run_python(["-c", program])
        assert killed.stdout is not None
        last = int(killed.stdout.readline())
        killed.kill()
        killed.communicate()
        assert 0 < ids.next("a") - last <= 2 * lease + 1


def test_two_processes_with_leases_and_one_without_repeat_nothing_and_each_sees_its_numbers_increase(
    redis_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    assert redis_server.running
    url = f"sqlite:///{tmp_path / 'a.db'}"
    program = """
import issuer, sys, array
redis, store, lease, count, file = sys.argv[1:]
with issuer.connect(redis=redis, store=store, lease=int(lease), timeout=30) as ids:
    numbers = array.array("q", [ids.next("a")])
    print("ready", flush=True)
    sys.stdin.readline()
    numbers.extend(ids.next("a") for _ in range(int(count)))
with open(file, "wb") as target:
    numbers.tofile(target)
"""
    with issuer.connect(redis=redis_url, store=url) as ids:
        ids.create("a", step=20_000, order="trend")
        plans = [(700, 60_000), (33, 30_000), (0, 3000)]
        running = [
            run_python(["-c", program, redis_url, url, str(lease), str(count), str(tmp_path / str(lease))])
            for lease, count in plans
        ]
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        everything: list[int] = []
        for process, (lease, count) in zip(running, plans, strict=True):
            finish(process)
            numbers = [*memoryview((tmp_path / str(lease)).read_bytes()).cast("q")]
            assert len(numbers) == count + 1
            assert numbers == sorted(numbers)
            everything += numbers
        assert repeats(everything) == []
        assert max(everything) <= ids.inspect("a").store.max
