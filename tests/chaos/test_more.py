"""Each of the faults that `issuer chaos` doesn't offer, twice."""

import pytest

from tests.chaos.more import MORE
from tests.chaos.worlds import assert_kept, suffer

pytestmark = pytest.mark.live


@pytest.mark.covers("N.1", "N.8", "3.20")
def test_each_fault_twice_and_no_number_comes_twice() -> None:
    verdict = suffer("", times=2, faults=MORE)
    assert_kept(verdict)
    assert verdict.struck == 2 * len(MORE)
    assert verdict.acknowledged > 10_000
