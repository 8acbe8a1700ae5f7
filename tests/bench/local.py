"""Numbers that are in the process already: leases and streams, beside what else makes ids without a server.

What is drawn by `ids.next(tag)` is timed as a program writes it (rounds.written), and so is what stands beside it. By
names of their own (rounds.bare: `f(a)`, with `f = ids.next` and `f = next`) only `next` is faster: that has no bound.
SnowflakeGenerator returns None instead of a number above 4096 a millisecond; no machine known to us gets there.
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, islice
from time import perf_counter

from tests.bench.figures import Bound, Figure
from tests.bench.rounds import BEST_OF, Contender, Effort, alternate, bare, best, written
from tests.bench.servers import TAG, drawing, redis_server

#: Numbers a lease: fetching the next one is in the figure, once in so many.
LEASE = 1_000_000
#: Of a tag from which millions a second are drawn: a fifth of it is what a stream draws ahead at most.
STEP = 5_000_000
#: A number of a stream takes so little that so many times more of them are timed.
SWIFT = 4


def leased(effort: Effort) -> Iterator[Figure]:
    """next(tag) of a leased trend tag, one caller."""
    import ulid
    import uuid_utils
    from snowflake import SnowflakeGenerator

    calls = effort.fast
    with redis_server() as server, drawing(server, order="trend", lease=LEASE) as ids:
        contenders = {
            "next, leased": written(calls, "ids.next(tag)", ids=ids, tag=TAG),
            "next(itertools.count())": written(calls, "next(counter)", counter=count()),
            "uuid_utils.uuid7()": written(calls, "uuid_utils.uuid7()", uuid_utils=uuid_utils),
            "next(SnowflakeGenerator(1))": written(calls, "next(generator)", generator=SnowflakeGenerator(1)),
            "uuid.uuid4()": written(calls, "uuid.uuid4()", uuid=uuid),
            "ulid.ULID()": written(calls, "ulid.ULID()", ulid=ulid),
            "f = ids.next, f(tag)": bare(calls, ids.next, TAG),
            "f = next, f(count())": bare(calls, next, count()),
        }
        rounds = alternate(contenders, effort.rounds, "ns")
    yield from rounds.figures()
    yield rounds.ratio("next, leased", "next(itertools.count())", Bound(3.0, 2.2), "leased / count")
    yield rounds.ratio("f = ids.next, f(tag)", "f = next, f(count())", what="leased / count, by names of their own")
    yield rounds.ratio("next, leased", "uuid_utils.uuid7()", Bound(1.0), "leased / uuid7")
    yield rounds.ratio("next(SnowflakeGenerator(1))", "next, leased", Bound(2.5, least=True), "snowflake-id / leased")


def stream(effort: Effort) -> Iterator[Figure]:
    """stream(tag) beside itertools.count(), consumed the same way; as it comes, with no lease set."""
    calls = effort.fast * SWIFT
    numbers = calls // BEST_OF
    with redis_server() as server, drawing(server, order="trend", step=STEP) as ids:
        ours, counter = ids.stream(TAG), count()
        contenders = {
            "next(stream)": bare(calls, next, ours),
            "next(count())": bare(calls, next, counter),
            "for number in stream": _consumed(_loop, ours, numbers),
            "for number in count()": _consumed(_loop, counter, numbers),
            "deque(stream, maxlen=0)": _consumed(_drain, ours, numbers),
            "deque(count(), maxlen=0)": _consumed(_drain, counter, numbers),
        }
        rounds = alternate(contenders, effort.rounds, "ns")
    yield from rounds.figures()
    yield rounds.ratio("next(stream)", "next(count())", Bound(1.3, 1.1), "by next()")
    yield rounds.ratio("for number in stream", "for number in count()", Bound(1.3, 1.1), "by a for loop")
    yield rounds.ratio("deque(stream, maxlen=0)", "deque(count(), maxlen=0)", what="by C")


def _consumed(consume: Callable[[Iterable[int]], None], source: Iterable[int], numbers: int) -> Contender:
    """Let it consume so many: nanoseconds a number."""

    def load() -> float:
        started = perf_counter()
        consume(islice(source, numbers))
        return (perf_counter() - started) / numbers * 1e9

    return best(load)


def _loop(numbers: Iterable[int]) -> None:
    for _ in numbers:
        pass


_drain = deque[int](maxlen=0).extend
