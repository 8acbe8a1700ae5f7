"""A busy machine fails no test of this room."""

import pytest


@pytest.fixture(autouse=True)
def _unhurried(unhurried: None) -> None:
    """Run each test here unhurried."""
