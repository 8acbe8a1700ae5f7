"""Production: what a test double must not touch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import issuer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Settings of production in the environment, and default issuers that are open. Returns the path of the journal.

    After the test, the journal does not exist, and the default issuers have no tag.
    """
    folder = tmp_path_factory.mktemp("production")
    (folder / "issuer.toml").write_text('prefix = "leaked"\n')
    journal, store = folder / "journal", f"memory://{folder}"
    with (
        issuer.connect(redis="none", store=store, scheduler=None) as ids,
        issuer.set_default(ids),
        issuer.set_adefault(lambda: issuer.aconnect(redis="none", store=store, scheduler=None)),
    ):
        for name, value in {
            "CONFIG": str(folder / "issuer.toml"),
            "STORE_URL": "mongodb://production.invalid/issuer",
            "REDIS_URL": "redis://production.invalid",
            "JOURNAL": str(journal),
            "TIMEOUT": "0",
        }.items():
            monkeypatch.setenv(f"ISSUER_{name}", value)
        yield journal
        assert ids.tags() == []
    assert not journal.exists()
