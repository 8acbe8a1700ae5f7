"""`issuer lua`."""

from __future__ import annotations

import re

import click

from issuer.gateway.commands import NAMES, script
from issuer.terminal import Column, screen_width, show, table

SECTION = "Tools"

_PURPOSE = re.compile(r"--\[\[\s*\w+: (.+?)\.\s", re.DOTALL)


@click.command(
    short_help="Print a Lua script and its contract.",
    epilog="""\b
    Examples:
      issuer lua                             # list the scripts
      issuer lua next > next.lua
    """,
)
@click.argument("name", metavar="[NAME]", required=False, type=click.Choice(NAMES))
def lua(name: str | None) -> None:
    """Print the Lua script NAME exactly as it is sent to Redis.

    The comment at the top of the script documents its keys, arguments and replies. A program in any language can draw
    numbers: it runs the script `next` with EVALSHA. If NAME is omitted, the command lists the scripts.
    """
    if name is not None:
        click.echo(script(name).text.rstrip("\n"))
        return
    columns = [Column("SCRIPT"), Column("PURPOSE", flexible=True)]
    show(table(columns, [(each, _purpose(each)) for each in NAMES], screen_width()))


def _purpose(name: str) -> str:
    """Return the purpose of a script. It is the first sentence of the comment at the top of the script."""
    found = _PURPOSE.match(script(name).text)
    return " ".join(found[1].split()) if found else ""
