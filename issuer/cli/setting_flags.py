"""The options of `create` and `configure` for the settings of a tag, one for each; scheme_flags has the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from issuer.numbers import limits
from issuer_persistence.records import SETTINGS, Setting

_F = TypeVar("_F", bound=Callable[..., Any])


class _Step(click.ParamType):  # type: ignore[type-arg]  # subscripting it fails in click 8.2
    """A number of numbers, or `auto`, which is the default."""

    name = "step"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return "auto" if value == "auto" else int(click.INT.convert(value, param, ctx))


def _limit_names(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in limits.NAMES if name.startswith(incomplete)]


#: The help of each, {} being its range; of a tag that is there, where that is something else.
_HELP = {
    "step": "Numbers per step, 1 or more. auto means 1000. Default: auto.",
    "limit": "Last number of the tag, 1..2^63-1, or int32, uint32, js, int64. Default: int64.",
    "order": "Order of the numbers. Default: trend if there is no Redis or the strategy is not segment, else strict.",
    "lease": "How many numbers of a trend tag each process draws ahead from Redis, {}. 0 means none.",
    "ahead": "Steps per segment, {}. Larger segments cover a longer outage of the store. Default: 1.",
    "description": "Text for operators.",
}
_HELP_OF_CHANGES = {
    "step": "Numbers per step, 1 or more, from the next segment on. auto means 1000.",
    "limit": "Last number of the tag, 1..2^63-1, or int32, uint32, js, int64. Only a tag with periods can get a limit "
    "below its max.",
    "ahead": "Steps per segment, {}. Larger segments cover a longer outage of the store.",
}

#: What an option has beside that, or in place of what its setting's range says.
_MORE: dict[str, dict[str, Any]] = {"step": {"type": _Step()}, "limit": {"type": str, "shell_complete": _limit_names}}


def _option(name: str, setting: Setting, *, new: bool) -> Callable[[_F], _F]:
    text = _HELP[name] if new else _HELP_OF_CHANGES.get(name, _HELP[name])
    kind: dict[str, Any] = {"metavar": "TEXT"}
    if setting.range is not None:
        kind = {"metavar": "N", "type": int}
        text = text.format("{}..{}".format(*setting.range))
    elif setting.words:
        kind = {"type": click.Choice(setting.words)}
    return click.option(f"--{name}", help=text, **{**kind, **_MORE.get(name, {})})


def setting_options(*, new: bool) -> Callable[[_F], _F]:
    """Return what adds all of them, with where the numbers begin; those that were not given are None.

    `new`: of a new tag; else those that can't be changed are left out.
    """
    options = [
        click.option(
            "--start",
            metavar="N",
            type=int,
            help="First number, 1 or more. Default: 1." if new else "Skip the numbers lower than N.",
        ),
        click.option(
            "--above",
            metavar="N",
            type=int,
            help="The number before the first one: the first is N+1." if new else "Skip the numbers up to N.",
        ),
        *(_option(name, SETTINGS[name], new=new) for name in _HELP if new or SETTINGS[name].changes),
    ]

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add
