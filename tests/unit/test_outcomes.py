"""What a store answers, as the error that users see."""

from __future__ import annotations

from issuer.core.outcomes import store_error
from issuer.errors import ConfigurationError, InvalidArgument, StoreUnavailable
from persistence.errors import LeaseOnStrict, SchemeMismatch, VersionMoved


def test_a_lease_on_a_strict_tag_is_an_invalid_argument() -> None:
    error = store_error(LeaseOnStrict("orders", 500), "orders")
    assert isinstance(error, InvalidArgument)
    assert (error.tag, error.value) == ("orders", 500)
    assert "strict" in str(error)


def test_a_tag_made_again_in_another_way_is_told_what_to_do() -> None:
    error = store_error(SchemeMismatch("orders"), None)
    assert isinstance(error, ConfigurationError)
    assert error.tag == "orders"
    assert "give it the same one, or another name" in str(error)


def test_a_record_that_moved_is_to_be_read_again() -> None:
    error = store_error(VersionMoved("orders"), None)
    assert isinstance(error, StoreUnavailable)
    assert error.tag == "orders"
    assert "read it and change it again" in str(error)
