"""Somebody has written into the field of the hash that says of what scheme its numbers are."""

from contextlib import suppress
from typing import Any

import pytest
import redis

import issuer
from persistence.memory import MemoryStore
from tests.colours import Connect
from tests.lua.hashes import GARBAGE

TAGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "trend": {"order": "trend"},
    "stride": {"stride": 2, "offset": 1},
    "daily": {"restart": "daily", "format": "{date:%Y%m%d}-{seq:06d}"},
}


@pytest.mark.covers("3.9")
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("garbage", [name for name, word in GARBAGE.items() if word])
def test_after_a_recovery_the_tag_goes_on(connect: Connect, redis_url: str, tag: str, garbage: str) -> None:
    with connect(redis=redis_url, store=MemoryStore()) as ids, redis.Redis.from_url(redis_url) as client:
        ids.create("a", **TAGS[tag])
        before = ids.next("a")
        client.hset("issuer:{a}", "scheme", GARBAGE[garbage])
        with suppress(issuer.CorruptState):  # or it is put right by then
            assert ids.next("a") > before
        ids.recover("a")
        assert ids.next("a") > before
