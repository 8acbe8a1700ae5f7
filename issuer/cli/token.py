"""`issuer token`: a new token for the callers of `issuer serve`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.terminal import say, show, show_json
from issuer.tokens import SCOPES, Scope, line_for, new_token


@click.command(
    short_help="Make a token for callers of `serve`.",
    epilog="""\b
    Examples:
      issuer token billing --scope issue --tag orders --tag 'invoice-*'
      issuer token grafana --scope read --tag '*' --rate 10
    """,
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(SCOPES),
    help="What it may do; may be repeated. issue: draw numbers. read: look. admin: all that, and change tags.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    required=True,
    metavar="PATTERN",
    help="Of which tags; may be repeated. * is any letters, ? one, [ab] one of these.",
)
@click.option(
    "--rate", type=float, metavar="N", help="How many requests and numbers a second; without it as many as come."
)
@json_option()
def token(*, name: str, scopes: tuple[Scope, ...], tags: tuple[str, ...], rate: float | None, as_json: bool) -> None:
    """Make a token, and its line for the file that `issuer serve --tokens FILE` reads.

    The token is printed first. It is nowhere kept: the line below it, for the file, has only its hash. NAME is what
    the server calls it, in its errors: 1..64 letters, digits, - and _.
    """
    made = new_token()
    line = line_for(made, name, list(dict.fromkeys(scopes)), list(dict.fromkeys(tags)), rate)
    if as_json:
        show_json({"name": name, "token": made, "line": line})
        return
    show(made)
    show(line)
    say("give the token to the program that is to use it, and add the line to the server's file of tokens")
