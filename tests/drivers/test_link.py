"""A call looks out for a reply that comes soon, and sleeps where it takes longer. A lost reply costs a number."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.drivers.aio import connections
from issuer.drivers.blocking import link
from issuer.drivers.blocking.link import Link
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.deadlines import ENDLESS
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import eventually, run, until

pytestmark = pytest.mark.live

Looks = list[bool]


#: How many calls do without a look-out after one in vain.
FAR = 5


#: A look-out that lasts so long sees every reply, however busy this machine is; one of no length, those that are there.
LONG = 60.0


SETTINGS: dict[str, Any] = {"store": "memory://", "scheduler": None, **ENDLESS}


@pytest.fixture
def look_out(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """What sets the seconds that a look-out lasts."""

    def last(seconds: float) -> None:
        for module in (link, connections):
            monkeypatch.setattr(module, "LOOK_OUT", seconds)
            monkeypatch.setattr(module, "FAR", FAR)

    return last


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """What each look-out of a thread came to; whether each draw of a task was looked out for."""
    seen: Looks = []
    look: Callable[[Any], bool] = link.Link._look_out
    begin: Callable[[Any], bool] = connections.LookOut.begin

    def looked(self: Any) -> bool:
        seen.append(look(self))
        return seen[-1]

    def begun(self: Any) -> bool:
        seen.append(begin(self))
        return seen[-1]

    monkeypatch.setattr(link.Link, "_look_out", looked)
    monkeypatch.setattr(connections.LookOut, "begin", begun)
    return seen


def drawn(ids: issuer.Issuer, n: int, looks: Looks) -> list[int]:
    ids.create("a", step=1_000_000)
    ids.next("a")
    looks.clear()
    return [ids.next("a") for _ in range(n)]


def test_a_server_nearby_is_looked_out_for(redis_url: str, looks: Looks, look_out: Callable[[float], None]) -> None:
    look_out(LONG)
    with issuer.connect(redis=redis_url, **SETTINGS) as ids:
        assert drawn(ids, 200, looks) == list(range(2, 202))
    assert looks == [True] * 200


def test_a_server_far_away_is_looked_out_for_once_in_a_while_and_again_when_it_comes_nearer(
    redis_proxy: FaultProxy, looks: Looks, look_out: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait: Callable[[Any, Any, Any], Any] = link.Link._whole

    def waited(*told: Any) -> Any:
        until(lambda: redis_proxy.held, 60)
        redis_proxy.release()  # its reply comes when nobody looks out for it any more, however slow we are
        return wait(*told)

    look_out(0)
    with issuer.connect(redis=redis_proxy.url, **SETTINGS) as ids:
        assert drawn(ids, 1, looks) == [2]
        looks.clear()
        redis_proxy.hold()
        with monkeypatch.context() as far:
            far.setattr(link.Link, "_whole", waited)
            assert [ids.next("a") for _ in range(2 * FAR)] == list(range(3, 2 * FAR + 3))
        assert len(looks) in (1, 2)  # the first calls, which create the tag, have begun to count
        assert not any(looks)
        redis_proxy.pass_through()
        look_out(LONG)
        looks.clear()
        ids.take("a", 1)
        for _ in range(FAR + 20):
            ids.next("a")
    assert len(looks) >= 20
    assert all(looks)


# ---------------------------------------------------------------------------------------------- in an event loop


@pytest.mark.parametrize(
    ("seconds", "n", "counts"), [(LONG, 200, {200}), (0, 2 * FAR, {1, 2})], ids=["nearby", "far away"]
)
def test_a_loop_looks_out_for_a_server_nearby_and_for_one_far_away_once_in_a_while(
    redis_url: str, looks: Looks, look_out: Callable[[float], None], *, seconds: float, n: int, counts: set[int]
) -> None:
    look_out(seconds)

    async def main() -> list[int]:
        async with issuer.aconnect(redis=redis_url, **SETTINGS) as ids:
            await ids.create("a", step=1_000_000)
            await ids.next("a")
            looks.clear()
            return [await ids.next("a") for _ in range(n)]

    assert run(main()) == list(range(2, n + 2))
    assert len(looks) == n
    assert sum(looks) in counts


def test_a_loop_that_looks_out_runs_its_other_tasks_and_survives_a_cancellation(
    redis_proxy: FaultProxy, look_out: Callable[[float], None]
) -> None:
    look_out(LONG)

    async def main() -> list[int]:
        async with issuer.aconnect(redis=redis_proxy.url, **SETTINGS) as ids:
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
            assert ids.engine.runner.redis is not None
            assert ids.engine.runner.redis._look_out._waiting == 0
            return numbers

    numbers = run(main())
    assert numbers == sorted(set(numbers))


# ---------------------------------------------------------------------------------------------- lost replies


class Interrupt(BaseException):
    """What a signal's handler raises."""


WAYS: dict[str, Callable[[issuer.Issuer], list[int]]] = {
    "next": lambda ids: [ids.next("a")],
    "next in time": lambda ids: [ids.next("a", timeout=30)],
    "take": lambda ids: ids.take("a", 1),
    "key": lambda ids: [ids.next("a", key=f"{time.monotonic_ns()}")],
    "long way": lambda ids: [ids.issue("a").value],
    "lease": lambda ids: ids.take("leased", 1),
}


@pytest.mark.parametrize("error", [Interrupt, RecursionError, MemoryError])
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_reply_costs_a_number_and_no_election(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, way: str, error: type[BaseException]
) -> None:
    tag = "leased" if way == "lease" else "a"
    settings: dict[str, Any] = {"redis": server.url, "store": MemoryStore()}
    # `other` draws nothing in the background, which would be struck as well.
    with issuer.connect(**settings) as ids, issuer.connect(**settings, scheduler=None) as other:
        ids.create("a", step=50)
        ids.create("leased", step=10, order="trend", lease=1)
        numbers = other.take(tag, 1)
        ask = Link.ask
        struck: list[object] = []

        def strike(link: Link, packed: bytes, seconds: float) -> Any:
            reply = ask(link, packed, seconds)
            if type(reply) is list and b"extend" in reply and not struck:
                struck.append(reply)
                raise error
            return reply

        monkeypatch.setattr(Link, "ask", strike)
        try:
            while not struck:
                numbers += WAYS[way](ids)
        except (error, issuer.IssuerError):  # the latter if a lease was drawn in the background
            pass
        monkeypatch.undo()
        assert struck
        # An election stands for 21 s here: by then a caller that waits for it has got an error.
        numbers += [other.next(tag, timeout=8) for _ in range(80)]
        assert not repeats(numbers)
