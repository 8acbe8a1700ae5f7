"""An election is never dropped, whatever becomes of the draw that won it: everybody would wait for it to lapse."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

import issuer
from issuer.scripts import script
from persistence.memory import MemoryStore
from tests.servers.proxy import FaultProxy
from tests.waiting import eventually, run, until

pytestmark = pytest.mark.live

NEXT = script("next").sha.encode()


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    made = MemoryStore()
    made.create("a", above=0, step=50, limit=10_000, order="trend", description="", timeout=1)
    yield made
    made.close()


def test_a_draw_that_ends_when_its_tag_draws_ahead_by_now_is_a_gap_whose_election_counts(
    redis_proxy: FaultProxy, store: MemoryStore
) -> None:
    with issuer.connect(redis=redis_proxy.url, store=store) as ids:
        numbers = ids.take("a", 9)
        redis_proxy.delay_replies(0.3, match=NEXT, times=1)
        elected = threading.Thread(target=lambda: numbers.append(ids.next("a")))  # the tenth of fifty: the mark
        elected.start()
        until(lambda: redis_proxy.hits)
        stream = ids.stream("a")
        numbers.append(next(stream))
        assert ids._roster.line("a").supply.hand is not None
        elected.join()
        began = time.monotonic()
        numbers += [next(stream) for _ in range(100)]
        assert time.monotonic() - began < 1.5
        assert sorted(numbers) == [number for number in range(1, 113) if number != 10]


def test_a_tasks_draw_that_ends_when_its_tag_draws_ahead_by_now_is_a_gap_whose_election_counts(
    redis_proxy: FaultProxy, store: MemoryStore
) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_proxy.url, store=store) as ids:
            numbers = [await ids.next("a") for _ in range(9)]
            redis_proxy.delay_replies(0.3, match=NEXT, times=1)
            elected = asyncio.create_task(ids.next("a"))
            await eventually(lambda: redis_proxy.hits)
            stream = ids.stream("a")
            numbers.append(await anext(stream))
            assert ids._roster.line("a").supply.hand is not None
            numbers.append(await elected)
            began = time.monotonic()
            numbers += [await anext(stream) for _ in range(100)]
            assert time.monotonic() - began < 1.5
            assert sorted(numbers) == [number for number in range(1, 113) if number != 10]

    run(main())


def test_an_election_that_a_missing_tag_made_useless_is_given_up_at_once(redis_url: str, store: MemoryStore) -> None:
    with (
        issuer.connect(redis=redis_url, store=store, timeout=1) as ids,
        issuer.connect(redis=redis_url, store=store, timeout=1) as others,
    ):
        last = ids.take("a", 30)[-1]
        others.delete("a")
        with pytest.raises(issuer.UnknownTag):
            ids.next("a")
        others.create("a", step=50)
        assert others.next("a") > last  # well within the window of 4 s


def test_an_election_at_the_limit_is_given_up_at_once(redis_url: str, store: MemoryStore) -> None:
    with (
        issuer.connect(redis=redis_url, store=store, timeout=1) as ids,
        issuer.connect(redis=redis_url, store=store, timeout=1) as others,
    ):
        ids.configure("a", limit=50)
        ids.take("a", 50)
        with pytest.raises(issuer.LimitReached):
            ids.next("a")
        others.configure("a", limit=500)
        assert others.next("a") == 51
