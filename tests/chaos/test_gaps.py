"""What each event has cost: one that wastes too much doesn't hide behind what the others are allowed."""

from collections.abc import Sequence
from pathlib import Path

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


def test_an_event_that_costs_a_segment_too_many_misses_although_all_together_were_allowed_more(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (81, 200, 101, 102), (201, 210, 301, 302)]}, APART)
    assert found.sound
    assert found.gap == 30
    assert found.gap < found.allowed_gap / 2
    assert found.costly == ["F1"]
    assert found.costs["F1"] == Cost(strikes=1, gap=30, worst=30, allowed=20, over=1)


def test_an_event_may_cost_all_that_it_is_allowed(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (71, 200, 101, 102), (221, 230, 201, 202)]}, APART)
    assert gaps(found) == {"F1": 20, "F2": 20}
    assert found.costs["F1"] == Cost(strikes=1, gap=20, worst=20, allowed=20, over=0)
    assert found.costs["F3"] == Cost(strikes=1)
    assert found.kept


def test_one_number_more_is_too_many(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (72, 200, 101, 102), (221, 230, 201, 202)]}, APART)
    assert found.costly == ["F1"]


@pytest.mark.parametrize(("first", "costly"), [(91, []), (92, ["F2"])])
def test_events_that_can_not_be_told_apart_share_what_they_are_allowed(
    tmp_path: Path, first: int, costly: list[str]
) -> None:
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (first, 200, 103, 104)]}, TOGETHER)
    assert found.costly == costly
    assert gaps(found) == {"F1": 20, "F2": first - 71}


def test_what_only_one_of_two_neighbours_may_have_cost_takes_its_room_first(tmp_path: Path) -> None:
    # 51..70 were passed before the second began; 81..100 may be either's, so they are the second's.
    calls = [(1, 50, 1, 2), (71, 80, 101, 101.5), (101, 200, 103, 104)]
    found = verdict(tmp_path, {"w0": calls}, TOGETHER)
    assert gaps(found) == {"F1": 20, "F2": 20}
    assert found.kept


def test_what_was_reserved_after_an_event_was_over_is_none_of_its_gap(tmp_path: Path) -> None:
    # Both stretches are passed at 202 s, but max was at 200 until 199 s.
    found = verdict(tmp_path, {"w0": [(1, 50, 1, 2), (51, 190, 101, 102), (221, 230, 201, 202)]}, APART)
    assert (gaps(found), found.costly) == ({"F1": 10, "F2": 20}, [])
    found = verdict(tmp_path / "later", {"w0": [(1, 50, 1, 2), (51, 200, 101, 102), (231, 240, 201, 202)]}, APART)
    assert (gaps(found), found.costly) == ({"F2": 30}, ["F2"])


@pytest.fixture(autouse=True)
def _later(tmp_path: Path) -> None:
    (tmp_path / "later").mkdir()


@pytest.mark.parametrize(("order", "cost", "costly"), [("strict", {"F1": 30}, ["F1"]), ("trend", {"F2": 30}, [])])
def test_a_trend_process_may_hold_numbers_while_others_are_given_higher_ones(
    tmp_path: Path, order: str, cost: dict[str, int], costly: list[str]
) -> None:
    # The second process is hit by F2, with what it has had since F1.
    events = [APART[0], Event("F2", 200 * NS, 201 * NS, hits=1), APART[2]]
    callers: dict[str, Sequence[Call]] = {
        "w0": [(1, 30, 1, 2), (81, 200, 101, 102)],
        "w1": [(31, 50, 1, 150), (201, 210, 201, 202)],
    }
    found = verdict(tmp_path, callers, events, order=order)
    assert (gaps(found), found.costly) == (cost, costly)


def test_a_process_that_ended_holds_nothing_any_more(tmp_path: Path) -> None:
    callers: dict[str, Sequence[Call]] = {
        "w0": [(1, 30, 1, 2), (81, 200, 101, 102)],
        "w1": [(31, 50, 1, 100)],
        # It came when the numbers were gone.
        "w2": [(201, 210, 201, 202)],
    }
    found = verdict(tmp_path, callers, APART, order="trend")
    assert (gaps(found), found.costly) == ({"F1": 30}, ["F1"])


def test_what_is_left_at_the_end_is_no_gap_but_has_bounds(tmp_path: Path) -> None:
    end = Event(THE_END, 390 * NS, 0, hits=1)
    calls: dict[str, Sequence[Call]] = {"w0": [(1, 200, 1, 104), (201, 270, 205, 389)]}
    found = verdict(tmp_path, calls, APART, end=end)
    assert (found.gap, gaps(found), found.costly) == (0, {THE_END: 30}, [])
    found = verdict(tmp_path, calls, APART, end=end, samples=[*SAMPLES, (401, 400)])
    assert (found.gap, found.costly) == (0, [THE_END])


def test_a_gap_near_no_event_is_nobodys(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 10, 1, 2), (41, 50, 3, 4)]}, APART)
    assert (gaps(found), found.costly) == ({NO_FAULT: 30}, [])
    found = verdict(tmp_path / "later", {"w0": [(1, 10, 1, 2), (200, 200, 3, 4)]}, samples=[(0, 200)])
    assert found.costly == [NO_FAULT]


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
