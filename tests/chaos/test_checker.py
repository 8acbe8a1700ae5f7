"""The checker sees each kind of harm: a harness that can't fail proves nothing."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from issuer.cli.chaos.checker import NS, Event, Verdict, Watched, check
from issuer.cli.chaos.record import PART, Follower, Record, all_calls, runs
from issuer.errors import FenceError, RedisUnavailable
from tests.audit import Draw, order_violations

Call = tuple[int, int, int, int]

WHOLE_RUN = 100


def watched(order: str = "strict", most: int = 10**6) -> Watched:
    return Watched("a", order, base=0, step=10, lease=5, timeout=4 * NS, samples=[(0, most), (WHOLE_RUN, most)])


def verdict(
    folder: Path,
    callers: dict[str, Sequence[Call]],
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


def test_numbers_that_came_once_and_in_order_are_sound(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 5, 1, 2), (8, 8, 5, 6)], "w1": [(6, 7, 3, 4)]})
    assert (found.sound, found.acknowledged, found.gap, found.disorder) == (True, 8, 0, 0)


@pytest.mark.parametrize(
    ("second", "times"), [((5, 5, 3, 4), 1), ((3, 9, 3, 4), 3), ((1, 5, 3, 4), 5), ((2, 3, 3, 4), 2)]
)
def test_a_number_that_came_twice_is_a_repeat(tmp_path: Path, second: Call, times: int) -> None:
    found = verdict(tmp_path, {"w0": [(1, 5, 1, 2)], "w1": [second]})
    assert (found.repeats, found.sound) == (times, False)


def test_a_repeat_within_one_caller_is_seen_although_its_numbers_went_back(tmp_path: Path) -> None:
    assert verdict(tmp_path, {"w0": [(1, 5, 1, 2), (10, 12, 3, 4), (5, 6, 5, 6)]}).repeats == 1


def test_a_repeat_after_a_long_run_that_covers_shorter_ones_is_seen(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(1, 100, 1, 2)], "w1": [(3, 4, 1, 2)], "w2": [(50, 51, 1, 2)]})
    assert (found.repeats, found.gap) == (4, 0)


def test_a_lower_number_for_a_call_that_began_later_breaks_the_order(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(10, 10, 1, 2)], "w1": [(9, 9, 3, 4)]})
    assert (found.disorder, found.sound) == (1, False)


def test_calls_that_overlap_may_come_in_any_order(tmp_path: Path) -> None:
    assert verdict(tmp_path, {"w0": [(10, 10, 1, 3)], "w1": [(9, 9, 3, 4)]}).disorder == 0


def test_trend_is_ordered_within_a_process_only(tmp_path: Path) -> None:
    trend = watched("trend")
    assert verdict(tmp_path / "1", {"w0": [(10, 10, 1, 2)], "w1": [(9, 9, 3, 4)]}, trend).disorder == 0
    assert verdict(tmp_path / "2", {"w0": [(10, 10, 1, 2), (9, 9, 3, 4)]}, trend).disorder == 1


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()


def test_it_agrees_with_the_plain_definition_of_order(tmp_path: Path) -> None:
    rng = random.Random(7)
    calls = [(n, n, began, began + rng.randint(0, 6)) for n in range(1, 60) if (began := n + rng.randint(0, 8))]
    plain = order_violations(Draw(first, began, ended) for first, _, began, ended in calls)
    found = verdict(tmp_path, {f"w{at}": [call] for at, call in enumerate(calls)})
    assert found.disorder == len(plain) > 0


def test_a_number_above_what_max_had_been_when_its_call_returned_is_seen(tmp_path: Path) -> None:
    tag = watched()
    tag.samples = [(0, 100), (10, 200), (20, 150), (30, 150)]
    fine: list[Call] = [(100, 100, 1, 2), (200, 200, 8, 9), (200, 200, 25, 26)]
    assert verdict(tmp_path / "1", {f"w{at}": [call] for at, call in enumerate(fine)}, tag).above == 0
    assert verdict(tmp_path / "2", {"w0": [(199, 203, 1, 2)]}, tag).above == 3


def test_numbers_that_nobody_got_are_the_gap(tmp_path: Path) -> None:
    found = verdict(tmp_path, {"w0": [(3, 5, 1, 2)], "w1": [(8, 9, 3, 4)]})
    assert (found.gap, found.acknowledged) == (4, 5)


def test_more_lost_than_the_design_allows_breaks_the_promise(tmp_path: Path) -> None:
    # With no fault: two segments in Redis, and what one process holds.
    assert verdict(tmp_path / "1", {"w0": [(1, 1, 1, 2), (60, 60, 3, 4)]}).kept
    assert not verdict(tmp_path / "2", {"w0": [(1, 1, 1, 2), (70, 70, 3, 4)]}).kept


def test_a_key_that_comes_again_with_its_number_is_one_number(tmp_path: Path) -> None:
    # The key comes first: 70, 71 and 72. Whoever asks again is told an older number than others have by then.
    tag = replace(watched(), keyed=True)
    found = verdict(
        tmp_path, {"w0": [(70, 1, 1, 2), (71, 3, 3, 4), (70, 1, 5, 6)], "w1": [(71, 3, 1, 9), (72, 2, 5, 6)]}, tag
    )
    assert (found.sound, found.acknowledged, found.gap, found.changed) == (True, 3, 0, 0)


def test_a_key_that_was_given_another_number_is_seen(tmp_path: Path) -> None:
    tag = replace(watched(), keyed=True)
    found = verdict(tmp_path, {"w0": [(70, 1, 1, 2)], "w1": [(70, 2, 3, 4)]}, tag)
    assert (found.changed, found.repeats, found.acknowledged, found.sound) == (1, 0, 2, False)


def test_a_number_that_two_keys_were_given_is_a_repeat(tmp_path: Path) -> None:
    tag = replace(watched(), keyed=True)
    assert verdict(tmp_path, {"w0": [(70, 1, 1, 2)], "w1": [(71, 1, 3, 4)]}, tag).repeats == 1


def test_a_number_of_a_key_above_what_max_had_been_is_seen(tmp_path: Path) -> None:
    tag = replace(watched(most=100), keyed=True)
    assert verdict(tmp_path, {"w0": [(70, 101, 1, 2)]}, tag).above == 1


def test_numbers_without_a_counter_have_no_gap_and_no_max_but_repeat_all_the_same(tmp_path: Path) -> None:
    tag = replace(watched("trend"), counted=False, samples=[])
    found = verdict(
        tmp_path, {"w0": [(10**15, 10**15, 1, 2)], "w1": [(10**12, 10**12, 3, 4), (10**15, 10**15, 5, 6)]}, tag
    )
    assert (found.gap, found.allowed_gap, found.above, found.repeats, found.disorder) == (0, 0, 0, 1, 0)


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


def test_a_call_past_its_deadline_is_seen_and_time_stopped_is_not_counted(tmp_path: Path) -> None:
    calls: dict[str, Sequence[Call]] = {"w0": [(1, 1, 0, 5 * NS)]}
    assert verdict(tmp_path / "1", calls).latest == pytest.approx(1)
    assert verdict(tmp_path / "2", calls, stopped=[Event("stopped", NS, 3 * NS)]).latest == pytest.approx(-1)


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
