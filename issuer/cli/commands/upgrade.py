"""`issuer upgrade`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.terminal import say, show_json

SECTION = "Checks and recovery"


@click.command(
    short_help="Upgrade the schema of an SQLite store.",
    epilog="""\b
    Examples:
      issuer upgrade
      issuer upgrade --json

    \b
    Exit codes: 0 the schema is up to date, 2 a newer version wrote the store,
    5 the store is unavailable.
    """,
)
@json_option("Print the schema before and after as JSON; messages go to stderr.")
@click.pass_obj
def upgrade(session: Session, *, as_json: bool) -> None:
    """Upgrade the schema of an SQLite store to the schema of this version.

    The first reservation also upgrades the schema. With this command, you choose the moment. After the upgrade,
    programs of older versions reject the file. For this reason, upgrade all programs first. Running the command twice
    is safe. MongoDB needs no upgrade.
    """
    done = session.connect().upgrade()
    if as_json:
        show_json({"before": done.before, "after": done.after})
    elif done.before == done.after:
        say(f"schema {done.after}: nothing to do")
    else:
        say(f"schema {done.before} -> {done.after}")
