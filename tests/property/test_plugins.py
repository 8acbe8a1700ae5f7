"""Whatever plugins raise or return: no number is lost in silence, and none comes twice."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from issuer.errors import LimitReached, Refused, TransformFailed
from issuer.persistence.records import HIGHEST
from issuer.plugins import Call, Plugin
from issuer.plugins import hooks as module
from tests.seeds import seeded
from tests.surrounding import COLOURS, Face

#: What a hook does: go on, refuse, or fail in one of many ways.
ANSWERS = ("pass", "refuse", "raise", "stop", "refused", "text", "negative", "high", "float", "flag")


@dataclass(frozen=True)
class Manners:
    """What a plugin does, call by call; and whether it mirrors the numbers below 1000, which is one to one."""

    order: int
    mirrors: bool
    before: list[str]
    after: list[str]
    on_error: list[str]


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
    def __init__(self, manners: Manners) -> None:
        super().__init__(order=manners.order)
        self.transforms = manners.mirrors
        self.manners = manners
        self.calls = 0
        self.shown: list[int] = []
        self.failures = 0

    def before(self, call: Call) -> bool | None:
        assert call.tag == "a"
        self.calls += 1
        answer: bool | None = answered(self.manners.before, self.calls)
        return answer

    def after(self, call: Call, number: int) -> int | None:
        assert call.tag == "a"
        self.shown.append(number)
        answer: int | None = answered(self.manners.after, len(self.shown))
        if answer is None and self.manners.mirrors:
            return 999 - number
        return answer

    def on_error(self, call: Call, error: Exception) -> None:
        assert call.tag == "a"
        assert isinstance(error, Exception)
        self.failures += 1
        answered(self.manners.on_error, self.failures)


HOOK = st.lists(st.sampled_from(ANSWERS), max_size=5)
MANNERS = st.builds(Manners, st.integers(-2, 2), st.booleans(), HOOK, HOOK, HOOK)
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
@given(st.sampled_from(COLOURS), st.lists(MANNERS, max_size=4), CALLS)
def test_whatever_plugins_do_every_number_is_given_once_or_told_to_be_a_gap(
    colour: str, manners: list[Manners], calls: list[tuple[int, bool]]
) -> None:
    plugins = [Unruly(each) for each in manners]
    numbers, gaps, drawn = issue(colour, plugins, calls)
    assert len(numbers) + len(gaps) == drawn
    assert len(numbers) == len(set(numbers))
    mirrored = sum(plugin.transforms for plugin in plugins) % 2
    expected = {999 - number if mirrored else number for number in range(drawn)}
    assert set(numbers) <= expected
    if not any(plugin.transforms for plugin in plugins):
        assert numbers == list(range(drawn))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_chain_that_leaves_a_number_as_it_was_when_a_transform_fails_is_found_out(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unruly = Unruly(Manners(0, True, [], ["pass", "pass", "pass", "raise"], []))
    calls = [(5, False)] * 200
    numbers, gaps, drawn = issue(colour, [unruly], calls)
    assert (len(numbers), len(set(numbers)), len(gaps), drawn) == (750, 750, 250, 1000)

    def unchecked(plugin: Plugin, number: int, answer: int) -> int:
        del plugin, number
        return answer

    monkeypatch.setattr(module, "_checked", unchecked)
    unruly.transforms = False
    numbers, gaps, drawn = issue(colour, [unruly], calls)
    assert (len(numbers), len(gaps), drawn) == (1000, 0, 1000)
    assert len(set(numbers)) < 1000
