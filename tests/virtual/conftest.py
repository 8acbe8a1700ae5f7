"""A world in virtual time, in both colours."""

from collections.abc import Iterator

import pytest

from tests.colours import COLOURS
from tests.seeds import seeded
from tests.virtual.world import World, world


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(colour: str) -> Iterator[World]:
    """A world of either colour in turn."""
    with world(colour, seeded(7)) as each:
        yield each
