"""Tasks of an event loop whose Redis or store is slow or away, and tasks that are cancelled in mid-flight."""

import asyncio
import contextlib
import itertools
import math
import random
import re
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import AsyncIssuer, clock
from issuer.drivers.aio import combiner as line
from issuer.strategies import Instance
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import covering
from tests.seeds import seeded
from tests.servers.redis import RedisServer
from tests.waiting import eventually, run

pytestmark = pytest.mark.live


class Moody(MemoryStore):
    """A store that reserves when `answers` is set, and notes which threads asked it."""

    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.threads: set[int] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in {"create", "get", "reserve", "hand_back", "store_id", "recover", "halt", "tags", "prune"}:
            self.threads.add(threading.get_ident())
        return found

    def reserve(self, *args: Any, **options: Any) -> Reservation:
        self.asked += 1
        assert self.answers.wait(60)
        return super().reserve(*args, **options)


@pytest.fixture
def store() -> Moody:
    return Moody()


async def outcome(call: Awaitable[int]) -> int | issuer.IssuerError:
    try:
        return await call
    except issuer.IssuerError as error:
        return error


# ---------------------------------------------------------------------------------------------- Redis


async def test_who_shares_a_draw_and_has_less_time_than_others_is_told_why_nothing_came(
    start_redis: Callable[..., RedisServer], store: Moody
) -> None:
    server = start_redis()
    async with issuer.aconnect(redis=server.url, store=store) as ids:
        await ids.create("a", step=1000)
        await ids.next("a")
        await asyncio.to_thread(server.kill)
        # A machine that stands still may leave those with less no time of their own: somebody else has asked.
        patient = asyncio.ensure_future(ids.next("a", timeout=60))
        line = ids.engine.registry.combiner("a")
        await eventually(lambda: line.supply.shortage.redis_trouble, message="Redis was asked in vain")
        calls = [outcome(ids.next("a", timeout=timeout)) for timeout in (1.2, 0.3, 0.6, 0.9)]
        for error in await asyncio.gather(*calls):
            assert re.search("Error 111|closed", str(error)), error
        assert not patient.done()
        await asyncio.to_thread(server.start)
        await patient
        await ids.next("a")


