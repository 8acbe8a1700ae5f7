"""AsyncIssuer's face: what its methods return, refuse and share with Issuer's, on every combination of servers."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler

import issuer
from issuer import AsyncIssuer, Issuer
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.integration.test_face import BAD_CALLS
from tests.servers.fake import FencedFakeServer
from tests.servers.redis import RedisServer
from tests.waiting import run

Connect = Callable[..., AsyncIssuer]

#: Where an AsyncIssuer may stand: Redis or none, and the store.
PLACES = ["fake", pytest.param("redis", marks=pytest.mark.live), "sqlite", "memory"]


@pytest.fixture
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Make an AsyncIssuer at the test's place."""
    place = request.param
    store = f"sqlite:///{tmp_path / 'a.db'}" if place in ("sqlite", "redis") else MemoryStore()
    url = request.getfixturevalue("redis_url") if place == "redis" else None

    def make(**settings: Any) -> AsyncIssuer:
        redis: Any = url
        if place == "fake":
            redis = request.getfixturevalue("fake_server").async_client()
        return issuer.aconnect(**{"redis": redis, "store": store, "scheduler": None, **settings})

    return make


# ---------------------------------------------------------------------------------------------- the same as Issuer's


def public(cls: type) -> dict[str, Any]:
    return {name: part for name, part in vars(cls).items() if not name.startswith("_")}


def parameters(call: Callable[..., object]) -> dict[str, tuple[object, object, str]]:
    """Return each parameter's kind, default and annotation."""
    return {
        name: (each.kind, each.default, str(each.annotation))
        for name, each in inspect.signature(call).parameters.items()
    }


def test_both_faces_have_the_same_methods_with_the_same_parameters_and_defaults() -> None:
    blocking, awaited = public(Issuer), public(AsyncIssuer)
    assert list(blocking) == list(awaited)
    for name, part in blocking.items():
        if inspect.isfunction(part):
            assert parameters(part) == parameters(awaited[name]), name
        else:
            assert type(part) is type(awaited[name]), name


def test_both_faces_return_the_same_but_awaited() -> None:
    for name, part in public(Issuer).items():
        if not inspect.isfunction(part):
            continue
        other = public(AsyncIssuer)[name]
        returns = [str(inspect.signature(call).return_annotation) for call in (part, other)]
        if name == "stream":
            assert returns == ["Iterator[int]", "AsyncIterator[int]"]
        else:
            assert returns[0] == returns[1], name
            assert inspect.iscoroutinefunction(other), name


def test_connect_and_aconnect_take_the_same() -> None:
    one, two = (inspect.signature(call).parameters for call in (issuer.connect, issuer.aconnect))
    assert [(each.name, each.kind, each.default) for each in one.values()] == [
        (each.name, each.kind, each.default) for each in two.values()
    ]


def test_aconnect_returns_an_issuer_and_no_coroutine() -> None:
    ids = issuer.aconnect(redis=None, store="memory://")
    assert isinstance(ids, AsyncIssuer)
    assert not inspect.isawaitable(ids)
    assert re.fullmatch(r"<AsyncIssuer redis=None store='memory://.*' prefix='issuer'>", repr(ids))
    assert not ids.closed
    run(ids.close())
    assert ids.closed


@pytest.mark.parametrize(
    "settings",
    [
        {"scheduler": BackgroundScheduler(timezone="UTC")},
        {"scheduler": "foreground"},
        {"redis": FencedFakeServer().client()},
        {"redis": 7},
        {"redis": "redis://127.0.0.1:1/0?foo=1"},
        {"store": 7},
        {"timeout": -1},
    ],
)
def test_what_does_not_fit_is_refused_at_once(settings: dict[str, Any]) -> None:
    with pytest.raises(issuer.ConfigurationError):
        issuer.aconnect(**{"redis": None, "store": "memory://", **settings})


def test_a_client_for_tasks_is_refused_where_threads_draw(fake_server: FencedFakeServer) -> None:
    with pytest.raises(issuer.ConfigurationError):
        issuer.connect(redis=fake_server.async_client(), store="memory://")  # type: ignore[arg-type]  # the point


