"""`issuer set-aside`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.options import asked, check_askable
from issuer.cli.session import Session
from issuer.cli.sheet import machine_table
from issuer.strategies.snowflake.aside import MachineNumber
from issuer.terminal import numbered, plain, say, show, show_json, stamp_utc
from issuer.views import view

SECTION = "Checks and recovery"


@click.command(
    short_help="Set aside machine numbers with times in the future.",
    epilog="""\b
    Examples:
      issuer set-aside events                # after a clock that was ahead
      issuer set-aside events --yes
    """,
)
@tag_argument()
@click.option("--yes", is_flag=True, help="Don't ask for confirmation.")
@json_option("Print a JSON list of the machine numbers that were set aside.")
@click.pass_obj
def set_aside(session: Session, *, tag: str, yes: bool, as_json: bool) -> None:
    """Set aside the machine numbers of TAG whose last time is in the future.

    If a machine's clock was ahead, processes with its machine number wait until the last time in its numbers has
    passed. To end the wait, stop the processes, run this command, and start the processes again. They then get other
    machine numbers. This has two costs. A machine number that was set aside is not used until its last time has passed,
    unless no other is free. Until then, new numbers are lower than the numbers with future times.
    """
    if not yes:
        check_askable()
    issuer = session.connect()
    found = issuer.machines(tag)
    ahead = [each for each in found.used if each.ahead]
    if found.used and not as_json:
        show(machine_table(found))
    if ahead:
        asked(_question(tag, ahead, found.of), yes=yes)
        ahead = issuer.set_aside(tag)
    if as_json:
        show_json([view(each) for each in ahead])
    say(f"set aside: {numbered(len(ahead), 'machine number')}; start the processes now")


def _question(tag: str, ahead: list[MachineNumber], of: int) -> str:
    until, left = stamp_utc(max(each.last for each in ahead)), of - len(ahead)
    rest = f"{left:,} of {of:,} are left" if left else "none is left, so processes still have to wait"
    return (
        f"Set aside {numbered(len(ahead), 'machine number')} of {plain(tag)} until {until}? Then {rest}, and until "
        "then new numbers are lower than those with future times. Are all processes of the tag stopped?"
    )
