"""A world in virtual time, in both colours."""

from collections.abc import Iterator

import pytest

from tests.colours import COLOURS
from tests.proofs.virtual.world import World, world
from tests.seeds import seeded


@pytest.fixture(params=COLOURS)
def made(request: pytest.FixtureRequest) -> Iterator[World]:
    with world(request.param, seeded(7)) as each:
        yield each
