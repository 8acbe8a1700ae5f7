"""Commands for looking things up: the scripts and the settings."""

from __future__ import annotations

import re

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.gateway.scripts import NAMES, script
from issuer.persistence.urls import mask
from issuer.settings import DEFINITIONS
from issuer.terminal import Column, screen_width, shortened, show, show_json, table

_PURPOSE = re.compile(r"--\[\[\s*\w+: (.+?)\n\n", re.DOTALL)


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

    The comment at its top is its contract: keys, arguments and replies. A program in any language can draw numbers by
    running the script `next` with EVALSHA. Without NAME the command lists the scripts.
    """
    if name is not None:
        click.echo(script(name).text.rstrip("\n"))
        return
    room, wide = screen_width(), max(map(len, NAMES)) + 1
    for each in NAMES:
        found = _PURPOSE.match(script(each).text)
        purpose = " ".join(found[1].split()) if found else ""
        shown = purpose if room is None else shortened(purpose, room - wide - 1)
        show(f"{click.style(f'{each:{wide}}', bold=True)} {shown}")


@click.command(
    short_help="Show each setting and its source.",
    epilog="""\b
    Examples:
      issuer config
      issuer --config /etc/issuer.toml config --json
    """,
)
@json_option()
@click.pass_obj
def config(session: Session, *, as_json: bool) -> None:
    """Show each setting, its value, and the source of the value.

    The source is an option, an environment variable, a file or the default. Passwords in URLs and keys are not shown.
    In JSON, a setting without a value is null.
    """
    settings = {name: (_masked(name, setting.value), setting.source)
                for name, setting in session.settings().named().items()}  # fmt: skip
    if as_json:
        show_json({name: {"value": value, "source": source} for name, (value, source) in settings.items()})
        return
    columns = [Column("SETTING"), Column("VALUE", flexible=True, wraps=True), Column("SOURCE", flexible=True)]
    rows = [(name, _shown(name, value), source)
            for name, (value, source) in settings.items()]  # fmt: skip
    show(table(columns, rows, screen_width()))


def _shown(name: str, value: object) -> str:
    match value:
        case None | []:
            return DEFINITIONS[name].unset
        case list():
            return ", ".join(map(str, value))
        case float():
            return f"{value:g} s"
    return f"{value} {DEFINITIONS[name].unit}".rstrip()


def _masked(name: str, value: object) -> object:
    """Return the value as it may be shown; None for one that isn't set."""
    if value in ("", -1):
        return None
    if isinstance(value, dict):
        return sorted(value)
    return mask(value) if name.endswith("_url") and isinstance(value, str) else value
