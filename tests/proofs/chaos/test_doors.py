"""Clients draw over HTTP and Redis's protocol while the servers, and what lies beneath them, are struck."""

import pytest

from tests.proofs.chaos.test_without import TRIES
from tests.proofs.chaos.worlds import assert_kept, named, suffer

pytestmark = [pytest.mark.live, pytest.mark.covers("N.1", "N.8")]


@pytest.mark.parametrize("faults", ["D24a,D24b,D24c,D24d", "D24e", "D2c,D3a,D6a"])
def test_several_faults_strike_once_and_no_number_comes_twice_through_either_door(faults: str) -> None:
    verdict = suffer(named(faults), patience=60)
    assert_kept(verdict)
    assert set(verdict.turns) == set(faults.split(","))
    assert verdict.acknowledged > 0


def test_without_the_fence_numbers_come_twice_through_the_doors() -> None:
    # A machine that stands still meanwhile may keep the servers from being struck.
    tries = (suffer(named("D2a"), "fence", patience=8) for _ in range(TRIES))
    verdict = next(verdict for verdict in tries if verdict.repeats)
    assert not verdict.kept
