"""A master is made a replica while it is drawn from: by hand, or by a failover of which no Sentinel tells."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import issuer
from issuer import Issuer
from issuer.persistence.memory import MemoryStore
from tests.audit import assert_increasing, repeats
from tests.colours import Connect
from tests.deadlines import ENDLESS, GRACE, refused
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

StartRedis = Callable[..., RedisServer]


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


@pytest.fixture
def to(connect: Connect) -> Callable[..., Issuer]:
    """What connects to a server; a call that waits where it shouldn't waits for a minute."""
    return partial(connect, store=MemoryStore(), **ENDLESS)


def fail_over(old: RedisServer, new: RedisServer) -> None:
    new.promote()
    old.replicaof(new)


def draws(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_strict_callers_wait_until_it_is_a_master_again(
    to: Callable[..., Issuer], old: RedisServer, new: RedisServer
) -> None:
    with to(redis=old.url) as ids, ThreadPoolExecutor(1) as pool:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        fail_over(old, new)
        before = draws(old)
        call = pool.submit(ids.next, "a")
        until(lambda: draws(old) > before + 1, message="it has been refused, and asks again")
        old.promote()
        numbers += [call.result(60), *ids.take("a", 150)]
    assert_increasing(numbers)


@pytest.mark.colours("blocking")
def test_strict_callers_follow_an_address_that_leads_to_the_new_master(
    to: Callable[..., Issuer], old: RedisServer, new: RedisServer, address: FaultProxy
) -> None:
    with to(redis=address.url) as ids:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        fail_over(old, new)
        # As a name or a virtual address is moved: who is connected stays where he is.
        address.upstream = new.address
        numbers += ids.take("a", 150)
    assert_increasing(numbers)
    assert new.client().exists("issuer:{a}")


@pytest.mark.colours("asyncio")
def test_strict_callers_are_refused_at_their_deadline_by_one_that_stays_a_replica(
    to: Callable[..., Issuer], old: RedisServer, new: RedisServer
) -> None:
    with to(redis=old.url) as ids:
        ids.create("a", step=100)
        ids.next("a")
        fail_over(old, new)
        began = time.monotonic()
        error = refused(ids, "a", 0.5)
        assert time.monotonic() - began > 0.4
        assert "no master any more" in str(error)


@pytest.mark.colours("blocking")
def test_trend_tags_go_on_without_it_and_come_back(
    to: Callable[..., Issuer], old: RedisServer, new: RedisServer
) -> None:
    with to(redis=old.url) as ids:
        ids.create("t", step=100, order="trend")
        numbers = ids.take("t", 20)
        fail_over(old, new)
        began = time.monotonic()
        numbers += [ids.next("t") for _ in range(150)]
        assert time.monotonic() - began < GRACE
        old.promote()

        def rejoined() -> bool:
            numbers.append(ids.next("t"))
            state = ids.inspect("t").redis
            return state is not None and state.cur == numbers[-1]

        until(rejoined, message="it draws from Redis again")
        numbers += ids.take("t", 150)
    assert repeats(numbers) == []


@pytest.mark.colours("asyncio")
@pytest.mark.usefixtures("old")
def test_a_server_that_never_was_the_master_is_a_mistake_and_told_at_once(
    to: Callable[..., Issuer], new: RedisServer
) -> None:
    with to(redis=new.url) as ids:
        ids.create("a", step=100)
        began = time.monotonic()
        with pytest.raises(issuer.FenceError, match="point the issuer at the master"):
            ids.next("a")
        assert time.monotonic() - began < GRACE
