"""The options that say how a tag's numbers are made, the same for `create` and `configure`, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, get_args
from zoneinfo import available_timezones

import click

from issuer.cli.options import InSection
from issuer.cli.session import Session
from issuer.core.scheme_record import SEGMENT
from issuer.errors import IssuerError, SchemeError, brief
from issuer.numbers.given import Restart
from issuer.strategies.registry import strategy_names
from issuer.strategies.snowflake.layout import OPTIONS, Layout
from issuer.terminal import stamp_utc
from issuer.views import snowflake
from issuer_persistence.records import Tag

_Adding = Callable[..., Callable[[Any], Any]]

_WHOLE: Any = click.INT

_F = TypeVar("_F", bound=Callable[..., Any])


class _Keys(click.ParamType):  # type: ignore[type-arg]  # subscripting it fails in click 8.2
    """The name of a key, or FROM=NAME."""

    name = "keys"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | tuple[int, str]:
        start, equals, name = str(value).partition("=")
        return (int(_WHOLE.convert(start, param, ctx)), name) if equals else start


class _Option(click.ParamType):  # type: ignore[type-arg]  # the same
    """NAME=VALUE; the value is a number if it looks like one."""

    name = "option"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str | int | bool]:
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"{brief(value)} is not NAME=VALUE", param, ctx)
        if text in ("true", "false"):
            return name, text == "true"
        return name, int(text) if text.removeprefix("-").isdecimal() else text


def _zones(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return sorted(zone for zone in available_timezones() if zone.startswith(incomplete))


def _strategies(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in strategy_names() if name.startswith(incomplete)]


def _key_names(context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    start, equals, name = incomplete.rpartition("=")
    try:
        keys = Session.of(context).settings().keys
    except IssuerError:  # a Tab must never print an error into the user's line
        return []
    return [start + equals + key for key in sorted(keys) if key.startswith(name)]


_TEXTS = "Texts and periods"
_HIDING = "Scrambled numbers"
_SHARING = "Sites and shards"
_OTHERS = "Strategies"


def _option(section: str, *names: str, fixed: bool = False, **how: Any) -> tuple[_Adding, bool]:
    """Return what adds it, and whether it can't be changed once the tag is there."""
    if how.get("is_flag"):
        how["default"] = None
    return partial(click.option, *names, cls=InSection, section=section, **how), fixed


_OPTIONS = (
    _option(_TEXTS, "--format", metavar="TEXT", help="Format of texts, as in 'BIZ{date:%y%m%d}-{seq:06d}{check}'."),
    _option(
        _TEXTS,
        "--restart",
        metavar="PERIOD",
        type=click.Choice(get_args(Restart)),
        help="Period after which numbers start at 1 again: daily, weekly, monthly or yearly.",
        fixed=True,
    ),
    _option(
        _TEXTS,
        "--timezone",
        metavar="NAME",
        shell_complete=_zones,
        help="Time zone of dates and periods, as in Europe/Vienna. Default: UTC.",
    ),
    _option(
        _TEXTS, "--keyed", is_flag=True, help="Keep a separate series of numbers for each --restart-key.", fixed=True
    ),
    _option(
        _HIDING,
        "--scramble",
        metavar="[FROM=]KEY",
        type=_Keys(),
        multiple=True,
        shell_complete=_key_names,
        help="Name of the secret key that scrambles the numbers. FROM= is the first number that is scrambled with it. "
        "Can be repeated.",
    ),
    _option(
        _HIDING,
        "--scramble-strict",
        is_flag=True,
        help="Allow --scramble with order strict, although scrambled numbers don't increase.",
    ),
    _option(
        _SHARING,
        "--stride",
        metavar="N",
        type=int,
        help="Issue only every N-th number, 1..2^32. Use it for N independent sites.",
    ),
    _option(_SHARING, "--offset", metavar="N", type=int, help="Position of this site among the sites, 1..stride."),
    _option(
        _SHARING,
        "--stride-above",
        metavar="N",
        type=int,
        help="The new stride applies to numbers higher than N. Give the same N at all sites. No site may have issued "
        "N or a higher number yet.",
    ),
    _option(
        _SHARING,
        "--shards",
        is_flag=True,
        help="Keep a separate sequence for each shard. --shard-key selects the shard.",
        fixed=True,
    ),
    _option(
        _SHARING,
        "--shard-bits",
        metavar="N",
        type=int,
        help="Bits for the shard, 0..16. Default: 6, for 64 shards.",
        fixed=True,
    ),
    _option(
        _SHARING,
        "--app",
        metavar="N",
        type=int,
        help="Application number in the low bits, 0 or more. Default: 0.",
        fixed=True,
    ),
    _option(
        _SHARING, "--app-bits", metavar="N", type=int, help="Bits for the application number. Default: 8.", fixed=True
    ),
    _option(
        _OTHERS,
        "--strategy",
        metavar="NAME",
        shell_complete=_strategies,
        help="Strategy that makes the numbers: segment, snowflake, or one of your own. Default: segment.",
        fixed=True,
    ),
    _option(
        _OTHERS,
        "--option",
        "options",
        metavar="NAME=VALUE",
        type=_Option(),
        multiple=True,
        help="Option of the strategy, as in epoch=2026-01-01. Can be repeated.",
        fixed=True,
    ),
)


