"""What a store answers, as the error that users see."""

from __future__ import annotations

from issuer.core.outcomes import store_error
from issuer.errors import InvalidArgument
from persistence.errors import LeaseOnStrict


def test_a_lease_on_a_strict_tag_is_an_invalid_argument() -> None:
    error = store_error(LeaseOnStrict("orders", 500), "orders")
    assert isinstance(error, InvalidArgument)
    assert (error.tag, error.value) == ("orders", 500)
    assert "strict" in str(error)
