"""Fixtures that all runs use."""

import pytest


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what the harness itself asks outlast a machine that stands still; its workers' times are their own."""
    for name in ("STORE_TIMEOUT", "REDIS_TIMEOUT"):
        monkeypatch.setenv(f"ISSUER_{name}", "20")
