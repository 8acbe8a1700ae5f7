"""What each event has cost: one that wastes too much doesn't hide behind what the others are allowed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from issuer.cli.chaos.checker import NS, Event, Verdict, Watched, check
from issuer.cli.chaos.gaps import NO_FAULT, THE_END, Cost
from issuer.cli.chaos.record import Record, all_calls
from issuer.cli.chaos.report import content, rows

#: First and last number, and the seconds at which the call began and ended.
Call = tuple[int, int, float, float]

#: Three faults, far from each other: each may cost two segments of ten numbers.
APART = [Event(f"F{at}", at * 100 * NS, (at * 100 + 1) * NS) for at in (1, 2, 3)]
#: The second begins a second after the first, and nothing was well in between.
TOGETHER = [Event("F1", 100 * NS, 101 * NS), Event("F2", 102 * NS, 103 * NS)]
#: When the store was asked, in seconds, and what `max` was.
SAMPLES = [(0, 50), (99, 50), (104, 200), (199, 200), (204, 300), (400, 300)]


def verdict(
    folder: Path,
    callers: dict[str, Sequence[Call]],
    events: Sequence[Event] = (),
    *,
    order: str = "strict",
    end: Event | None = None,
    samples: Sequence[tuple[int, int]] = SAMPLES,
) -> Verdict:
    for at, (worker, calls) in enumerate(callers.items()):
        record = Record(folder, 0, worker, at)
        for first, last, began, ended in calls:
            record.note(first, last, int(began * NS), int(ended * NS))
    asked = [(at * NS, value) for at, value in samples]
    tag = Watched("a", order, base=0, step=10, lease=5, timeout=4 * NS, samples=asked)
    return check([tag], all_calls(folder), events, lasting=[*callers], stopped={}, end=end)


def gaps(found: Verdict) -> dict[str, int]:
    return {name: cost.gap for name, cost in found.costs.items() if cost.gap}


HITS_ONE = [APART[0], Event("F2", 200 * NS, 201 * NS, hits=1), APART[2]]
#: The second process is hit by F2, with what it has had since F1.
HELD = {"w0": [(1, 30, 1, 2), (81, 200, 101, 102)], "w1": [(31, 50, 1, 150), (201, 210, 201, 202)]}
ENDED = {"w0": [(1, 30, 1, 2), (81, 200, 101, 102)], "w1": [(31, 50, 1, 100)], "w2": [(201, 210, 201, 202)]}
UP_TO_THE_END = [(1, 200, 1, 104), (201, 270, 205, 389)]
AT_THE_END = {"end": Event(THE_END, 390 * NS, 0, hits=1)}
#: What one process, or several, were given; the events; what each of them cost; which cost too much; how it is checked.
CASES: dict[str, tuple[Any, Sequence[Event], dict[str, int], list[str], dict[str, Any]]] = {
    # Although all together were allowed more than twice as much.
    "a segment too many": ([(1, 50, 1, 2), (81, 200, 101, 102), (201, 210, 301, 302)], APART, {"F1": 30}, ["F1"], {}),
    "as much as allowed": (
        [(1, 50, 1, 2), (71, 200, 101, 102), (221, 230, 201, 202)], APART, {"F1": 20, "F2": 20}, [], {}
    ),
    "one number more": (
        [(1, 50, 1, 2), (72, 200, 101, 102), (221, 230, 201, 202)], APART, {"F1": 21, "F2": 20}, ["F1"], {}
    ),
    "events that can't be told apart share": (
        [(1, 50, 1, 2), (91, 200, 103, 104)], TOGETHER, {"F1": 20, "F2": 20}, [], {}
    ),
    "and what they share has an end": (
        [(1, 50, 1, 2), (92, 200, 103, 104)], TOGETHER, {"F1": 20, "F2": 21}, ["F2"], {}
    ),
    # 51..70 were passed before the second began; 81..100 may be either's, so they are the second's.
    "what only one of two may have cost takes its room first": (
        [(1, 50, 1, 2), (71, 80, 101, 101.5), (101, 200, 103, 104)], TOGETHER, {"F1": 20, "F2": 20}, [], {}
    ),
    # Both stretches are passed at 202 s, but max was at 200 until 199 s.
    "what was reserved after an event": (
        [(1, 50, 1, 2), (51, 190, 101, 102), (221, 230, 201, 202)], APART, {"F1": 10, "F2": 20}, [], {}
    ),
    "all of it": ([(1, 50, 1, 2), (51, 200, 101, 102), (231, 240, 201, 202)], APART, {"F2": 30}, ["F2"], {}),
    "a strict process holds nothing": (HELD, HITS_ONE, {"F1": 30}, ["F1"], {}),
    "a trend process may, while others go on": (HELD, HITS_ONE, {"F2": 30}, [], {"order": "trend"}),
    # The third came when the numbers were gone.
    "a process that ended holds nothing": (ENDED, APART, {"F1": 30}, ["F1"], {"order": "trend"}),
    "what is left at the end is no gap": (UP_TO_THE_END, APART, {THE_END: 30}, [], AT_THE_END),
    "but has bounds": (
        UP_TO_THE_END, APART, {"F2": 10, "F3": 20, THE_END: 100}, [THE_END],
        {**AT_THE_END, "samples": [*SAMPLES, (401, 400)]},
    ),
    "near no event": ([(1, 10, 1, 2), (41, 50, 3, 4)], APART, {NO_FAULT: 30}, [], {}),
    "much, near none": (
        [(1, 10, 1, 2), (200, 200, 3, 4)], [], {NO_FAULT: 189}, [NO_FAULT], {"samples": [(0, 200)]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_event_answers_for_what_it_has_cost_and_for_no_more(tmp_path: Path, case: str) -> None:
    callers, events, cost, costly, options = CASES[case]
    found = verdict(tmp_path, callers if isinstance(callers, dict) else {"w0": callers}, events, **options)
    assert (gaps(found), found.costly, found.sound) == (cost, costly, True)
    assert found.kept or not events
    if events is APART and cost == {"F1": 30} and not options:
        assert found.gap < found.allowed_gap / 2
        assert found.costs["F1"] == Cost(strikes=1, gap=30, worst=30, allowed=20, over=1)
        assert found.costs["F3"] == Cost(strikes=1)


def test_the_costs_of_two_worlds_are_added_and_the_worst_one_is_kept() -> None:
    cost = Cost(strikes=1, gap=30, worst=20, allowed=20)
    cost.add(Cost(strikes=2, gap=25, worst=15, allowed=10, over=1))
    assert cost == Cost(strikes=3, gap=55, worst=15, allowed=10, over=1)
    cost.add(Cost(strikes=1, gap=19, worst=19, allowed=20))
    assert cost == Cost(strikes=4, gap=74, worst=15, allowed=10, over=1)


def test_the_report_tells_what_each_fault_has_cost(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (81, 200, 101, 102), (216, 230, 201, 202)]}, APART)
    told = [text for _, text in rows(found)]
    assert "F1: 30, worst 30 of 20 a tag, 1 OVER" in told
    assert "F2: 15, worst 15 of 20 a tag" in told
    assert content(found)["gaps"]["F1"] == {"strikes": 1, "gap": 30, "worst": 30, "allowed": 20, "over": 1}
    assert content(found)["gaps"]["F3"]["strikes"] == 1
    assert all(len(text) < 100 for text in told)
