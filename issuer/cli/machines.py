"""`issuer machines`: which machine numbers a snowflake tag has used, and the way out of those used in the future."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.options import asked, check_askable
from issuer.cli.session import Session
from issuer.strategies.snowflake.aside import MachineNumber, MachineNumbers
from issuer.terminal import Column, numbered, plain, say, screen_width, show, show_json, stamp_utc, table
from issuer.times import lasting
from issuer.views import view


@click.command(
    short_help="List the machine numbers of a snowflake tag.",
    epilog="""\b
    Examples:
      issuer machines events
      issuer machines events --set-aside     # after a clock that was ahead
    """,
)
@tag_argument()
@click.option("--set-aside", is_flag=True, help="Set aside machine numbers whose last time is in the future.")
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@json_option()
@click.pass_obj
def machines(session: Session, *, tag: str, set_aside: bool, yes: bool, as_json: bool) -> None:
    """List the machine numbers that TAG has used. For each, show its holder and the last time in its numbers.

    If TAG shares a namespace with other tags, the list has the machine numbers of the namespace.

    If a machine's clock was ahead, its numbers contain times in the future. When the clock has been corrected,
    processes with these machine numbers wait until that time. Without this wait, they could issue a number twice.

    To end the wait, stop the processes, run this command with --set-aside, and start the processes again. The
    processes get other machine numbers. This has two costs. A machine number that was set aside stays unused until its
    last time has passed, unless no other is free. Until then, new numbers are lower than the numbers with future times.
    """
    if set_aside:
        check_askable(yes=yes)
    issuer = session.connect()
    found = issuer.machines(tag)
    ahead = [each for each in found.used if each.ahead]
    if as_json and not set_aside:
        show_json(view(found))
    elif not as_json:
        _print(found)
    if not set_aside:
        return
    if ahead:
        asked(_question(tag, ahead, found.of), yes=yes)
        ahead = issuer.set_aside(tag)
    if as_json:
        show_json([view(each) for each in ahead])
    say(f"set aside: {numbered(len(ahead), 'machine number')}; start the processes now")


def _print(found: MachineNumbers) -> None:
    if not found.used:
        say("no machine number has been used yet")
        return
    columns = [Column("MACHINE", "right"), Column("HOLDER", flexible=True), Column("LEASE"), Column("USED UP TO")]
    columns.append(Column("AHEAD"))
    lease = {True: "held", False: "free", None: ""}
    rows = [
        (each.machine, each.holder, lease[each.held], stamp_utc(each.last),
         lasting(each.ahead / 1000) if each.ahead else "")
        for each in found.used
    ]  # fmt: skip
    show(table(columns, rows, screen_width()))


def _question(tag: str, ahead: list[MachineNumber], of: int) -> str:
    until, left = stamp_utc(max(each.last for each in ahead)), of - len(ahead)
    rest = f"{left:,} of {of:,} are left" if left else "none is left, so processes still have to wait"
    return (
        f"Set aside {numbered(len(ahead), 'machine number')} of {plain(tag)} until {until}? Then {rest}, and until "
        "then new numbers are lower than those with future times. Are all processes of the tag stopped?"
    )
