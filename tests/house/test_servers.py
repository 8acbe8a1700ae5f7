"""The proxy and the clock that other tests lean on do what they say.

What `make test` relies on besides, its own tests show: they would find no harm where a guard is taken out.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from tests.servers.clocked import ClockedServer, clocked_binary
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.soak


def test_a_clock_that_is_set_is_seen_at_once_by_scripts_too_and_nothing_else_changes(redis_server: RedisServer) -> None:
    with ClockedServer(clocked_binary(redis_server.binary)) as server, server.client() as client:
        reign = server.replication()["master_replid"]
        for ahead in (3600, -3600, 0):
            server.set_clock(ahead)
            seconds = int(client.eval("return redis.call('TIME')[1]", 0))
            assert abs(seconds - time.time() - ahead) < 20
        assert server.replication()["master_replid"] == reign
        left = [path for path in Path("/dev/shm").glob("*faketime*") if path.name.endswith(f"_{server.pid}")]
        assert left
    assert not [path for path in left if path.exists()]


@pytest.fixture
def caller(redis_proxy: FaultProxy, redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A client that reaches the primary server through the proxy, once."""
    with redis_server.client(socket_timeout=4) as client:
        client.connection_pool.connection_kwargs["port"] = redis_proxy.port
        assert client.ping()
        yield client


class TestFaultProxy:
    @pytest.mark.parametrize(
        ("fault", "error", "arrives"),
        [
            (FaultProxy.refuse, redis.ConnectionError, False),
            (FaultProxy.blackhole, redis.TimeoutError, False),
            (FaultProxy.drop_requests, redis.ConnectionError, False),
            (lambda proxy: proxy.drop_replies(b"INCR"), redis.ConnectionError, True),
            (lambda proxy: proxy.delay_replies(30.0, b"INCR"), redis.TimeoutError, True),
            (FaultProxy.hold, redis.TimeoutError, False),
        ],
        ids=["refuse", "blackhole", "drop_requests", "drop_replies", "delay_replies", "hold"],
    )
    def test_a_fault_strikes_connections_old_and_new_until_it_ends(
        self,
        caller: redis.Redis,
        redis_proxy: FaultProxy,
        redis_server: RedisServer,
        fault: Callable[[FaultProxy], None],
        error: type[Exception],
        *,
        arrives: bool,
    ) -> None:
        fault(redis_proxy)
        for _ in range(2):
            with pytest.raises(error):
                caller.incr("n")
        assert redis_server.client().get("n") == (b"2" if arrives else None)
        redis_proxy.pass_through()
        assert caller.incr("n") == (3 if arrives else 1)

    def test_a_held_request_is_answered_or_arrives_after_its_caller_has_given_up(
        self, caller: redis.Redis, redis_proxy: FaultProxy, redis_server: RedisServer
    ) -> None:
        redis_proxy.hold(match=b"late", times=1)
        with pytest.raises(redis.TimeoutError):
            caller.set("n", "late")
        assert caller.set("n", "early")
        assert [b"late" in request for request in redis_proxy.held] == [True]
        assert redis_proxy.release() == 1
        until(lambda: redis_server.client().get("n") == b"late")
        redis_proxy.hold(match=b"GET")
        with ThreadPoolExecutor(1) as pool, redis.Redis.from_url(redis_proxy.url, socket_timeout=60) as patient:
            answer = pool.submit(patient.get, "n")
            until(lambda: redis_proxy.held)
            redis_proxy.release()
            assert answer.result(60) == b"late"

    def test_a_duplicated_request_is_executed_twice_and_answered_once(
        self, caller: redis.Redis, redis_proxy: FaultProxy
    ) -> None:
        redis_proxy.duplicate(match=b"INCR", times=1)
        assert caller.incr("n") == 2
        assert caller.incr("n") == 3
