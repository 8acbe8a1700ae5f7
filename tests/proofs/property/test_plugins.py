"""Whatever plugins raise or return: no number is lost in silence, and none comes twice."""

from functools import partial
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from issuer.errors import LimitReached, Refused, TransformFailed
from issuer.plugins import Call, Plugin
from issuer_persistence.records import HIGHEST
from tests.seeds import seeded
from tests.strategies.surrounding import COLOURS, Face

#: What a hook does: go on, refuse, or fail in one of many ways.
ANSWERS = ("pass", "refuse", "raise", "stop", "refused", "text", "negative", "high", "float", "flag")


def answered(answers: list[str], at: int) -> Any:
    answer = answers[at % len(answers)] if answers else "pass"
    if answer == "raise":
        raise ValueError(answer)
    if answer == "stop":
        raise StopIteration
    if answer == "refused":
        raise Refused("a")
    return {"text": "7", "negative": -1, "high": HIGHEST + 1, "float": 7.0, "flag": True, "refuse": False}.get(answer)


class Unruly(Plugin):
    """Does what each hook is told, call by call; `mirrors` the numbers below 1000, which is one to one."""

    def __init__(self, order: int, mirrors: bool, before: list[str], after: list[str], on_error: list[str]) -> None:
        super().__init__(order=order)
        self.transforms = mirrors
        self.told = before, after, on_error
        self.calls = [0, 0, 0]

    def answer(self, hook: int, call: Call) -> Any:
        assert call.tag == "a"
        self.calls[hook] += 1
        return answered(self.told[hook], self.calls[hook])

    def before(self, call: Call) -> bool | None:
        answer: bool | None = self.answer(0, call)
        return answer

    def after(self, call: Call, number: int) -> int | None:
        answer: int | None = self.answer(1, call)
        return 999 - number if answer is None and self.transforms else answer

    def on_error(self, call: Call, error: Exception) -> None:
        assert isinstance(error, Exception)
        self.answer(2, call)


HOOK = st.lists(st.sampled_from(ANSWERS), max_size=5)
PLUGINS = st.lists(st.builds(Unruly, st.integers(-2, 2), st.booleans(), HOOK, HOOK, HOOK), max_size=4)
CALLS = st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=8)


def issue(colour: str, plugins: list[Unruly], calls: list[tuple[int, bool]]) -> tuple[list[int], list[int], int]:
    """Make the calls; return the numbers given, those that were told to be gaps, and how many were drawn."""
    face = Face(colour, plugins)
    drawn = 0
    given: list[int] = []
    gaps: list[int] = []

    def draw(n: int, *, breaks: bool) -> list[int]:
        nonlocal drawn
        numbers = list(range(drawn, drawn + n))
        drawn += n
        if breaks:
            error = LimitReached("a", limit=999, value=drawn)
            error.drawn = numbers
            raise error
        return numbers

    for n, breaks in calls:
        before = drawn
        try:
            numbers = face.around(Call("a", n), partial(draw, n, breaks=breaks))
        except Refused:
            assert drawn == before
        except TransformFailed as failed:
            given += failed.drawn
            gaps += failed.numbers
        except LimitReached as reached:
            given += reached.drawn
            gaps += [0] * (n - len(reached.drawn))
        else:
            assert len(numbers) == n
            given += numbers
    return given, gaps, drawn


@pytest.mark.covers("3.45", "3.46")
@seed(seeded(1))
@settings(max_examples=200)
@given(st.sampled_from(COLOURS), PLUGINS, CALLS)
def test_whatever_plugins_do_every_number_is_given_once_or_told_to_be_a_gap(
    colour: str, plugins: list[Unruly], calls: list[tuple[int, bool]]
) -> None:
    numbers, gaps, drawn = issue(colour, plugins, calls)
    assert len(numbers) + len(gaps) == drawn
    assert len(numbers) == len(set(numbers))
    mirrored = sum(plugin.transforms for plugin in plugins) % 2
    expected = {999 - number if mirrored else number for number in range(drawn)}
    assert set(numbers) <= expected
    if not any(plugin.transforms for plugin in plugins):
        assert numbers == list(range(drawn))
