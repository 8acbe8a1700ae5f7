"""The order of plugins, their refusals, and what may be registered."""

import pickle
from typing import Any

import pytest

from issuer.errors import ConfigurationError
from issuer.plugins import AsyncChain, AsyncPlugin, Call, Chain, History, Plugin, Rate, Refused, Scrambler
from tests.surrounding import CALL, Changing, Faced, Refusing, Telling, drawing, never
from tests.unit.refusals import refused
from tests.unit.test_scrambler import Times


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
    class Late(Plugin):
        order = 9

    class WithoutBase(Plugin):
        order = 8

        def __init__(self) -> None:
            """Not call the base's, as many will."""

    plugins = [Late(), Late(order=3), WithoutBase()]
    assert [plugin.order for plugin in Chain(plugins).plugins] == [3, 8, 9]
    assert [plugin.strategies for plugin in plugins] == [None, None, None]
    said: dict[str, Any] = {"order": 5, "strategies": ("own",)}
    for ours in (History(**said), Rate(**said), Scrambler(Times(2), **said)):
        assert (ours.order, ours.strategies) == (5, ("own",))


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
    assert seen == {
        "segment": ["both", "every"],
        "snowflake": ["both", "every"],
        "own": ["every", "own"],
        "other": ["every"],
    }
    assert face().around(CALL, drawing()) == [7]


def test_an_empty_chain_is_false_and_one_knows_which_strategies_it_surrounds() -> None:
    assert not Chain()
    assert not AsyncChain()
    chain = Chain([Telling("a", [], strategies={"snowflake"}), Changing(strategies={"own"}), Plugin()])
    assert chain
    assert [chain.surrounds(name) for name in ("segment", "snowflake", "own")] == [False, True, True]
    assert [chain.changes(name) for name in ("segment", "snowflake", "own")] == [False, False, True]
    assert chain.strategies == {"snowflake", "own"}
    assert repr(chain) == "<Chain Telling, Changing, Plugin>"
    assert repr(AsyncChain()) == "<AsyncChain empty>"


def test_hooks_see_the_call(face: Faced) -> None:
    calls: list[Call] = []

    class Looking(Plugin):
        def before(self, call: Call) -> None:
            calls.append(call)

        def after(self, call: Call, number: int) -> None:
            assert number == 7
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
        error = refused(Refused, "'a': the call was refused by ", face(*plugins).around, CALL, never)
        assert told == [("first", "before", 1)]
        assert (error.tag, error.reason) == ("a", "")
        assert error.plugin in ("Refusing", "Awaited")
    for other in (None, True, 1, "yes"):
        assert face(Refusing(other)).around(CALL, drawing()) == [7], other


def test_a_plugin_may_say_why_it_refuses(face: Faced) -> None:
    why = Refused("a", reason="no orders on Sundays")
    said = "refused by a plugin: no orders on Sundays"
    error = refused(Refused, said, face(Refusing(why)).around, CALL, never)
    assert error.plugin in ("Refusing", "Awaited")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(copy), copy.plugin, copy.reason) == (str(why), error.plugin, "no orders on Sundays")


class Sync(AsyncPlugin):
    def before(self, call: Call) -> bool | None:  # type: ignore[override]
        raise NotImplementedError(call)


class Async(Plugin):
    async def before(self, call: Call) -> bool | None:  # type: ignore[override]
        raise NotImplementedError(call)


@pytest.mark.parametrize("chain", [Chain, AsyncChain])
def test_what_cannot_be_registered_is_refused_at_once(chain: Any) -> None:
    wrong: list[tuple[Any, str]] = [
        (Plugin, "Plugin is a class"),
        (object(), "is no plugin"),
        (None, "None is no plugin"),
        (Async(), "Async is a plugin of kind Plugin, but its before is an `async def`"),
        (Plugin(order=1.5), "Plugin.order is a whole number, not 1.5"),  # type: ignore[arg-type]
        (Plugin(order=True), "Plugin.order is a whole number, not True"),
        (Plugin(strategies="segment"), "Plugin.strategies are names"),
        (Plugin(strategies=[1]), "Plugin.strategies are names"),  # type: ignore[list-item]
        (Plugin(strategies=7), "Plugin.strategies are names"),  # type: ignore[arg-type]
    ]
    for plugin, told in wrong:
        refused(ConfigurationError, told, chain, [plugin])
    twice = Plugin()
    refused(ConfigurationError, "twice", chain, [twice, Plugin(), twice])
    assert chain([twice])
    assert chain([twice])


def test_only_asyncio_takes_async_plugins() -> None:
    said = "AsyncPlugin is an AsyncPlugin: only an AsyncIssuer can await it"
    refused(ConfigurationError, said, Chain, [AsyncPlugin()])
    said = "Sync is a plugin of kind AsyncPlugin, but its before is an `def`"
    refused(ConfigurationError, said, AsyncChain, [Sync()])
    assert AsyncChain([AsyncPlugin(), Plugin()])
