"""Redis and the store away, slow or restarted under an AsyncIssuer, and tasks cancelled in mid-flight."""

import asyncio
import contextlib
import random
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer import AsyncIssuer
from issuer.drivers.asyncio.connections import Link
from issuer.scripts import script
from persistence.errors import Unavailable
from persistence.memory import MemoryStore
from persistence.records import Reservation
from tests.audit import repeats
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import Heartbeat, eventually, run

pytestmark = pytest.mark.live

NEXT = script("next").sha.encode()


class Moody(MemoryStore):
    """A store that is slow, or away, when it is told to be."""

    seconds = 0.0
    down = False
    failing = 0
    asked = 0

    def reserve(self, *args: Any, **options: Any) -> Reservation:
        self.asked += 1
        threading.Event().wait(self.seconds)
        if self.failing:
            self.failing -= 1
            raise Unavailable("failing")
        if self.down:
            raise Unavailable("down")
        return super().reserve(*args, **options)

    def hand_back(self, *args: Any, **options: Any) -> bool:
        threading.Event().wait(self.seconds)
        return super().hand_back(*args, **options)


@pytest.fixture
def store() -> Moody:
    return Moody()


async def outcome(ids: AsyncIssuer, tag: str, timeout: float | None = None) -> tuple[object, float]:
    """Return the number or error of a call, and how long it took."""
    began = time.monotonic()
    answer: object
    try:
        answer = await ids.next(tag, timeout=timeout)
    except issuer.IssuerError as error:
        answer = error
    return answer, time.monotonic() - began


# ---------------------------------------------------------------------------------------------- Redis


def test_a_redis_that_is_killed_between_calls_costs_an_error_at_most_and_no_repeat(
    start_redis: Callable[..., RedisServer], store: Moody
) -> None:
    server = start_redis()

    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=store, timeout=10) as ids:
            await ids.create("a", step=50)
            numbers: list[int] = []
            for _ in range(3):
                numbers += await asyncio.gather(*(ids.next("a") for _ in range(30)))
                await asyncio.to_thread(server.kill)
                waiting = [asyncio.ensure_future(ids.next("a")) for _ in range(30)]
                error, took = await outcome(ids, "a", timeout=0.3)
                assert isinstance(error, issuer.RedisUnavailable)
                assert took < 0.7
                await asyncio.to_thread(server.start)
                numbers += await asyncio.gather(*waiting)
            assert len(numbers) == 180
            assert repeats(numbers) == []

    run(main())


def test_who_shares_a_draw_and_has_less_time_than_others_is_told_why_nothing_came(
    start_redis: Callable[..., RedisServer], store: Moody
) -> None:
    server = start_redis()

    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=store) as ids:
            await ids.create("a", step=1000)
            await ids.next("a")
            await asyncio.to_thread(server.kill)
            calls = [outcome(ids, "a", timeout) for timeout in (1.5, 0.3, 0.6, 0.9)]
            for error, _ in await asyncio.gather(*calls):
                assert re.search("Error 111|closed", str(error)), error
            await asyncio.to_thread(server.start)
            await ids.next("a", timeout=10)

    run(main())


def test_callers_wait_for_a_redis_that_hangs_until_their_own_deadline(
    start_redis: Callable[..., RedisServer], store: Moody
) -> None:
    server = start_redis()

    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=store) as ids:
            await ids.create("a", step=1000)
            await ids.next("a")
            server.pause()
            timeouts = [0, 0.1, 0.5, 0.9, 15, 15] * 20
            calls = [asyncio.ensure_future(outcome(ids, "a", timeout)) for timeout in timeouts]
            await asyncio.gather(*(call for call, timeout in zip(calls, timeouts, strict=True) if timeout < 1))
            server.resume()
            answers = await asyncio.gather(*calls)
            for timeout, (answer, took) in zip(timeouts, answers, strict=True):
                if timeout < 1:
                    assert isinstance(answer, issuer.RedisUnavailable)
                    assert took < timeout + 0.4
                else:
                    assert isinstance(answer, int), answer
                    assert took < 5
            assert repeats(answer for answer, _ in answers if isinstance(answer, int)) == []

    try:
        run(main())
    finally:
        server.resume()


async def late_then_other(proxy: FaultProxy, how: str) -> int:
    """Draw of one tag until the reply is too late, or the caller gone, then of another tag; return what that got."""
    async with issuer.aconnect(redis=proxy.url, store="memory://", scheduler=None, redis_timeout=0.15) as ids:
        await ids.create("low")
        await ids.create("high", start=1_000_001)
        await ids.take("low", 2)
        await ids.warm("high")
        proxy.delay_replies(0.12, match=NEXT, times=1)
        if how == "timeout":
            with pytest.raises(issuer.RedisUnavailable):
                await ids.next("low", timeout=0)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ids.take("low", 2), 0.05)
        proxy.pass_through()
        return await ids.next("high", timeout=2)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_reply_that_comes_late_is_never_taken_for_another_calls(redis_proxy: FaultProxy, how: str) -> None:
    assert run(late_then_other(redis_proxy, how)) == 1_000_001


