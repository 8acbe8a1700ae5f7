"""Fixtures for pytest: an issuer for each test, without servers. pytest loads this module as a plugin.

It imports nothing of `issuer` until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from issuer import Issuer
    from issuer.testing import Double


@pytest.fixture
def issuer_double() -> Iterator[Double]:
    """Make a test double without tags. During the test, the default issuers are those of the double."""
    from issuer.testing import override

    with override() as double:
        yield double


@pytest.fixture
def issuer(issuer_double: Double) -> Issuer:
    """Return the Issuer of the test double. During the test, it is also the default issuer."""
    return issuer_double.ids
