"""A busy machine fails no test of this room."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from issuer import Issuer
from issuer.care.doctor import examination
from issuer.values import Finding
from tests.care.findings import Check, Fires, Opened
from tests.colours import Connect


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""


@pytest.fixture
def opened(connect: Connect, tmp_path: Path) -> Iterator[Opened]:
    """Make issuers on one SQLite file unless a store is named; they are closed at the end."""
    with ExitStack() as ends:

        def make(url: str | None, **settings: Any) -> Issuer:
            settings = {"store": f"sqlite:///{tmp_path / 'ids.db'}", "scheduler": None, **settings}
            return ends.enter_context(connect(redis=url, **settings))

        yield make


@pytest.fixture
def fires(monkeypatch: pytest.MonkeyPatch) -> Fires:
    """Return the one finding of a check at a level; without the check there must be none."""

    def find(ids: Issuer, check: Check, level: str) -> Finding:
        seen = ids.doctor()
        with monkeypatch.context() as patch:
            patch.setattr(examination, "CHECKS", tuple(each for each in examination.CHECKS if each is not check))
            without = {each.check for each in ids.doctor() if each.level == level}
        [finding] = [each for each in seen if each.level == level and each.check not in without]
        return finding

    return find
