"""`issuer chaos`: causes faults while processes draw, and checks every number."""

from __future__ import annotations

import click

from issuer.cli.exits import OK, PROBLEM, json_option
from issuer.cli.options import Whole
from issuer.terminal import Column, screen_width, show, show_json, table

SECTION = "Tools"


@click.command(
    short_help="Cause faults on test servers and check every number.",
    epilog="""\b
    Examples:
      issuer chaos --seconds 60
      issuer chaos --faults F2,F3            # only kill, roll back, fail over

    \b
    Exit codes: 0 every promise was kept, 4 a promise was broken.
    """,
)
@click.option("--seconds", metavar="S", type=Whole(1, 86400), default=30, help="Duration. Default: 30.")
@click.option("--faults", metavar="LIST", default="", help="Cause only these faults, as in F2,F9b. See --list.")
@click.option("--list", "as_list", is_flag=True, help="List the faults, and exit.")
@json_option("Print JSON; times are in seconds.")
def chaos(*, seconds: int, faults: str, as_list: bool, as_json: bool) -> int:
    """Cause faults while four processes draw numbers, and check every number.

    The command kills, delays and disconnects Redis and the processes, and restores old data of Redis. It checks that no
    number is issued twice, is higher than the store's max, or is out of order. It compares the gap that each fault
    causes with the promised maximum. A gap is numbers that are never issued.

    The command starts two redis-servers, an SQLite store and proxies of its own, on loopback and in a temporary folder.
    It removes them at the end and doesn't touch your servers. It runs the redis-server or valkey-server on PATH. If
    there is none, it runs the server that the extra `demo` installs.
    """
    # These modules are imported here, so that the other commands start fast.
    from issuer.chaos.faults import FAULTS, chosen
    from issuer.chaos.play import play_for
    from issuer.chaos.report import content, rows

    if as_list:
        known = {one.name: one.what for one in FAULTS}
        if as_json:
            show_json({"faults": known})
            return OK
        show(table([Column("FAULT"), Column("WHAT HAPPENS", flexible=True)], [*known.items()], screen_width()))
        return OK
    verdict = play_for(seconds, chosen(faults.split(",") if faults else [], FAULTS))
    if as_json:
        show_json(content(verdict))
    else:
        columns = [Column("FOUND"), Column("HOW MUCH", flexible=True)]
        show(table(columns, [*rows(verdict)], screen_width()))
        good, bad = "Every promise was kept.", "A PROMISE WAS BROKEN."
        show(click.style(good if verdict.kept else bad, fg="green" if verdict.kept else "red", bold=True))
    return OK if verdict.kept else PROBLEM
