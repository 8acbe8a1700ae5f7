"""Leases on a real Redis, for threads and for tasks: what is drawn ahead, when, how it goes on, and what comes back."""

import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import issuer
from issuer import Issuer
from issuer.core.supply import Supply
from issuer.persistence.errors import Unavailable
from issuer.persistence.memory import MemoryStore
from issuer.persistence.records import HIGHEST
from issuer.scripts import script
from tests.audit import repeats
from tests.colours import BOTH, Connect
from tests.integration.test_extension import in_threads
from tests.programs import PIPE, Program
from tests.schemes import Make
from tests.servers.proxy import FaultProxy
from tests.waiting import until

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.colours("blocking")]


Cur = Callable[..., int]


@pytest.fixture
def other(redis_url: str, redis_client: redis.Redis, store: MemoryStore) -> Iterator[Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 100 000."""
    redis_client.script_load(script("lease").text)  # whoever has to bring it sends two requests
    with issuer.connect(redis=redis_url, store=store) as made:
        made.create("a", step=100_000, order="trend")
        made.warm("a")
        yield made


@pytest.fixture
def cur(redis_client: redis.Redis) -> Cur:
    """Where the hash in Redis stands."""

    def read(tag: str = "a") -> int:
        return int(redis_client.hget(f"issuer:{{{tag}}}", "cur") or 0)

    return read


@pytest.fixture
def opened(connect: Connect, redis_url: str, store: MemoryStore) -> Make:
    """Make issuers of the same store and Redis as `other`, each of which stands for a process of its own."""
    return partial(connect, redis=redis_url, store=store)


@pytest.fixture
def make(opened: Make) -> Iterator[Make]:
    """Make such ones that are closed at the end."""
    with ExitStack() as ends:
        yield lambda **settings: ends.enter_context(opened(**settings))


def sha(name: str) -> bytes:
    return script(name).sha.encode()


def supply_of(ids: Any, tag: str = "a") -> Supply:
    found: Supply = ids._roster.line(tag).supply
    return found


def until_held(ids: Any) -> None:
    """Return when two leases are in hand."""
    until(lambda: len(supply_of(ids).hand.held) == 2, 60)  # type: ignore[union-attr]  # it has one


# ------------------------------------------------------------------ what is drawn ahead, and when


@BOTH
def test_redis_moves_by_a_lease_and_the_next_one_is_fetched_at_exactly_a_fifth(
    make: Make, other: Issuer, cur: Cur
) -> None:
    ids = make(lease=100)
    for start in (0, 100, 200):
        assert [ids.next("a") for _ in range(19)] == list(range(start + 1, start + 20))
        assert cur() == start + 100
        assert ids.next("a") == start + 20
        until_held(ids)
        assert [ids.next("a") for _ in range(80)] == list(range(start + 21, start + 101))
        assert cur() == start + 200
    assert other.inspect("a").store.max == 100_000


@BOTH
def test_a_hundred_callers_at_the_mark_start_one_fetch_and_nobody_waits_for_it(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, cur: Cur
) -> None:
    assert other.next("a") == 1
    with opened(redis=redis_proxy.url, lease=1000) as ids:
        ids.next("a")
        redis_proxy.hold(match=sha("lease"))
        numbers = in_threads(300, lambda _: ids.next("a"))  # the mark is the 200th of the lease
        numbers += [ids.next("a") for _ in range(698)]  # all but one
        until(lambda: redis_proxy.held, 60)
        assert cur() == 1001
        redis_proxy.release()
        until_held(ids)
        numbers += in_threads(100, lambda _: ids.next("a"))
        assert sorted(numbers) == list(range(3, 1101))
        assert (redis_proxy.hits, cur()) == (1, 2001)


@BOTH
def test_a_hundred_callers_without_a_lease_in_hand_start_one_fetch(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, cur: Cur
) -> None:
    assert other.next("a") == 1
    with opened(redis=redis_proxy.url, lease=1000) as ids, ThreadPoolExecutor(1) as pool:
        # Who doesn't know yet that the tag is leased draws without one.
        ids.warm("a")
        redis_proxy.hold(match=sha("lease"))
        drawing = pool.submit(in_threads, 100, lambda _: ids.next("a"))
        until(lambda: redis_proxy.held, 60)
        redis_proxy.release()
        assert sorted(drawing.result()) == list(range(2, 102))
        assert (redis_proxy.hits, cur()) == (1, 1001)


def test_without_a_scheduler_the_caller_fetches_when_nothing_is_left(make: Make, other: Issuer, cur: Cur) -> None:
    assert other.next("a") == 1
    ids = make(lease=10, scheduler=None)
    assert [ids.next("a") for _ in range(10)] == list(range(2, 12))
    assert cur() == 11
    assert ids.next("a") == 12
    assert cur() == 21


@BOTH
def test_a_tags_own_lease_wins_and_0_means_never(make: Make, other: Issuer, cur: Cur) -> None:
    other.create("own", order="trend", lease=7)
    other.create("never", order="trend", lease=0)
    ids = make(lease=100)
    for tag, moved in (("own", 7), ("never", 1), ("a", 100)):
        assert ids.next(tag) == 1
        assert cur(tag) == moved


@BOTH
def test_a_strict_tag_is_never_leased(make: Make, other: Issuer, cur: Cur) -> None:
    other.create("s")
    ids = make(lease=100)
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


def test_a_lease_larger_than_the_segment_is_granted_short_and_goes_on(make: Make) -> None:
    ids = make(lease=50)
    for step in (1, 7):
        tag = f"small{step}"
        ids.create(tag, step=step, order="trend")
        numbers = [ids.next(tag) for _ in range(30)] + ids.take(tag, 30)
        assert numbers == list(range(1, 61))
        assert ids.inspect(tag).store.max <= 60 + 5 * step


@BOTH
def test_take_and_reserve_beside_leases_repeat_nothing(make: Make) -> None:
    ids = make(lease=10)
    ids.create("b", step=100, order="trend")
    numbers = ids.take("b", 35)
    assert numbers == list(range(1, 36))
    reserved = ids.reserve("b", 500)
    numbers += ids.take("b", 1)
    assert numbers[-1] == 36
    numbers += [*reserved, *ids.take("b", 300), ids.next("b"), *ids.reserve("b", 5), ids.next("b")]
    assert repeats(numbers) == []
    assert max(numbers) <= ids.inspect("b").store.max


@BOTH
@pytest.mark.parametrize(("limit", "scheduler"), [(2**53 + 12, None), (HIGHEST, "background"), (25, "background")])
def test_leases_are_exact_up_to_the_limit_and_end_there(make: Make, limit: int, scheduler: Any) -> None:
    start = limit - 24
    ids = make(lease=20, scheduler=scheduler)
    ids.create("b", start=start, limit=limit, step=10, order="trend")
    numbers = [ids.next("b") for _ in range(12)]
    numbers += ids.take("b", 13)
    assert numbers == list(range(start, limit + 1))
    for _ in range(3):
        with pytest.raises(issuer.LimitReached):
            ids.next("b")
    with pytest.raises(issuer.LimitReached):
        next(iter(ids.stream("b")))


# ------------------------------------------------------------------ what comes back


@BOTH
@pytest.mark.covers("N.4")
def test_what_is_left_of_leases_comes_back_at_close_two_end_to_end_in_one(
    opened: Make, other: Issuer, cur: Cur
) -> None:
    with opened(lease=1000) as ids:
        assert [ids.next("a") for _ in range(10)] == list(range(1, 11))
        assert cur() == 1000
    assert cur() == 10
    with opened(lease=50) as ids:
        assert ids.take("a", 10) == list(range(11, 21))
        until_held(ids)
        assert cur() == 110
    assert cur() == 20
    assert other.next("a") == 21


@BOTH
def test_of_two_leases_with_a_hole_between_them_only_the_later_one_comes_back(
    opened: Make, other: Issuer, cur: Cur
) -> None:
    with opened(lease=50) as ids:
        assert ids.next("a") == 1
        assert other.next("a") == 51
        assert ids.take("a", 10) == list(range(2, 12))
        until_held(ids)
        assert cur() == 101
    assert cur() == 51
    assert other.next("a") == 52


@BOTH
@pytest.mark.parametrize("fault", ["drop_replies", "drop_requests", "hold"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_giving_back_that_goes_astray_repeats_nothing(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, fault: str
) -> None:
    # What is held is given up soon; a call that is late all the same costs numbers, and repeats none.
    with opened(redis=redis_proxy.url, lease=50, redis_timeout=0.5) as ids:
        numbers = [ids.next("a") for _ in range(5)]
        getattr(redis_proxy, fault)(match=sha("giveback"))
    assert redis_proxy.hits <= 1  # once, whatever came back
    numbers += other.take("a", 20)
    redis_proxy.release()
    numbers += [other.next("a") for _ in range(100)]
    assert repeats(numbers) == []


@BOTH
def test_a_lease_that_arrives_while_the_issuer_closes_comes_back_too(
    opened: Make, redis_proxy: FaultProxy, other: Issuer, cur: Cur
) -> None:
    with ThreadPoolExecutor(1) as pool, opened(redis=redis_proxy.url, lease=50) as ids:
        ids.next("a")
        redis_proxy.hold(match=sha("lease"))
        ids.take("a", 10)
        until(lambda: redis_proxy.held, 60)
        closing = pool.submit(ids.close)
        until(lambda: ids.closed, 60)
        redis_proxy.release()
        closing.result()
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


@BOTH
def test_what_a_process_draws_before_it_knows_that_the_tag_is_leased_is_no_gap(
    connect: Connect, redis_url: str, redis_proxy: FaultProxy
) -> None:
    store = LateStore()
    with (
        issuer.connect(redis=redis_url, store=store) as other,
        connect(redis=redis_proxy.url, store=store, lease=20) as ids,
        ThreadPoolExecutor(1) as pool,
    ):
        other.create("a", step=1000, order="trend")
        store.ready.set()
        assert other.take("a", 2) == [1, 2]
        store.ready.clear()
        redis_proxy.hold(match=sha("next"), times=1)
        drawing = pool.submit(ids.next, "a")
        until(lambda: redis_proxy.held, 60)
        store.ready.set()
        until(lambda: supply_of(ids).hand is not None, 60, "it knows")
        assert not drawing.done()
        redis_proxy.release()
        assert [drawing.result(), *ids.take("a", 9)] == list(range(3, 13))


DRAWING = """
import issuer, sys, array
redis, store, lease, count, file = sys.argv[1:]
with issuer.connect(redis=redis, store=store, lease=int(lease)) as ids:
    numbers = array.array("q", [ids.next("a")])
    print("ready", flush=True)
    sys.stdin.readline()
    numbers.extend(ids.next("a") for _ in range(int(count)))
    with open(file, "wb") as target:
        numbers.tofile(target)
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_processes_with_leases_and_without_repeat_nothing_and_one_that_is_killed_loses_two_leases_at_most(
    redis_url: str, tmp_path: Path
) -> None:
    url, program = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "drawing.py"
    program.write_text(DRAWING)
    everything: list[int] = []
    with issuer.connect(redis=redis_url, store=url) as ids, ExitStack() as ends:
        ids.create("a", step=20_000, order="trend")
        plans = [(700, 10_000), (33, 5000), (0, 500)]
        running = [
            ends.enter_context(
                Program(
                    *(str(program), redis_url, url, str(lease), str(count), str(tmp_path / str(lease))),
                    stdin=PIPE,
                    stdout=PIPE,
                )
            )
            for lease, count in plans
        ]
        for line in ("ready\n", "done\n"):
            for process in running:
                assert process.stdout is not None
                assert process.stdin is not None
                assert process.stdout.readline() == line
                if line == "ready\n":
                    process.stdin.write("go\n")
                    process.stdin.flush()
        for process, (lease, count) in zip(running, plans, strict=True):
            process.kill()
            numbers = array("q", (tmp_path / str(lease)).read_bytes()).tolist()
            assert len(numbers) == count + 1
            assert numbers == sorted(numbers)
            everything += numbers
        everything.append(ids.next("a"))
        assert repeats(everything) == []
        assert everything[-1] == max(everything) <= ids.inspect("a").store.max
        lost = everything[-1] - len(everything)
        assert 0 <= lost <= sum(2 * lease for lease, _ in plans)
