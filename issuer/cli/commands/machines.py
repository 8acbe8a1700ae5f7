"""`issuer machines`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.cli.sheet import machine_table
from issuer.terminal import say, show, show_json
from issuer.views import view

SECTION = "Checks and recovery"


@click.command(
    short_help="List the machine numbers of a snowflake tag.",
    epilog="""\b
    Examples:
      issuer machines events
      issuer machines events --json
    """,
)
@tag_argument()
@json_option()
@click.pass_obj
def machines(session: Session, *, tag: str, as_json: bool) -> None:
    """List the machine numbers of TAG. For each, show which process holds it and the last time in numbers made with it.

    If TAG shares a namespace with other tags, the list contains the machine numbers of all these tags.

    If a machine's clock was ahead, its numbers contain times in the future. After the clock has been corrected,
    processes with its machine numbers wait until these times have passed. Without this wait, they could issue a number
    twice. To end the wait, use `issuer set-aside`.
    """
    found = session.connect().machines(tag)
    if as_json:
        show_json(view(found))
    elif found.used:
        show(machine_table(found))
    else:
        say("no machine number has been used yet")
