"""Calls that must end by their deadline, with an error."""

import time
from typing import Any

import pytest

import issuer
from issuer import Issuer
from tests.waiting import until

#: What a call may take above its deadline on a machine that is busy, or stands still for a while; in seconds.
GRACE = 10.0

#: Settings of an issuer: a call that misses its own deadline waits for a minute, be it for a reply.
ENDLESS: dict[str, Any] = {"timeout": 60, "redis_timeout": 60}


def refused(ids: Issuer, tag: str, deadline: float) -> issuer.RedisUnavailable:
    """Draw in vain, and return the error, which must come by the deadline and say when to try again."""
    began = time.monotonic()
    with pytest.raises(issuer.RedisUnavailable) as error:
        ids.next(tag, timeout=deadline)
    assert time.monotonic() - began < deadline + GRACE
    assert error.value.retry_after > 0
    return error.value


def refused_by_store(ids: issuer.Issuer, tag: str, timeout: float) -> issuer.StoreUnavailable:
    """Draw in vain for want of the store, and return that error. In so little time Redis may not have answered either.

    Then it is asked again.
    """
    with pytest.raises(issuer.StoreUnavailable) as error:
        until(lambda: ids.next(tag, timeout=timeout), 60, ignoring=(issuer.RedisUnavailable,))
    return error.value
