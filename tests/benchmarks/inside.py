"""What a draw costs inside the server: Redis runs one script at a time, so this bounds all processes together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from tests.benchmarks.figures import Bound, Figure
from tests.benchmarks.rounds import Contender, Effort, alternate
from tests.benchmarks.servers import Wire, draw_command, drawing, pack, redis_server

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
        rounds = alternate(
            {
                "next": _counted(wire, draw_command(1), calls),
                "HMGET, compare, HINCRBY, HGET": _counted(wire, ("EVALSHA", sha, "1", "unfenced", "1"), calls),
            },
            effort.rounds,
            "us",
        )
    yield from rounds.figures()
    yield rounds.ratio("next", "HMGET, compare, HINCRBY, HGET", Bound(2.6, 1.7), "with / without the fence")


def _counted(wire: Wire, words: tuple[str, ...], calls: int) -> Contender:
    """Send it so many times over one connection: microseconds a call as the server itself counts them."""
    packed = pack(*words)

    def load() -> float:
        wire.command("CONFIG", "RESETSTAT")
        for _ in repeat(None, calls):
            wire.ask(packed)
        seen, usec = evalsha(wire.command("INFO", "commandstats").decode())
        if seen != calls:
            raise RuntimeError(f"the server counted {seen} calls instead of {calls}")
        return usec / seen

    return load


def evalsha(info: str) -> tuple[int, float]:
    """Return how often EVALSHA was called, and how many microseconds all of it took; from INFO commandstats."""
    for line in info.splitlines():
        name, _, rest = line.partition(":")
        if name == "cmdstat_evalsha":
            fields = dict(part.split("=", 1) for part in rest.split(","))
            return int(fields["calls"]), float(fields["usec"])
    return 0, 0.0
