from collections.abc import Callable

import pytest

from issuer import Issuer
from tests.days import DAILY
from tests.schemes import Make


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture
def daily(make: Make, at: Callable[[str], None]) -> Make:
    """Make an issuer at that moment, with tag "a", whose numbers begin anew each day."""

    def begun(moment: str, **settings: object) -> Issuer:
        at(moment)
        ids = make()
        ids.create("a", **{**DAILY, **settings})
        return ids

    return begun
