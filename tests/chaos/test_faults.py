"""Each fault twice, on a pair of servers and an SQLite store."""

import pytest

from issuer.cli.chaos.faults import FAULTS
from tests.chaos.worlds import assert_kept, suffer

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8")
def test_each_fault_twice_and_no_number_comes_twice() -> None:
    verdict = suffer("", times=2, faults=FAULTS)
    assert_kept(verdict)
    assert verdict.struck == 2 * len(FAULTS)
    assert verdict.acknowledged > 10_000
