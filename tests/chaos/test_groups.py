"""Failovers behind Sentinels and in a Cluster, a MongoDB that is killed or cut off, clocks that are set: each twice."""

import pytest

from tests.chaos.administered import ADMINISTERED
from tests.chaos.kinds import KINDS, Kind
from tests.chaos.worlds import assert_kept, suffer

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8")
@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.name)
def test_each_fault_twice_and_no_number_comes_twice(kind: Kind) -> None:
    # Those that hit an administrator have tests of their own: each is a long row.
    faults = [fault for fault in kind.faults if fault not in ADMINISTERED]
    verdict = suffer(faults, times=2)
    assert_kept(verdict)
    assert verdict.struck >= 2 * len(faults)
    assert verdict.acknowledged > 1_000


@pytest.mark.covers("N.1")
@pytest.mark.parametrize("kind", KINDS[1:3], ids=lambda kind: kind.name)
def test_without_the_fence_the_harness_finds_repeats(kind: Kind) -> None:
    assert suffer(kind.faults, "fence", times=3, patience=8).repeats > 0
