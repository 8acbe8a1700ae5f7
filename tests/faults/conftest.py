"""A Redis server of a test's own, and a proxy before it that can go wrong."""

from collections.abc import Callable, Iterator

import pytest

from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer


@pytest.fixture
def server(start_redis: Callable[..., RedisServer]) -> RedisServer:
    return start_redis()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy((server.host, server.port)) as made:
        yield made
