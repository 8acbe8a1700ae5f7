"""The checker sees each kind of harm: a harness that can't fail proves nothing."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from issuer.cli.chaos.checker import NS, Event, Verdict, Watched, check
from issuer.cli.chaos.record import PART, Follower, Record, all_calls, runs
from issuer.errors import FenceError, RedisUnavailable
from tests.audit import Draw, order_violations

Call = tuple[int, int, int, int]

WHOLE_RUN = 100


def watched(order: str = "strict", most: int = 10**6, **options: Any) -> Watched:
    samples = [(0, most), (WHOLE_RUN, most)]
    return replace(Watched("a", order, base=0, step=10, lease=5, timeout=4 * NS, samples=samples), **options)


def verdict(
    folder: Path,
    callers: Mapping[str, Sequence[Call]],
    tag: Watched | None = None,
    events: Sequence[Event] = (),
    stopped: Iterable[Event] = (),
) -> Verdict:
    for at, (worker, calls) in enumerate(callers.items()):
        record = Record(folder, 0, worker, at)
        for call in calls:
            record.note(*call)
    stops = {worker: [*stopped] for worker in callers}
    return check([tag or watched()], all_calls(folder), events, lasting=[*callers], stopped=stops)


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
    "some, among others": ([[(1, 5, 1, 2)], [(3, 9, 3, 4)]], watched(), {"repeats": 3, "sound": False}),
    "all": ([[(1, 5, 1, 2)], [(1, 5, 3, 4)]], watched(), {"repeats": 5, "sound": False}),
    "some within": ([[(1, 5, 1, 2)], [(2, 3, 3, 4)]], watched(), {"repeats": 2, "sound": False}),
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
    "a lower number for a call that began later": (
        [[each] for each in LOWER],
        watched(),
        {"disorder": 1, "sound": False},
    ),
    "calls that overlap": ([[each] for each in OVERLAPPING], watched(), {"disorder": 0}),
    "trend, in two processes": ([[each] for each in LOWER], watched("trend"), {"disorder": 0}),
    "trend, in one": ([LOWER], watched("trend"), {"disorder": 1}),
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
    "a number that two keys were given": ([[(70, 1, 1, 2)], [(71, 1, 3, 4)]], KEYED, {"repeats": 1}),
    "a number of a key above max": ([[(70, 101, 1, 2)]], watched(most=100, keyed=True), {"above": 1}),
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
    event = Event("F", 2 * NS, 3 * NS)
    callers: dict[str, Sequence[Call]] = {
        "w0": [(1, 1, 0, NS), (3, 3, 0, 3 * NS + 5)],
        "w1": [(2, 2, 0, NS), (4, 4, 0, 5 * NS)],
    }
    found = verdict(tmp_path, callers, events=[event])
    assert found.without_service == pytest.approx(2)
    assert found.slowest.endswith("w1")


def test_a_process_that_never_gets_numbers_again_is_not_overlooked(tmp_path: Path) -> None:
    callers: dict[str, Sequence[Call]] = {"w0": [(1, 1, 0, NS)], "w1": [(2, 2, 0, 9 * NS)]}
    assert verdict(tmp_path, callers, events=[Event("F", NS, 2 * NS)]).without_service == pytest.approx(7)


def test_time_stopped_is_not_counted(tmp_path: Path) -> None:
    stopped = [Event("stopped", NS, 3 * NS)]
    assert verdict(tmp_path, {"w0": [(1, 1, 0, 5 * NS)]}, stopped=stopped).latest == pytest.approx(-1)


# ------------------------------------------------------------------------------------------------ the record


def test_what_was_written_is_read_over_the_end_of_a_file(tmp_path: Path) -> None:
    record = Record(tmp_path, 3, "w0", 0)
    for number in range(1, PART + 3):
        record.note(number, number, number, number)
    (calls,) = all_calls(tmp_path)
    assert (calls.tag, calls.worker, len(calls)) == (3, "w0", PART + 2)
    assert [call.first for call in calls] == [*range(1, PART + 3)]


def test_failed_calls_are_counted_by_their_error(tmp_path: Path) -> None:
    record = Record(tmp_path, 0, "w0", 0)
    record.failed(7, RedisUnavailable("x"), 1, 2)
    record.failed(1, FenceError("x"), 3, 4)
    record.note(1, 2, 5, 6)
    found = check([watched()], all_calls(tmp_path), [], lasting=["w0"], stopped={})
    assert (found.attempted, found.acknowledged) == (10, 2)
    assert found.errors == {"RedisUnavailable": 1, "FenceError": 1}


def test_a_follower_sees_numbers_and_not_errors(tmp_path: Path) -> None:
    record = Record(tmp_path, 0, "w0", 0)
    follower = Follower(tmp_path, "w0")
    assert not follower.served(0, 0)
    record.note(1, 1, 5, 6)
    record.failed(1, FenceError("x"), 7, 8)
    assert follower.served(0, 6)
    assert not follower.served(0, 7)
    assert not follower.served(1, 0)
    assert follower.served(0, 5, whole=True)
    assert not follower.served(0, 6, whole=True)


def test_runs_are_neighbours_in_the_order_in_which_they_came() -> None:
    assert runs([1, 2, 3, 7, 8, 5]) == [(1, 3), (7, 8), (5, 5)]
    assert runs([]) == []
