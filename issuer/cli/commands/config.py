"""`issuer config`."""

from __future__ import annotations

import shlex

import click

from issuer.cli.exits import json_option
from issuer.cli.session import Session
from issuer.settings import DEFINITIONS
from issuer.terminal import Column, screen_width, show, show_json, table
from issuer.times import lasting
from issuer_persistence.urls import mask

SECTION = "Tools"

#: From this duration on, in seconds, a duration is shown in seconds and also in larger units, such as hours.
LONG = 120


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
    loaded = session.settings()
    settings = {name: (_masked(name, getattr(loaded, name)), source) for name, source in loaded.sources.items()}
    if as_json:
        show_json({name: {"value": value, "source": source} for name, (value, source) in settings.items()})
        return
    columns = [Column("SETTING"), Column("VALUE", flexible=True), Column("SOURCE", flexible=True)]
    rows = [(name, _shown(name, value), source) for name, (value, source) in settings.items()]
    show(table(columns, rows, screen_width()))


def _shown(name: str, value: object) -> str:
    match value:
        case None | []:
            return DEFINITIONS[name].unset
        case list():
            return ", ".join(map(str, value))
        case float():
            return f"{value:g} s" if value < LONG else f"{value:g} s ({lasting(value)})"
    return f"{value} {DEFINITIONS[name].unit}".rstrip()


def _masked(name: str, value: object) -> object:
    if value in ("", -1):
        return None
    if isinstance(value, dict):
        return sorted(value) if name == "keys" else [f"{each}={to}" for each, to in value.items()]
    if name.endswith("_command"):  # an argument may be a secret
        program, *arguments = shlex.split(str(value))
        return f"{program} ***" if arguments else program
    if name == "token":
        return "***"
    return mask(value) if name.endswith(("_url", "server")) and isinstance(value, str) else value
