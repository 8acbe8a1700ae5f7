"""What leases did once, and must never do again. On the fake server, so that it is quick."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

import issuer
from issuer.clock import Deadline
from issuer.core.steps import Steps, sleep
from issuer.core.supply import supply
from issuer.drivers.blocking.combiner import NOWHERE
from issuer.engine.scheduler import Scheduler
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore, Snapshot
from tests.colours import COLOURS, connect_awaited, run
from tests.servers.fake import FencedFakeServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def other(fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[issuer.Issuer]:
    """Another process's issuer, without leases; it has made the tag: "a", trend, step 10 000."""
    with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as made:
        made.create("a", step=10_000, order="trend")
        made.warm("a")
        yield made


@pytest.fixture(params=COLOURS)
def connect(request: pytest.FixtureRequest, fake_server: FencedFakeServer, store: MemoryStore) -> Any:
    """Connect in either colour."""

    def made(**settings: Any) -> Any:
        client = fake_server.async_client() if request.param == "asyncio" else fake_server.client()
        return COLOURS[request.param](**{"redis": client, "store": store, "lease": 1000, **settings})

    return made


def cur(server: FencedFakeServer) -> int:
    with server.client() as client:
        return int(client.hget("issuer:{a}", "cur") or 0)


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.usefixtures("other")
def test_whoever_deletes_a_tag_issues_none_of_its_numbers_afterwards(connect: Any, made_again: bool) -> None:
    with connect() as ids:
        assert ids.next("a") == 1
        stream = iter(ids.stream("a"))
        assert [next(stream), next(stream)] == [2, 3]
        ids.delete("a")
        if made_again:
            ids.create("a", order="trend")
            assert ids.next("a") > 10_000
            assert next(stream) > 10_000
        else:
            with pytest.raises(issuer.UnknownTag):
                ids.next("a")
            with pytest.raises(issuer.UnknownTag):
                next(stream)


def test_a_tag_made_again_as_strict_is_leased_no_more(
    connect: Any, other: issuer.Issuer, fake_server: FencedFakeServer
) -> None:
    def drawn() -> list[int]:
        return [other.next("a"), ids.next("a"), other.next("a"), ids.next("a")]

    def in_turn(numbers: list[int]) -> bool:
        return numbers == list(range(numbers[0], numbers[0] + 4)) and cur(fake_server) == numbers[-1]

    for scheduler in (None, "background"):
        with connect(scheduler=scheduler) as ids:
            ids.take("a", 1000)  # nothing is left in hand, so nothing is checked
            other.delete("a")
            other.create("a", order="strict")
            if scheduler:
                # It may have fetched the next lease already: the scheduler drops it at its next look, in a second.
                until(lambda: in_turn(drawn()), timeout=60)
            assert in_turn(drawn())
            other.delete("a")
            other.create("a", order="trend")
            other.warm("a")


