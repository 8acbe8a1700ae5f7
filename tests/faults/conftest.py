"""A Redis server of a test's own, a proxy before it that can go wrong, and what most tests here share."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import pytest

import issuer
from issuer.engine import aio as async_engine
from issuer.engine import blocking as engine
from issuer_persistence.memory import MemoryStore
from tests.colours import Connect
from tests.schemes import Make, processes
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

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


def refused_by_store(ids: issuer.Issuer, tag: str, timeout: float) -> issuer.StoreUnavailable:
    """Draw in vain for want of the store, and return that error. In so little time Redis may not have answered either.

    Then it is asked again.
    """
    with pytest.raises(issuer.StoreUnavailable) as error:
        until(lambda: ids.next(tag, timeout=timeout), 60, ignoring=(issuer.RedisUnavailable,))
    return error.value


#: Fixtures that take the value of a combination.
INDIRECT = {"connect", "mode"}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give what doesn't say otherwise so much time that a machine that stands still fails none of it.

    A process that ends in the middle of an election is replaced after a second more than a request to the store may
    take: that has to be well below what a call may take.
    """
    monkeypatch.setenv("ISSUER_TIMEOUT", "40")
    monkeypatch.setenv("ISSUER_REDIS_TIMEOUT", "30")
    monkeypatch.setenv("ISSUER_STORE_TIMEOUT", "10")
    monkeypatch.setenv("ISSUER_INSIST", "60")
    for colour in (engine, async_engine):
        monkeypatch.setattr(colour, "CLOSING", 30.0)
