"""A busy machine fails no test of this room."""

from collections.abc import Iterator

import pytest

from issuer import Issuer
from tests.colours import Connect
from tests.schemes import Make


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture
def ids(make: Make) -> Issuer:
    return make()


@pytest.fixture
def direct(connect: Connect) -> Iterator[Issuer]:
    with connect(redis="none", store="memory://", scheduler=None) as made:
        yield made
