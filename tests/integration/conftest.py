"""Fixtures for the tests of `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from issuer import Finding, Issuer
from issuer.core.doctor import diagnosis
from issuer.core.doctor.diagnosis import Check
from tests.colours import Connect
from tests.integration.examining import Fires, Opened, at


@pytest.fixture
def opened(connect: Connect, tmp_path: Path) -> Iterator[Opened]:
    """Make issuers on one SQLite file unless a store is named; they are closed at the end."""
    made: list[Issuer] = []

    def make(url: str | None, **settings: Any) -> Issuer:
        settings = {"store": f"sqlite:///{tmp_path / 'ids.db'}", "scheduler": None, **settings}
        made.append(connect(redis=url, **settings))
        return made[-1]

    yield make
    for each in made:
        each.__exit__(None, None, None)


@pytest.fixture
def fires(monkeypatch: pytest.MonkeyPatch) -> Fires:
    """Return the one finding of a check at a level; without the check there must be none."""

    def find(ids: Issuer, check: Check, level: str) -> Finding:
        seen = ids.doctor()
        with monkeypatch.context() as patch:
            patch.setattr(diagnosis, "CHECKS", tuple(each for each in diagnosis.CHECKS if each is not check))
            without = at(level, ids.doctor())
        [finding] = [each for each in seen if each.level == level and each.check not in without]
        return finding

    return find