@pytest.mark.parametrize("busy", [False, True])
def test_a_loop_that_was_held_up_does_not_charge_that_to_calls_that_come_after(
    redis_url: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, real = 0.0, clock.monotonic

    def monotonic() -> float:
        return real() + passed

    for module in (clock, line):
        monkeypatch.setattr(module, "monotonic", monotonic)

    async def main() -> None:
        nonlocal passed
        asyncio.get_running_loop().time = monotonic  # type: ignore[method-assign]  # its timers are due then, too
        async with issuer.aconnect(redis=redis_url, store="memory://", timeout=30, redis_timeout=1e6) as ids:
            await ids.create("a", step=100_000)

            async def draw() -> None:
                while True:
                    await ids.next("a", timeout=1e6)

            others = [asyncio.ensure_future(draw()) for _ in range(50 * busy)]
            for _ in range(20):
                await asyncio.sleep(0)  # so that a draw of the others is on its way
                passed += 40  # other people's code in the same loop
                await ids.next("a")
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run(main(), 5000)


# ---------------------------------------------------------------------------------------------- the store


def test_the_loop_goes_on_whatever_is_under_way(redis_url: str, store: Moody, tmp_path: Path) -> None:
    """No operation asks the store in the loop's own thread, and numbers in hand leave the others their turn."""
    instance = Instance(machine=2, directory=str(tmp_path))
    quick = {"sequence_bits": 22, "machine_bits": 2, "time_bits": 39}

    async def main() -> None:
        async with (
            issuer.aconnect(redis=redis_url, store=store) as ids,
            issuer.aconnect(redis="none", store=store, instance=instance) as direct,
        ):
            await ids.create("a", step=100)
            await ids.create("l", step=5000, order="trend", lease=1000)
            await direct.create("d", step=200_000)
            await direct.create("s", strategy="snowflake", options=quick)
            await direct.next("s")
            await asyncio.gather(
                *(ids.next("a") for _ in range(300)), ids.warm("l"), direct.warm("d"), ids.reserve("l", 10)
            )
            turns = 0

            async def count() -> None:
                nonlocal turns
                for turns in itertools.count():  # noqa: B007 - counted for the test
                    await asyncio.sleep(0)

            counting = asyncio.create_task(count())
            numbers = direct.stream("d")
            for _ in range(20_000):
                await anext(numbers)
            assert turns >= 20_000 // 4096
            for ids_of, tag in ((direct, "d"), (ids, "l"), (direct, "s")):
                turns = 0
                for _ in range(2000):
                    await ids_of.next(tag)
                assert turns >= 2000 // line.TURN_EVERY
            counting.cancel()
            await ids.recover("a")
            await ids.tick()
            await ids.tags()

    run(main(), 120)
    assert store.threads
    assert threading.get_ident() not in store.threads


@pytest.mark.covers("1.19")
async def test_a_thousand_tasks_past_the_mark_start_one_load(redis_url: str, store: Moody) -> None:
    async with issuer.aconnect(redis=redis_url, store=store, store_timeout=30) as ids:
        await ids.create("a", step=10_000)
        await ids.take("a", 1999)
        store.answers.clear()
        numbers = await asyncio.gather(*(ids.next("a") for _ in range(1000)))
        assert sorted(numbers) == list(range(2000, 3000))
        await eventually(lambda: store.asked == 2, timeout=30)
        store.answers.set()
        await asyncio.gather(*(ids.next("a") for _ in range(1000)))
        assert store.asked == 2


# ---------------------------------------------------------------------------------------------- cancellation


@covering("order, scheduler", [("strict", "background"), ("trend", None)], ["strict", "trend"], ["background", None])
async def test_tasks_cancelled_in_mid_flight_take_nobody_elses_number(
    redis_url: str, store: Moody, order: Any, scheduler: Any
) -> None:
    chance, rounds = random.Random(seeded(7)), 4
    numbers: list[int] = []
    served = 0
    async with (
        issuer.aconnect(redis=redis_url, store=store, scheduler=scheduler) as ids,
        issuer.aconnect(redis=redis_url, store=store, scheduler=scheduler) as beside,
    ):
        await ids.create("a", step=60, order=order, lease=20 if order == "trend" else None)

        async def one() -> list[int]:
            return [await ids.next("a")]

        async def hurried(timeout: float) -> None:
            call = ids.take("a", 2) if chance.random() < 0.2 else one()
            with contextlib.suppress(TimeoutError):
                numbers.extend(await asyncio.wait_for(call, timeout))

        async def patient(ids: AsyncIssuer) -> None:
            nonlocal served
            numbers.append(await ids.next("a"))
            served += 1

        for _ in range(rounds):
            tasks = [
                *(asyncio.ensure_future(hurried(chance.choice([0.0002, 0.001, 0.003]))) for _ in range(120)),
                *(asyncio.ensure_future(patient(chance.choice([ids, beside]))) for _ in range(60)),
            ]
            doomed = [asyncio.ensure_future(hurried(40)) for _ in range(60)]
            await asyncio.sleep(chance.uniform(0, 0.004))
            for task in doomed:
                task.cancel()
            await asyncio.gather(*tasks)
        record = await asyncio.to_thread(store.get, "a", timeout=10)
    assert record is not None
    assert served == rounds * 60
    assert repeats(numbers) == []
    assert max(numbers) <= record.max


async def test_the_leader_of_an_extension_that_is_cancelled_keeps_nobody_waiting(redis_url: str, store: Moody) -> None:
    """Without a scheduler the first caller extends for all: the others go on without it."""
    async with issuer.aconnect(redis=redis_url, store=store, scheduler=None, store_timeout=1) as ids:
        await ids.create("a", step=100)
        store.answers.clear()
        leader = asyncio.ensure_future(ids.take("a", 3))
        await eventually(lambda: store.asked, timeout=30)
        others = [asyncio.ensure_future(ids.next("a")) for _ in range(50)]
        await asyncio.sleep(0)
        leader.cancel()
        store.answers.set()
        assert repeats(await asyncio.gather(*others)) == []


@pytest.mark.parametrize("what", ["take", "issue", "key"])
@pytest.mark.covers("4.16")
async def test_a_draw_whose_caller_is_cancelled_still_has_the_next_segment_loaded(
    redis_url: str, store: Moody, what: str
) -> None:
    """Otherwise its election lapses only after the store's timeout, and every process waits for that."""

    def reserved(tag: str) -> bool:
        record = store.get(tag, timeout=10)
        return record is not None and record.max > 50

    elected = 0
    async with issuer.aconnect(redis=redis_url, store=store, store_timeout=300, timeout=60) as ids:
        for steps in range(16):
            tag = f"{what}{steps}"
            await ids.create(tag, step=50)
            await ids.take(tag, 9)
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "take": partial(ids.take, tag, 1),
                "issue": partial(ids.issue, tag),
                "key": partial(ids.next, tag, key="k"),
            }
            call = asyncio.ensure_future(calls[what]())  # the tenth of fifty: whoever draws it is elected
            for _ in range(steps):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            seen = (await ids.inspect(tag)).redis
            assert seen is not None
            if seen.cur == 10:
                elected += 1
                await eventually(partial(reserved, tag), message=f"the next segment of {tag}")
    assert elected


