"""What becomes of a number when plugins fail or change it."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from issuer.errors import LimitReached
from issuer.plugins import Call, Chain, Plugin, TransformFailed
from issuer.plugins import hooks as module
from persistence.records import HIGHEST
from tests.surrounding import CALL, Changing, Faced, Raising, Telling, drawing

# ------------------------------------------------------------------------------------------------ failures


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
    assert f"{where} failed" in line.getMessage()
    assert "'a'" in line.getMessage()
    assert line.exc_info is not None
    assert line.exc_info[1] is seen


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_handler_that_raises_is_logged(face: Faced, caplog: pytest.LogCaptureFixture, where: str) -> None:
    failing = Raising(ValueError("mine"), where, "on_error")
    assert face(failing).around(CALL, drawing()) == [7]
    assert len(failing.seen) == 1
    assert [line.getMessage().split(": ")[-1] for line in caplog.records] == [f"{where} failed", "on_error failed"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_log_that_raises_loses_no_number(face: Faced, where: str) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError(record.getMessage())

    failing = Raising(ValueError("mine"), where)
    broken = Broken()
    module.log.addHandler(broken)
    try:
        assert face(failing).around(CALL, drawing()) == [7]
    finally:
        module.log.removeHandler(broken)
    assert len(failing.seen) == 1


def test_a_failure_for_every_number_is_logged_once(face: Faced, caplog: pytest.LogCaptureFixture) -> None:
    failing = Raising(ValueError("mine"), "after")
    assert face(failing).around(Call("a", 1000), drawing(range(1000))) == list(range(1000))
    assert len(failing.seen) == 1000
    assert len(caplog.records) == 1


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_passes_through(where: str) -> None:
    failing = Raising(KeyboardInterrupt(), where)
    with pytest.raises(KeyboardInterrupt):
        Chain([failing]).around(CALL, drawing())
    assert failing.seen == []


def test_a_draw_that_fails_reaches_the_caller_as_it_is(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    error = LimitReached("a", limit=9, value=9)

    def draw() -> list[int]:
        raise error

    with pytest.raises(LimitReached) as raised:
        face(Telling("a", told)).around(CALL, draw)
    assert raised.value is error
    assert told == [("a", "before", 1)]


# ------------------------------------------------------------------------------------------------ transforms


@pytest.mark.covers("3.5")
def test_a_users_own_scrambling_is_applied_and_repeats_nothing(face: Faced) -> None:
    class Mirrored(Plugin):
        transforms = True

        def after(self, call: Call, number: int) -> int:
            assert call.tag == "a"
            return 9999 - number

    numbers = face(Mirrored()).around(Call("a", 5000), drawing(range(5000)))
    assert numbers == list(range(9999, 4999, -1))
    assert len(set(numbers)) == 5000


def test_transforms_work_on_each_other_in_the_order_of_after(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    plugins = [Telling("outer", told, order=0), Changing(add=-3, order=1), Changing(add=10, order=2)]
    plugins.append(Telling("inner", told, order=3))
    assert face(*plugins).around(CALL, drawing()) == [14]
    assert [(name, number) for name, hook, number in told if hook == "after"] == [("inner", 7), ("outer", 14)]


@pytest.mark.parametrize("answer", [-1, HIGHEST + 1, 7.0, "7", True, [7], ValueError("mine")])
def test_a_number_that_cannot_be_changed_is_given_to_nobody(face: Faced, answer: Any) -> None:
    told: list[tuple[str, str, Any]] = []
    changing = Changing({2: answer}, order=1)
    with pytest.raises(TransformFailed, match="could not change 1 of the numbers") as failed:
        face(changing, Telling("outer", told, order=0)).around(Call("a", 3), drawing((1, 2, 3)))
    assert failed.value.numbers == [2]
    assert failed.value.drawn == [1001, 1003]
    assert failed.value.plugin in ("Changing", "Awaited")
    assert [number for _, hook, number in told if hook == "after"] == [1001, 1003]
    assert len(changing.seen) == 1


@pytest.mark.parametrize("answer", [0, HIGHEST])
def test_the_borders_of_what_a_plugin_may_return(face: Faced, answer: int) -> None:
    assert face(Changing({7: answer})).around(CALL, drawing()) == [answer]


@pytest.mark.parametrize("answer", [8, -1, "7", True, 7.0])
def test_a_plugin_that_does_not_say_so_changes_nothing(face: Faced, answer: Any) -> None:
    changing = Changing({7: answer})
    changing.transforms = False
    assert face(changing).around(CALL, drawing()) == [7]
    assert len(changing.seen) == 1


def test_a_plugin_that_does_not_change_numbers_may_return_them(face: Faced) -> None:
    changing = Changing(add=0)
    changing.transforms = False
    assert face(changing).around(CALL, drawing()) == [7]
    assert changing.seen == []


def test_two_numbers_of_a_call_that_become_one_are_given_once(face: Faced) -> None:
    with pytest.raises(TransformFailed) as failed:
        face(Changing({1: 5, 2: 5, 3: 6, 4: 5})).around(Call("a", 4), drawing((1, 2, 3, 4)))
    assert failed.value.drawn == [5, 6]
    assert failed.value.numbers == [2, 4]


def stopped_at(numbers: list[int]) -> Callable[[], list[int]]:
    """Return a draw that fails part-way, as `take` does at the tag's limit."""

    def draw() -> list[int]:
        error = LimitReached("a", limit=9, value=9)
        error.drawn = numbers
        raise error

    return draw


