"""What a store answers, as the error that users see."""

import pytest

from issuer.core.outcomes import store_error
from issuer.errors import ConfigurationError, InvalidArgument, StoreUnavailable
from persistence.errors import LeaseOnStrict, SchemeMismatch, StoreError, VersionMoved


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (LeaseOnStrict("orders", 500), InvalidArgument, "strict"),
        (SchemeMismatch("orders"), ConfigurationError, "give it the same one, or another name"),
        (VersionMoved("orders"), StoreUnavailable, "read it and change it again"),
    ],
)
def test_each_answer_of_a_store_is_an_error_that_says_what_to_do(
    answer: StoreError, kind: type[Exception], says: str
) -> None:
    error = store_error(answer, None)
    assert isinstance(error, kind)
    assert error.tag == "orders"
    assert says in str(error)
    assert not isinstance(error, InvalidArgument) or error.value == 500
