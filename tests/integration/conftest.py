"""Fixtures that tests of several modules use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from issuer import Issuer
from issuer_persistence.memory import MemoryStore
from tests.colours import COLOURS, Connect
from tests.contract.conftest import mongo_bench_at
from tests.integration.days import VIENNA, Make
from tests.schemes import KEYS
from tests.servers.fake import FencedFakeServer


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a machine that is busy, or frozen for seconds, make no call late: what is not given a time has plenty."""
    for name, seconds in (("TIMEOUT", "60"), ("STORE_TIMEOUT", "20"), ("REDIS_TIMEOUT", "20"), ("INSIST", "60")):
        monkeypatch.setenv(f"ISSUER_{name}", seconds)
    # How long a close gives back, and a first draw waits for a store that another thread has locked.
    for module, name in (
        ("engine.blocking", "CLOSING"),
        ("engine.aio", "CLOSING"),
        ("core.supply.supply", "HURRY"),
        ("core.supply.mode", "PATIENCE"),
        ("core.supply.mode", "PATIENCE_ALONE"),
    ):
        monkeypatch.setattr(f"issuer.{module}.{name}", 40.0)


@pytest.fixture(params=["sqlite", "mongodb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store of each kind that several processes may share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ids.db'}"
    else:
        for bench in mongo_bench_at(request.getfixturevalue("mongo_url")):
            yield bench.url


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def make(connect: Connect, fake_server: FencedFakeServer, store: MemoryStore) -> Iterator[Make]:
    """Make issuers on the fake server, each of which stands for a process of its own."""
    client = fake_server.client if connect is COLOURS["blocking"] else fake_server.async_client
    with ExitStack() as ends:

        def one(**settings: Any) -> Issuer:
            common = {"redis": client(), "store": store, "scheduler": None, "timeout": 20, "keys": KEYS}
            return ends.enter_context(connect(**{**common, **settings}))

        yield one


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Stop the fake server's clock at a moment in Vienna."""

    def set_to(moment: str) -> None:
        there = datetime.fromisoformat(moment).replace(tzinfo=VIENNA)
        monkeypatch.setattr("tests.servers.fake.time", SimpleNamespace(time=there.timestamp))

    return set_to
