"""A Redis server of a test's own, a proxy before it that can go wrong, and what most tests here share."""

from collections.abc import Callable, Iterator

import pytest

from persistence.memory import MemoryStore
from tests.colours import Connect
from tests.schemes import Make, processes
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def server(start_redis: StartRedis) -> RedisServer:
    return start_redis()


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy((server.host, server.port)) as made:
        yield made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def make(connect: Connect, redis_url: str, store: MemoryStore) -> Iterator[Make]:
    """Make issuers on the session's Redis, each of which stands for a process of its own."""
    with processes(connect, redis=redis_url, store=store) as make:
        yield make


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls and round trips that don't say otherwise so long that a machine that stands still fails none."""
    monkeypatch.setenv("ISSUER_TIMEOUT", "40")
    monkeypatch.setenv("ISSUER_REDIS_TIMEOUT", "30")
