"""Fixtures of the tests that try both colours."""

import pytest

from tests.colours import COLOURS, Connect


@pytest.fixture(params=list(COLOURS))
def connect(request: pytest.FixtureRequest) -> Connect:
    """What makes an issuer: `issuer.connect`, then `issuer.aconnect` behind a blocking face."""
    return COLOURS[request.param]
