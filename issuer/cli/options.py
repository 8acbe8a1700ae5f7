"""Options for settings, questions to the user, types of parameters, and help with headings."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from issuer.settings import DEFINITIONS, SettingDefinition

#: A function that becomes a command.
F = TypeVar("F", bound=Callable[..., Any])


def settings_options(command: str) -> Callable[[F], F]:
    """Return a decorator that adds options to a command: one for each setting that belongs to the command.

    `command`: "issuer" or "serve". The value of an option that is not given is None, or () if it can be repeated.
    """

    def add(function: F) -> F:
        for each in reversed(list(DEFINITIONS.values())):
            if each.command == command:
                function = _setting(each)(function)
        return function

    return add


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the user gave as options, by name, as values for `issuer.settings.load`."""
    given = {name: options[name] for name in options if name in DEFINITIONS and options[name] not in (None, ())}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def _setting(each: SettingDefinition) -> Callable[[F], F]:
    flag, kind, default = f"--{each.argument.replace('_', '-')}", each.kind, each.default
    how: dict[str, Any] = {"metavar": kind.metavar}
    end = f" Default: {each.shown_default}."
    if isinstance(default, bool):
        how, end = {"is_flag": True, "default": None}, ""
    elif isinstance(default, list):
        flag, how["multiple"], end = flag.removesuffix("s"), True, " Can be repeated."
    elif kind.words:
        how = {"type": click.Choice(kind.words)}
    elif kind.metavar == "FILE":
        how["type"] = click.Path(dir_okay=False)
    elif isinstance(default, (int, float)):
        how["type"] = type(default)
    # The help of `issuer` itself fits on a screen, so it has only the beginning.
    help = re.split(r"[:,.] ", each.help)[0] + "." if each.command == "issuer" else f"{each.help}.{end}"
    return click.option(flag, each.name, help=help.replace("`", ""), **how)


def check_askable() -> None:
    """Raise UsageError if stdin is not a terminal: then the user can't be asked, and must give --yes."""
    if not sys.stdin.isatty():
        raise click.UsageError("stdin is not a terminal, so this can't be confirmed: give --yes")


def asked(question: str, *, yes: bool) -> None:
    """Ask the user to confirm. Raises click.Abort if the answer is not yes. `yes`: do not ask, because of --yes."""
    if yes:
        return
    check_askable()
    # Do not use click.confirm: it treats Ctrl-C as the answer no, and its readline writes to stdout.
    click.echo(f"{question} [y/N] ", err=True, nl=False)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise click.Abort


class Whole(click.IntRange):
    """The type of an option: a whole number in a range. click shows `name` in error messages."""

    name = "integer"


class InSection(click.Option):
    """An option that the help shows under the heading `section`."""

    def __init__(self, *arguments: Any, section: str, **how: Any) -> None:
        super().__init__(*arguments, **how)
        self.section = section


class Sectioned(click.Command):
    """A command whose help lists the options under headings.

    An option of the class InSection names its heading. All other options are under "Options".
    """

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options to the help, heading by heading."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                heading = param.section if isinstance(param, InSection) else "Options"
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
