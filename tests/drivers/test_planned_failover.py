"""A master is made a replica while it is drawn from: by hand, or by a failover of which no Sentinel tells."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import issuer
from tests.audit import assert_increasing
from tests.colours import Connect
from tests.deadlines import ENDLESS, GRACE, refused
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("patient")

StartRedis = Callable[..., RedisServer]


def draws(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_strict_callers_wait_until_it_is_a_master_again_or_their_deadline_comes(
    connect: Connect, start_redis: StartRedis
) -> None:
    old, new = start_redis(), start_redis()
    with connect(redis=old.url, store="memory://", **ENDLESS) as ids, ThreadPoolExecutor(1) as pool:
        ids.create("a", step=100)
        numbers = ids.take("a", 20)
        old.replicaof(new)
        # The time may be over before anybody was asked.
        until(lambda: "no longer a master" in str(refused(ids, "a", 0.5)), 60, "it is told why")
        before = draws(old)
        call = pool.submit(ids.next, "a")
        until(lambda: draws(old) > before + 1, timeout=60, message="it has been refused, and asks again")
        old.promote()
        numbers += [call.result(60), *ids.take("a", 150)]
    assert_increasing(numbers)


@pytest.mark.colours("asyncio")
def test_a_server_that_never_was_the_master_is_a_mistake_and_told_at_once(
    connect: Connect, start_redis: StartRedis
) -> None:
    new = start_redis()
    new.replicaof(start_redis())
    with connect(redis=new.url, store="memory://", **ENDLESS) as ids:
        ids.create("a", step=100)
        began = time.monotonic()
        with pytest.raises(issuer.FenceError, match="configure the address of the master"):
            ids.next("a")
        assert time.monotonic() - began < GRACE
