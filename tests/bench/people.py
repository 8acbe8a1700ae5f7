"""Numbers as people want them: what scrambling, texts, plugins and snowflakes cost."""

from collections.abc import Callable, Iterator
from datetime import date
from itertools import count
from types import MethodType
from typing import Any

import issuer
from issuer import Issuer
from issuer.numbers.scrambling import KeySpan, Scrambling, fingerprint
from issuer.numbers.template import Template
from issuer.plugins import Plugin
from tests.bench.figures import Bound, Figure
from tests.bench.local import LEASE
from tests.bench.rounds import Effort, alternate, bare
from tests.bench.servers import TAG, drawing, redis_server

KEY = b"a key for measuring"

#: Of the numbers that a loop without I/O draws, so many are scrambled, formatted or go through a plugin.
PART = 10


def people(effort: Effort) -> Iterator[Figure]:
    """Scrambled numbers, their texts, plugins and snowflakes."""
    calls = effort.fast // PART
    scrambling = Scrambling([KeySpan(1, "k", fingerprint(KEY))], {"k": KEY})
    template = Template("BIZ{date:%y%m%d}-{seq:012d}{check}")
    long, short, shown = count(10**17), count(10**5), count(1)
    day = date(2026, 11, 21)
    contenders = {
        "scramble, 18 digits": bare(calls, _each(scrambling.scramble, long)),
        "scramble, 6 digits": bare(calls, _each(scrambling.scramble, short)),
        "format": bare(calls, lambda: template.format(seq=next(shown), date=day)),
    }
    rounds = alternate(contenders, effort.rounds, "ns")
    yield rounds.figure("scramble, 18 digits", Bound(12_000))
    yield rounds.figure("scramble, 6 digits", Bound(12_000))
    yield rounds.figure("format", Bound(3_000))
    yield from _plugins(effort)
    yield from _snowflakes(effort)


def _each(change: Callable[[int], int], numbers: Iterator[int]) -> Callable[[], int]:
    return lambda: change(next(numbers))


def _without_plugins(  # noqa: PLR0917 - as many as `next` has
    self: Issuer,
    tag: str,
    n: None = None,
    timeout: Any = None,
    key: Any = None,
    ttl: float = 1.0,
    shard_key: Any = None,
) -> int:
    """`Issuer.next`, had plugins never been thought of: what it looks at, and what it asks for."""
    if n is None and timeout is None and key is None and shard_key is None:  # type: ignore[redundant-expr]
        try:
            return next(self._open[tag])
        except (KeyError, StopIteration, TypeError):
            pass
    return self.next(tag, timeout=timeout, key=key, ttl=ttl, shard_key=shard_key)


def _plugins(effort: Effort) -> Iterator[Figure]:
    with redis_server() as server, drawing(server, order="trend", lease=LEASE) as ids:
        contenders = {
            "leased next, no plugin registered": bare(effort.fast, ids.next, TAG),
            "the same without a thought of plugins": bare(effort.fast, MethodType(_without_plugins, ids), TAG),
        }
        rounds = alternate(contenders, effort.rounds, "ns")
    yield from rounds.figures()
    yield rounds.ratio(
        "leased next, no plugin registered", "the same without a thought of plugins", Bound(1.02), "not registered"
    )
    with (
        redis_server() as server,
        issuer.connect(redis=server.url, store="memory://", lease=LEASE, plugins=[Plugin()]) as ids,
    ):
        ids.create(TAG, order="trend", step=10 * LEASE)
        ids.next(TAG)
        yield alternate(
            {"leased next, one plugin": bare(effort.fast // PART, ids.next, TAG)}, effort.rounds, "ns"
        ).figure("leased next, one plugin")


def _snowflakes(effort: Effort) -> Iterator[Figure]:
    from snowflake import SnowflakeGenerator

    with redis_server() as server, issuer.connect(redis=server.url, store="memory://") as ids:
        # As snowflake-id has it, a millisecond would be full: 6 + 16 bits let the loop run.
        ids.create(TAG, strategy="snowflake", options={"machine_bits": 6, "sequence_bits": 16})
        ids.next(TAG)
        contenders = {
            "next, snowflake": bare(effort.fast, ids.next, TAG),
            "next(SnowflakeGenerator(1))": bare(effort.fast, next, SnowflakeGenerator(1)),
        }
        rounds = alternate(contenders, effort.rounds, "ns")
    yield from rounds.figures()
    yield rounds.ratio("next, snowflake", "next(SnowflakeGenerator(1))", Bound(2.0), "snowflake / snowflake-id")
