"""`issuer machines`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.options import asked, check_askable
from issuer.cli.session import Session
from issuer.cli.sheet import machine_table
from issuer.strategies.snowflake.aside import MachineNumbers
from issuer.terminal import numbered, plain, say, show, show_json, stamp_utc
from issuer.views import view

SECTION = "Checks"


@click.command(
    short_help="List, or set aside, machine numbers of a snowflake tag.",
    epilog="""\b
    Examples:
      issuer machines events
      issuer machines events --set-aside     # after a clock that was ahead
    """,
)
@tag_argument()
@click.option("--set-aside", is_flag=True, help="Set aside the machine numbers whose last time is in the future.")
@click.option("--yes", is_flag=True, help="With --set-aside: don't ask for confirmation.")
@json_option("Print JSON. With --set-aside: a list of the machine numbers that were set aside.")
@click.pass_obj
def machines(session: Session, *, tag: str, set_aside: bool, yes: bool, as_json: bool) -> None:
    """List the machine numbers of TAG. For each, show which process holds it and the last time in numbers made with it.

    If TAG shares a namespace with other tags, the list contains the machine numbers of all these tags.

    If a machine's clock was ahead, its numbers contain times in the future. After the clock has been corrected,
    processes with its machine numbers wait until these times have passed. Without this wait, they could issue a number
    twice. To end the wait, stop the processes, run the command with --set-aside, and start the processes again. They
    then get other machine numbers. This has two costs. A machine number that was set aside is not used until its last
    time has passed, unless no other is free. Until then, new numbers are lower than the numbers with future times.
    """
    if set_aside and not yes:
        check_askable()
    issuer = session.connect()
    found = issuer.machines(tag)
    if as_json and not set_aside:
        show_json(view(found))
    elif found.used and not as_json:
        show(machine_table(found))
    elif not found.used:
        say("no machine number has been used yet")
    if not set_aside:
        return
    ahead = [each for each in found.used if each.ahead]
    if ahead:
        asked(_question(tag, found), yes=yes)
        ahead = issuer.set_aside(tag)
    if as_json:
        show_json([view(each) for each in ahead])
    say(f"set aside: {numbered(len(ahead), 'machine number')}; start the processes now")


def _question(tag: str, found: MachineNumbers) -> str:
    ahead = [each.last for each in found.used if each.ahead]
    left = found.of - len(ahead)
    rest = f"{left:,} of {found.of:,} are left" if left else "none is left, so processes still have to wait"
    return (
        f"Set aside {numbered(len(ahead), 'machine number')} of {plain(tag)} until {stamp_utc(max(ahead))}? Then "
        f"{rest}, and until then new numbers are lower than those with future times. Are all processes of the tag "
        "stopped?"
    )