def test_a_tag_whose_record_cannot_be_read_again_is_drawn_from_without_leases(
    connect: Any,
    other: issuer.Issuer,
    fake_server: FencedFakeServer,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with connect(scheduler=None) as ids:
        ids.take("a", 1000)
        other.recover("a")
        other.warm("a")
        monkeypatch.setattr(type(store), "get", _away)
        first = ids.next("a")
        assert [ids.next("a"), other.next("a")] == [first + 1, first + 2]
        assert cur(fake_server) == first + 2
        monkeypatch.undo()


def _away(*_args: object, **_rest: object) -> None:
    raise Unconfirmed("switched off")


def test_a_hash_put_back_within_one_reign_is_told_and_nothing_below_is_issued(
    connect: Any, other: issuer.Issuer, fake_server: FencedFakeServer
) -> None:
    """Out of the fence's reach; it once made every caller spin for ever."""
    with connect(lease=100, scheduler=None) as ids, fake_server.client() as client:
        assert ids.take("a", 1000)[-1] == 1000
        client.hset("issuer:{a}", "cur", 300)
        with pytest.raises(issuer.CorruptState, match="recover"):
            ids.next("a", timeout=20)
        other.recover("a")
        assert ids.next("a") > 10_000


def test_a_number_drawn_from_redis_is_a_gap_once_a_lease_has_come_and_before_that_it_is_the_callers(
    other: issuer.Issuer, fake_server: FencedFakeServer, store: MemoryStore
) -> None:
    for came, drawn in ((True, [2, 3, 4]), (False, [1, 2])):
        with issuer.connect(redis=fake_server.client(), store=store, scheduler=None) as ids:
            before, numbers = other.next("a"), list[int]()
            assert ids.next("a") == before + 1
            line: Any = ids.engine.registry.combiner("a")
            node = line._node

            def leased_meanwhile(*args: Any) -> Any:
                reply = node.draw(*args)  # noqa: B023
                line.supply.origin.stream_lease = 1000  # noqa: B023 - as a stream of another thread does
                line.supply.origin.use(store.get("a", timeout=10))  # noqa: B023
                line._node = NOWHERE  # noqa: B023
                if came:  # noqa: B023
                    thread = threading.Thread(target=lambda: numbers.append(ids.next("a")))  # noqa: B023
                    thread.start()
                    thread.join()
                return reply

            line._node = SimpleNamespace(draw=leased_meanwhile)
            numbers += [ids.next("a"), ids.next("a")]
            assert [number - before - 1 for number in numbers] == drawn


def test_what_was_issued_from_leases_is_remembered_when_the_tag_is_leased_no_more(
    connect: Any, other: issuer.Issuer, fake_server: FencedFakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = other.engine.config.store
    backup = store.snapshot()
    with connect(scheduler=None) as ids:
        ids.take("a", 1000)
        other.configure("a", lease=0)
        monkeypatch.setattr(supply, "LEARN_AFTER", -1)
        run(ids, "a", ids.engine.registry.combiner("a").supply.refresh(), Deadline(40))
        fake_server.connected = False
        store.restore(Snapshot({"a": replace(backup.tags["a"], max=0, lease=0)}, {}))
        with pytest.raises(issuer.StoreBehind):
            ids.next("a")
        fake_server.connected = True


def test_a_lease_that_nobody_has_begun_to_fetch_is_not_fetched_after_close(
    fake_server: FencedFakeServer, store: MemoryStore, other: issuer.Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []

    def taken(_: Scheduler, work: Any, *args: Any) -> bool:
        """What a pool does whose threads are all at work."""
        jobs.append(partial(work, *args))
        return True

    monkeypatch.setattr(Scheduler, "background", taken)
    ids = issuer.connect(redis=fake_server.client(), store=store, lease=10)
    assert [ids.next("a") for _ in range(4)] == [1, 2, 3, 4]
    assert len(jobs) == 1
    ids.close()
    jobs[0]()
    assert cur(fake_server) == 4
    assert other.next("a") == 5


@pytest.mark.usefixtures("other")
def test_callers_that_are_still_drawing_when_it_closes_take_nothing_with_them(
    connect: Any, fake_server: FencedFakeServer
) -> None:
    numbers: list[int] = []
    with connect(lease=20) as ids, ThreadPoolExecutor(4) as pool:

        def draw() -> None:
            while True:
                numbers.append(ids.next("a"))

        calls = [pool.submit(draw) for _ in range(4)]
        until(lambda: len(numbers) > 500, 60)
        ids.close()
        assert all("closed" in str(call.exception(60)) for call in calls)
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert cur(fake_server) == len(numbers)


@pytest.mark.live
def test_a_sweep_that_closing_cuts_short_makes_no_noise(
    fake_server: FencedFakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    def hangs(_: object, __: object) -> Steps[None]:
        begun.set()
        return sleep(60)

    client = fake_server.async_client()
    with caplog.at_level(logging.ERROR), connect_awaited(redis=client, store="memory://") as ids:
        ids.create("a", order="trend")
        ids.next("a")
        swept: Any = ids.engine.registry.combiner("a").supply
        swept.sweep = hangs
        assert begun.wait(30)
    assert caplog.records == []
