"""`issuer token`."""

from __future__ import annotations

import click

from issuer.cli.exits import json_option
from issuer.doors.tokens import SCOPES, Scope, line_for, new_token
from issuer.terminal import say, show, show_json

SECTION = "Servers"


@click.command(
    short_help="Create a token for a caller of `issuer serve`.",
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
    help="Permission of the token. read: read tags. issue: draw numbers. reserve: be the store of another issuer. "
    "admin: all of them, and change tags. Can be repeated.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    required=True,
    metavar="PATTERN",
    help="Tags for which the token is valid. * matches any characters, ? one character, [ab] one of the letters a "
    "and b. Can be repeated.",
)
@click.option(
    "--rate", type=float, metavar="N", help="Most requests and numbers per second, above 0. Default: no maximum."
)
@json_option()
def token(*, name: str, scopes: tuple[Scope, ...], tags: tuple[str, ...], rate: float | None, as_json: bool) -> None:
    """Create a token, and the line for it in the file that `issuer serve --tokens FILE` reads.

    The first line of the output is the token. Give it to the calling program. It cannot be shown again, because it is
    not stored. Add the second line to the file of tokens. This line contains only a hash of the token.

    NAME identifies the token in errors of the server. It has 1..64 letters, digits, - and _.
    """
    made = new_token()
    line = line_for(made, name, list(dict.fromkeys(scopes)), list(dict.fromkeys(tags)), rate)
    if as_json:
        show_json({"name": name, "token": made, "line": line})
        return
    show(made)
    show(line)
    say("Give the token to the calling program, and add the line to the server's file of tokens.")
