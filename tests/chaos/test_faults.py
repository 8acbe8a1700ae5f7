"""Each fault twice, on a pair of servers and an SQLite store."""

import pytest

from issuer.cli.chaos.faults import FAULTS
from tests.chaos.worlds import assert_kept, suffer

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8")
def test_each_fault_twice_and_no_number_comes_twice() -> None:
    verdict = suffer(FAULTS, times=2)
    assert_kept(verdict)
    # Each of the three on the wire hits four scripts.
    assert verdict.struck == 2 * (len(FAULTS) + 3 * 3)
    assert verdict.acknowledged > 10_000
