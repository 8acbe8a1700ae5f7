"""Calls that must end by their deadline, with a number or with an error."""

import time

import pytest

import issuer
from issuer import Issuer

#: What a call may take above its deadline on a busy machine, in seconds.
GRACE = 1.0


def closely(ids: Issuer, tag: str, deadline: float) -> int:
    """Draw, and return the number, which must come by the deadline."""
    began = time.monotonic()
    number = ids.next(tag, timeout=deadline)
    assert time.monotonic() - began < deadline + GRACE
    return number


def refused(ids: Issuer, tag: str, deadline: float) -> issuer.RedisUnavailable:
    """Draw in vain, and return the error, which must come by the deadline."""
    began = time.monotonic()
    with pytest.raises(issuer.RedisUnavailable) as error:
        ids.next(tag, timeout=deadline)
    assert time.monotonic() - began < deadline + GRACE
    return error.value
