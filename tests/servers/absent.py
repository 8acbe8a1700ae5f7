"""What to do about a server that this machine lacks."""

import os
from typing import NoReturn

import pytest


def absent(service: str) -> NoReturn:
    """Skip on a laptop, fail in CI: there, silence would pass for proof."""
    if os.environ.get("CI"):
        pytest.fail(f"{service} is missing, and CI is set: install it", pytrace=False)
    pytest.skip(f"{service} is missing on this machine")
