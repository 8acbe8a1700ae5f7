"""What stores and scripts answer, as the errors that users see."""

import re

import pytest

from issuer.core.outcomes import refused, store_error
from issuer.errors import ConfigurationError, CorruptState, FenceError, ForeignHash, InvalidArgument, StoreUnavailable
from issuer.gateway import Drawn, GivenBack, Leased, Loaded, Opened
from issuer.persistence import errors

KEY = "issuer:{orders}"


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (store_error(errors.LeaseOnStrict("orders", 500), None), InvalidArgument, "lease 500: .* strict"),
        (store_error(errors.SchemeMismatch("orders"), None), ConfigurationError, "give it the same one, or another"),
        (store_error(errors.VersionMoved("orders"), None), StoreUnavailable, "read it and change it again"),
        (refused(Drawn("notmaster"), "orders", KEY), FenceError, "point the issuer at the master"),
        (refused(GivenBack("notmaster"), "orders", KEY), FenceError, "point the issuer at the master"),
        (refused(Loaded("corrupt"), "orders", KEY), CorruptState, KEY),
        (refused(Leased("corrupt"), "orders", KEY), CorruptState, KEY),
        (refused(Opened("otherstore", store="s9"), "orders", KEY, "s1"), ForeignHash, "s9.*s1"),
    ],
)
def test_each_answer_is_an_error_that_says_what_to_do(error: Exception, kind: type[Exception], says: str) -> None:
    assert type(error) is kind
    assert getattr(error, "tag", None) == "orders"
    assert re.search(says, str(error))
    assert kind is not InvalidArgument or getattr(error, "value", None) == 500
