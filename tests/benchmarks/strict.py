"""Strict tags from threads: every number is drawn from Redis after its call began, the whole fence included."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import redis

from tests.benchmarks.figures import Bound, Figure
from tests.benchmarks.rounds import SLICES, Effort, alternate, baton, each, threads
from tests.benchmarks.servers import TAG, Wire, draw_command, drawing, pack, redis_server

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
        rounds = alternate(
            {
                "next": each(partial(ids.next, TAG), effort.calls // SLICES),
                "redis-py incr": each(partial(client.incr, "counter"), effort.calls // SLICES),
                "redis-py incrby": each(partial(client.incrby, "counter", 1), effort.calls // SLICES),
                "same script, bare socket + hiredis": each(partial(wire.ask, drawn), effort.calls // SLICES),
            },
            effort.rounds,
            "us",
            SLICES,
        )
    yield from rounds.figures()
    yield rounds.ratio("next", "redis-py incr", Bound(0.72, 0.60))
    yield rounds.ratio("next", "same script, bare socket + hiredis", Bound(1.4), "next / bare socket")


def many(effort: Effort) -> Iterator[Figure]:
    """next(tag), 32 threads on one issuer and on one redis-py client."""
    with redis_server() as server, drawing(server) as ids, redis.Redis.from_url(server.url) as client:
        rounds = alternate(
            {
                "next": threads(partial(ids.next, TAG), MANY, effort.seconds / SPELLS),
                "redis-py incr": threads(partial(client.incr, "counter"), MANY, effort.seconds / SPELLS),
                "a lock passed round, no number": baton(MANY, effort.seconds / SPELLS),
            },
            effort.rounds,
            "/s",
            SPELLS,
        )
    yield from rounds.figures()
    yield rounds.ratio("next", "redis-py incr", Bound(6, 10, least=True))
    yield rounds.ratio("next", "a lock passed round, no number", None, "next / a lock passed round")


def take(effort: Effort) -> Iterator[Figure]:
    """take(tag, 1000), strict: what one of the numbers costs."""
    with redis_server() as server, drawing(server) as ids, redis.Redis.from_url(server.url) as client:
        thousand = each(partial(ids.take, TAG, TAKEN), effort.calls // 4 // SLICES)
        rounds = alternate(
            {
                "take(1000), a number": lambda: thousand() / TAKEN,
                "redis-py incr": each(partial(client.incr, "counter"), effort.calls // SLICES),
            },
            effort.rounds,
            "us",
            SLICES,
        )
    yield from rounds.figures()
    yield rounds.ratio("take(1000), a number", "redis-py incr", Bound(0.002, 0.001), "a number / incr")
