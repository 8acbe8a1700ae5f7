"""What each way of persistence of Redis costs: the time to start again, and a draw."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from time import perf_counter

from issuer.gateway.keys import redis_key
from tests.bench.figures import Figure
from tests.bench.rounds import FULL, Effort, alternate, each
from tests.bench.servers import PREFIX, TAG, Wire, draw_command, drawing, pack, redis_server
from tests.servers.redis import RedisServer

#: Tags in Redis, and draws after that.
TAGS, DRAWS = 100_000, 1_000_000

#: Commands that are sent together.
TOGETHER = 1000

AOF = ("--appendonly", "yes", "--appendfsync")

#: The arguments of redis-server. A snapshot is made once, before the server is killed.
MODES = {
    "none": (),
    "snapshots": ("--save", "3600 1"),
    "AOF always": (*AOF, "always"),
    "AOF everysec": (*AOF, "everysec"),
    "AOF no": (*AOF, "no"),
    "AOF and snapshots": (*AOF, "everysec", "--save", "3600 1"),
    "AOF unrewritten": (*AOF, "everysec", "--auto-aof-rewrite-percentage", "0"),
}


def persistence(effort: Effort) -> Iterator[Figure]:
    """Ways of persistence of Redis: a draw, and the start after `kill -9` with many tags, and after many draws."""
    part = 1 if effort.rounds == FULL.rounds else 100
    tags, draws = TAGS // part, DRAWS // part
    draw = pack(*draw_command(1))
    with ExitStack() as ends:
        servers, wires = {}, {}
        for mode, arguments in MODES.items():
            server = servers[mode] = ends.enter_context(redis_server(*arguments))
            _fill(server, tags)
            yield Figure(f"start, many tags: {mode}", (_restarted(server),), "s")
            ends.enter_context(drawing(server))
            wires[mode] = ends.enter_context(Wire(server))
        # The disk answers some of these draws, in milliseconds.
        contenders = {mode: each(partial(wire.ask, draw), effort.calls // 20) for mode, wire in wires.items()}
        for figure in alternate(contenders, effort.rounds, "us").figures():
            yield replace(figure, what=f"a draw: {figure.what}")
        for mode, server in servers.items():
            _send(wires[mode], draw, draws)
            yield Figure(f"start, many draws: {mode}", (_restarted(server),), "s")
            files = [file for file in server.directory.rglob("*") if file.suffix in {".rdb", ".aof"}]
            yield Figure(f"files: {mode}", (sum(file.stat().st_size for file in files) / 1e6,), "MB")


def _fill(server: RedisServer, tags: int) -> None:
    """Make the hashes of so many tags: copies of one that was drawn from."""
    key = redis_key(PREFIX, TAG)
    with drawing(server), server.client() as client:
        fields = client.hgetall(key)
    with server.client() as client:
        client.delete(key)  # first: a kill may forget what came last
        pipeline = client.pipeline(transaction=False)
        for number in range(tags):
            pipeline.hset(redis_key(PREFIX, f"customer-{number}"), mapping=fields)
            if number % TOGETHER == 0:
                pipeline.execute()
        pipeline.execute()


def _send(wire: Wire, packed: bytes, times: int) -> None:
    for _ in range(times // TOGETHER):
        wire.ask(packed * TOGETHER)
        for _ in range(TOGETHER - 1):
            wire.ask(b"")


def _restarted(server: RedisServer) -> float:
    """Save if the server makes snapshots, and kill it. Return the seconds until it answers again."""
    if "--save" in server.args:
        with server.client() as client:
            client.save()
    server.kill()
    began = perf_counter()
    server.start()
    return perf_counter() - began
