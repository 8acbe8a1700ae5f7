from collections.abc import Iterator

import pytest

from tests.lua.hashes import TagHash
from tests.servers.redis import RedisServer


@pytest.fixture
def tag(any_redis: RedisServer) -> Iterator[TagHash]:
    """A tag's hash, not there yet, on each server of this machine in turn."""
    with any_redis.client(decode_responses=True, socket_timeout=30) as client:
        yield TagHash(client)
