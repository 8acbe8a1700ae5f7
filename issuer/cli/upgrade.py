"""`issuer upgrade`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.terminal import say, show_json


@click.command(
    short_help="Bring the store up to this version's schema.",
    epilog="""\b
    Examples:
      issuer doctor                            whether there is something to do
      issuer upgrade
      issuer upgrade --json

    \b
    Exit codes: 0 it is up to date, 2 a newer version wrote it, 5 the store can't
    be reached.
    """,
)
@json_option("Print the schema before and after as JSON; talk goes to stderr.")
@click.pass_context
def upgrade(context: click.Context, *, as_json: bool) -> None:
    """Raise the schema of an SQLite store to that of this version, as the first reservation would.

    Programs of older versions refuse the file from then on, so upgrade all of them before. Twice is harmless; MongoDB
    needs none. Commands that only read leave a store as it is.
    """
    done = Session.of(context).connect().upgrade()
    if as_json:
        show_json({"before": done.before, "after": done.after})
    elif done.before == done.after:
        say(f"schema {done.after}: nothing to do")
    else:
        say(f"schema {done.before} -> {done.after}")
