"""`issuer size`."""

from __future__ import annotations

from dataclasses import asdict

import click

from issuer.cli.exits import json_option
from issuer.cli.options import Whole
from issuer.cli.sizing import BUSY, DrawNeeds, plan
from issuer.terminal import Column, say, screen_width, show, show_json, table
from issuer.times import lasting

SECTION = "Tools"

#: Number of masters of the smallest Redis Cluster that survives the loss of a master.
CLUSTER = 3
#: A duration of more years than this is shown without the number of years.
LONG = 1e6


@click.command(
    short_help="Compute the servers that tags and numbers need.",
    epilog="""\b
    Examples:
      issuer size --tags 1000000 --per-day 1000000000
      issuer size --tags 1 --per-day 1000000000 --peak 10 --lease 100 --json
    """,
)
@click.option("--tags", metavar="N", type=Whole(1, 10**9), required=True, help="Count of tags.")
@click.option("--per-day", metavar="N", type=Whole(1, 10**15), required=True, help="Numbers per day, of all tags.")
@click.option("--peak", metavar="N", type=Whole(1, 1000), default=3, help="Rate at the peak / mean rate. Default: 3.")
@click.option("--lease", metavar="N", type=Whole(1, 10**6), default=1000, help="Numbers per lease. Default: 1000.")
@click.option("--tags-per-process", metavar="N", type=Whole(1), help="Tags that a process uses. Default: all of them.")
@json_option("Print JSON; sizes are in bytes.")
def size(*, tags: int, per_day: int, peak: int, lease: int, tags_per_process: int | None, as_json: bool) -> None:
    """Compute which servers that many tags, and numbers per day, need.

    The command calls no server. It computes with costs that were measured on one machine. The page "Sizing" of the
    documentation lists them, and the limits of the computation. All tags are assumed to be equally busy.

    Column STRICT: each number is one command to Redis. Column LEASE: a command draws a lease, or the numbers of one
    call of `take`.

    A process keeps 5000 tags in memory that it does not use at the moment. If it uses more tags, it forgets most of
    them between two uses: it returns their leases, and reads their records in the store again.

    Disk and data of the stores: all tags, and the reservations of 90 days.
    """
    used = min(tags_per_process or tags, tags)
    found = plan(tags, per_day, peak, lease, used)
    if as_json:
        show_json({"tags": tags, "per_day": per_day, "peak": peak, "tags_per_process": used, **asdict(found)})
        return
    both = (found.strict, found.lease)
    rows = [
        ("commands per second", *(_number(each.commands_per_second) for each in both)),
        ("CPU of Redis, cores", *(_number(each.redis_cores) for each in both)),
        ("Redis masters", *(_masters(each) for each in both)),
        ("one tag, at most", *(f"{_number(each.most_per_second_of_a_tag)}/s" for each in both)),
        ("network of Redis", *(f"{_bytes(each.network_bytes_per_second)}/s" for each in both)),
        ("to each replica, to the AOF", *(f"{_bytes(each.replicated_bytes_per_second)}/s" for each in both)),
        ("CPU of processes, cores", *(_number(each.process_cores) for each in both)),
    ]
    slow = found.sqlite_share > BUSY
    rest = {
        "numbers per second": f"{_number(found.numbers_per_second)} at the peak, {peak} x the mean",
        "step of a tag": f"{found.step:,}: a segment lasts {lasting(found.seconds_per_segment)}",
        "64-bit numbers last": f"{found.years:,.0f} years" if found.years < LONG else "over a million years",
        "memory of Redis": _bytes(found.redis_bytes),
        "memory of a process": f"{_bytes(found.process_bytes)}, with {used:,} tags",
        "reservations per second": _number(found.reservations_per_second),
        "reads of the store": f"{_number(found.store_reads_per_second)} per second",
        "SQLite": f"{'too slow' if slow else f'busy {found.sqlite_share:.1%}'}; {_bytes(found.sqlite_bytes)} on disk",
        "MongoDB": f"{_bytes(found.mongo_bytes)} of data",
    }
    show("\n".join(f"{name:27}  {value}" for name, value in rest.items()) + "\n")
    columns = [Column("AT THE PEAK"), Column("STRICT", "right"), Column(f"LEASE {lease}", "right")]
    show(table(columns, rows, screen_width()))
    say("A tag is in one slot, so on one master: more masters do not make one tag faster.")


def _masters(draws: DrawNeeds) -> str:
    if draws.masters is None:
        return "no number is enough"
    return "1" if draws.masters == 1 else f"Cluster of {max(CLUSTER, draws.masters)}"


def _number(value: float) -> str:
    """Return a number with two digits below 10, otherwise with three: 0.77, 34,700."""
    return f"{value:.2g}" if value < 10 else f"{float(f'{value:.3g}'):,.0f}"  # noqa: PLR2004 - one digit


def _bytes(count: float) -> str:
    """Return a count of bytes with three digits and a unit: 319 MB."""
    for unit, much in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= much:
            return f"{count / much:.3g} {unit}"
    return f"{count:.0f} bytes"
