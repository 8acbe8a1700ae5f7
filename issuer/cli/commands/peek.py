"""`issuer peek`."""

from __future__ import annotations

import click

from issuer.cli.completion import tag_argument
from issuer.cli.exits import json_option
from issuer.cli.numbers import key_options
from issuer.cli.session import Session
from issuer.terminal import show_json
from issuer.views import view

SECTION = "Numbers"


@click.command(
    short_help="Show the next number of a tag without taking it.",
    epilog="""\b
    Examples:
      issuer peek orders
      issuer peek users --shard-key alice@example.com --json
    """,
)
@tag_argument()
@key_options
@json_option()
@click.pass_obj
def peek(session: Session, *, tag: str, shard_key: str | None, restart_key: str | None, as_json: bool) -> None:
    """Show the next number of TAG, but do not draw it.

    The number is not reserved for you. The next caller that draws a number gets it.
    """
    found = session.connect().peek(tag, shard_key=shard_key, restart_key=restart_key)
    if as_json:
        show_json(view(found))
    else:
        click.echo(found.text)
