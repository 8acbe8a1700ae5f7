"""Plugins around issuers that draw from a store."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer.plugins import AsyncPlugin, Call, History, Plugin, Rate, Refused, Scrambler
from issuer.strategies import Strategy, registry
from tests.audit import repeats
from tests.colours import Connect
from tests.surrounding import Raising
from tests.waiting import eventually, run

DOCS = Path(__file__).resolve().parents[2] / "docs" / "plugins.md"


class Mirror:
    """One to one over 0..999 999."""

    def scramble(self, n: int) -> int:
        return 999_999 - n


@pytest.mark.covers("3.41")
def test_history_rate_and_scrambling_around_one_issuer() -> None:
    history, rate = History(), Rate()
    with issuer.connect(redis=None, store="memory://", plugins=[Scrambler(Mirror()), history, rate]) as ids:
        ids.create("a", limit=999_999, step=10)
        numbers = [ids.next("a"), *ids.take("a", 25)]
    assert numbers == [999_999 - n for n in range(1, 27)]
    assert [record.number for record in history.find(tag="a")] == numbers[::-1]
    assert rate.of("a").total == 26


@pytest.mark.covers("3.45")
def test_threads_whose_plugins_fail_lose_and_repeat_nothing() -> None:
    history = History()
    plugins = [history, Raising(ValueError("mine"), "before", "after", "on_error"), Raising(StopIteration(), "after")]
    got: list[list[int]] = [[] for _ in range(8)]
    with issuer.connect(redis=None, store="memory://", plugins=plugins) as ids:
        ids.create("a", step=100)

        def work(numbers: list[int]) -> None:
            for _ in range(100):
                numbers.append(ids.next("a"))
                numbers += ids.take("a", 3)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, got))
    issued = [number for numbers in got for number in numbers]
    assert sorted(issued) == list(range(1, 3201))
    assert sorted(record.number for record in history.find()) == sorted(issued)


class Gate(AsyncPlugin):
    """Keeps every third call waiting in one hook, for ever."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.calls = 0
        self.kept = 0

    async def _pass(self, where: str) -> None:
        if where == self.where:
            self.calls += 1
            if self.calls % 3 == 0:
                self.kept += 1
                await asyncio.Event().wait()

    async def before(self, call: Call) -> None:
        assert call.n == 1
        await self._pass("before")

    async def after(self, call: Call, number: int) -> None:
        assert (call.n, number > 0) == (1, True)
        await self._pass("after")


@pytest.mark.parametrize("where", ["before", "after"])
def test_tasks_that_are_cancelled_in_a_hook_leave_gaps_that_nobody_gets(where: str) -> None:
    async def main() -> None:
        gate, seen = Gate(where), History()
        drawn = History(order=1000)  # the first to see a number
        async with issuer.aconnect(redis=None, store="memory://", plugins=[gate, seen, drawn]) as ids:
            await ids.create("a", step=50)
            tasks = [asyncio.create_task(ids.next("a")) for _ in range(90)]
            await eventually(lambda: sum(task.done() for task in tasks) + gate.kept == len(tasks), 60)
            done = [task for task in tasks if task.done()]
            kept = [task for task in tasks if not task.done()]
            for task in kept:
                task.cancel()
            await asyncio.gather(*kept, return_exceptions=True)
            given = [task.result() for task in done]
            assert all(task.cancelled() for task in kept)
            assert (len(given), len(kept)) == (60, 30)
            assert repeats(given) == []
            lost = {record.number for record in drawn.find()} - set(given)
            assert len(lost) == (30 if where == "after" else 0)
            assert {record.number for record in seen.find()} == set(given)
            gate.where = ""
            assert await ids.next("a") not in {*given, *lost}

    run(main())


def test_a_plugin_names_strategies_that_are_known_or_registered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: list[tuple[Any, str]] = [(["segmnt"], "segmnt"), (("segment", "snowflaek"), "snowflaek"), ({""}, "")]
    for names, name in wrong:
        told = rf"^Rate\.strategies: no strategy '{name}'; there are .*segment, snowflake"
        with pytest.raises(issuer.ConfigurationError, match=told):
            connect(redis=None, store="memory://", plugins=[History(), Rate(strategies=names)])
    monkeypatch.setitem(registry._registered, "own", Strategy)
    with connect(redis=None, store="memory://", plugins=[Rate(strategies=["own", "segment"])]) as ids:
        ids.create("a")
        assert ids.next("a") == 1


class Never(Plugin):
    def before(self, call: Call) -> bool:
        assert call.tag
        return False


@pytest.mark.covers("3.44")
def test_what_a_plugin_refuses_is_not_drawn() -> None:
    never = Never()
    with issuer.connect(redis=None, store="memory://refusing") as plain:
        plain.create("a")
        with issuer.connect(redis=None, store="memory://refusing", plugins=[never], rejected=lambda *_: None) as ids:
            for _ in range(10):
                with pytest.raises(Refused):
                    ids.next("a")
            assert ids.inspect("a").store.max == 0
        assert plain.next("a") == 1


# ------------------------------------------------------------------------------------------------ the page about them


def test_the_python_of_the_page_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code, shown = re.subn(r"^( *)(\S.*?)  # (\d+|True)$", r"\1assert (\2) == \3", "\n".join(blocks), flags=re.MULTILINE)
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(DOCS), "exec"), page)  # noqa: S102 - the page is ours
    for name in ("ids", "mirrored", "small"):
        page[name].close()
    assert len(blocks) == 7
    assert shown == 9