@pytest.mark.parametrize("scheduler", ["background", None])
async def test_callers_that_are_cancelled_are_no_failures_of_the_store(
    redis_url: str, store: Moody, scheduler: Any
) -> None:
    """Counted as failures, they would stretch the pause before the next reservation, for every caller."""
    # The store holds its answers: after the time of a request, its silence would count.
    async with issuer.aconnect(redis=redis_url, store=store, store_timeout=300, timeout=60, scheduler=scheduler) as ids:
        await ids.create("a", step=1000)
        await ids.next("a")
        flights = ids.engine.registry.combiner("a").supply.refill.segments.flights
        begun = 0
        for steps in (*range(40), math.inf):  # the last one until the store is asked, however busy Redis is
            await ids.take("a", 1000)
            store.answers.clear()
            call = asyncio.ensure_future(ids.take("a", 1000))
            done = 0
            while done < steps and (flights.flight is None or steps < math.inf):
                await asyncio.sleep(0)
                done += 1
            begun += flights.flight is not None
            call.cancel()
            await asyncio.wait({call})
            store.answers.set()
            assert flights.failures == 0, steps
        assert begun


@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_a_call_that_begins_in_the_step_before_an_end_is_told_of_it(
    redis_url: str, store: Moody, order: Any, how: str
) -> None:
    ids = issuer.aconnect(redis=redis_url, store=store, timeout=1000)
    await ids.create("a", order=order)
    call = asyncio.ensure_future(outcome(ids.next("a")))
    await asyncio.sleep(0)
    if how == "closed":
        await ids.close()
    else:
        drawing = asyncio.all_tasks() - {call, asyncio.current_task()}
        assert drawing
        for task in drawing:
            task.cancel()
    assert isinstance(await call, issuer.IssuerError)
    await ids.close()


@pytest.mark.parametrize("what", ["take", "key"])
async def test_a_call_that_is_cancelled_costs_no_connection(
    redis_url: str, redis_client: Any, store: Moody, what: str
) -> None:
    """Its reply is still read: else each would be cut off in the middle of it."""

    def made() -> int:
        return int(redis_client.info("stats")["total_connections_received"])

    async with issuer.aconnect(redis=redis_url, store=store, timeout=60) as ids:
        await ids.create("a", step=100_000)
        await ids.take("a", 2)
        before = made()
        for steps in range(96):
            call = asyncio.ensure_future(ids.take("a", 2) if what == "take" else ids.next("a", key=str(steps)))
            for _ in range(steps % (12 if what == "take" else 32)):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            await ids.take("a", 2)
        assert made() - before < 8
