"""Plugins: their order and refusals; what becomes of a number when they fail or change it; threads, tasks and forks."""

import asyncio
import itertools
import logging
import pickle
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from issuer.core.events import Rejected, RejectedLog
from issuer.errors import ConfigurationError, LimitReached
from issuer.numbers.scrambling import KeySpan, Scrambling, fingerprint
from issuer.plugins import AsyncChain, AsyncPlugin, Call, Chain, Plugin, Refused, TransformFailed
from issuer.plugins import hooks as module
from issuer_persistence.records import HIGHEST
from tests.forks import in_child
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


@pytest.mark.covers("3.45", "3.46")
@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize(
    "error", [ValueError("mine"), StopIteration(), StopAsyncIteration(), LimitReached("b", limit=1, value=1)]
)
def test_a_failure_goes_to_the_plugins_own_handler_and_leaves_all_else_alone(
    face: Faced, caplog: pytest.LogCaptureFixture, where: str, error: Exception
) -> None:
    told: list[tuple[str, str, Any]] = []
    failing = Raising(error, where, order=2)
    around = face(Telling("first", told, order=1), failing, Telling("last", told, order=3)).around
    assert around(CALL, drawing()) == [7]
    assert told == [("first", "before", 1), ("last", "before", 1), ("last", "after", 7), ("first", "after", 7)]
    [seen] = failing.seen
    # A coroutine can't raise StopIteration: Python makes a RuntimeError of it.
    assert seen is error or isinstance(seen.__cause__, StopIteration)
    [line] = caplog.records
    assert line.levelno == logging.ERROR
    assert re.search(rf"'a'.*: {where} failed$", line.getMessage())
    assert line.exc_info is not None
    assert line.exc_info[1] is seen
    caplog.clear()
    assert face(Raising(error, where, "on_error")).around(CALL, drawing()) == [7]
    assert [line.getMessage().split(": ")[-1] for line in caplog.records] == [f"{where} failed", "on_error failed"]


def test_a_log_that_raises_loses_no_number(face: Faced) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.getMessage())

    broken = Broken()
    module.log.addHandler(broken)
    try:
        for where in ("before", "after"):
            failing = Raising(ValueError("mine"), where)
            assert face(failing).around(CALL, drawing()) == [7]
            assert len(failing.seen) == 1
    finally:
        module.log.removeHandler(broken)


def test_a_failure_for_every_number_is_logged_once(face: Faced, caplog: pytest.LogCaptureFixture) -> None:
    failing = Raising(ValueError("mine"), "after")
    assert face(failing).around(Call("a", 50), drawing(range(50))) == list(range(50))
    assert len(failing.seen) == 50
    assert len(caplog.records) == 1


def test_an_interrupt_passes_through() -> None:
    for where in ("before", "after"):
        failing = Raising(KeyboardInterrupt(), where)
        refused(KeyboardInterrupt, "", Chain([failing]).around, CALL, drawing())
        assert failing.seen == []


def test_transforms_work_on_each_other_in_the_order_of_after(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    plugins = [Telling("outer", told, order=0), Changing(add=-3, order=1), Changing(add=10, order=2)]
    assert face(*plugins, Telling("inner", told, order=3)).around(CALL, drawing()) == [14]
    assert [(name, number) for name, hook, number in told if hook == "after"] == [("inner", 7), ("outer", 14)]


@pytest.mark.parametrize("answer", [-1, HIGHEST + 1, 7.0, "7", True, [7], ValueError("mine")])
def test_a_number_that_cannot_be_changed_is_given_to_nobody(face: Faced, answer: Any) -> None:
    told: list[tuple[str, str, Any]] = []
    changing = Changing({2: answer}, order=1)
    around = face(changing, Telling("outer", told, order=0)).around
    failed = refused(TransformFailed, "could not change 1 of the numbers", around, Call("a", 3), drawing((1, 2, 3)))
    assert (failed.numbers, failed.drawn) == ([2], [1001, 1003])
    assert failed.plugin in ("Changing", "Awaited")
    assert [number for _, hook, number in told if hook == "after"] == [1001, 1003]
    assert len(changing.seen) == 1


def test_a_plugin_changes_numbers_within_the_borders_and_only_if_it_says_so(face: Faced) -> None:
    for answer in (0, HIGHEST):
        assert face(Changing({7: answer})).around(CALL, drawing()) == [answer]
    for silent, failures in ((8, 1), (-1, 1), ("7", 1), (True, 1), (7.0, 1), (7, 0)):
        changing = Changing({7: silent})
        changing.transforms = False
        assert face(changing).around(CALL, drawing()) == [7], silent
        assert len(changing.seen) == failures, silent


def test_two_numbers_of_a_call_that_become_one_are_given_once(face: Faced) -> None:
    around = face(Changing({1: 5, 2: 5, 3: 6, 4: 5})).around
    failed = refused(TransformFailed, "", around, Call("a", 4), drawing((1, 2, 3, 4)))
    assert (failed.drawn, failed.numbers) == ([5, 6], [2, 4])


class Mirror:
    def scramble(self, n: int) -> int:
        if n > 9999:
            raise ValueError(f"{n} is out of the permutation's range")
        return 10_000 - n


KEY = b"a key of 16 bytes"
KEYED = Scrambling([KeySpan(1, "k", fingerprint(KEY), 9999)], {"k": KEY})


class Scrambler(Plugin):
    """Replaces each number by its image under a permutation."""

    transforms = True

    def __init__(self, permutation: Any) -> None:
        super().__init__()
        self._permutation = permutation

    def after(self, _call: Call, number: int) -> int:
        return int(self._permutation.scramble(number))


@pytest.mark.covers("3.5", "3.41")
@pytest.mark.parametrize("permutation", [Mirror(), KEYED])
def test_numbers_come_as_the_permutation_has_them_none_twice_and_none_that_it_does_not_know(
    face: Faced, permutation: Any
) -> None:
    around = face(Scrambler(permutation)).around
    numbers = around(Call("a", 9999), drawing(range(1, 10_000)))
    assert numbers == [permutation.scramble(n) for n in range(1, 10_000)]
    assert sorted(numbers) == list(range(1, 10_000))
    failed = refused(TransformFailed, "", around, Call("a", 3), drawing((7, 10_000, 10_001)))
    assert (failed.numbers, failed.drawn) == ([10_000, 10_001], [permutation.scramble(7)])


@contextmanager
def held(*locks: threading.RLock) -> Iterator[None]:
    """Another thread holds the locks, as it may at the moment of a fork."""
    with ThreadPoolExecutor(1) as pool:
        [*pool.map(lambda lock: lock.acquire(), locks)]
        yield
        [*pool.map(lambda lock: lock.release(), locks)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_waits_for_no_lock_of_its_parents() -> None:
    logged = RejectedLog()
    chain = Chain([Raising(ValueError(), "before", "after")])
    assert chain.around(CALL, drawing()) == [7]

    def work() -> object:
        logging.disable()
        numbers = chain.around(CALL, drawing())
        logged(Rejected("a", LimitReached("a", limit=9, value=9)))
        return numbers

    with held(chain._sparing._lock, logged._sparing._lock):
        assert in_child(work)() == [7]
