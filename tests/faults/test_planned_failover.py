"""A master is made a replica while it is drawn from: by hand, or by a failover of which no Sentinel tells."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

import issuer
from persistence.memory import MemoryStore
from tests.audit import repeats
from tests.colours import Connect
from tests.deadlines import closely, refused
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

StartRedis = Callable[..., RedisServer]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def old(start_redis: StartRedis) -> RedisServer:
    return start_redis()


@pytest.fixture
def new(start_redis: StartRedis, old: RedisServer) -> RedisServer:
    server = start_redis()
    server.replicaof(old)
    return server


@pytest.fixture
def address(old: RedisServer) -> Iterator[FaultProxy]:
    """The name under which the master is reached."""
    with FaultProxy((old.host, old.port)) as proxy:
        yield proxy


def fail_over(old: RedisServer, new: RedisServer) -> None:
    new.promote()
    old.replicaof(new)


def test_strict_callers_wait_until_it_is_a_master_again(
    connect: Connect, old: RedisServer, new: RedisServer, store: MemoryStore
) -> None:
    with connect(redis=old.url, store=store) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        fail_over(old, new)
        again = threading.Timer(1, old.promote)
        again.start()
        numbers += [closely(ids, "a", 5), *ids.take("a", 150)]
        again.join()
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)


def test_strict_callers_follow_an_address_that_leads_to_the_new_master(
    connect: Connect, old: RedisServer, new: RedisServer, address: FaultProxy, store: MemoryStore
) -> None:
    with connect(redis=address.url, store=store) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        fail_over(old, new)
        # As a name or a virtual address is moved: who is connected stays where he is.
        address.upstream = (new.host, new.port)
        numbers += [closely(ids, "a", 5), *ids.take("a", 150)]
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)
    assert new.client().exists("issuer:{a}")


def test_strict_callers_are_refused_at_their_deadline_by_one_that_stays_a_replica(
    connect: Connect, old: RedisServer, new: RedisServer, store: MemoryStore
) -> None:
    with connect(redis=old.url, store=store) as ids:
        ids.create("a", step=100)
        ids.next("a")
        fail_over(old, new)
        began = time.monotonic()
        error = refused(ids, "a", 0.5)
        assert time.monotonic() - began > 0.4
        assert "no master any more" in str(error)
        assert error.retry_after > 0


def test_trend_tags_go_on_without_it_and_come_back(
    connect: Connect, old: RedisServer, new: RedisServer, store: MemoryStore
) -> None:
    with connect(redis=old.url, store=store) as ids:
        ids.create("t", step=100, order="trend")
        numbers = ids.take("t", 20)
        fail_over(old, new)
        began = time.monotonic()
        numbers += [ids.next("t") for _ in range(150)]
        assert time.monotonic() - began < 3  # a strict tag would wait for 5
        old.promote()

        def rejoined() -> bool:
            numbers.append(ids.next("t"))
            state = ids.inspect("t").redis
            return state is not None and state.cur == numbers[-1]

        until(rejoined, 10, "it draws from Redis again")
        numbers += ids.take("t", 150)
    assert repeats(numbers) == []


@pytest.mark.usefixtures("old")
def test_a_server_that_never_was_the_master_is_a_mistake_and_told_at_once(
    connect: Connect, new: RedisServer, store: MemoryStore
) -> None:
    with connect(redis=new.url, store=store) as ids:
        ids.create("a", step=100)
        began = time.monotonic()
        with pytest.raises(issuer.FenceError, match="point the issuer at the master"):
            ids.next("a")
        assert time.monotonic() - began < 2
