"""AsyncIssuer's own: that its face is Issuer's, and what loops and tasks bring with them."""

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import AsyncIssuer, Issuer
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import eventually, run

# ---------------------------------------------------------------------------------------------- the same as Issuer's


def public(cls: type) -> dict[str, Any]:
    return {name: part for name, part in vars(cls).items() if not name.startswith("_")}


def parameters(call: Callable[..., object]) -> dict[str, tuple[object, object, str]]:
    """Return each parameter's kind, default and annotation."""
    return {
        name: (each.kind, each.default, str(each.annotation))
        for name, each in inspect.signature(call).parameters.items()
    }


def test_both_faces_have_the_same_methods_and_return_the_same_but_awaited() -> None:
    blocking, awaited = public(Issuer), public(AsyncIssuer)
    assert list(blocking) == list(awaited)
    for name, part in blocking.items():
        other = awaited[name]
        if not inspect.isfunction(part):
            assert type(part) is type(other), name
            continue
        assert parameters(part) == parameters(other), name
        returns = [str(inspect.signature(call).return_annotation) for call in (part, other)]
        if name == "stream":
            assert returns == ["Iterator[int]", "AsyncIterator[int]"]
        else:
            assert returns[0] == returns[1], name
            assert inspect.iscoroutinefunction(other) is (name != "observe"), name  # which asks nobody


def test_aconnect_returns_an_issuer_and_no_coroutine() -> None:
    ids = issuer.aconnect(redis="none", store="memory://")
    assert isinstance(ids, AsyncIssuer)
    assert not inspect.isawaitable(ids)
    assert re.fullmatch(r"<AsyncIssuer redis=None store='memory://.*' prefix='issuer'>", repr(ids))
    assert not ids.closed
    run(ids.close())
    assert ids.closed


def test_what_belongs_to_threads_is_refused_where_tasks_draw(fake_server: FencedFakeServer) -> None:
    for settings in ({"scheduler": BackgroundScheduler(timezone="UTC")}, {"redis": fake_server.client()}):
        with pytest.raises(issuer.ConfigurationError):
            issuer.aconnect(**{"redis": "none", "store": "memory://", **settings})


def test_a_client_for_tasks_is_refused_where_threads_draw(fake_server: FencedFakeServer) -> None:
    with pytest.raises(issuer.ConfigurationError):
        issuer.connect(redis=fake_server.async_client(), store="memory://")  # type: ignore[arg-type]  # the point


async def test_what_cannot_be_is_refused_before_anything_is_waited_for() -> None:
    async with issuer.aconnect(redis="none", store="memory://") as ids:
        for bad in ({"tag": ""}, {"tag": "a", "timeout": -1}):
            with pytest.raises(issuer.InvalidArgument):
                ids.stream(**bad)
        with pytest.raises(issuer.ConfigurationError):
            await ids.keep()


# ---------------------------------------------------------------------------------------------- numbers


@pytest.mark.live
@pytest.mark.covers("0.2")
@pytest.mark.parametrize("direct", [False, True])
async def test_a_thousand_tasks_get_each_number_once(redis_url: str, tmp_path: Path, direct: bool) -> None:
    redis, store = "none" if direct else redis_url, f"sqlite:///{tmp_path / 'a.db'}"
    async with issuer.aconnect(redis=redis, store=store, timeout=60, store_timeout=30) as ids:
        await ids.create("a", step=70)
        numbers = await asyncio.gather(*(ids.next("a") for _ in range(1000)))
        taken = await asyncio.gather(*(ids.take("a", 7) for _ in range(100)))
        assert repeats([*numbers, *(number for part in taken for number in part)]) == []
        assert all(part == sorted(part) for part in taken)


async def test_a_schedulers_of_the_callers_is_used_and_left_running() -> None:
    theirs = AsyncIOScheduler(timezone="UTC")
    theirs.start()
    try:
        async with issuer.aconnect(redis="none", store="memory://", scheduler=theirs) as ids:
            await ids.create("a", step=10)
            assert [await ids.next("a") for _ in range(50)] == list(range(1, 51))
        assert theirs.running
        await eventually(lambda: theirs.get_jobs() == [])  # a job that was handed over goes when it begins
    finally:
        theirs.shutdown()


async def test_scripts_that_redis_has_forgotten_are_loaded_again(redis_server: RedisServer, redis_url: str) -> None:
    async with issuer.aconnect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
        await ids.create("a", step=4)
        numbers = [await ids.next("a")]
        with redis_server.client() as client:
            for _ in range(10):
                client.script_flush()
                numbers.append(await ids.next("a"))
        assert numbers == list(range(1, 12))
