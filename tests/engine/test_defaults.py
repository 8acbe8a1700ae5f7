"""The default issuers: one of the process, and one of each event loop."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import AsyncIssuer, ConfigurationError, Issuer, IssuerError, UnknownTag, defaults
from issuer.defaults import EarlierDefault
from tests.forks import in_child
from tests.together import together


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with issuer.set_default(None), issuer.set_adefault(None):
        yield


def blocking(name: str) -> Issuer:
    return issuer.connect(store=f"memory://{name}", redis="none", scheduler=None)


def aio(name: str) -> AsyncIssuer:
    return issuer.aconnect(store=f"memory://{name}", redis="none", scheduler=None)


def test_a_given_issuer_is_the_default_until_it_is_replaced() -> None:
    with blocking("given") as ids, blocking("other") as others:
        ids.create("a")
        issuer.set_default(ids)
        assert issuer.default() is ids
        assert issuer.next("a") == 1
        with issuer.set_default(others):
            assert issuer.default() is others
            with pytest.raises(UnknownTag):
                issuer.next("a")
        assert issuer.default() is ids
        assert issuer.next("a") == 2


def test_the_block_ends_with_the_earlier_default_also_after_an_error() -> None:
    with blocking("error") as ids:
        before = issuer.set_default(ids)
        with pytest.raises(ZeroDivisionError), issuer.set_default(lambda: blocking("unused")):
            1 / 0  # noqa: B018 - raises
        assert issuer.default() is ids
        with before:
            pass


def test_a_function_is_called_once_at_the_first_use() -> None:
    made: list[Issuer] = []

    def make() -> Issuer:
        made.append(blocking("once"))
        return made[-1]

    issuer.set_default(make)
    assert made == []
    found = together(*[issuer.default] * 8)
    assert len(made) == 1
    assert found == made * 8
    made[0].close()
    assert issuer.default() is not made[0]  # one that is closed is made again
    assert len(made) == 2
    made[1].close()


def test_a_closed_issuer_that_was_given_stays_the_default_and_no_other_series_takes_its_place() -> None:
    with blocking("closed") as ids:
        ids.create("a")
        issuer.set_default(ids)
    with pytest.raises(IssuerError, match="closed"):
        issuer.next("a")

    async def late() -> None:
        async with aio("closed-late") as given:
            issuer.set_adefault(given)
        with pytest.raises(IssuerError, match="closed"):
            await issuer.adefault().next("a")

    asyncio.run(late())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        (issuer.set_default, "redis://localhost"),
        (issuer.set_default, {"redis": "none"}),
        (issuer.set_adefault, "redis://localhost"),
    ],
)
def test_something_else_is_refused_and_changes_nothing(setting: Callable[[Any], EarlierDefault], value: object) -> None:
    with blocking("refused") as ids:
        issuer.set_default(ids)
        with pytest.raises(ConfigurationError, match=r"takes an (Async)?Issuer, a function"):
            setting(value)
        assert issuer.default() is ids


def test_the_two_kinds_are_not_taken_for_each_other() -> None:
    async def main() -> None:
        with blocking("wrong") as ids:
            async with aio("wrong") as aids:
                with pytest.raises(ConfigurationError, match="set_default takes an Issuer"):
                    issuer.set_default(aids)  # type: ignore[arg-type]  # the wrong kind
                with pytest.raises(ConfigurationError, match="set_adefault takes an AsyncIssuer"):
                    issuer.set_adefault(ids)  # type: ignore[arg-type]  # the same
                issuer.set_default(lambda: aids)  # type: ignore[arg-type,return-value]  # the same
                with pytest.raises(ConfigurationError, match="set_default takes an Issuer"):
                    issuer.default()

    asyncio.run(main())


def test_each_event_loop_has_its_own() -> None:
    made: list[AsyncIssuer] = []

    def make() -> AsyncIssuer:
        made.append(aio("loops"))
        return made[-1]

    async def draw() -> int:
        assert issuer.adefault() is issuer.adefault()
        await issuer.adefault().create("a", exist_ok=True)
        number = await issuer.adefault().next("a")
        await issuer.adefault().close()
        return number

    issuer.set_adefault(make)
    assert len({asyncio.run(draw()) for _ in range(3)}) == 3
    assert len(made) == 3


def test_an_asynchronous_issuer_is_the_default_of_its_loop_alone() -> None:
    async def given() -> None:
        async with aio("given") as ids:
            issuer.set_adefault(lambda: ids)
            async with aio("inner") as inner:
                with issuer.set_adefault(inner):
                    assert issuer.adefault() is inner
                    assert await asyncio.to_thread(asyncio.run, other()) is ids
                assert issuer.adefault() is ids
                issuer.set_adefault(inner)
                with issuer.set_adefault(lambda: ids):
                    assert issuer.adefault() is ids
                assert issuer.adefault() is inner

    async def other() -> AsyncIssuer:
        return issuer.adefault()

    asyncio.run(given())


def test_a_default_that_was_never_used_is_not_created_to_be_closed() -> None:
    def make() -> Any:
        raise AssertionError("nothing was drawn")

    async def main() -> None:
        await issuer.close_adefault()

    issuer.set_default(make)
    issuer.set_adefault(make)
    issuer.close_default()
    asyncio.run(main())


def test_a_default_is_closed_and_its_next_use_creates_another() -> None:
    issuer.set_default(lambda: blocking("close"))
    issuer.set_adefault(lambda: aio("close"))
    first = issuer.default()
    issuer.close_default()
    issuer.close_default()
    assert first.closed
    assert not issuer.default().closed
    issuer.close_default()

    async def main() -> None:
        first = issuer.adefault()
        await issuer.close_adefault()
        await issuer.close_adefault()
        assert first.closed
        assert not issuer.adefault().closed
        await issuer.close_adefault()

    asyncio.run(main())


def test_loops_that_have_ended_leave_nothing_in_memory() -> None:
    async def used() -> set[asyncio.AbstractEventLoop]:
        async with issuer.adefault():
            return {*defaults._loops.slots}

    with issuer.set_adefault(partial(aio, "ended")):
        assert [len(asyncio.run(used())) for _ in range(3)] == [1, 1, 1]


def test_without_a_loop_there_is_no_asynchronous_default() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        issuer.adefault()
    ids = aio("no-loop")
    with pytest.raises(RuntimeError, match="no running event loop"):
        issuer.set_adefault(ids)


def test_none_means_from_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ISSUER_REDIS_URL", "none")
    monkeypatch.setenv("ISSUER_STORE_URL", f"sqlite:///{tmp_path}/a.db")

    async def main() -> int:
        number = await issuer.adefault().next("a")
        await issuer.adefault().close()
        return number

    with blocking("unused") as ids, issuer.set_default(ids), issuer.set_default(None):
        assert issuer.default() is not ids
        issuer.default().create("a")
        assert issuer.next("a") == 1
        issuer.default().close()
    assert asyncio.run(main()) == 2


def test_a_forked_child_uses_the_same_default_and_shares_no_number(tmp_path: Path) -> None:
    make = partial(issuer.connect, redis="none", store=f"sqlite:///{tmp_path}/a.db", scheduler=None)
    issuer.set_default(make)
    issuer.default().create("a")
    first = issuer.take("a", 3)
    theirs = in_child(lambda: issuer.take("a", 3))()
    assert isinstance(theirs, list)
    assert len({*first, *theirs, *issuer.take("a", 3)}) == 9
    issuer.default().close()


def test_a_child_makes_its_default_although_another_thread_made_one_at_the_fork() -> None:
    held, free = threading.Event(), threading.Event()

    def making() -> issuer.Issuer:
        if threading.current_thread() is thread:
            held.set()
            free.wait(60)
        return issuer.connect(redis="none", store="memory://", scheduler=None)

    with issuer.set_default(making):
        thread = threading.Thread(target=issuer.default)
        thread.start()
        assert held.wait(60)
        made = in_child(lambda: not issuer.default().closed)()
        free.set()
        thread.join(60)
        issuer.close_default()
    assert made is True
