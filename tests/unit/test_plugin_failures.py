"""What becomes of a number when plugins fail or change it."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from issuer.errors import LimitReached
from issuer.persistence.records import HIGHEST
from issuer.plugins import Call, Chain, Plugin, TransformFailed
from issuer.plugins import hooks as module
from tests.surrounding import CALL, Changing, Faced, Raising, Telling, drawing
from tests.unit.refusals import refused


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
    assert face(failing).around(Call("a", 1000), drawing(range(1000))) == list(range(1000))
    assert len(failing.seen) == 1000
    assert len(caplog.records) == 1


def test_an_interrupt_passes_through() -> None:
    for where in ("before", "after"):
        failing = Raising(KeyboardInterrupt(), where)
        refused(KeyboardInterrupt, "", Chain([failing]).around, CALL, drawing())
        assert failing.seen == []


def test_a_draw_that_fails_reaches_the_caller_as_it_is(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    error = LimitReached("a", limit=9, value=9)

    def draw() -> list[int]:
        raise error

    assert refused(LimitReached, "", face(Telling("a", told)).around, CALL, draw) is error
    assert told == [("a", "before", 1)]


@pytest.mark.covers("3.5")
def test_a_users_own_scrambling_is_applied_and_repeats_nothing(face: Faced) -> None:
    class Mirrored(Plugin):
        transforms = True

        def after(self, call: Call, number: int) -> int:
            assert call.tag == "a"
            return 9999 - number

    numbers = face(Mirrored()).around(Call("a", 5000), drawing(range(5000)))
    assert numbers == list(range(9999, 4999, -1))


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


def stopped_at(numbers: list[int]) -> Callable[[], list[int]]:
    """Return a draw that fails part-way, as `take` does at the tag's limit."""

    def draw() -> list[int]:
        error = LimitReached("a", limit=9, value=9)
        error.drawn = numbers
        raise error

    return draw


def test_what_was_drawn_when_a_draw_failed_passes_through_the_plugins(face: Faced) -> None:
    told: list[tuple[str, str, Any]] = []
    around = face(Changing({2: ValueError()}, order=1), Telling("outer", told)).around
    assert refused(LimitReached, "", around, Call("a", 9), stopped_at([1, 2, 3])).drawn == [1001, 1003]
    assert [number for _, hook, number in told if hook == "after"] == [1001, 1003]