def test_what_was_drawn_when_a_draw_failed_passes_through_the_plugins(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    with pytest.raises(LimitReached) as reached:
        face(Changing({2: ValueError()}, order=1), Telling("outer", told)).around(Call("a", 9), stopped_at([1, 2, 3]))
    assert reached.value.drawn == [1001, 1003]
    assert [number for _, hook, number in told if hook == "after"] == [1001, 1003]


# ------------------------------------------------------------------------------------------------ without the guards


def swapped(number: int) -> int:
    """One to one: an even number and the odd one above it change places."""
    return number ^ 1


def test_a_failed_transform_that_leaves_the_number_would_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapping(Plugin):
        transforms = True

        def after(self, call: Call, number: int) -> int:
            if call.key == "fail":
                raise ValueError("mine")
            return swapped(number)

    def issued() -> list[int]:
        chain = Chain([Swapping()])
        numbers: list[int] = []
        for number in range(2, 10):
            call = Call("a", key="fail" if number % 3 == 0 else None)
            with suppress(TransformFailed):
                numbers += chain.around(call, drawing((number,)))
        return numbers

    assert len(set(issued())) == len(issued()) == 5
    monkeypatch.setattr(Swapping, "transforms", False)

    def unchecked(plugin: Plugin, number: int, answer: int) -> int:
        del plugin, number
        return answer

    monkeypatch.setattr(module, "_checked", unchecked)
    assert len(set(issued())) < len(issued()) == 8


def test_without_looking_at_a_whole_call_a_bad_transform_would_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(set[int]):
        def __contains__(self, number: object) -> bool:
            return False

    chain = Chain([Changing({2: 1001})])
    with pytest.raises(TransformFailed) as failed:
        chain.around(Call("a", 3), drawing((1, 2, 3)))
    assert failed.value.drawn == [1001, 1003]
    monkeypatch.setattr(module, "set", Forgetful, raising=False)
    assert chain.around(Call("a", 3), drawing((1, 2, 3))) == [1001, 1001, 1003]


def test_numbers_drawn_part_way_that_pass_no_plugin_would_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    class Swapping(Plugin):
        transforms = True

        def after(self, call: Call, number: int) -> int:
            assert call.tag == "a"
            return swapped(number)

    def issued() -> list[int]:
        chain = Chain([Swapping()])
        with pytest.raises(LimitReached) as reached:
            chain.around(Call("a", 9), stopped_at([2, 4]))
        return [*reached.value.drawn, *chain.around(Call("a", 2), drawing((3, 5)))]

    assert sorted(issued()) == [2, 3, 4, 5]

    async def unchanged(around: module.Surroundings, call: Call, draw: Any) -> list[int]:
        return await around.after(call, draw())

    monkeypatch.setattr(module.Surroundings, "around", unchanged)
    assert sorted(issued()) == [2, 2, 4, 4]


@pytest.mark.parametrize("where", ["before", "after"])
def test_without_the_guard_a_plugins_failure_loses_the_number(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    counter = iter(range(1, 100))

    def issued() -> list[int]:
        chain = Chain([Raising(ValueError("mine"), where)])
        numbers: list[int] = []
        for _ in range(3):
            try:
                numbers += chain.around(CALL, lambda: [next(counter)])
            except ValueError:
                numbers.append(0)
        return numbers

    async def unguarded(around: module.Surroundings, plugin: Plugin, where: str, call: Call, error: Exception) -> None:
        del around, plugin, where, call
        raise error

    assert issued() == [1, 2, 3]
    monkeypatch.setattr(module.Surroundings, "_failed", unguarded)
    assert issued() == [0, 0, 0]
    assert next(counter) == (7 if where == "after" else 4)