# ---------------------------------------------------------------------------------------------- every method


async def numbers_of(stream: AsyncIterator[int], count: int) -> list[int]:
    return [await anext(stream) for _ in range(count)]


@pytest.mark.parametrize("connect", PLACES, indirect=True)
def test_every_method_does_what_issuers_does(connect: Connect) -> None:
    async def main() -> None:
        async with connect() as ids:
            tag = await ids.create("a", start=100, step=10, order="trend", description="orders")
            assert (tag.max, tag.step, tag.order, tag.description) == (99, 10, "trend", "orders")
            with pytest.raises(issuer.TagExists):
                await ids.create("a")
            await ids.warm("a")
            assert await ids.next("a") == 100
            assert await ids.next("a", timeout=2) == 101
            assert await ids.take("a", 25) == list(range(102, 127))
            reserved = await ids.reserve("a", 500)
            assert (len(reserved), reserved.step) == (500, 1)
            assert reserved.start > 126
            assert (await ids.configure("a", step=20)).step == 20
            assert [each.tag for each in await ids.tags()] == ["a"]
            seen = await ids.inspect("a")
            assert (seen.description, seen.store.step) == ("orders", 20)
            await ids.take("a", 10)
            assert await ids.tick() in (0, 1)
            recovered = await ids.recover("a", dry_run=True)
            assert [each.tag for each in recovered] == ["a"]
            assert [each.tag for each in await ids.recover()] == ["a"]
            last = await ids.next("a")
            streamed = await numbers_of(ids.stream("a"), 30)
            assert streamed == sorted(set(streamed))
            assert streamed[0] > last
            await ids.delete("a")
            with pytest.raises(issuer.UnknownTag):
                await ids.next("a")
        assert ids.closed
        await ids.close()

    run(main())


@pytest.mark.parametrize("connect", ["fake"], indirect=True)
def test_a_strict_tags_numbers_come_one_by_one_and_stream_too(connect: Connect) -> None:
    async def main() -> None:
        async with connect() as ids:
            await ids.create("a", step=3)
            assert [await ids.next("a") for _ in range(7)] == list(range(1, 8))
            assert await numbers_of(ids.stream("a"), 7) == list(range(8, 15))
            assert await ids.keep() == await ids.tags()
            with pytest.raises(issuer.InvalidArgument, match="strict"):
                await ids.reserve("a", 5)

    run(main())


def test_keep_without_redis_is_refused() -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=None, store="memory://") as ids:
            with pytest.raises(issuer.ConfigurationError):
                await ids.keep()

    run(main())


@pytest.mark.parametrize("connect", ["fake", "memory"], indirect=True)
@pytest.mark.parametrize("name", ["next", "take", "reserve", "warm", "inspect", "configure", "delete", "recover"])
def test_an_unknown_tag_is_told_and_leaves_nothing_behind(connect: Connect, name: str) -> None:
    async def main() -> None:
        async with connect() as ids:
            arguments: dict[str, Any] = {"take": {"n": 3}, "reserve": {"n": 3}, "configure": {"step": 3}}.get(name, {})
            with pytest.raises(issuer.UnknownTag) as error:
                await getattr(ids, name)("nope", **arguments)
            assert error.value.tag == "nope"
            assert await ids.tags() == []
            assert ids._roster.lines == {}

    run(main())


@pytest.mark.parametrize("number", range(len(BAD_CALLS)))
def test_bad_input_is_refused_and_changes_nothing(number: int, fake_server: FencedFakeServer) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=fake_server.async_client(), store="memory://", scheduler=None) as ids:
            await ids.create("a", step=10)
            await ids.create("t", step=10, order="trend")
            await ids.next("a")
            before = await ids.tags()
            with pytest.raises(issuer.InvalidArgument):
                await BAD_CALLS[number](ids)
            assert await ids.tags() == before
            assert await ids.next("a") == 2

    run(main())


