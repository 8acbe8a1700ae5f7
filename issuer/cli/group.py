"""The command `issuer`: its options, and the search for its subcommands."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pkgutil import iter_modules
from typing import Any, Final, cast

import click

import issuer
from issuer.cli import commands
from issuer.cli.exits import Edge
from issuer.cli.options import given_settings, settings_options
from issuer.cli.session import Session
from issuer.terminal import color


def _tell_version(context: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - click's signature
    if asked:
        click.echo(f"issuer {issuer.__version__}")
        context.exit()


#: Words that other programs or earlier versions have for a command.
OTHER_WORDS: Final = {"show": "inspect", "set": "configure", "list": "tags", "ls": "tags"}

#: The groups of commands in the help, in their order. The module of each command has a constant SECTION: its group.
SECTIONS: Final = ("Numbers", "Tags", "Checks", "Servers", "Tools")


@cache
def _modules() -> dict[str, str]:
    """Find modules by command. A name ends with `_` where the standard library has a module without it."""
    names = (each.name for each in iter_modules(commands.__path__, f"{commands.__name__}."))
    return {name.rpartition(".")[2].rstrip("_").replace("_", "-"): name for name in names}


class _Commands(Edge):
    """A group that finds its commands in the modules of issuer.cli.commands.

    To run a command, only the module of this command is imported. The import of all modules takes 60 ms longer.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_modules(), key=lambda name: (SECTIONS.index(_section(name)), name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        return _command(cmd_name) if cmd_name in _modules() else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _modules() and not ctx.resilient_parsing:
            near = OTHER_WORDS.get(name) or next(iter(get_close_matches(name, _modules())), "")
            raise click.UsageError(f"No such command {name!r}.{near and f' Did you mean {near!r}?'}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        left, widest = (max(map(len, names)) for names in (SECTIONS, _modules()))
        room, rows, before = formatter.width - 6 - left - widest, [], ""
        for name in self.list_commands(ctx):
            section = _section(name)
            shown = "" if section == before else section
            rows.append((f"{shown:{left}}  {name:{widest}}", _command(name).get_short_help_str(room)))
            before = section
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _command(name: str) -> click.Command:
    function = name.replace("-", "_")
    # Python does not allow a function that is named like a keyword, such as `import`.
    return cast(
        "click.Command", getattr(import_module(_modules()[name]), f"{function}_" if iskeyword(function) else function)
    )


def _section(name: str) -> str:
    return str(import_module(_modules()[name]).SECTION)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80})
@settings_options("issuer")
@click.option("--config", metavar="FILE", type=click.Path(dir_okay=False), help="Settings file, in TOML.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(context: click.Context, /, *, config: str | None, **settings: Any) -> None:
    """Issue unique, increasing 64-bit numbers for each tag: `issuer next orders`."""
    context.color = color()
    context.obj = Session(given_settings(settings), config)
    for stream in (sys.stdout, sys.stderr):
        # If the terminal's encoding lacks a character of a tag's name, write `?` in place of the character.
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # the declared type, TextIO, lacks it
