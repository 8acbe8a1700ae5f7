"""The model of `issuer size`. It computes which load tags and numbers cause on Redis, store, network and processes.

`make bench ROWS=sizing` measures the costs. docs/operate/sizing.md shows the curves and the limits of the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from issuer.operations.registry import RESTING_MOST
from issuer_persistence.ledger import LEDGER_KEPT
from issuer_persistence.records import DEFAULT_MAX_STEP, DEFAULT_STEP, DEFAULT_TARGET, HIGHEST

DAY: Final = 86_400
#: Share of a core that a Redis master may use at the peak. The number of masters is chosen so that none uses more.
BUSY: Final = 0.5

#: Measured costs, with two digits. Machine: two shared cores (Intel Xeon), Redis 7.0.15 with an append-only file and a
#: replica, 16 busy connections, Python 3.11.7. The comment after each cost names its source: a curve in
#: tests/benchmarks/sizing.json, or a page of the documentation. The function `fitted` in tests/benchmarks/model.py
#: computes the costs from the curves.
COSTS: Final = {
    "redis_draw_us": 22,  # redis_us_by_tags
    "redis_segment_us": 64,  # redis_us_by_segment, without the draw
    "redis_look_us": 2,  # redis_us_by_look
    "redis_tag_bytes": 310,  # redis_bytes_by_tags
    "network_bytes": 150,  # received_by_take and sent_by_take
    "replicated_bytes": 55,  # replicated_by_take
    "process_draw_us": 27,  # process_us_by_processes
    "process_lease_us": 190,  # process_us_by_lease: the time for one lease
    "process_number_us": 0.084,  # process_us_by_lease: the additional time for each number of the lease
    "process_segment_us": 1600,  # process_us_by_segment
    "process_visit_us": 83,  # process_us_by_visit, without the draw
    "process_first_us": 720,  # process_us_by_visit: the additional time if the process had forgotten the tag
    "process_tag_bytes": 6400,  # process_bytes_by_tags, up to 1000 tags
    "forgotten_tag_bytes": 150,  # docs/explain/figures.md
    "sqlite_reservation_ms": 2.7,  # docs/explain/figures.md, on a disk
    "sqlite_read_us": 350,  # sqlite_us_by_read
    "sqlite_tag_bytes": 130,  # sqlite_bytes_by_tags
    "sqlite_entry_bytes": 220,  # sqlite_bytes_by_reservation
    "mongo_tag_bytes": 280,  # mongo_bytes_by_tags
    "mongo_entry_bytes": 220,  # mongo_bytes_by_segments
}


@dataclass(frozen=True, slots=True)
class DrawNeeds:
    """The needs of draws at the peak.

    `masters`: number of Redis masters. None if the load is too high even with one master for each tag: a tag cannot be
    divided among masters.
    """

    commands_per_second: float
    redis_cores: float
    masters: int | None
    most_per_second_of_a_tag: float
    network_bytes_per_second: float
    replicated_bytes_per_second: float
    process_cores: float


@dataclass(frozen=True, slots=True)
class Needs:
    """The needs of tags that are all equally busy.

    Rates are those at the peak. The bytes of the stores include the reservations of 90 days. `strict`: what draws need
    if each number is one command to Redis. `lease`: what draws need if each command draws a lease.
    """

    numbers_per_second: float
    step: int
    seconds_per_segment: float
    years: float
    reservations_per_second: float
    store_reads_per_second: float
    sqlite_share: float
    sqlite_bytes: float
    mongo_bytes: float
    redis_bytes: float
    process_bytes: float
    strict: DrawNeeds
    lease: DrawNeeds


def plan(tags: int, per_day: int, peak: int, lease: int, tags_per_process: int) -> Needs:
    """Return what tags and numbers need.

    Args:
        tags: Number of tags.
        per_day: Numbers per day, of all tags together.
        peak: Rate at the peak, divided by the mean rate.
        lease: Numbers per lease.
        tags_per_process: Number of tags that each process uses.
    """
    rate = per_day / DAY * peak
    step = fitting_step(rate / tags)
    reserved = rate / step
    entries = max(tags, per_day / fitting_step(rate / tags / peak) * LEDGER_KEPT / 1000 / DAY)
    # A visit is a use of a tag that was not used for a second or more. After it, the sweep (the background work of the
    # process) reads the tag's hash. If a process uses more tags than it keeps in memory, it has forgotten most of them
    # before their next visit.
    visits = min(rate, tags)
    forgotten = max(0.0, 1 - RESTING_MOST / tags_per_process)
    firsts = visits * forgotten
    leased = min(lease, step, rate / firsts) if firsts else min(lease, step)
    redis = reserved * COSTS["redis_segment_us"] + visits * COSTS["redis_look_us"]
    process = reserved * COSTS["process_segment_us"] + visits * COSTS["process_visit_us"]
    process += firsts * COSTS["process_first_us"]

    def draws(commands: float, most: int, each: float) -> DrawNeeds:
        cores = (commands * COSTS["redis_draw_us"] + redis) / 1e6
        masters = min(math.ceil(cores / BUSY), tags)
        return DrawNeeds(
            commands_per_second=commands,
            redis_cores=cores,
            masters=masters if cores <= masters else None,
            most_per_second_of_a_tag=most * 1e6 / COSTS["redis_draw_us"],
            network_bytes_per_second=commands * COSTS["network_bytes"],
            replicated_bytes_per_second=commands * COSTS["replicated_bytes"],
            process_cores=(rate * each + process) / 1e6,
        )

    return Needs(
        numbers_per_second=rate,
        step=step,
        seconds_per_segment=step * tags / rate,
        years=HIGHEST * tags / per_day / 365,
        reservations_per_second=reserved,
        store_reads_per_second=firsts,
        sqlite_share=(reserved * COSTS["sqlite_reservation_ms"] * 1e3 + firsts * COSTS["sqlite_read_us"]) / 1e6,
        sqlite_bytes=tags * COSTS["sqlite_tag_bytes"] + entries * COSTS["sqlite_entry_bytes"],
        mongo_bytes=tags * COSTS["mongo_tag_bytes"] + entries * COSTS["mongo_entry_bytes"],
        redis_bytes=tags * COSTS["redis_tag_bytes"],
        process_bytes=process_bytes(tags_per_process),
        # After a tag was forgotten, its first number takes one more command: a read of its hash. With leases, there is
        # one more: the return of the lease.
        strict=draws(rate + firsts, 1, COSTS["process_draw_us"]),
        lease=draws(rate / leased + 2 * firsts, lease, process_us(leased)),
    )


def fitting_step(rate: float) -> int:
    """Return the step that a tag with `step="auto"` adapts to. `rate`: numbers per second of the tag."""
    return min(DEFAULT_MAX_STEP, max(DEFAULT_STEP, math.ceil(rate * DEFAULT_TARGET)))


def process_bytes(tags: int) -> float:
    """Return the memory in bytes of a process that has used this many tags, and uses few of them at the same time."""
    held = min(tags, RESTING_MOST)
    return held * COSTS["process_tag_bytes"] + (tags - held) * COSTS["forgotten_tag_bytes"]


def process_us(numbers: float) -> float:
    """Return the CPU time of a process for one number, in us. `numbers`: numbers per lease."""
    return COSTS["process_lease_us"] / numbers + COSTS["process_number_us"]
