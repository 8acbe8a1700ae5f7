"""Converts command-line options to arguments for a tag's scheme, and a stored scheme to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from issuer.core.scheme_record import SEGMENT
from issuer.strategies.snowflake.layout import OPTIONS, Layout
from issuer.terminal import stamp_utc
from issuer.views import snowflake
from issuer_persistence.records import Tag


def given(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given, as arguments for the methods `create` and `configure`."""
    found = {name: value for name, value in said.items() if value not in (None, ())}
    if "scramble" in found:
        keys = found["scramble"]
        alone = len(keys) == 1 and isinstance(keys[0], str)
        found["scramble"] = keys[0] if alone else [(1, key) if isinstance(key, str) else key for key in keys]
    return found | {name: dict(found[name]) for name in ("shards", "options") if name in found}


def described(scheme: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of a scheme as pairs of name and value.

    Return [] if the scheme changes nothing: the numbers that users see are the values of the counter.
    """
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
    before = None
    for piece in scheme.get("scramble", ()):
        # A piece is a range of counter values with one scramble key. If the limit is raised, a new piece with the same
        # key as before is added. Show only pieces with another key than the piece before.
        if piece["fingerprint"] != before:
            since = "" if before is None else f"from {piece['from']} on "
            lines.append(("scramble", f"{since}key {piece['key']}, fingerprint {piece['fingerprint']}"))
        before = piece["fingerprint"]
    return lines


def summed_up(tag: Tag) -> str:
    """Return a summary of the tag's scheme for a table.

    Return "" if the scheme changes nothing: the numbers that users see are the values of the counter.
    """
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


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
