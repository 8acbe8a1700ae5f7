"""Clients that people have: redis-py of both kinds, redis-cli, redis-benchmark, and Node's from the npm registry."""

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
import redis.asyncio
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from issuer.doors.access import Access
from tests.audit import repeats
from tests.doors.http.doors import tokens
from tests.doors.languages.toolchains import run_node
from tests.doors.resp.conftest import Serve
from tests.doors.resp.serving import PATIENCE, Served
from tests.servers.absent import needed
from tests.servers.proxy import FaultProxy

PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3])


@pytest.fixture
def python(direct: Served) -> Iterator[Callable[..., redis.Redis]]:
    """Make clients of redis-py."""
    made: list[redis.Redis] = []

    def make(**options: object) -> redis.Redis:
        made.append(redis.Redis("127.0.0.1", direct.port, socket_timeout=PATIENCE, **options))  # type: ignore[arg-type]  # any option
        return made[-1]

    yield make
    for each in made:
        each.close()


@PROTOCOLS
def test_redis_py_draws(python: Callable[..., redis.Redis], protocol: int) -> None:
    client = python(protocol=protocol, client_name="shop")
    assert [client.incr("a"), client.incrby("a", 9), client.incr("a")] == [1, 10, 11]
    assert client.get("a") == b"11"
    assert client.get("b") is None
    assert (client.exists("a", "b"), client.type("a"), client.type("b")) == (1, b"string", b"none")
    assert (client.ping(), client.echo("x")) == (True, b"x")
    assert client.client_getname() in ("shop", b"shop")
    assert client.info()["role"] == "master"
    assert {"incr", "incrby"} <= {*client.command()}
    assert client.config_get("save") == {"save": ""}


def test_redis_py_pipelines_are_answered_in_order(python: Callable[..., redis.Redis]) -> None:
    pipeline = python().pipeline(transaction=False)
    for _ in range(500):
        pipeline.incr("a")
        pipeline.ping()
    assert pipeline.execute() == [each for number in range(1, 501) for each in (number, True)]


@pytest.mark.parametrize(
    ("words", "error", "code"),
    [
        (["INCR", "x"], redis.ResponseError, "NOTAG"),
        (["INCRBY", "a", "0"], redis.ResponseError, "INCRBY takes"),
        (["SUBSCRIBE", "a"], redis.ResponseError, "not supported here"),
        (["CLUSTER", "SLOTS"], redis.ResponseError, "not supported here"),
        (["SENTINEL", "get-master-addr-by-name", "a"], redis.ResponseError, "not supported here"),
        (["CLIENT", "TRACKING", "ON"], redis.ResponseError, "'CLIENT TRACKING' is not supported here"),
        (["SELECT", "1"], redis.ResponseError, "DB index"),
    ],
)
def test_redis_py_raises_what_is_refused(
    python: Callable[..., redis.Redis], words: list[str], error: type[Exception], code: str
) -> None:
    with pytest.raises(error, match=code):
        python().execute_command(*words)  # type: ignore[no-untyped-call]  # as redis-py has it


def test_redis_py_in_threads_shares_a_pool(direct: Served) -> None:
    pool = redis.ConnectionPool(host="127.0.0.1", port=direct.port, max_connections=8, socket_timeout=PATIENCE)

    def draw(_: int) -> list[int]:
        client = redis.Redis(connection_pool=pool)
        return [client.incr("a") for _ in range(100)]

    with ThreadPoolExecutor(8) as threads:
        numbers = [number for each in threads.map(draw, range(8)) for number in each]
    pool.disconnect()
    assert sorted(numbers) == list(range(1, 801))


@PROTOCOLS
async def test_redis_asyncio_draws(direct: Served, protocol: int) -> None:
    async with redis.asyncio.Redis(host="127.0.0.1", port=direct.port, protocol=protocol) as client:
        assert await client.incrby("a", 5) == 5
        assert sorted(await asyncio.gather(*(client.incr("a") for _ in range(50)))) == list(range(6, 56))


@pytest.mark.parametrize("open_", [True, False], ids=["open", "tokens"])
def test_a_client_of_tls_gets_an_error_and_does_not_wait(serve: Serve, tmp_path: Path, *, open_: bool) -> None:
    served = serve(access=Access(None) if open_ else tokens(tmp_path)[0], idle=4 * PATIENCE)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_a_retry_of_redis_py_costs_a_gap_and_never_a_repeat(direct: Served) -> None:
    with FaultProxy(("127.0.0.1", direct.port)) as proxy:
        retry = Retry(ConstantBackoff(0.01), 10)
        client = redis.Redis(*proxy.address, retry=retry, socket_timeout=PATIENCE)
        numbers = []
        for n in range(60):
            if n % 3 == 0:
                proxy.drop_replies(match=b"INCR", times=1)
            elif n % 3 == 1:
                proxy.drop_requests(match=b"INCR", times=1)
            numbers.append(client.incr("a"))
        client.close()
    assert repeats(numbers) == []
    assert numbers == sorted(numbers)
    assert numbers[-1] == 80  # those whose reply was lost, and no others


