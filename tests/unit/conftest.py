import pytest

from tests.surrounding import COLOURS, Face, Faced


@pytest.fixture(params=COLOURS)
def face(request: pytest.FixtureRequest) -> Faced:
    """What makes a chain of plugins, of each colour in turn."""
    return lambda *plugins: Face(request.param, plugins)
