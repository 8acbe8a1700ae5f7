"""The order of plugins, their refusals, what may be registered, and threads and tasks that share a chain."""

import asyncio
import itertools
import pickle
import threading
from typing import Any

import pytest

from issuer.errors import ConfigurationError
from issuer.plugins import AsyncChain, AsyncPlugin, Call, Chain, Plugin, Refused
from issuer.plugins import hooks as module
from tests.refusals import refused
from tests.strategies.surrounding import CALL, Awaited, Changing, Faced, Raising, Refusing, Telling, drawing, never
from tests.together import together
from tests.waiting import run


@pytest.mark.covers("3.43")
def test_smaller_orders_come_first_before_the_draw_and_last_after_it(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    plugins = [Telling(name, told, order=order) for name, order in (("c", 5), ("a", -1), ("d", 5), ("b", 0))]

    def draw() -> list[int]:
        told.append(("", "draw", None))
        return [7]

    assert face(*plugins).around(CALL, draw) == [7]
    befores = [(name, "before", 1) for name in "abcd"]
    assert told == [*befores, ("", "draw", None), *[(name, "after", 7) for name in "dcba"]]


def test_the_class_may_say_the_order_and_an_instance_another_one() -> None:
    class WithoutBase(Plugin):
        order = 8

        def __init__(self) -> None:
            """Not call the base's, as many will."""

    class Late(Plugin):
        order = 9

    plugins = [Late(), Late(order=3), WithoutBase()]
    assert [(plugin.order, plugin.strategies) for plugin in Chain(plugins).plugins] == [(3, None), (8, None), (9, None)]


@pytest.mark.covers("3.42")
def test_one_plugin_on_two_strategies_and_two_on_one(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    both = Telling("both", told, strategies=("segment", "snowflake"))
    every = Telling("every", told)
    Telling("not registered", told)
    chain = face(both, every, Telling("own", told, strategies=["own"]))
    seen = {}
    for strategy in ("segment", "snowflake", "own", "other"):
        told.clear()
        chain.around(Call("a", strategy=strategy), drawing())
        seen[strategy] = [name for name, hook, _ in told if hook == "before"]
    two = ["both", "every"]
    assert seen == {"segment": two, "snowflake": two, "own": ["every", "own"], "other": ["every"]}
    assert face().around(CALL, drawing()) == [7]


def test_an_empty_chain_is_false_and_one_knows_which_strategies_it_surrounds() -> None:
    chain = Chain([Telling("a", [], strategies={"snowflake"}), Changing(strategies={"own"}), Plugin()])
    assert chain
    assert [chain.changes(name) for name in ("segment", "snowflake", "own")] == [False, False, True]
    assert chain.strategies == {"snowflake", "own"}
    assert repr(chain) == "<Chain Telling, Changing, Plugin>"
    assert (bool(AsyncChain()), repr(AsyncChain())) == (False, "<AsyncChain empty>")


def test_hooks_see_the_call(face: Faced) -> None:
    calls: list[Call] = []

    class Looking(Plugin):
        def before(self, call: Call) -> None:
            calls.append(call)

        def after(self, call: Call, _number: int) -> None:
            calls.append(call)

    given = Call("orders", 3, "own", shard_key="alice@example.com", key="order-778")
    assert face(Looking()).around(given, drawing()) == [7]
    assert calls == [given, given]
    with pytest.raises(AttributeError):
        given.tag = "other"  # type: ignore[misc]


@pytest.mark.covers("3.44")
def test_a_refusal_draws_nothing_and_runs_no_later_plugin(face: Faced) -> None:
    for answer in (False, 0, ""):
        told: list[tuple[str, str, Any]] = []
        plugins = [Telling("first", told, order=1), Refusing(answer, order=2), Telling("later", told, order=3)]
        error = refused(Refused, "'a': the call was rejected by ", face(*plugins).around, CALL, never)
        assert told == [("first", "before", 1)]
        assert (error.tag, error.reason) == ("a", "")
        assert error.plugin in ("Refusing", "Awaited")
    for other in (None, True, 1, "yes"):
        assert face(Refusing(other)).around(CALL, drawing()) == [7], other


def test_a_plugin_may_say_why_it_refuses(face: Faced) -> None:
    why = Refused("a", reason="no orders on Sundays")
    said = "the call was rejected by a plugin: no orders on Sundays"
    error = refused(Refused, said, face(Refusing(why)).around, CALL, never)
    assert error.plugin in ("Refusing", "Awaited")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(copy), copy.plugin, copy.reason) == (str(why), error.plugin, "no orders on Sundays")


class Sync(AsyncPlugin):
    before = Plugin.before  # type: ignore[assignment]


class Async(Plugin):
    before = AsyncPlugin.before  # type: ignore[assignment]


@pytest.mark.parametrize("chain", [Chain, AsyncChain])
def test_what_cannot_be_registered_is_refused_at_once(chain: Any) -> None:
    wrong: list[tuple[Any, str]] = [
        (Plugin, "Plugin is a class"),
        (object(), "is not a plugin"),
        (None, "None is not a plugin"),
        (Async(), "Async is of class Plugin, but its before is an `async def`"),
        (Plugin(order=1.5), "Plugin.order must be a whole number, not 1.5"),  # type: ignore[arg-type]
        (Plugin(order=True), "Plugin.order must be a whole number, not True"),
        (Plugin(strategies="segment"), "Plugin.strategies must be names"),
        (Plugin(strategies=[1]), "Plugin.strategies must be names"),  # type: ignore[list-item]
        (Plugin(strategies=7), "Plugin.strategies must be names"),  # type: ignore[arg-type]
    ]
    for plugin, told in wrong:
        refused(ConfigurationError, told, chain, [plugin])
    twice = Plugin()
    refused(ConfigurationError, "twice", chain, [twice, Plugin(), twice])
    assert chain([twice])


def test_only_asyncio_takes_async_plugins() -> None:
    refused(ConfigurationError, "which only an AsyncIssuer can use", Chain, [AsyncPlugin()])
    refused(ConfigurationError, "Sync is .* AsyncPlugin, but its before is an `def`", AsyncChain, [Sync()])
    assert AsyncChain([AsyncPlugin(), Plugin()])


def test_threads_that_share_a_chain_neither_lose_nor_repeat_numbers() -> None:
    counter = iter(range(1, 100_000))
    lock = threading.Lock()
    after: list[int] = []

    class Noting(Plugin):
        def after(self, _call: Call, number: int) -> None:
            after.append(number)

    def draw() -> list[int]:
        with lock:
            return [next(counter)]

    chain = Chain([Noting(), Raising(ValueError("mine"), "before", "after", "on_error"), Changing(add=10**6)])

    def work() -> list[int]:
        return [number for _ in range(300) for number in chain.around(CALL, draw)]

    issued = sorted(number for numbers in together(*[work] * 8) for number in numbers)
    assert issued == [10**6 + number for number in range(1, 2401)]
    assert sorted(after) == issued


class Waiting(AsyncPlugin):
    """Waits in one hook until it is told to go on."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.there, self.go_on = asyncio.Event(), asyncio.Event()
        self.errors: list[Exception] = []
        setattr(self, where, self._wait)

    async def _wait(self, *_given: object) -> None:
        self.there.set()
        await self.go_on.wait()

    async def on_error(self, _call: Call, error: Exception) -> None:
        self.errors.append(error)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_cancelled_callers_number_is_a_gap_and_nobody_elses(where: str) -> None:
    async def main() -> None:
        counter = iter(range(1, 100))
        drawn: list[int] = []

        async def draw() -> list[int]:
            await asyncio.sleep(0)
            drawn.append(next(counter))
            return drawn[-1:]

        waiting = Waiting(where)
        chain = AsyncChain([waiting])
        first = asyncio.create_task(chain.around(CALL, draw))
        await waiting.there.wait()
        others = [asyncio.create_task(chain.around(CALL, draw)) for _ in range(20)]
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        waiting.go_on.set()
        got = [number for numbers in await asyncio.gather(*others) for number in numbers]
        assert len(got) == len(set(got)) == 20
        assert set(got) == set(drawn) - ({1} if where == "after" else set())
        assert waiting.errors == []

    run(main())


async def seven() -> list[int]:
    return [7]


@pytest.mark.parametrize("where", ["before", "after", "on_error"])
def test_a_cancellation_of_the_plugins_own_making_is_its_failure(where: str) -> None:
    failing = Raising(asyncio.CancelledError(), where, *(["before"] if where == "on_error" else []))

    async def main() -> None:
        assert await AsyncChain([Awaited(failing)]).around(CALL, seven) == [7]
        assert await AsyncChain([failing]).around(CALL, seven) == [7]

    run(main())
    assert Chain([failing]).around(CALL, drawing()) == [7]
    assert len(failing.seen) == 3
    assert all("waited for was cancelled" in str(error) for error in failing.seen)


def test_many_numbers_leave_the_loop_its_turns() -> None:
    async def main() -> None:
        turns = itertools.count()

        async def other() -> None:
            for _ in turns:
                await asyncio.sleep(0)

        async def draw() -> list[int]:
            return list(range(5000))

        beside = asyncio.create_task(other())
        assert await AsyncChain([Telling("a", [])]).around(Call("a", 5000), draw) == list(range(5000))
        beside.cancel()
        assert next(turns) >= 5000 // module.TURN_EVERY

    run(main())