def test_redis_py_tells_a_wrong_token_from_a_refused_tag(serve: Serve, tmp_path: Path) -> None:
    access, made = tokens(tmp_path, shop=(["issue"], ["a"]))
    served = serve(access=access)
    served.create("a", order="trend")
    options = {"host": "127.0.0.1", "port": served.port, "socket_timeout": PATIENCE}
    for wrong in (None, "wrong"):
        with redis.Redis(password=wrong, **options) as client, pytest.raises(redis.AuthenticationError):  # type: ignore[arg-type]  # any option
            client.incr("a")
    for username in (None, "shop"):
        with redis.Redis(username=username, password=made["shop"], **options) as client:  # type: ignore[arg-type]  # the same
            assert client.incr("a") > 0
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.incr("b")


def cli(served: Served, *words: str, typed: str | None = None) -> str:
    program = needed("redis-cli")
    done = subprocess.run(
        [program, "-p", str(served.port), *words],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.stdout


@pytest.mark.live
def test_redis_cli_draws(direct: Served) -> None:
    assert cli(direct, "INCR", "a") == "1\n"
    assert cli(direct, "-3", "INCRBY", "a", "4") == "5\n"
    assert cli(direct, typed="INCR a\nGET a\nINCR nothing\nexists a\nfoo\n").splitlines() == [
        "6", "6", "NOTAG unknown tag 'nothing'; create it with `issuer create nothing`", "", "1",
        "ERR 'foo' is not supported here: use INCR, INCRBY, GET, EXISTS or TYPE", "",
    ]  # fmt: skip


@pytest.mark.live
def test_redis_benchmark_runs(direct: Served) -> None:
    direct.create("counter:__rand_int__", order="trend")
    program = needed("redis-benchmark")
    for pipeline in ("1", "16"):
        command = [program, "-p", str(direct.port), "-t", "incr", "-n", "2000", "-P", pipeline, "--csv"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
        assert '"INCR"' in done.stdout, done
        assert "WARN" not in done.stderr
    assert int(cli(direct, "GET", "counter:__rand_int__")) == 4000


IOREDIS = """
import Redis from "{package}";
const client = new Redis({ host: "127.0.0.1", port: Number(process.argv[2]), connectionName: "shop" });
const out = { first: await client.incr("a"), last: await client.incrby("a", 9) };
const replies = await client.pipeline().incr("a").get("a").incr("b").exec();
out.pipeline = replies.map(([error, value]) => (error ? error.message.split(" ")[0] : value));
out.many = await Promise.all(Array.from({ length: 200 }, () => client.incr("a")));
out.multi = (await client.multi().incr("a").incr("a").get("a").exec()).map(([, value]) => value);
out.missing = await client.get("b");
out.rounded = await client.incr("above");
console.log(JSON.stringify(out));
await client.quit();
"""

NODE_REDIS = """
import { createClient } from "{package}";
const url = `redis://127.0.0.1:${process.argv[2]}`;
const client = createClient({ url, name: "shop", RESP: Number(process.argv[3]) });
client.on("error", (error) => { throw error; });
await client.connect();
const out = { first: await client.incr("a"), last: await client.incrBy("a", 9) };
out.pipeline = [await client.incr("a"), await client.get("a")];
out.pipeline.push(await client.incr("b").catch((error) => error.message.split(" ")[0]));
out.many = await Promise.all(Array.from({ length: 200 }, () => client.incr("a")));
out.multi = await client.multi().incr("a").incr("a").get("a").exec();
out.missing = await client.get("b");
out.rounded = await client.incr("above");
console.log(JSON.stringify(out));
await client.close();
"""


@pytest.mark.live
@pytest.mark.parametrize(
    ("program", "package", "arguments"),
    [
        (IOREDIS, "ioredis5", []),
        (IOREDIS, "ioredis", []),
        *((NODE_REDIS, package, [protocol]) for package in ("redis5", "redis") for protocol in "23"),
    ],
    ids=["ioredis5", "ioredis", "node-redis5-resp2", "node-redis5-resp3", "node-redis-resp2", "node-redis-resp3"],
)
def test_node_draws(direct: Served, program: str, package: str, arguments: list[str]) -> None:
    direct.create("above", order="trend", start=2**53 + 1)
    told = json.loads(run_node(program.replace("{package}", package), str(direct.port), *arguments))
    assert told == {
        "first": 1,
        "last": 10,
        "pipeline": [11, "11", "NOTAG"],
        "many": list(range(12, 212)),
        "multi": [212, 213, "213"],
        "missing": None,
        "rounded": 2**53,  # as docs/guide/languages/node.md says, and what its options avoid
    }
