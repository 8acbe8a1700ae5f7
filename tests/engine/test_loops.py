"""Event loops: one after the other, several at once, ended with calls pending; uvloop's, and gevent's."""

import asyncio
import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uvloop

import issuer
from issuer_persistence.ledger import Reservation
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import covering
from tests.engine.late_gevent_app import TAGS
from tests.programs import fresh
from tests.servers.redis import RedisServer
from tests.waiting import run


async def drawn(ids: issuer.AsyncIssuer, tag: str, count: int) -> list[int]:
    return list(await asyncio.gather(*(ids.next(tag) for _ in range(count))))


# ---------------------------------------------------------------------------------------------- one after the other


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize(
    ("lease", "scheduler"), [(0, "background"), (0, None), (1000, "background"), (None, "background")]
)
def test_one_issuer_serves_one_loop_after_the_other_and_each_gives_back_what_it_held(
    redis_url: str, lease: int | None, scheduler: Any
) -> None:
    """Without a lease there is no Redis either."""
    redis = "none" if lease is None else redis_url
    ids = issuer.aconnect(redis=redis, store=MemoryStore(), lease=lease or 0, scheduler=scheduler)
    run(ids.create("a", step=20 if lease == 0 else 10_000, order="trend"))
    numbers = [run(ids.next("a")) for _ in range(5)]
    numbers += [number for _ in range(4) for number in run(drawn(ids, "a", 30))]
    assert sorted(numbers) == list(range(1, 126))
    assert run(ids.tick()) in (0, 1)
    run(ids.close())
    with pytest.raises(issuer.IssuerError, match="closed"):
        run(ids.next("a"))


def test_a_segment_that_is_being_reserved_as_a_loop_ends_is_loaded(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.drivers.aio.runner.OUTLAST", 30.0)  # a machine that stands still is no slow store
    begun = threading.Event()

    class Slow(MemoryStore):
        def reserve(self, *args: Any, **options: Any) -> Reservation:
            begun.set()
            time.sleep(0.01)
            return super().reserve(*args, **options)

    store = Slow()
    ids = issuer.aconnect(redis=redis_url, store=store)
    run(ids.create("a", step=10, order="trend"))

    async def draw() -> None:
        await ids.next("a")
        begun.clear()
        await ids.next("a")
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)

    run(draw())
    assert [(each.low, each.high) for each in store.ledger("a", newest=9, timeout=10)] == [(10, 20), (0, 10)]
    assert [run(ids.next("a")) for _ in range(15)] == list(range(3, 18))
    run(ids.close())


def test_it_begins_anew_after_a_loop_that_was_only_closed() -> None:
    """Nobody shut its generators and tasks down, as asyncio.run does: numbers in hand are lost, and not repeated."""
    ids = issuer.aconnect(redis="none", store=MemoryStore())
    run(ids.create("a", step=10))
    numbers = []
    for _ in range(3):
        loop = asyncio.new_event_loop()
        numbers.append(loop.run_until_complete(ids.next("a")))
        loop.close()
    assert numbers == sorted(set(numbers))
    run(ids.close())


# ---------------------------------------------------------------------------------------------- several at once


def test_each_loop_of_a_process_has_an_issuer_of_its_own(redis_url: str) -> None:
    store = MemoryStore()

    async def draw() -> list[int]:
        async with issuer.aconnect(redis=redis_url, store=store) as ids:
            return [number for _ in range(5) for number in await drawn(ids, "a", 100)]

    with issuer.connect(redis=redis_url, store=store) as ids, ThreadPoolExecutor(6) as pool:
        ids.create("a", step=70)
        results = list(pool.map(lambda _: run(draw(), 60), range(6)))
    assert [len(part) for part in results] == [500] * 6
    assert repeats(number for part in results for number in part) == []


async def test_a_second_loop_is_refused_while_the_first_one_lives() -> None:
    async with issuer.aconnect(redis="none", store="memory://") as ids:
        await ids.create("a", step=10)
        assert await ids.next("a") == 1
        for call in (
            lambda: ids.next("a"), lambda: ids.take("a", 2), lambda: anext(ids.stream("a")),
            ids.tick, ids.tags, ids.close,
        ):  # fmt: skip
            with pytest.raises(issuer.IssuerError, match="another event loop"):
                await asyncio.to_thread(lambda call=call: run(call()))  # type: ignore[misc]  # bound at once
        assert not ids.closed
        assert await ids.next("a") == 2


# ---------------------------------------------------------------------------------------------- ended in the middle

