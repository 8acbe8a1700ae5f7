from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from issuer import clock
from tests.servers import fake
from tests.servers.fake import FencedFakeServer
from tests.strategies.hosts import Host, MovedClock, Opener
from tests.strategies.surrounding import COLOURS, Face, Faced


@pytest.fixture(params=COLOURS)
def face(request: pytest.FixtureRequest) -> Faced:
    """What makes a chain of plugins, of each colour in turn."""
    return lambda *plugins: Face(request.param, plugins)


@pytest.fixture
def host(fake_server: FencedFakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A host whose processes keep a copy of their machine number. The server's clock, too, moves as the test says."""
    made = Host(fake_server, tmp_path, monkeypatch)
    began = made.moved.ns / 1e9
    monkeypatch.setattr(fake, "time", SimpleNamespace(time=lambda: began))
    return made


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    """A clock that only the test and sleeping calls move."""
    made = MovedClock()
    monkeypatch.setattr(clock, "sleep", made.sleep)
    return made


@pytest.fixture
def desk(moved: MovedClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Opener]:
    """Opens snowflake desks on one host; what was opened is closed."""
    opener = Opener(moved, tmp_path, monkeypatch)
    yield opener
    for opened in opener.opened:
        opened.close()


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture(autouse=True)
def _collisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two processes with one machine number make the same numbers: in random order few of them would meet."""
    monkeypatch.setattr("issuer.strategies.snowflake.ticks.shuffle", lambda _: None)
