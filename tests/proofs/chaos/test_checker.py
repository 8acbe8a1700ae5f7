"""The checker sees each kind of harm: a harness that can't fail proves nothing."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from issuer.chaos.call_files import ERRORS, PART, CallFile, Follower, all_calls
from issuer.chaos.checker import NS, Verdict, check
from issuer.chaos.faults import Fault
from issuer.chaos.gaps import NO_FAULT, THE_END, Cost
from issuer.chaos.play import play
from issuer.chaos.report import content, rows
from issuer.chaos.watched import Strike, Watched
from issuer.errors import FenceError, RedisUnavailable
from tests.audit import Draw, order_violations

#: First and last number, and when the call began and ended.
Call = tuple[int, int, float, float]

WHOLE_RUN = 100


def watched(order: str = "strict", most: int = 10**6, **options: Any) -> Watched:
    samples = [(0, most), (WHOLE_RUN, most)]
    return replace(Watched("a", order, base=0, step=10, lease=5, timeout=4 * NS, samples=samples), **options)


def verdict(
    folder: Path,
    callers: Mapping[str, Sequence[Call]],
    tag: Watched | None = None,
    *,
    strikes: Sequence[Strike] = (),
    stopped: Iterable[Strike] = (),
    end: Strike | None = None,
) -> Verdict:
    for at, (worker, calls) in enumerate(callers.items()):
        record = CallFile(folder, 0, worker, at)
        for first, last, began, ended in calls:
            record.note(first, last, int(began), int(ended))
    stops = {worker: [*stopped] for worker in callers}
    return check([tag or watched()], all_calls(folder), strikes, lasting=[*callers], stopped=stops, end=end)


KEYED = watched(keyed=True)
#: The number 10 for a call, then 9 for one that began when that had ended; and one that began before.
LOWER, OVERLAPPING = ((10, 10, 1, 2), (9, 9, 3, 4)), ((10, 10, 1, 3), (9, 9, 3, 4))
CASES: dict[str, tuple[Sequence[Sequence[Call]], Watched, dict[str, object]]] = {
    "numbers that came once and in order": (
        [[(1, 5, 1, 2), (8, 8, 5, 6)], [(6, 7, 3, 4)]],
        watched(),
        {"sound": True, "acknowledged": 8, "gap": 0, "disorder": 0},
    ),
    "one that came twice": ([[(1, 5, 1, 2)], [(5, 5, 3, 4)]], watched(), {"repeats": 1, "sound": False}),
    "some of them": ([[(1, 5, 1, 2)], [(3, 9, 3, 4)]], watched(), {"repeats": 3, "sound": False}),
    "one within a caller whose numbers went back": (
        [[(1, 5, 1, 2), (10, 12, 3, 4), (5, 6, 5, 6)]],
        watched(),
        {"repeats": 1},
    ),
    "after a long run that covers shorter ones": (
        [[(1, 100, 1, 2)], [(3, 4, 1, 2)], [(50, 51, 1, 2)]],
        watched(),
        {"repeats": 4, "gap": 0},
    ),
    "a lower number for a later call": ([[each] for each in LOWER], watched(), {"disorder": 1, "sound": False}),
    "calls that overlap": ([[each] for each in OVERLAPPING], watched(), {"disorder": 0}),
    "trend, in two processes": ([[each] for each in LOWER], watched("trend"), {"disorder": 0}),
    "trend, in one": ([LOWER], watched("trend"), {"disorder": 1}),
    "trend, to one client of a server": ([LOWER], watched("trend", served=True), {"disorder": 0, "sound": True}),
    "strict, to one client of a server": ([LOWER], watched(served=True), {"disorder": 1}),
    "as high as max was meanwhile": (
        [[(100, 100, 1, 2)], [(200, 200, 8, 9)], [(200, 200, 25, 26)]],
        watched(samples=[(0, 100), (10, 200), (20, 150), (30, 150)]),
        {"above": 0},
    ),
    "above what max had been": (
        [[(199, 203, 1, 2)]],
        watched(samples=[(0, 100), (10, 200), (20, 150), (30, 150)]),
        {"above": 3},
    ),
    "numbers that nobody got": ([[(3, 5, 1, 2)], [(8, 9, 3, 4)]], watched(), {"gap": 4, "acknowledged": 5}),
    # With no fault: two segments in Redis, and what one process holds.
    "as many lost as the design allows": ([[(1, 1, 1, 2), (60, 60, 3, 4)]], watched(), {"kept": True}),
    "more lost": ([[(1, 1, 1, 2), (70, 70, 3, 4)]], watched(), {"kept": False}),
    # The key comes first: 70, 71 and 72. Whoever asks again is told an older number than others have by then.
    "a key that comes again with its number": (
        [[(70, 1, 1, 2), (71, 3, 3, 4), (70, 1, 5, 6)], [(71, 3, 1, 9), (72, 2, 5, 6)]],
        KEYED,
        {"sound": True, "acknowledged": 3, "gap": 0, "changed": 0},
    ),
    "a key that was given another number": (
        [[(70, 1, 1, 2)], [(70, 2, 3, 4)]],
        KEYED,
        {"changed": 1, "repeats": 0, "acknowledged": 2, "sound": False},
    ),
    "a number that two keys were given, above max": (
        [[(70, 101, 1, 2)], [(71, 101, 3, 4)]],
        watched(most=100, keyed=True),
        {"repeats": 1, "above": 2},
    ),
    "numbers without a counter": (
        [[(10**15, 10**15, 1, 2)], [(10**12, 10**12, 3, 4), (10**15, 10**15, 5, 6)]],
        watched("trend", counted=False, samples=[]),
        {"gap": 0, "allowed_gap": 0, "above": 0, "repeats": 1, "disorder": 0},
    ),
    "a call past its deadline": ([[(1, 1, 0, 5 * NS)]], watched(), {"latest": pytest.approx(1)}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_was_recorded_is_judged_as_it_is(tmp_path: Path, case: str) -> None:
    callers, tag, expected = CASES[case]
    found = verdict(tmp_path, {f"w{at}": calls for at, calls in enumerate(callers)}, tag)
    assert {name: getattr(found, name) for name in expected} == expected


def test_it_agrees_with_the_plain_definition_of_order(tmp_path: Path) -> None:
    rng = random.Random(7)
    calls = [(n, n, began, began + rng.randint(0, 6)) for n in range(1, 60) if (began := n + rng.randint(0, 8))]
    plain = order_violations(Draw(first, began, ended) for first, _, began, ended in calls)
    found = verdict(tmp_path, {f"w{at}": [call] for at, call in enumerate(calls)})
    assert found.disorder == len(plain) > 0


def test_the_longest_time_without_service_is_that_of_the_slowest_process(tmp_path: Path) -> None:
    strike = Strike("F", 2 * NS, 3 * NS)
    callers: dict[str, Sequence[Call]] = {
        "w0": [(1, 1, 0, NS), (3, 3, 0, 3 * NS + 5)],
        "w1": [(2, 2, 0, NS), (4, 4, 0, 5 * NS)],
    }
    found = verdict(tmp_path, callers, strikes=[strike])
    assert found.without_service == pytest.approx(2)
    assert found.slowest.endswith("w1")


def test_a_process_that_never_gets_numbers_again_is_not_overlooked_and_time_stopped_not_counted(tmp_path: Path) -> None:
    callers: dict[str, Sequence[Call]] = {"w0": [(1, 1, 0, NS)], "w1": [(2, 2, 0, 9 * NS)]}
    found = verdict(tmp_path, callers, strikes=[Strike("F", NS, 2 * NS)], stopped=[Strike("stopped", NS, 3 * NS)])
    assert (found.without_service, found.latest) == pytest.approx((7, 3))


class StillWorld:
    """Nothing is in it but what `play` asks for."""

    def more(self) -> None:
        pass

    def verdict(self) -> Verdict:
        return Verdict()


def test_a_turn_counts_when_the_fault_has_struck_and_numbers_came_after_it() -> None:
    def cannot(_: object) -> None:
        raise AssertionError("it could not be brought about")

    world: Any = StillWorld()
    fine, stuck = Fault("F1", "", lambda _: None), Fault("F2", "", cannot)
    total = Verdict()
    for plan in ([fine, fine], [fine, stuck, fine]):
        total.add(play(world, plan))
    assert total.turns == {"F1": 3}


# ------------------------------------------------------------------------------------------------ the record


def test_what_was_written_is_read_over_the_end_of_a_file(tmp_path: Path) -> None:
    record = CallFile(tmp_path, 3, "w0", 0)
    for number in range(1, PART + 3):
        record.note(number, number, number, number)
    (calls,) = all_calls(tmp_path)
    assert (calls.tag, calls.worker, len([*calls])) == (3, "w0", PART + 2)
    assert [call.first for call in calls] == [*range(1, PART + 3)]


def test_failed_calls_are_counted_by_their_error(tmp_path: Path) -> None:
    record = CallFile(tmp_path, 0, "w0", 0)
    record.failed(7, RedisUnavailable("x"), 1, 2)
    record.failed(1, FenceError("x"), 3, 4)
    record.note(1, 2, 5, 6)
    found = check([watched()], all_calls(tmp_path), [], lasting=["w0"], stopped={})
    assert (found.attempted, found.acknowledged) == (10, 2)
    assert found.errors == {"RedisUnavailable": 1, "FenceError": 1}


def test_a_follower_sees_numbers_and_not_errors(tmp_path: Path) -> None:
    record = CallFile(tmp_path, 0, "w0", 0)
    follower = Follower(tmp_path, "w0")
    assert not follower.served(0, 0)
    record.note(1, 1, 5, 6)
    record.failed(1, FenceError("x"), 7, 8)
    assert follower.served(0, 6)
    assert not follower.served(0, 7)
    assert not follower.served(1, 0)


def test_a_follower_returns_each_call_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path, "w0")
    assert follower.fresh(0) == []
    first, second = (CallFile(tmp_path, 0, "w0", caller) for caller in range(2))
    first.note(1, 1, 5, 6)
    first.failed(1, FenceError("x"), 7, 8)
    assert follower.fresh(0) == [(1, 1, 5, 6), (-1, -ERRORS.index("FenceError"), 7, 8)]
    second.note(2, 2, 5, 6)
    first.note(3, 3, 9, 9)
    assert sorted(follower.fresh(0)) == [(2, 2, 5, 6), (3, 3, 9, 9)]
    for number in range(4, PART + 6):
        first.note(number, number, 9, 9)
    assert [call.first for call in sorted(follower.fresh(0))] == [*range(4, PART + 6)]
    assert follower.fresh(0) == []


# ----------------------------------------------------------------------------------------------- what each strike costs

#: Three faults, far from each other: each may cost two segments of ten numbers.
APART = [Strike(f"F{at}", at * 100 * NS, (at * 100 + 1) * NS) for at in (1, 2, 3)]
#: The second begins a second after the first, and nothing was well in between.
TOGETHER = [Strike("F1", 100 * NS, 101 * NS), Strike("F2", 102 * NS, 103 * NS)]
#: When the store was asked, in seconds, and what `max` was.
SAMPLES = [(0, 50), (99, 50), (104, 200), (199, 200), (204, 300), (400, 300)]


def charged(
    folder: Path,
    callers: Any,
    strikes: Sequence[Strike],
    *,
    samples: Any = SAMPLES,
    end: Strike | None = None,
    order: str = "strict",
    served: bool = False,
) -> Verdict:
    """Check what one process, or several, were given, with all times in seconds."""
    callers = callers if isinstance(callers, dict) else {"w0": callers}
    calls = {name: [(*call[:2], call[2] * NS, call[3] * NS) for call in its] for name, its in callers.items()}
    tag = watched(order, samples=[(at * NS, value) for at, value in samples], served=served)
    return verdict(folder, calls, tag, strikes=strikes, end=end)


HITS_ONE = [APART[0], Strike("F2", 200 * NS, 201 * NS, hits=1), APART[2]]
#: The second process is hit by F2, with what it has had since F1.
HELD = {"w0": [(1, 30, 1, 2), (81, 200, 101, 102)], "w1": [(31, 50, 1, 150), (201, 210, 201, 202)]}
ENDED = {"w0": [(1, 30, 1, 2), (81, 200, 101, 102)], "w1": [(31, 50, 1, 100)], "w2": [(201, 210, 201, 202)]}
UP_TO_THE_END = [(1, 200, 1, 104), (201, 270, 205, 389)]
AT_THE_END = {"end": Strike(THE_END, 390 * NS, 0, hits=1)}
#: What one process, or several, were given; the strikes; what each of them cost; which cost too much; how to check it.
COSTS: dict[str, tuple[Any, Sequence[Strike], dict[str, int], list[str], dict[str, Any]]] = {
    "a segment too many": ([(1, 50, 1, 2), (81, 200, 101, 102), (201, 210, 301, 302)], APART, {"F1": 30}, ["F1"], {}),
    "one number more": (
        [(1, 50, 1, 2), (72, 200, 101, 102), (221, 230, 201, 202)], APART, {"F1": 21, "F2": 20}, ["F1"], {}
    ),
    "strikes that can't be told apart share": (
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
    "what was reserved after a strike": (
        [(1, 50, 1, 2), (51, 190, 101, 102), (221, 230, 201, 202)], APART, {"F1": 10, "F2": 20}, [], {}
    ),
    "all of it": ([(1, 50, 1, 2), (51, 200, 101, 102), (231, 240, 201, 202)], APART, {"F2": 30}, ["F2"], {}),
    "a strict process holds nothing": (HELD, HITS_ONE, {"F1": 30}, ["F1"], {}),
    "a trend process may, while others go on": (HELD, HITS_ONE, {"F2": 30}, [], {"order": "trend"}),
    # The third came when the numbers were gone.
    "a process that ended holds nothing": (ENDED, APART, {"F1": 30}, ["F1"], {"order": "trend"}),
    "a server's process may hold what comes to no client": (
        ENDED, APART, {"F2": 10, "F3": 20}, [], {"order": "trend", "served": True}
    ),
    "what is left at the end is no gap": (UP_TO_THE_END, APART, {THE_END: 30}, [], AT_THE_END),
    "but has bounds": (
        UP_TO_THE_END, APART, {"F2": 10, "F3": 20, THE_END: 100}, [THE_END],
        {**AT_THE_END, "samples": [*SAMPLES, (401, 400)]},
    ),
    "near no strike": ([(1, 10, 1, 2), (41, 50, 3, 4)], APART, {NO_FAULT: 30}, [], {}),
    "much, near none": (
        [(1, 10, 1, 2), (200, 200, 3, 4)], [], {NO_FAULT: 189}, [NO_FAULT], {"samples": [(0, 200)]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COSTS)
def test_each_event_answers_for_what_it_has_cost_and_for_no_more(tmp_path: Path, case: str) -> None:
    callers, strikes, cost, costly, options = COSTS[case]
    found = charged(tmp_path, callers, strikes, **options)
    told = {name: each.gap for name, each in found.costs.items() if each.gap}
    over = sorted(name for name, each in found.costs.items() if each.over)
    assert (told, over, found.sound) == (cost, costly, True)
    assert found.kept or not strikes
    if strikes is APART and cost == {"F1": 30} and not options:
        assert found.gap < found.allowed_gap / 2
        assert found.costs["F1"] == Cost(strikes=1, gap=30, worst=30, allowed=20, over=1)
        assert found.costs["F3"] == Cost(strikes=1)


def test_the_costs_of_two_worlds_are_added_and_the_worst_one_is_kept() -> None:
    cost = Cost(strikes=1, gap=30, worst=20, allowed=20)
    cost.add(Cost(strikes=2, gap=25, worst=15, allowed=10, over=1))
    assert cost == Cost(strikes=3, gap=55, worst=15, allowed=10, over=1)


def test_the_report_tells_what_each_fault_has_cost(tmp_path: Path) -> None:
    found = charged(tmp_path, [(1, 50, 1, 2), (81, 200, 101, 102), (216, 230, 201, 202)], APART)
    told = [text for _, text in rows(found)]
    assert "F1: 30, largest 30 per tag, allowed 20, 1 OVER" in told
    assert "F2: 15, largest 15 per tag, allowed 20" in told
    assert content(found)["gaps"]["F1"] == {"strikes": 1, "gap": 30, "worst": 30, "allowed": 20, "over": 1}
    assert content(found)["gaps"]["F3"]["strikes"] == 1
    assert all(len(text) < 100 for text in told)
