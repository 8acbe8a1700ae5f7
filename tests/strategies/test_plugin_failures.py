"""What becomes of a number when plugins fail, change or scramble it."""

import logging
import re
from typing import Any

import pytest

from issuer.errors import LimitReached
from issuer.numbers.scrambling import KeySpan, Scrambling, fingerprint
from issuer.plugins import Call, Chain, Plugin, TransformFailed
from issuer.plugins import hooks as module
from issuer_persistence.records import HIGHEST
from tests.refusals import refused
from tests.strategies.surrounding import CALL, Changing, Faced, Raising, Telling, drawing


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

    def after(self, call: Call, number: int) -> int:
        del call
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