def scheme_options(*, new: bool) -> Callable[[_F], _F]:
    """Return what adds all of them; the command gets what `given` takes.

    `new`: of a new tag; else the help leaves out those that can't be changed, which `configure` refuses by name.
    """

    def add(command: _F) -> _F:
        for option, fixed in reversed(_OPTIONS):
            command = option(hidden=fixed and not new)(command)
        return command

    return add


def given(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was said, a tag's other settings as they are, as `create` and `configure` take it.

    SchemeError for widths of no shards.
    """
    found = {name: value for name, value in said.items() if value not in (None, ())}
    for name in ("shard_bits", "app_bits") if "shards" not in found else ():
        if name in found:
            raise SchemeError("requires shards", setting=name, value=found[name])
    if "shards" in found:
        found["shards"] = {name: found.pop(name) for name in ("shard_bits", "app_bits", "app") if name in found} or True
    if "scramble" in found:
        keys = found["scramble"]
        found["scramble"] = keys[0] if len(keys) == 1 and isinstance(keys[0], str) else _ranges(keys)
    if "options" in found:
        found["options"] = dict(found["options"])
    return found


def _ranges(keys: tuple[str | tuple[int, str], ...]) -> list[tuple[int, str]]:
    return [(1, key) if isinstance(key, str) else key for key in keys]


# ---------------------------------------------------------------------- shown


def described(scheme: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what makes a tag's numbers, a line each, as name and value; nothing if they are its counter."""
    lines = _strategy(scheme)
    if "format" in scheme:
        lines.append(("format", str(scheme["format"])))
    zone = str(scheme.get("timezone", "UTC"))
    if "restart" in scheme:
        lines.append(("restart", f"{scheme['restart']} in {zone}"))
    elif "timezone" in scheme:
        lines.append(("timezone", zone))
    if scheme.get("keyed"):
        lines.append(("series", "by restart key"))
    if "shards" in scheme:
        shards = scheme["shards"]
        count = 1 << int(shards["shard_bits"])
        lines.append(("shards", f"{count}, app {shards['app']}; {shards['shard_bits']} and {shards['app_bits']} bits"))
    if "stride" in scheme:
        lines.append(("stride", _stride(scheme["stride"][-1])))
    pieces = _by_key(scheme.get("scramble", ()))
    lines += [("scramble", _scrambled(piece, first=at == 0)) for at, piece in enumerate(pieces)]
    return lines


def summed_up(tag: Tag) -> str:
    """Return the same in a few words, for a table; "" if the numbers are the tag's counter."""
    scheme = tag.scheme
    words = [str(scheme["strategy"])] if scheme.get("strategy", SEGMENT) != SEGMENT else []
    if "shards" in scheme:
        words.append(f"{1 << int(scheme['shards']['shard_bits'])} shards")
    words += ["keyed"] if scheme.get("keyed") else []
    words += [str(scheme["restart"])] if "restart" in scheme else []
    words += [f"stride {scheme['stride'][-1]['stride']}"] if "stride" in scheme else []
    words += ["scrambled"] if "scramble" in scheme else []
    words += ["format"] if "format" in scheme else []
    return ", ".join(words)


def _strategy(scheme: Mapping[str, Any]) -> list[tuple[str, str]]:
    name = str(scheme.get("strategy", SEGMENT))
    if name == SEGMENT:
        return []
    lines, options = [("strategy", name)], dict(scheme.get("options", {}))
    layout = snowflake(scheme)
    if layout is not None:
        options = {option: value for option, value in options.items() if option not in OPTIONS}
        lines += [("layout", _widths(layout)), ("epoch", stamp_utc(layout.epoch)), ("ends", stamp_utc(layout.ends))]
    if options:
        lines.append(("options", ", ".join(f"{option}={_shown(value)}" for option, value in options.items())))
    return lines


def _widths(layout: Layout) -> str:
    rack = f" ({layout.worker_bits} worker, {layout.rack_bits} rack)" if layout.rack_bits else ""
    return f"{layout.time_bits} bits time, {layout.machine_bits} machine{rack}, {layout.sequence_bits} sequence"


def _stride(piece: Mapping[str, int]) -> str:
    first, width = piece["first"], piece["stride"]
    since = f" from counter {piece['from']} on" if piece["from"] > 1 else ""
    return f"{width}: {first}, {first + width}, {first + 2 * width}, ...{since}"


def _by_key(pieces: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first piece of each stretch that has the same key: a raised limit makes one of its own."""
    return [
        piece for at, piece in enumerate(pieces) if at == 0 or piece["fingerprint"] != pieces[at - 1]["fingerprint"]
    ]


def _scrambled(piece: Mapping[str, Any], *, first: bool) -> str:
    since = "" if first else f"from {piece['from']} on "
    return f"{since}key {piece['key']}, fingerprint {piece['fingerprint']}"


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
