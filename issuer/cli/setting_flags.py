"""The options of the commands `create` and `configure`: one option for each setting of a tag and of its scheme."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zoneinfo import available_timezones

import click

from issuer.cli.options import F, InSection
from issuer.cli.session import Session
from issuer.errors import IssuerError, brief
from issuer.numbers import limits
from issuer.numbers.given import FIXED
from issuer.operations.tag_options import TAG_OPTIONS, TagOption
from issuer.strategies.registry import strategy_names
from issuer_persistence.records import HIGHEST, SETTINGS


def _or_word(value: str) -> int | str:
    """Convert a number, or one of the words that stand in its place."""
    return value if value in ("auto", "process") else int(click.INT(value))


def _duration(value: str) -> int | str:
    """Convert a duration: seconds, or a text such as 10m. The issuer checks the text."""
    return int(value) if value.isdecimal() else value


def _key(value: str) -> str | tuple[int, str]:
    """Convert a scramble key: NAME, or FROM=NAME. FROM is the first number that is scrambled with the key."""
    start, equals, name = value.partition("=")
    return (int(click.INT(start)), name) if equals else start


def _option(value: str) -> tuple[str, str | int | bool]:
    """Convert NAME=VALUE. A VALUE of digits becomes an int, `true` or `false` a bool."""
    name, equals, text = value.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{brief(value)} is not NAME=VALUE")
    if text in ("true", "false"):
        return name, text == "true"
    return name, int(text) if text.removeprefix("-").isdecimal() else text


def _starting(names: Callable[[], list[str]]) -> Callable[..., list[str]]:
    def complete(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        return sorted(name for name in names() if name.startswith(incomplete))

    return complete


def _key_names(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    start, equals, name = incomplete.rpartition("=")
    try:
        keys = Session.of(context).settings().keys
    except IssuerError:  # an error would be printed into the command that the user is typing
        return []
    return [start + equals + key for key in sorted(keys) if key.startswith(name)]


#: Arguments for `click.option`, by the kind of the setting.
_KINDS: Mapping[str, dict[str, Any]] = {
    "whole": {"metavar": "N", "type": int},
    "share": {"metavar": "SHARE", "type": float},
    "duration": {"metavar": "DURATION", "type": _duration},
    "number": {"metavar": "N", "type": int},
    "text": {"metavar": "TEXT"},
    "flag": {"is_flag": True, "default": None},
    "shards": {"metavar": "NAME=N", "type": _option, "multiple": True},
    "step": {"metavar": "N", "type": _or_word},
    "lease": {"metavar": "N", "type": _or_word},
    "limit": {"metavar": "N", "shell_complete": _starting(lambda: [*limits.NAMES])},
    "scramble": {"metavar": "[FROM=]KEY", "type": _key, "multiple": True, "shell_complete": _key_names},
    "options": {"metavar": "NAME=VALUE", "type": _option, "multiple": True},
}
#: More arguments for `click.option`, by the name of the setting.
_MORE: Mapping[str, dict[str, Any]] = {
    "restart": {"metavar": "PERIOD"},
    "timezone": {"metavar": "NAME", "shell_complete": _starting(lambda: [*available_timezones()])},
    "strategy": {"metavar": "NAME", "shell_complete": _starting(strategy_names)},
}
#: Text that is added to the help of a setting whose values have a special form on the command line, by name.
_FORMS = {
    "scramble": ". FROM= is the first number that is scrambled with it. Can be repeated",
    "shards": ". Can be repeated",
    "options": ". Can be repeated",
}
#: Names of options that differ from the name of the setting.
_NAMES = {"options": "--option", "drain": "--drain/--no-drain"}


def tag_options(*, new: bool) -> Callable[[F], F]:
    """Return a decorator that adds an option for each setting of a tag to a command.

    The value of an option that is not given is None, or () if it can be repeated. `new`: whether the command creates a
    tag. If False, settings that cannot be changed have no option, or an option that the help does not show.
    """

    def add(command: F) -> F:
        for name, option in reversed([*TAG_OPTIONS.items()]):
            if new or name not in SETTINGS or SETTINGS[name].changes:
                command = _added(name, option, new=new)(command)
        return command

    return add


def _added(name: str, option: TagOption, *, new: bool) -> Callable[[F], F]:
    how = {"type": click.Choice(option.words)} if option.words else _KINDS[option.kind]
    text = option.help if new else option.changed or option.help
    if option.lowest is not None and option.highest is not None:
        text += f". Range: {option.lowest}..{'2^63-1' if option.highest == HIGHEST else option.highest}"
    text += _FORMS.get(name, "")
    return click.option(
        _NAMES.get(name, f"--{name.replace('_', '-')}"),
        name,
        cls=InSection,
        section=option.section,
        hidden=not new and name in FIXED,
        help=f"{text}.".replace("`", ""),
        **{**how, **_MORE.get(name, {})},
    )
