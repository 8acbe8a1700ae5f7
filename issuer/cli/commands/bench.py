"""`issuer bench`: measures how fast numbers are drawn on the user's servers."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from time import perf_counter_ns

import click
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.api.blocking import Issuer
from issuer.cli.exits import complain, json_option
from issuer.cli.options import Seconds, Whole
from issuer.cli.session import Session
from issuer.errors import IssuerError, RedisUnavailable
from issuer.settings import Settings
from issuer.terminal import Column, plain, say, screen_width, show, show_json, table
from issuer.times import lasting
from issuer_persistence.urls import mask

SECTION = "Tools"

#: Numbers per segment of the test tag. With such large segments, a draw almost never waits for a reservation in the
#: store.
STEP = 10_000_000
#: How many numbers one call of `take` draws.
TAKEN = 1000
#: Maximum number of reservations that are measured. The number is low, because each reservation leaves an entry in the
#: ledger.
RESERVATIONS = 20


@dataclass(frozen=True, slots=True)
class _Measured:
    """One result: a row of the table.

    `took`: durations of the calls, sorted, in ns. `rate`: numbers per second, or None. `each`: numbers per call.
    """

    name: str
    took: list[int]
    rate: float | None = None
    each: int = 1

    def at(self, part: float) -> float:
        """Return a quantile of the durations, in us per number. `part`: 0..1, for example 0.5 for the median."""
        place = max(0, math.ceil(part * len(self.took)) - 1)
        return self.took[place] / self.each / 1e3

    def row(self) -> tuple[str, ...]:
        rate = "" if self.rate is None else f"{self.rate:,.0f}/s"
        return self.name, rate, _time(self.at(0.5)), _time(self.at(0.99)), _time(self.at(1))

    def content(self) -> dict[str, float | None]:
        return {"rate": self.rate, "median_us": self.at(0.5), "p99_us": self.at(0.99), "max_us": self.at(1)}


@click.command(
    short_help="Measure the speed of numbers on your servers.",
    epilog="""\b
    Examples:
      issuer --redis redis://localhost --store mongodb://localhost bench
      issuer bench --seconds 10 --threads 32 --json
    """,
)
@click.option("--tag", metavar="NAME", default="bench", help="First part of the name of the test tag. Default: bench.")
@click.option(
    "--seconds",
    metavar="S",
    type=Seconds(0.1, 60),
    default=3.0,
    help="Duration of all measurements together, in seconds. Default: 3.",
)
@click.option("--threads", metavar="N", type=Whole(1, 256), default=8, help="Number of concurrent callers. Default: 8.")
@json_option("Print JSON; times are in microseconds.")
@click.pass_obj
def bench(session: Session, *, tag: str, seconds: float, threads: int, as_json: bool) -> None:
    """Measure how fast numbers are drawn on your own servers.

    The command creates a trend tag with a random name, draws from it as fast as possible, and deletes it. While the
    command runs, the load on Redis, the store and this machine is high. Other tags are not changed. The deleted tag
    leaves a few small records: its marked record and some dozens of ledger entries in the store, and one hash in Redis.
    """
    settings = session.settings()
    issuer = session.connect(scheduler="background", makes_store=True)
    direct = settings.redis_url == "none"
    share = seconds / (4 if direct else 5)
    measured: dict[str, _Measured | None] = {}
    measured["ping"] = None if direct else _ping(settings, share)
    scratch = f"{tag}-{secrets.token_hex(4)}"
    with _made(issuer, scratch):
        where = mask(settings.store_url) if direct else mask(settings.redis_url)
        say(f"drawing from {plain(scratch)} in {plain(where)} for {lasting(seconds)}; the tag is deleted at the end")
        measured |= _all(issuer, scratch, share, threads)
    if as_json:
        content = {"redis": mask(settings.redis_url), "store": mask(settings.store_url), "tag": scratch}
        figures = {name: each and each.content() for name, each in measured.items()}
        show_json(content | {"callers": threads} | figures)
        return
    columns = [Column("MEASURED", flexible=True), *(Column(name, "right") for name in ("RATE", "MEDIAN", "P99", "MAX"))]
    show(table(columns, [each.row() for each in measured.values() if each], screen_width()))
    if not direct:
        say(
            "`next` can be faster than PING: it polls for the reply, while redis-py sleeps until the reply arrives and "
            "wakes up later."
        )


def _all(issuer: Issuer, tag: str, share: float, threads: int) -> dict[str, _Measured]:
    draw = partial(issuer.next, tag)
    return {
        "next": _timed("next, 1 caller", draw, share),
        "threads": _timed(f"next, {threads} threads", draw, share, threads=threads),
        "take": _timed(f"take({TAKEN}), a number", partial(issuer.take, tag, TAKEN), share, each=TAKEN),
        "reservation": _timed("one reservation in the store", partial(issuer.reserve, tag, 1), share, few=True),
    }


@contextmanager
def _made(issuer: Issuer, tag: str) -> Iterator[None]:
    """Create the test tag. When the `with` block ends, also after an error, delete the tag."""
    # The test tag is a trend tag, because `reserve` is measured too and is not possible for a strict tag. A draw from
    # Redis takes equally long for a trend tag and a strict tag.
    issuer.create(tag, step=STEP, order="trend", description="made by issuer bench")
    try:
        issuer.next(tag)
        yield
    finally:
        try:
            issuer.delete(tag)
        except IssuerError:
            complain(f"{plain(tag)} could not be deleted: run `issuer delete {plain(tag)}` later")
            raise


def _ping(settings: Settings, seconds: float) -> _Measured:
    """Measure how long Redis takes to answer a PING. Raises RedisUnavailable."""
    timeout = settings.redis_timeout
    url = settings.redis_url
    try:
        with redis.Redis.from_url(
            url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0)
        ) as client:
            client.ping()
            return _timed("redis round trip (PING)", client.ping, seconds)
    except redis.RedisError as error:
        raise RedisUnavailable(f"redis {mask(url)}: {error}") from error


def _timed(
    name: str, call: Callable[[], object], seconds: float, *, threads: int = 1, each: int = 1, few: bool = False
) -> _Measured:
    """Measure a function: call it again and again for a time. Return the durations of the calls and the rate.

    Args:
        name: Name of the row in the table.
        call: The function, which draws numbers.
        seconds: How long to measure.
        threads: How many threads call the function.
        each: Numbers per call.
        few: If True, make at most RESERVATIONS calls in each thread, and measure no rate.
    """
    stop: list[bool] = []
    with ThreadPoolExecutor(threads) as pool:
        try:
            done = list(pool.map(partial(_calls, call, stop, few=few), repeat(seconds, threads)))
        finally:
            # Make the threads of the pool stop, also after Ctrl-C, which interrupts only this thread.
            stop.append(True)
    took = sorted(one for calls, _rate in done for one in calls)
    return _Measured(name, took, None if few else sum(rate for _calls, rate in done) * each, each)


def _calls(call: Callable[[], object], stop: list[bool], seconds: float, *, few: bool) -> tuple[list[int], float]:
    # Do not measure the first call, because it may have to connect.
    call()
    took: list[int] = []
    started = perf_counter_ns()
    end = started + int(seconds * 1e9)
    after = started
    while after < end and not stop and not (few and len(took) == RESERVATIONS):
        before = perf_counter_ns()
        call()
        after = perf_counter_ns()
        took.append(after - before)
    return took, len(took) / max(1, after - started) * 1e9


def _time(microseconds: float) -> str:
    """Return a duration as text with three digits and a unit."""
    for unit, size in (("s", 1e6), ("ms", 1e3), ("us", 1.0)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds * 1e3:.3g} ns"