def keep_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the guard out: what was given up in the middle of a call is used for the next one."""
    from issuer.drivers.asyncio import connections
    from issuer.drivers.routes import Address

    drop = Link.drop
    kept: list[Link] = []
    node = connections.Node(Address())

    async def keep(link: Link) -> None:
        if link in kept:  # the next time it means it
            await drop(link)
        else:
            kept.append(link)
            node.idle.append(link)

    async def ask(link: Link, packed: bytes) -> Any:
        await link.connection.send_packed_command(packed)
        # redis-py would disconnect by itself, and so be a guard of its own.
        return await link.connection.read_response(disable_decoding=True, disconnect_on_error=False)

    monkeypatch.setattr(connections, "Node", lambda _address: node)
    monkeypatch.setattr(Link, "drop", keep)
    monkeypatch.setattr(Link, "ask", ask)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_kept_connections_would_take_it(redis_proxy: FaultProxy, how: str) -> None:
    def taken() -> bool:
        with pytest.MonkeyPatch.context() as monkeypatch:
            keep_connections(monkeypatch)
            return run(late_then_other(redis_proxy, how)) < 1000

    # On a busy machine the first call may not have been sent yet when its caller goes.
    assert any(taken() for _ in range(5))


def test_a_trend_tag_goes_on_direct_and_comes_back_increasing(
    redis_proxy: FaultProxy, redis_url: str, store: Moody
) -> None:
    async def main() -> None:
        async with (
            issuer.aconnect(redis=redis_proxy.url, store=store) as ids,
            issuer.aconnect(redis=redis_url, store=store) as other,
        ):
            await ids.create("t", step=100, order="trend")
            mine, theirs = [await ids.next("t")], [await other.next("t")]
            for _ in range(1):
                await asyncio.to_thread(redis_proxy.refuse)
                mine += [await ids.next("t") for _ in range(250)]
                theirs += [await other.next("t") for _ in range(50)]
                await asyncio.to_thread(redis_proxy.pass_through)
                supply = ids._roster.line("t").supply
                await eventually(lambda supply=supply: not supply._direct, message="back on Redis")  # type: ignore[misc]  # bound at once
                theirs += [await other.next("t") for _ in range(50)]
                mine += [await ids.next("t") for _ in range(50)]
            assert repeats(mine + theirs) == []
            assert mine == sorted(mine)
            assert theirs == sorted(theirs)

    run(main())


# ---------------------------------------------------------------------------------------------- the store


@pytest.mark.covers("0.17")
@pytest.mark.parametrize("direct", [True, False])
def test_a_store_that_takes_two_seconds_keeps_neither_a_caller_nor_the_loop_waiting(
    request: pytest.FixtureRequest, store: Moody, direct: bool
) -> None:
    redis = None if direct else request.getfixturevalue("redis_url")

    async def main() -> None:
        async with issuer.aconnect(redis=redis, store=store) as ids:
            await ids.create("a", step=4000)
            await ids.next("a")
            store.seconds = 2.0
            asked = store.asked
            longest = 0.0
            async with Heartbeat() as heart:
                began = time.monotonic()
                while time.monotonic() - began < 0.6:
                    _, took = await outcome(ids, "a")
                    longest = max(longest, took)
                    if store.asked == asked:
                        await ids.take("a", 100)
                    else:
                        await asyncio.sleep(0.002)
            assert store.asked == asked + 1  # it is being asked, once
            assert longest < 0.15
            assert heart.longest < 0.15
            store.seconds = 0.0

    run(main())


def test_the_loop_goes_on_whatever_is_under_way(redis_url: str, store: Moody) -> None:
    """A slow store in every operation that asks it, leases and segments in hand, a million numbers, the end."""

    async def main() -> float:
        async with (
            Heartbeat() as heart,
            issuer.aconnect(redis=redis_url, store=store) as ids,
            issuer.aconnect(redis=None, store=store) as direct,
        ):
            await ids.create("a", step=100)
            await ids.create("l", step=5000, order="trend", lease=1000)
            await direct.create("d", step=200_000)
            store.seconds = 0.2
            await asyncio.gather(
                *(ids.next("a") for _ in range(300)), ids.warm("l"), direct.warm("d"), ids.reserve("l", 10)
            )
            store.seconds = 0.0
            count = 0
            async for _ in direct.stream("d"):
                count += 1
                if count == 100_000:
                    break
            for _ in range(20_000):
                await direct.next("d")
            for _ in range(5_000):
                await ids.next("l")
            store.seconds = 0.2
            await ids.recover("a")
            await ids.tick()
        return heart.longest

    assert run(main()) < 0.15


@pytest.mark.covers("1.21")
def test_callers_wait_for_a_store_that_is_away_until_their_own_deadline(redis_url: str, store: Moody) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            await ids.create("a", step=1000)
            store.down = True
            timeouts = [0, 0.1, 0.5, 15] * 25
            calls = [asyncio.ensure_future(outcome(ids, "a", timeout)) for timeout in timeouts]
            await asyncio.gather(*(call for call, timeout in zip(calls, timeouts, strict=True) if timeout < 1))
            store.down = False
            for timeout, (answer, took) in zip(timeouts, await asyncio.gather(*calls), strict=True):
                if timeout < 1:
                    assert isinstance(answer, issuer.StoreUnavailable)
                    assert took < timeout + 0.4
                else:
                    assert isinstance(answer, int), answer
                    assert took < 4

    run(main())


@pytest.mark.covers("1.20")
def test_a_load_that_fails_twice_and_then_succeeds_serves_everybody_who_waits(redis_url: str, store: Moody) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            await ids.create("a", step=1000)
            store.failing = 2
            numbers = await asyncio.gather(*(ids.next("a") for _ in range(200)))
            assert sorted(numbers) == list(range(1, 201))

    run(main())


@pytest.mark.covers("1.19")
def test_a_thousand_tasks_past_the_mark_start_one_load(redis_url: str, store: Moody) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            await ids.create("a", step=10_000)
            await ids.take("a", 1999)
            store.seconds = 0.2
            numbers = await asyncio.gather(*(ids.next("a") for _ in range(1000)))
            assert sorted(numbers) == list(range(2000, 3000))
            await eventually(lambda: store.asked == 2)
            await asyncio.gather(*(ids.next("a") for _ in range(1000)))
            assert store.asked == 2

    run(main())


# ---------------------------------------------------------------------------------------------- the callers' clocks


@pytest.mark.parametrize("busy", [False, True])
def test_a_loop_that_was_held_up_does_not_charge_that_to_calls_that_come_after(redis_url: str, busy: bool) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store="memory://", timeout=0.3) as ids:
            await ids.create("a", step=100_000)

            async def draw() -> None:
                while True:
                    await ids.next("a", timeout=5)

            others = [asyncio.ensure_future(draw()) for _ in range(50 * busy)]
            for _ in range(3):
                await ids.next("a")
                time.sleep(0.5)  # noqa: ASYNC251 - other people's code in the same loop
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run(main())


@pytest.mark.parametrize("tasks", [0, 300])
def test_timeout_0_gets_the_answer_of_a_round_trip_under_load_too(redis_url: str, tasks: int) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store="memory://") as ids:
            await ids.create("a", step=1_000_000)
            await ids.next("a")

            async def draw() -> None:
                while True:
                    await ids.next("a")

            others = [asyncio.ensure_future(draw()) for _ in range(tasks)]
            numbers = [await ids.next("a", timeout=0) for _ in range(300)]
            assert repeats(numbers) == []
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run(main())


# ---------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize("order", ["strict", "trend"])
@pytest.mark.parametrize("scheduler", ["background", None])
def test_tasks_cancelled_in_mid_flight_take_nobody_elses_number(redis_url: str, order: Any, scheduler: Any) -> None:
    chance = random.Random(7)

    async def main() -> None:
        store = MemoryStore()
        numbers: list[int] = []
        served = 0
        async with (
            issuer.aconnect(redis=redis_url, store=store, scheduler=scheduler, timeout=10) as ids,
            issuer.aconnect(redis=redis_url, store=store, scheduler=scheduler, timeout=10) as beside,
        ):
            await ids.create("a", step=60, order=order, lease=20 if order == "trend" else None)

            async def one() -> list[int]:
                return [await ids.next("a")]

            async def hurried(timeout: float) -> None:
                call = ids.take("a", 2) if chance.random() < 0.2 else one()
                with contextlib.suppress(TimeoutError):
                    got = await asyncio.wait_for(call, timeout)
                    numbers.extend(got)

            async def patient(ids: AsyncIssuer) -> None:
                nonlocal served
                numbers.append(await ids.next("a"))
                served += 1

            for _ in range(12):
                tasks = [
                    *(asyncio.ensure_future(hurried(chance.choice([0.0002, 0.001, 0.003]))) for _ in range(120)),
                    *(asyncio.ensure_future(patient(chance.choice([ids, beside]))) for _ in range(60)),
                ]
                doomed = [asyncio.ensure_future(hurried(5)) for _ in range(60)]
                await asyncio.sleep(chance.uniform(0, 0.004))
                for task in doomed:
                    task.cancel()
                await asyncio.gather(*tasks)
            record = await asyncio.to_thread(store.get, "a", timeout=1)
        assert record is not None
        assert served == 12 * 60
        assert repeats(numbers) == []
        assert max(numbers) <= record.max

    run(main())


def test_the_leader_of_an_extension_that_is_cancelled_keeps_nobody_waiting(redis_url: str, store: Moody) -> None:
    """Without a scheduler the first caller extends for all: the others go on without it."""

    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=store, scheduler=None, store_timeout=1) as ids:
            await ids.create("a", step=100)
            store.seconds = 0.3
            leader = asyncio.ensure_future(ids.take("a", 3))
            await eventually(lambda: store.asked)
            others = [asyncio.ensure_future(ids.next("a")) for _ in range(50)]
            await asyncio.sleep(0)
            leader.cancel()
            began = time.monotonic()
            numbers = await asyncio.gather(*others)
            assert time.monotonic() - began < 2
            assert repeats(numbers) == []

    run(main())
