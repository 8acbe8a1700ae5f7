"""Strict tags from threads: every number is drawn from Redis after its call began, the whole fence included.

And what a draw costs inside the server: Redis runs one script at a time, so this bounds all processes together.
"""

from collections.abc import Iterator
from functools import partial
from itertools import repeat

import redis

from tests.bench.figures import Bound, Figure
from tests.bench.rounds import SLICES, Contender, Effort, alternate, baton, each, threads
from tests.bench.servers import TAG, Wire, draw_command, drawing, pack, redis_server
from tests.servers.redis import RedisServer

#: The draw as one would write it without the fence: nothing is said of another reign, of the mark, of a second buffer.
UNFENCED = """
local hash = redis.call('HMGET', KEYS[1], 'cur', 'max')
local cur, max = hash[1], hash[2]
if not cur then return {'empty'} end
if #cur > #max or (#cur == #max and cur >= max) then return {'exhausted'} end
redis.call('HINCRBY', KEYS[1], 'cur', ARGV[1])
return {'ok', cur, redis.call('HGET', KEYS[1], 'cur')}
"""


def inside(effort: Effort) -> Iterator[Figure]:
    """A draw in the server, by INFO commandstats: with and without the fence."""
    calls = effort.calls * 3
    with redis_server() as server, drawing(server), Wire(server) as wire:
        wire.command("HSET", "unfenced", "cur", "0", "max", "1000000000000")
        sha = wire.command("SCRIPT", "LOAD", UNFENCED).decode()
        contenders = {
            "next": _counted(server, wire, draw_command(1), calls),
            "HMGET, compare, HINCRBY, HGET": _counted(server, wire, ("EVALSHA", sha, "1", "unfenced", "1"), calls),
        }
        rounds = alternate(contenders, effort.rounds, "us")
    yield from rounds.figures()
    yield rounds.ratio("next", "HMGET, compare, HINCRBY, HGET", Bound(2.6, 1.7), "with / without the fence")


def _counted(server: RedisServer, wire: Wire, words: tuple[str, ...], calls: int) -> Contender:
    """Send it so many times over one connection: microseconds a call as the server itself counts them."""
    packed = pack(*words)

    def load() -> float:
        wire.command("CONFIG", "RESETSTAT")
        for _ in repeat(None, calls):
            wire.ask(packed)
        seen, usec = evalsha(server)
        if seen != calls:
            raise RuntimeError(f"the server counted {seen} calls instead of {calls}")
        return usec / seen

    return load


def evalsha(server: RedisServer) -> tuple[int, float]:
    """Return how often EVALSHA was called, and how many microseconds all of it took."""
    with server.client() as client:
        found = client.info("commandstats")["cmdstat_evalsha"]
    return int(found["calls"]), float(found["usec"])


MANY = 32
TAKEN = 1000
#: Slices of a round of threads, which need a while to get going.
SPELLS = 3


def one(effort: Effort) -> Iterator[Figure]:
    """next(tag), one caller, TCP on loopback."""
    with (
        redis_server() as server,
        drawing(server) as ids,
        redis.Redis.from_url(server.url) as client,
        Wire(server) as wire,
    ):
        drawn = pack(*draw_command(1))
        contenders = {
            "next": each(partial(ids.next, TAG), effort.calls // SLICES),
            "redis-py incr": each(partial(client.incr, "counter"), effort.calls // SLICES),
            "redis-py incrby": each(partial(client.incrby, "counter", 1), effort.calls // SLICES),
            "same script, bare socket + hiredis": each(partial(wire.ask, drawn), effort.calls // SLICES),
        }
        rounds = alternate(contenders, effort.rounds, "us", SLICES)
    yield from rounds.figures()
    yield rounds.ratio("next", "redis-py incr", Bound(0.72, 0.60))
    yield rounds.ratio("next", "same script, bare socket + hiredis", Bound(1.4), "next / bare socket")


def many(effort: Effort) -> Iterator[Figure]:
    """next(tag), 32 threads on one issuer and on one redis-py client."""
    with redis_server() as server, drawing(server) as ids, redis.Redis.from_url(server.url) as client:
        contenders = {
            "next": threads(partial(ids.next, TAG), MANY, effort.seconds / SPELLS),
            "redis-py incr": threads(partial(client.incr, "counter"), MANY, effort.seconds / SPELLS),
            "a lock passed round, no number": baton(MANY, effort.seconds / SPELLS),
        }
        rounds = alternate(contenders, effort.rounds, "/s", SPELLS)
    yield from rounds.figures()
    yield rounds.ratio("next", "redis-py incr", Bound(6, 10, least=True))
    yield rounds.ratio("next", "a lock passed round, no number", None, "next / a lock passed round")


def take(effort: Effort) -> Iterator[Figure]:
    """take(tag, 1000), strict: what one of the numbers costs."""
    with redis_server() as server, drawing(server) as ids, redis.Redis.from_url(server.url) as client:
        thousand = each(partial(ids.take, TAG, TAKEN), effort.calls // 4 // SLICES)
        contenders = {
            "take(1000), a number": lambda: thousand() / TAKEN,
            "redis-py incr": each(partial(client.incr, "counter"), effort.calls // SLICES),
        }
        rounds = alternate(contenders, effort.rounds, "us", SLICES)
    yield from rounds.figures()
    yield rounds.ratio("take(1000), a number", "redis-py incr", Bound(0.002, 0.001), "a number / incr")