def test_a_stream_checks_its_arguments_when_it_is_made() -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=None, store="memory://") as ids:
            for bad in ({"tag": ""}, {"tag": "a", "timeout": -1}):
                with pytest.raises(issuer.InvalidArgument):
                    ids.stream(**bad)

    run(main())


def test_a_tag_is_made_at_its_first_use_only_where_nothing_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        async with issuer.aconnect() as ids:
            assert [await ids.next("new") for _ in range(3)] == [1, 2, 3]

    run(main())


def test_after_close_every_method_says_so(fake_server: FencedFakeServer) -> None:
    calls: list[Callable[[AsyncIssuer], Awaitable[object]]] = [
        lambda ids: ids.next("a"),
        lambda ids: ids.take("a", 2),
        lambda ids: ids.warm("a"),
        lambda ids: ids.tags(),
        lambda ids: anext(ids.stream("a")),
        lambda ids: ids.create("b"),
        lambda ids: ids.recover("a"),
    ]

    async def main() -> None:
        async with issuer.aconnect(redis=fake_server.async_client(), store="memory://", scheduler=None) as ids:
            await ids.create("a")
            await ids.next("a")
        for call in calls:
            with pytest.raises(issuer.IssuerError, match="closed"):
                await call(ids)

    run(main())


# ---------------------------------------------------------------------------------------------- numbers


@pytest.mark.covers("0.2")
@pytest.mark.parametrize("connect", PLACES, indirect=True)
@pytest.mark.parametrize("scheduler", ["background", None])
def test_a_thousand_tasks_get_each_number_once(connect: Connect, scheduler: Any) -> None:
    async def main() -> None:
        async with connect(scheduler=scheduler) as ids:
            await ids.create("a", step=70)
            numbers = await asyncio.gather(*(ids.next("a") for _ in range(1000)))
            taken = await asyncio.gather(*(ids.take("a", 7) for _ in range(100)))
            assert repeats([*numbers, *(number for part in taken for number in part)]) == []
            assert all(part == sorted(part) for part in taken)

    run(main())


def test_a_schedulers_of_the_callers_is_used_and_left_running() -> None:
    async def main() -> None:
        theirs = AsyncIOScheduler(timezone="UTC")
        theirs.start()
        try:
            async with issuer.aconnect(redis=None, store="memory://", scheduler=theirs) as ids:
                await ids.create("a", step=10)
                assert [await ids.next("a") for _ in range(50)] == list(range(1, 51))
            assert theirs.running
            assert theirs.get_jobs() == []
        finally:
            theirs.shutdown()

    run(main())


@pytest.mark.covers("N.4", "U.4")
@pytest.mark.parametrize("connect", ["fake", "sqlite"], indirect=True)
def test_close_gives_back_what_was_not_used(connect: Connect) -> None:
    async def main() -> None:
        for first in (1, 11, 21):
            async with connect(lease=1000) as ids:
                if first == 1:
                    await ids.create("a", step=100_000, order="trend")
                assert [await ids.next("a") for _ in range(10)] == list(range(first, first + 10))

    run(main())


def test_scripts_that_redis_has_forgotten_are_loaded_again(redis_server: RedisServer, redis_url: str) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=redis_url, store=MemoryStore(), scheduler=None) as ids:
            await ids.create("a", step=4)
            numbers = [await ids.next("a")]
            with redis_server.client() as client:
                for _ in range(10):
                    client.script_flush()
                    numbers.append(await ids.next("a"))
            assert numbers == list(range(1, 12))

    run(main())


def test_streams_and_calls_of_many_tasks_share_what_is_drawn_ahead(fake_server: FencedFakeServer) -> None:
    async def main() -> None:
        async with issuer.aconnect(redis=fake_server.async_client(), store="memory://") as ids:
            await ids.create("a", step=500, order="trend", lease=50)
            parts = await asyncio.gather(
                *(numbers_of(ids.stream("a"), 300) for _ in range(4)),
                *(ids.take("a", 100) for _ in range(3)),
            )
            assert repeats(number for part in parts for number in part) == []
            assert all(part == sorted(part) for part in parts)

    run(main())
