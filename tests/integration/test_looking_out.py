"""A thread or a loop looks out for a reply that comes soon, and sleeps where replies take longer."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.drivers import looking
from issuer.drivers.asyncio import connections
from issuer.drivers.blocking import link
from tests.servers.proxy import FaultProxy
from tests.waiting import eventually, run, until

pytestmark = pytest.mark.live

Looks = list[bool]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What each look-out came to."""
    seen: Looks = []
    look_out: Callable[[Any], bool] = link.Link._look_out

    def noted(self: link.Link) -> bool:
        seen.append(look_out(self))
        return seen[-1]

    monkeypatch.setattr(link.Link, "_look_out", noted)
    return seen


def drawn(ids: issuer.Issuer, n: int, looks: Looks) -> list[int]:
    ids.create("a", step=1_000_000)
    ids.next("a")
    looks.clear()
    return [ids.next("a") for _ in range(n)]


def test_a_server_nearby_is_looked_out_for(redis_url: str, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_OUT", 5.0)  # as quick as an idle machine, however busy this one is
    with issuer.connect(redis=redis_url, store="memory://", scheduler=None) as ids:
        assert drawn(ids, 200, looks) == list(range(2, 202))
    assert looks == [True] * 200


def test_a_server_far_away_is_looked_out_for_once_in_a_while(redis_proxy: FaultProxy, looks: Looks) -> None:
    redis_proxy.delay_replies(0.02)  # no look lasts so long, even of a thread that waits for its turn
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        assert drawn(ids, 2 * looking.FAR, looks) == list(range(2, 2 * looking.FAR + 2))
    assert len(looks) in (1, 2)  # the first calls, which create the tag, have begun to count
    assert not any(looks)


def test_a_server_that_comes_nearer_is_looked_out_for_again(
    redis_proxy: FaultProxy, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_proxy.delay_replies(0.02)  # no look lasts so long, even of a thread that waits for its turn
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        drawn(ids, looking.FAR, looks)
        redis_proxy.pass_through()
        monkeypatch.setattr(link, "LOOK_OUT", 5.0)
        looks.clear()
        for _ in range(looking.FAR + 20):
            ids.next("a")
    assert len(looks) >= 20
    assert all(looks)


def test_who_looks_out_lets_other_threads_run(redis_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "LOOK_OUT", 5.0)
    with issuer.connect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
        ids.create("a", step=1_000_000)
        ids.next("a")
        redis_proxy.hold()
        caller = threading.Thread(target=ids.next, args=("a",))
        caller.start()
        until(lambda: redis_proxy.held)
        assert sum(range(1_000_000)) == 499_999_500_000
        assert caller.is_alive()
        redis_proxy.release()
        caller.join(5)
        assert not caller.is_alive()


# ---------------------------------------------------------------------------------------------- in an event loop


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Whether each draw was looked out for."""
    seen: Looks = []
    begin: Callable[[Any], bool] = connections.LookOut.begin

    def noted(self: connections.LookOut) -> bool:
        seen.append(begin(self))
        return seen[-1]

    monkeypatch.setattr(connections.LookOut, "begin", noted)
    return seen


async def awaited(ids: issuer.AsyncIssuer, n: int, looked: Looks) -> list[int]:
    await ids.create("a", step=1_000_000)
    await ids.next("a")
    looked.clear()
    return [await ids.next("a") for _ in range(n)]


def test_a_loop_looks_out_for_a_server_nearby(redis_url: str, looked: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LOOK_OUT", 5.0)

    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store="memory://", scheduler=None) as ids:
            assert await awaited(ids, 200, looked) == list(range(2, 202))

    run(main())
    assert looked == [True] * 200


def test_a_loop_looks_out_for_a_server_far_away_once_in_a_while(redis_proxy: FaultProxy, looked: Looks) -> None:
    redis_proxy.delay_replies(0.002)

    async def main() -> None:
        async with issuer.aconnect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
            assert await awaited(ids, 2 * looking.FAR, looked) == list(range(2, 2 * looking.FAR + 2))

    run(main())
    assert sum(looked) in (1, 2)
    assert len(looked) == 2 * looking.FAR


def test_a_loop_that_looks_out_runs_its_other_tasks_and_survives_a_cancellation(
    redis_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LOOK_OUT", 5.0)

    async def main() -> list[int]:
        async with issuer.aconnect(redis=redis_proxy.url, store="memory://", scheduler=None) as ids:
            await ids.create("a", step=1_000_000)
            numbers = [await ids.next("a")]
            redis_proxy.hold()
            caller = asyncio.create_task(ids.next("a"))
            await eventually(lambda: redis_proxy.held)
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not caller.done()
            caller.cancel()
            redis_proxy.release()
            redis_proxy.pass_through()
            numbers += [await ids.next("a") for _ in range(3)]
            assert ids._runner.redis is not None
            assert ids._runner.redis._look_out._waiting == 0
            return numbers

    numbers = run(main())
    assert numbers == sorted(set(numbers))
