from pathlib import Path

import pytest

from tests.servers.fake import FencedFakeServer
from tests.strategies import Host
from tests.surrounding import COLOURS, Face, Faced


@pytest.fixture(params=COLOURS)
def face(request: pytest.FixtureRequest) -> Faced:
    """What makes a chain of plugins, of each colour in turn."""
    return lambda *plugins: Face(request.param, plugins)


@pytest.fixture
def host(fake_server: FencedFakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose processes keep a copy of their machine number."""
    return Host(fake_server, tmp_path, monkeypatch)
