"""Each fault twice, on one pair of servers."""

import pytest

from issuer.cli.chaos.checker import Verdict
from issuer.cli.chaos.faults import FAULTS
from tests.chaos.worlds import suffer

pytestmark = pytest.mark.live

#: Other tests run beside these: what is promised within 2 s may take longer here. `make chaos` holds to it.
PATIENCE = 6.0


def assert_kept(verdict: Verdict) -> None:
    assert verdict.stuck == []
    assert (verdict.repeats, verdict.above, verdict.disorder) == (0, 0, 0), verdict.examples
    assert verdict.gap <= verdict.allowed_gap
    assert verdict.without_service < PATIENCE, verdict.slowest
    assert verdict.latest < PATIENCE


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize("half", [0, 1])
def test_each_fault_twice_and_no_number_comes_twice(half: int) -> None:
    names = ",".join(fault.name for fault in FAULTS[half::2])
    verdict = suffer(names, times=2)
    assert_kept(verdict)
    assert verdict.struck == 2 * len(FAULTS[half::2])
    assert verdict.acknowledged > 10_000


@pytest.mark.covers("N.1")
@pytest.mark.parametrize(
    ("without", "faults", "harm"),
    [
        ("fence", "F2a,F4", "repeats"),
        ("prefix", "F3a", "repeats"),
        ("replid", "F4", "repeats"),
        ("arming", "F2a,F4", "repeats"),
        ("reserved", "F6a", "above"),
        ("load-once,born", "F12d", "repeats"),
        ("rejoin", "F21", "disorder"),
        ("fork", "F18", "repeats"),
    ],
)
def test_without_the_guard_the_harness_finds_the_harm(without: str, faults: str, harm: str) -> None:
    verdict = suffer(faults, *without.split(","), times=5, patience=8)
    assert getattr(verdict, harm) > 0
    assert not verdict.kept


@pytest.mark.parametrize(
    ("without", "faults"),
    [
        # A copy of a load is refused by born, or because it lies below what was issued.
        ("load-once", "F9b,F12d"),
        # Nobody sends a load twice, and a load that comes late lies above all that was issued or is refused as below.
        ("born", "F12"),
    ],
)
def test_where_one_guard_stands_behind_another_either_is_enough(without: str, faults: str) -> None:
    verdict = suffer(faults, *without.split(","), times=2)
    assert (verdict.repeats, verdict.disorder, verdict.above) == (0, 0, 0)
