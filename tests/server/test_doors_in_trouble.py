"""Both doors while their processes are killed and the Redis beneath loses its data, dies or stands still."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from time import monotonic

import httpx
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.audit import Draw, order_violations, repeats
from tests.e2e.conftest import Cli
from tests.faults.conftest import StartRedis
from tests.server.conftest import Serve, Served
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.live

CLIENTS = 4
LEASE, STEP = 50, 2000

#: What a client that draws through a door yields: the tag and what it got.
Drawing = Iterator[tuple[str, Draw]]


def over_resp(server: Served, seed: int, ended: Event) -> Drawing:
    chance = random.Random(seed)
    client = redis.Redis(port=server.port("redis"), socket_timeout=120, retry=Retry(NoBackoff(), 0))
    while not ended.is_set():
        tag, n, began = chance.choice(["strict", "trend"]), chance.choice([1, 1, 16, 100]), monotonic()
        with suppress(redis.ConnectionError):  # its worker was killed: what it sent may have drawn, and is a gap
            if n == 16:
                pipeline = client.pipeline(transaction=False)
                for _ in range(n):
                    pipeline.incr(tag)
                numbers = [each for each in pipeline.execute(raise_on_error=False) if isinstance(each, int)]
            else:
                last = client.incrby(tag, n)
                numbers = list(range(last - n + 1, last + 1))
            yield from ((tag, Draw(number, began, monotonic())) for number in numbers)


def over_http(server: Served, seed: int, ended: Event) -> Drawing:
    """A client that lost a reply asks again under the same key: then it gets the number that was drawn for it."""
    chance, client, keys = random.Random(seed), server.fresh(), 0
    while not ended.is_set():
        tag, keys, began = chance.choice(["strict", "trend"]), keys + 1, monotonic()
        headers = {"Idempotency-Key": f"{seed}-{keys}"} if chance.random() < 0.5 else {}
        while not ended.is_set():
            with suppress(httpx.TransportError):
                answer = client.post(f"/v1/tags/{tag}/next", headers=headers)
                if answer.status_code == 200:
                    yield tag, Draw(answer.json()["number"], began, monotonic())
                break
            if not headers:
                break


def kill_a_worker(server: Served, _: RedisServer) -> None:
    os.kill(server.children()[0], signal.SIGKILL)


def flush(_: Served, beneath: RedisServer) -> None:
    with beneath.client() as client:
        client.flushall()


def kill_redis(_: Served, beneath: RedisServer) -> None:
    beneath.kill()
    beneath.start()


def pause_redis(_: Served, beneath: RedisServer) -> None:
    beneath.pause()
    beneath.resume()


def test_no_number_comes_twice_or_out_of_order_through_either_door(
    serve: Serve, start_redis: StartRedis, store: str, cli: Cli
) -> None:
    beneath = start_redis()
    servers = {"ISSUER_REDIS_URL": beneath.url, "ISSUER_STORE_URL": store}
    cli("create", "strict", "--step", str(STEP), env=servers)
    cli("create", "trend", "--step", str(STEP), "--order", "trend", "--lease", str(LEASE), env=servers)
    server = serve("--resp", "127.0.0.1:0", "--workers", "2", env=servers)
    got: dict[str, list[Draw]] = {"strict": [], "trend": []}
    ended = Event()

    def draw(client: Callable[[Served, int, Event], Drawing], seed: int) -> None:
        for tag, each in client(server, seed, ended):
            got[tag].append(each)

    def goes_on() -> None:
        """Wait until 200 more numbers of each tag were drawn."""
        before = {tag: len(draws) for tag, draws in got.items()}
        until(lambda: all(len(got[tag]) >= seen + 200 for tag, seen in before.items()), message="numbers come")

    with ThreadPoolExecutor(2 * CLIENTS) as pool:
        clients = [pool.submit(draw, way, seed) for seed in range(CLIENTS) for way in (over_resp, over_http)]
        try:
            for strike in (kill_a_worker, flush, kill_redis, pause_redis, kill_a_worker, kill_redis):
                goes_on()
                strike(server, beneath)
            goes_on()
        finally:
            ended.set()
    for each in clients:
        each.result()
    assert server.stop() == 0
    for tag, draws in got.items():
        assert repeats(each.number for each in draws) == [], tag
    assert order_violations(got["strict"]) == []
    assert cli("verify", env=servers).code == 0
