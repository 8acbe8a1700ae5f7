"""The churn in small, and that its sums would notice."""

from pathlib import Path
from typing import Any

import pytest

from tests.proofs.soak.churn import Report, churn
from tests.proofs.soak.plan import Numbers
from tests.proofs.soak.sums import HELD, Sums

#: A tag of which 100 numbers were reserved: 70 are issued, 10 in Redis, 5 came late for it, and 15 are wasted.
GOOD: dict[str, Any] = {
    "moved": 100,
    "ledger": 100,
    "issued": 70,
    "counted": 70,
    "redis": 10,
    "late": 5,
    "wasted": 15,
    "step": 50,
}


@pytest.mark.live
@pytest.mark.covers("1.1", "3.1")
def test_what_processes_that_come_and_go_issued_agrees_with_metrics_ledger_and_store(
    redis_url: str, tmp_path: Path
) -> None:
    """In half a minute nothing has its size yet: of memory, and of segments that come late, `make soak` tells."""
    report = churn(redis_url, f"sqlite:///{tmp_path}/ids.db", tmp_path, seconds=30, share=0.2, seed=5)
    assert (report.disagreements, report.errors) == ([], {})
    assert min(report.kills, report.created, report.deleted, report.numbers) > 0


def test_sums_tell_what_does_not_agree() -> None:
    assert [*Sums("a", "steady", **GOOD).harms()] == []
    for harm, told in {
        "moved": "a: 1 reserved numbers are nowhere, 0 to 0 are right",
        "ledger": "a: the store has moved by 100, the ledger has 101",
        "counted": "a: 70 numbers were issued, the metrics have 71",
        "late_segments": "a: 1 segments came late for Redis, the metrics have 0",
    }.items():
        assert [*Sums("a", "steady", **{**GOOD, harm: GOOD.get(harm, 0) + 1}).harms()] == [told]
    assert [*Sums("a", "steady", **GOOD, wrong=["b"]).harms()] == ["a: b"]


def test_a_killed_process_takes_no_more_with_it_than_it_held() -> None:
    lost = {**GOOD, "moved": 100 + HELD + 50, "kills": 1}
    assert [*Sums("a", "harsh", **lost).harms()] == []
    assert [*Sums("a", "harsh", **{**lost, "moved": 101 + HELD + 50}).harms()] != []
    assert [*Sums("a", "harsh", **{**lost, "moved": 99}).harms()] != []
    assert [*Sums("a", "churn", **{**GOOD, "moved": 10_000}).harms()] == []
    assert [*Sums("a", "churn", **{**GOOD, "moved": 99, "ledger": 99}).harms()] != []


def test_repeats_are_found_and_numbers_counted_within_bounds() -> None:
    numbers = Numbers()
    numbers.add(0, 10)
    numbers.add(100_000, 3)
    numbers.add(9, 2)
    assert (numbers.issued, numbers.repeats) == (15, [10])
    assert [numbers.within(*each) for each in [(0, 10), (3, 8), (0, 200_000), (10, 11), (11, 11)]] == [10, 5, 14, 1, 0]


def test_a_process_that_grows_after_the_warm_up_is_told() -> None:
    report = Report(seconds=100, warm=10, load=[0.0])
    for at in range(100):
        report.memory["flat"].append((at, 100 if at < 10 else 1000 + at % 3))
        report.memory["grows"].append((at, 1000 + at))
    assert report.harms == ["grows: grew by 8.0%"]
    assert {"WRONG:", "grows: grew by 8.0%"} < {*report.lines()}
