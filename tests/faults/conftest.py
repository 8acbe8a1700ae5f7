"""A Redis server of a test's own, a proxy before it that can go wrong, and what most tests here share."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

from issuer.persistence.memory import MemoryStore
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


def covering(names: str, chosen: Sequence[tuple[object, ...]], *values: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrize by each combination of these values: the chosen ones in `make test`, the others in `make soak`."""
    split = names.replace(" ", "").split(",")
    combinations = [
        each if each in chosen else pytest.param(*each, marks=pytest.mark.soak) for each in itertools.product(*values)
    ]
    return pytest.mark.parametrize(split, combinations, indirect=[name for name in split if name in INDIRECT])


#: Fixtures that take the value of a combination.
INDIRECT = {"connect", "mode"}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give calls and round trips that don't say otherwise so long that a machine that stands still fails none."""
    monkeypatch.setenv("ISSUER_TIMEOUT", "40")
    monkeypatch.setenv("ISSUER_REDIS_TIMEOUT", "30")
