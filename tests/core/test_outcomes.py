"""What stores and scripts answer, as the errors that users see."""

import re

from issuer.core.error_mapping import refused, store_error
from issuer.errors import ConfigurationError, CorruptState, FenceError, ForeignHash, InvalidArgument, StoreUnavailable
from issuer.gateway.tag_scripts import GivenBack, Loaded, Opened
from issuer_persistence import errors

KEY = "issuer:{orders}"


ANSWERS: list[tuple[Exception, type[Exception], str]] = [
    (store_error(errors.StepsCrossed("orders", 500, 5), None), InvalidArgument, "min_step 500 is above max_step 5"),
    (store_error(errors.LeaseOnStrict("orders", 500), None), InvalidArgument, "lease 500: .* strict"),
    (store_error(errors.SchemeMismatch("orders"), None), ConfigurationError, "use its old scheme, or another"),
    (store_error(errors.VersionMoved("orders"), None), StoreUnavailable, "read the tag again and repeat the change"),
    (refused(GivenBack("notmaster"), "orders", KEY), FenceError, "configure the address of the master"),
    (refused(Loaded("corrupt"), "orders", KEY), CorruptState, KEY),
    (refused(Opened("otherstore", store="s9"), "orders", KEY, "s1"), ForeignHash, "s9.*s1"),
]


def test_each_answer_is_an_error_that_says_what_to_do() -> None:
    for error, kind, says in ANSWERS:
        assert (type(error), getattr(error, "tag", None)) == (kind, "orders")
        assert re.search(says, str(error)), error
        assert kind is not InvalidArgument or getattr(error, "value", None) == 500