ENDED = """
import asyncio, faulthandler, gc, os, signal, sys, time
import issuer
from issuer.engine import aio as engine
from issuer_persistence.memory import MemoryStore

engine.CLOSING = 60  # what is not given back in time is told, which is no silence
faulthandler.dump_traceback_later(200, exit=True)  # so that one that hangs says where
drawn = {"strict": 0, "trend": 0, "leased": 0, "stream": 0}

class Slow(MemoryStore):
    def reserve(self, *args, **options):
        time.sleep(0.2)
        return super().reserve(*args, **options)

async def main(redis, how, closing):
    ids = issuer.aconnect(redis=redis, store=Slow(), timeout=150)
    for tag in ("strict", "trend", "leased"):
        await ids.create(tag, step=3, order="strict" if tag == "strict" else "trend", lease=2 * (tag == "leased"))

    async def caller(tag):
        try:
            async for _ in ids.stream("leased") if tag == "stream" else forever(tag):
                drawn[tag] += 1
        except (asyncio.CancelledError, issuer.IssuerError):
            pass

    async def forever(tag):
        while True:
            yield await ids.next(tag)

    tasks = [asyncio.create_task(caller(tag)) for tag in (*["strict", "trend", "leased"] * 20, "stream")]
    while min(drawn.values()) < 3:
        await asyncio.sleep(0.01)
    if closing:
        async with ids:
            await end(how)
    else:
        await end(how)

async def end(how):
    if how == "raise":
        raise ValueError("on purpose")
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

try:
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3] == "close"), debug=False)
except (ValueError, KeyboardInterrupt):
    pass
gc.collect()
print("over")
"""


@covering("how, close", [("return", "no"), ("interrupt", "close")], ["return", "raise", "interrupt"], ["no", "close"])
def test_a_loop_that_ends_with_calls_pending_ends_in_silence(redis_url: str, how: str, close: str) -> None:
    done = fresh("-X", "dev", "-W", "error::ResourceWarning", "-c", ENDED, redis_url, how, close)
    complaints = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.stdout, complaints) == ("over\n", [])


def interrupt() -> None:
    raise InterruptedError


def test_a_change_of_the_loop_that_is_interrupted_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = issuer.aconnect(redis="none", store="memory://")

    async def drawn() -> int:
        return await ids.next("a")

    run(ids.create("a", order="trend"))
    assert run(drawn()) == 1
    with monkeypatch.context() as interrupted:
        interrupted.setattr(ids.engine, "start", interrupt)
        with pytest.raises(InterruptedError):
            run(drawn())
    assert run(drawn()) == 2
    run(ids.close())


# -------------------------------------------------------------------------------- loops that are not Python's own


TASKS, EACH = 50, 100


def told(app: str, *words: str) -> Any:
    """Run a program of this folder, and return what it says, which is JSON."""
    return json.loads(fresh("-m", f"tests.engine.{app}", *words).stdout)


def test_greenlets_draw_and_a_server_that_stands_still_holds_up_only_who_asks_it(server: RedisServer) -> None:
    found = told("gevent_app", server.url, str(server.pid))
    assert sorted(found["strict"]) == list(range(1, TASKS * EACH + 1))
    assert len(found["trend"]) == len(set(found["trend"])) == TASKS * EACH
    assert found["refused"] == ["RedisUnavailable"] * 2
    assert found["waiting"]
    later = found["later"]
    assert len(set(later)) == len(later) == TASKS * EACH + 1
    assert min(later) > max(found["strict"])


@covering("store, lease", [("SQLite", 20), ("MongoDB", 0)], ["SQLite", "MongoDB"], [0, 20])
def test_a_fork_that_gevent_patches_afterwards_stops_no_greenlet(
    store: str, lease: int, server: RedisServer, mongo_url: str, tmp_path: Path
) -> None:
    urls = {"SQLite": f"sqlite:///{tmp_path / 'a.db'}", "MongoDB": f"{mongo_url}/late_{secrets.token_hex(4)}"}
    with issuer.connect(redis=server.url, store=urls[store]) as ids:
        for tag in TAGS:
            ids.create(tag, order="trend" if lease else "strict", step=300)
    for numbers in told("late_gevent_app", server.url, urls[store], str(lease)).values():
        assert len(numbers) == len(set(numbers)) == 510


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_uvloop_serves_tasks_and_a_server_that_stands_still_costs_no_more_than_the_deadline(
    server: RedisServer,
) -> None:
    async def drawn(ids: issuer.AsyncIssuer, tag: str) -> list[int]:
        async def caller() -> list[int]:
            return [await ids.next(tag) for _ in range(EACH)]

        return [number for numbers in await asyncio.gather(*(caller() for _ in range(TASKS))) for number in numbers]

    async def main() -> None:
        async with issuer.aconnect(redis=server.url, store=MemoryStore(), lease=20) as ids:
            await ids.create("strict", step=1000)
            await ids.create("trend", step=1000, order="trend")
            assert sorted(await drawn(ids, "strict")) == list(range(1, TASKS * EACH + 1))
            assert not repeats(await drawn(ids, "trend"))
            server.pause()
            patient = asyncio.ensure_future(ids.next("strict"))
            for deadline in (0, 0.3):
                with pytest.raises(issuer.RedisUnavailable):
                    await ids.next("strict", timeout=deadline)
            assert not patient.done()
            server.resume()
            later = [await patient, *await drawn(ids, "strict")]
            assert not repeats(later)
            assert min(later) > TASKS * EACH

    uvloop.run(main())
