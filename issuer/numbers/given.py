"""Checks the settings of a tag's numbers, and converts them into the scheme that is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from issuer.core.periods import SEQ_MOST, Periods, Restart
from issuer.core.scheme_record import SEGMENT, SNOWFLAKE, id_after, last_value
from issuer.errors import SchemeError, brief
from issuer.numbers import scrambling, stride
from issuer.numbers.codec import Scheme, scrambled, strides
from issuer.numbers.dates import missing, tells
from issuer.numbers.scheme_options import SchemeOptions
from issuer.numbers.sharding import BITS, SHARDS_MOST, ShardLayout
from issuer.numbers.template import OF_SNOWFLAKE, PACKED, Template
from issuer_persistence.records import HIGHEST, Order, Tag

#: Default bits of a tag with shards: 6 for the shard, 8 for the application.
SHARD_BITS, APP_BITS = 6, 8


#: Settings that determine the number for a counter value. If one of them changes, the scheme gets a new id.
_VALUES = ("restart", "start", "stride", "scramble", "limit")

#: For each of these settings: the setting that it requires.
_WITH = {"offset": "stride", "scramble_strict": "scramble"}

#: The types of some settings, and the type's description for errors. Empty values are checked, too.
_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("keyed", "scramble_strict"), (bool, "True or False")),
    "format": (str | None, "a text"),
    "shards": (bool | Mapping | None, "True, or shard_bits, app_bits and app"),
    "options": (Mapping | None, "named values"),
}

#: Settings that cannot be changed.
FIXED = ("restart", "keyed", "shards", "strategy", "options")


def made(
    given: Mapping[str, Any],
    *,
    tag: str,
    order: Order,
    limit: int,
    above: int,
    lease: int | None,
    keys: Mapping[str, bytes],
    before: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], int]:
    """Return the scheme of a new tag, and the highest counter value that may be reserved. Raises SchemeError.

    `given`: the settings of the scheme. `above`: the number just below the first one. `keys`: secrets by name.
    `before`: scheme of a deleted tag with the same name, if there was one. If its last stride or its last key is
    the same as the new one, the new tag also keeps the earlier strides or keys.
    """
    _check_names(given)
    for name, other in _WITH.items():
        if _is_said(given, name) and not _is_said(given, other):
            raise SchemeError(f"requires {other}", setting=name, value=given[name])
    scheme = _strategy(given)
    _set_texts(scheme, given)
    if given.get("keyed"):
        if above:
            raise SchemeError("each series begins at 1: omit start and above", setting="keyed", value=above)
        scheme["keyed"] = True
    if given.get("shards"):
        return {**scheme, **_sharded(given)}, limit
    counter_limit = limit
    if scheme.get("restart", "never") != "never":
        counter_limit = HIGHEST
        _check_restart(scheme, given, order=order, above=above, lease=lease)
        scheme |= {} if limit == HIGHEST else {"limit": limit}
    if "stride" in given or "offset" in given:
        _alone(given, "stride", ("offset", "format", "timezone", "keyed"))
        counter_limit = _set_stride(scheme, given, maximum=above, limit=limit, before=before)
    if "scramble" in given:
        _check_order(order, given)
        bound = min(limit, SEQ_MOST) if "restart" in scheme else limit
        scheme["scramble"] = _same_end(_pieces(given["scramble"], (), above, bound, keys), before)
    scheme |= _begun(scheme, above, before)
    _check_texts(scheme)
    return _named(scheme, {}, tag, keys), counter_limit


def changed(
    record: Tag, given: Mapping[str, Any], *, limit: int | None, above: int | None = None, keys: Mapping[str, bytes]
) -> tuple[dict[str, Any], int | None]:
    """Return the changed scheme, and the new highest counter value that may be reserved (None if unchanged).

    `given`: the changed settings. `limit`: new limit of the tag, None if it does not change. `above`: the number above
    which a changed stride applies. Raises SchemeError.
    """
    _check_names(given)
    before = record.scheme
    _check_changeable(record, given, limit)
    for name in FIXED:
        if name in given and not _same(before, name, given[name]):
            raise SchemeError(
                "cannot be changed after the tag was created: create another tag", setting=name, tag=record.tag
            )
    if _is_said(given, "scramble_strict") and "scramble" not in given:
        raise SchemeError("requires scramble", setting="scramble_strict", value=True, tag=record.tag)
    scheme = {name: value for name, value in before.items() if name != "id"}
    _set_texts(scheme, given)
    if scheme.get("restart", "never") != "never" and scheme.get("timezone") != before.get("timezone"):
        raise SchemeError(
            "cannot be changed for a tag with periods: create another tag", setting="timezone", tag=record.tag
        )
    counter_limit = limit
    if limit is not None:
        counter_limit = _set_limit(scheme, limit, keys)
    if "stride" in given or "offset" in given:
        bound = last_value(before, record.limit) if limit is None else limit
        counter_limit = _set_stride(scheme, given, maximum=record.max, limit=bound, above=above)
    if "scramble" in given:
        strict = given.get("scramble_strict", "scramble" in before)
        _check_order(record.order, {**given, "scramble_strict": strict})
        _set_scrambling(scheme, given, record, limit, keys)
    _check_texts(scheme)
    return _named(scheme, before, record.tag, keys), counter_limit


def _check_names(given: Mapping[str, Any]) -> None:
    unknown = sorted(given.keys() - SchemeOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"unexpected keyword argument {brief(unknown[0])}")
    for name, (kinds, wanted) in _KINDS.items():
        if name in given and not isinstance(given[name], kinds):
            raise SchemeError(f"must be {wanted}, not {brief(given[name])}", setting=name, value=given[name])


def _is_said(given: Mapping[str, Any], name: str) -> bool:
    return given.get(name) not in (None, {}) and given[name] is not False


def _check_changeable(record: Tag, given: Mapping[str, Any], limit: int | None) -> None:
    """Raise SchemeError if a given setting is fixed because shards, keyed series or a strategy issue the numbers."""
    what = "shards" if "shards" in record.scheme else "keyed" if record.scheme.get("keyed") else "strategy"
    if what == "strategy" and record.scheme.get("strategy", SEGMENT) == SEGMENT:
        return
    made_by = {"shards": "its shards have", "keyed": "each of its series has", "strategy": "its strategy has"}[what]
    if record.scheme.get("strategy") == SNOWFLAKE:
        limit = None  # it can be changed: the caller compares it with the layout, to which all numbers keep
    for name, value in (*given.items(), ("limit", limit)):
        if name in ("stride", "offset", "scramble", "limit") and value is not None:
            raise SchemeError(
                f"cannot be changed: {made_by} already issued numbers without it", setting=name, tag=record.tag
            )


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise SchemeError(f"must be a text, not {brief(value)}", setting=name, value=value)
    return value


def _strategy(given: Mapping[str, Any]) -> dict[str, Any]:
    name, options = _text(given.get("strategy", SEGMENT), "strategy"), _options(given.get("options") or {})
    if name != SEGMENT:
        _alone(given, "strategy", ("format", "timezone", "options"))
        return {"strategy": name, "options": options}
    if options:
        raise SchemeError(
            "are not for the strategy segment: omit them, or set the strategy", setting="options", value=options
        )
    return {}


def _options(options: Mapping[Any, object]) -> dict[str, Any]:
    if not all(isinstance(name, str) for name in options):
        raise SchemeError(f"must be named values, not {brief(options)}", setting="options", value=options)
    for name, value in options.items():
        if not isinstance(value, (str, int, bool)):
            raise SchemeError(f"{name} must be a text, a whole number or a truth value", setting="options", value=value)
    return dict(options)


def _same(before: Mapping[str, Any], name: str, value: object) -> bool:
    kept = before.get(name, {"strategy": SEGMENT, "restart": "never", "options": {}}.get(name, False))
    if name == "shards" and value is True:
        return bool(kept)
    return bool(kept == value or (not kept and not value))


def _alone(given: Mapping[str, Any], name: str, friends: Sequence[str]) -> None:
    """Raise SchemeError if the setting `name` was given together with a setting that is not one of its `friends`."""
    for other, value in given.items():
        if other not in (name, *friends) and value not in (None, False, "never", SEGMENT, {}):
            raise SchemeError(f"excludes {other}", setting=name, value=given.get(name))


def _set_texts(scheme: dict[str, Any], given: Mapping[str, Any]) -> None:
    if given.get("format"):
        scheme["format"] = _text(given["format"], "format")
    elif given.get("format") is not None:
        scheme.pop("format", None)
    if "timezone" in given:
        Periods("daily", given["timezone"])  # raises SchemeError if the zone is unknown
        scheme["timezone"] = given["timezone"]
    restart = given.get("restart", scheme.get("restart", "never"))
    if restart not in get_args(Restart):
        raise SchemeError(
            f"must be one of {', '.join(get_args(Restart))}; not {brief(restart)}", setting="restart", value=restart
        )
    if restart != "never":
        scheme["restart"] = restart


def _check_texts(scheme: Mapping[str, Any]) -> None:
    """Raise SchemeError if the format cannot be parsed, or two numbers would have the same text."""
    restart = scheme.get("restart", "never")
    if "format" not in scheme:
        if restart != "never":
            raise SchemeError(
                f"{restart} needs a format with the period, such as '{{date:%Y%m%d}}-{{seq:06d}}', because numbers "
                "repeat in each period",
                setting="restart",
                value=restart,
            )
        return
    template = Template(scheme["format"])
    if restart != "never" and not tells(template.codes, restart):
        problem = f"{scheme['format']!r} does not contain the period ({restart}), so texts would repeat"
        raise SchemeError(problem, setting="format", value=scheme["format"])
    if bool(scheme.get("keyed")) != ("key" in template.fields):
        wanted = "contains {key}, which only a keyed tag has" if "key" in template.fields else "does not contain {key}"
        raise SchemeError(f"{scheme['format']!r} {wanted}", setting="format", value=scheme["format"])
    others = sorted(template.fields & OF_SNOWFLAKE)
    if others and scheme.get("strategy") != SNOWFLAKE:
        problem = f"{scheme['format']!r} contains {others[0]}, which only a tag with the strategy snowflake has"
        raise SchemeError(problem, setting="format", value=scheme["format"])
    lacking = [f"{{{name}}}" for name in PACKED if name not in template.fields] + missing(template.codes)
    if scheme.get("timezone", "UTC") != "UTC" and "%z" not in template.fields:
        lacking.append(f"%z (when clocks in {scheme['timezone']} go back, an hour comes twice)")
    if lacking and "seq" not in template.fields:
        problem = f"{scheme['format']!r} does not determine the number: add {', '.join(lacking)}; or add {{seq}}"
        raise SchemeError(problem, setting="format", value=scheme["format"])
    if "shard" in template.fields and "shards" not in scheme:
        problem = f"{scheme['format']!r} contains {{shard}}, but the tag has no shards"
        raise SchemeError(problem, setting="format", value=scheme["format"])


def _check_restart(
    scheme: Mapping[str, Any], given: Mapping[str, Any], *, order: Order, above: int, lease: int | None
) -> None:
    restart = scheme["restart"]
    for name in ("stride", "offset"):
        if given.get(name):
            raise SchemeError(f"excludes {name}", setting="restart", value=restart)
    if order != "strict" or lease:
        raise SchemeError(
            "is only for strict tags without a lease: numbers that a process holds would be issued after their period",
            setting="restart",
            value=restart,
        )
    if above:
        raise SchemeError("begins at 1 in each period: omit start and above", setting="restart", value=above)


def _sharded(given: Mapping[str, Any]) -> dict[str, Any]:
    _alone(given, "shards", ("format", "timezone"))
    said = given["shards"]
    widths = {} if said is True else dict(said)
    if widths.keys() - {"shard_bits", "app_bits", "app"}:
        raise SchemeError("must be True, or shard_bits, app_bits and app", setting="shards", value=said)
    shards = {"shard_bits": SHARD_BITS, "app_bits": APP_BITS, "app": 0, **widths}
    for name, bits in shards.items():
        if isinstance(bits, bool) or not isinstance(bits, int) or not 0 <= bits < 1 << BITS:
            raise SchemeError(f"{name} must be a whole number, not {brief(bits)}", setting="shards", value=bits)
    if not 1 <= 1 << shards["shard_bits"] <= SHARDS_MOST or shards["shard_bits"] + shards["app_bits"] >= BITS:
        raise SchemeError(
            f"must have at most 16 shard_bits, and less than {BITS} bits in all, not {shards['shard_bits']} shard_bits "
            f"and {shards['app_bits']} app_bits",
            setting="shards",
            value=shards,
        )
    if shards["app"] > ShardLayout(shards).most["app"]:
        raise SchemeError(
            f"app {shards['app']} doesn't fit into {shards['app_bits']} bits", setting="shards", value=shards
        )
    found = {"shards": shards}
    if given.get("format"):
        _check_texts({**found, "format": given["format"]})
    return found


def _set_stride(
    scheme: dict[str, Any],
    given: Mapping[str, Any],
    *,
    maximum: int,
    limit: int,
    above: int | None = None,
    before: Mapping[str, Any] | None = None,
) -> int:
    """Set the stride in the scheme. Return the highest counter value that gives a number up to the limit. 0: none.

    `maximum`: highest counter value that is reserved. `above`: see `stride.changed`. `before`: scheme of a deleted tag
    with the same name.
    """
    if "restart" in scheme or "scramble" in scheme:
        raise SchemeError("excludes restart and scramble", setting="stride", value=given.get("stride"))
    pieces = strides(scheme).pieces if "stride" in scheme else ()
    width, offset = given.get("stride", pieces[-1].stride if pieces else 1), given.get("offset")
    stride.checked(width, 1 if offset is None else offset)
    if offset is None and width > 1:
        raise SchemeError(
            f"must be the position of this site, 1..{width}: two sites with one offset would issue the same numbers",
            setting="offset",
        )
    after = stride.changed(pieces, maximum, width, offset or 1, above=above)
    old = pieces or (strides(before).pieces if before and "stride" in before else ())
    if old and above is None and _same_class(after[-1], old[-1]):
        after = old
    scheme["stride"] = [{"from": one.start, "first": one.first, "stride": one.stride} for one in after]
    if limit < HIGHEST:
        scheme["limit"] = limit
    return strides(scheme).highest(limit)


def _begun(scheme: Mapping[str, Any], above: int, before: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return {"start": n} if n, the tag's first number, is above 1 and the scheme has a stride or scrambling, else {}.

    `above`: the number just below the first one. `before`: scheme of a deleted tag with the same name, or None.
    If there is one, its first number stays.
    """
    start = above + 1 if before is None else before.get("start", 1)
    return {"start": start} if start > 1 and {"stride", "scramble"} & scheme.keys() else {}


def _same_class(one: stride.StrideSpan, other: stride.StrideSpan) -> bool:
    return one.stride == other.stride and (one.first - other.first) % one.stride == 0


def _same_end(pieces: list[dict[str, Any]], before: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return `pieces`, the scrambled ranges of a new tag, or those of `before`, the scheme of a deleted tag.

    The deleted tag had the same name. Its ranges are returned if its last range and that of `pieces` have the same key
    and limit.
    """
    old: list[dict[str, Any]] = before.get("scramble", []) if before else []
    return old if old and all(pieces[-1][name] == old[-1][name] for name in ("key", "fingerprint", "limit")) else pieces


def _set_limit(scheme: dict[str, Any], limit: int, keys: Mapping[str, bytes]) -> int | None:
    """Set a new limit in the scheme. Return the highest allowed counter value. None if the tag has periods."""
    if {"restart", "scramble"} <= scheme.keys():
        raise SchemeError(
            "cannot be changed, because numbers would be issued twice: create another tag", setting="limit", value=limit
        )
    if "scramble" in scheme:
        scheme["scramble"] = _reaching(scheme, limit, keys)
    if "restart" in scheme or "stride" in scheme:
        scheme["limit"] = limit
    if "restart" in scheme:
        return None
    return strides(scheme).highest(limit) if "stride" in scheme else limit


def _set_scrambling(
    scheme: dict[str, Any], given: Mapping[str, Any], record: Tag, limit: int | None, keys: Mapping[str, bytes]
) -> None:
    if "stride" in scheme:
        raise SchemeError("excludes stride, which the tag has", setting="scramble", value=given["scramble"])
    if record.max and "restart" in scheme:
        # In an earlier period any number may have been issued, so no range of numbers is left for a new key.
        problem = "cannot be changed after numbers were issued: create another tag"
        raise SchemeError(problem, setting="scramble", value=given["scramble"])
    pieces = tuple(scrambled(scheme)) if "scramble" in scheme else ()
    bound = SEQ_MOST if "restart" in scheme else record.limit
    scheme["scramble"] = _pieces(given["scramble"], pieces, record.max, bound if limit is None else limit, keys)


def _check_order(order: Order, given: Mapping[str, Any]) -> None:
    if order == "strict" and not given.get("scramble_strict"):
        problem = "scrambled numbers of a strict tag do not increase, so users cannot see their order"
        raise SchemeError(problem, setting="scramble", value=given["scramble"], advice="scheme.scramble_strict")


def _pieces(
    said: object, before: tuple[scrambling.KeySpan, ...], maximum: int, limit: int, keys: Mapping[str, bytes]
) -> list[dict[str, Any]]:
    """Return the scrambled ranges of a tag after its keys were changed. `maximum`: the highest number reserved.

    Numbers with as many digits as `maximum` keep their key, because each of them may have been issued already. Only
    higher numbers can get a new key.
    """
    lowest = scrambling.Scrambling(before, keys).may_begin(maximum) if before and maximum else maximum + 1
    named = _said(said, before, lowest)
    kept = [piece for piece in before if piece.start < lowest or (piece.start, piece.key) in named]
    fresh = [each for each in named if each not in [(piece.start, piece.key) for piece in kept]]
    border = [piece for piece in before if piece.start == lowest and piece not in kept]
    if border and lowest not in [start for start, _ in fresh]:
        kept += border
    for start, name in fresh:
        if start < lowest and maximum:
            raise SchemeError(
                f"key {name!r} can begin at {lowest} at the earliest, because numbers below may have been issued "
                "already",
                setting="scramble",
                value=start,
            )
    made = [
        scrambling.KeySpan(start, name, scrambling.fingerprint(scrambling.known_key(name, keys)), limit)
        for start, name in fresh
    ]
    return _kept(scrambling.Scrambling(sorted([*kept, *made], key=lambda piece: piece.start), keys))


def _said(said: object, before: tuple[scrambling.KeySpan, ...], lowest: int) -> list[tuple[int, str]]:
    """Return the names of the keys that were given, each with the first number that it scrambles.

    `said`: the setting `scramble` as given. `before`: the tag's scrambled ranges before the change. `lowest`: the first
    number that a new key may scramble.
    """
    if isinstance(said, str):
        same = before and before[-1].key == said
        return [(piece.start, piece.key) for piece in before] if same else [(lowest, said)]
    listed = list(said) if isinstance(said, Sequence) else []
    if not listed or not all(_is_named(each) for each in listed):
        raise SchemeError(
            "must be the name of a key, or a list of (first number, name)", setting="scramble", value=said
        )
    # If the first key is given from a number below the tag's start, the key begins at the start.
    first = (before[0].start, before[0].key) if before else (lowest, listed[0][1])
    return [first if each[0] < first[0] and each[1] == first[1] else (each[0], each[1]) for each in listed]


def _is_named(each: object) -> bool:
    return (
        isinstance(each, Sequence)
        and len(each) == 2  # noqa: PLR2004 - a pair
        and isinstance(each[0], int)
        and not isinstance(each[0], bool)
        and each[0] >= 1
        and isinstance(each[1], str)
    )


def _reaching(scheme: Mapping[str, Any], limit: int, keys: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the scrambled ranges for a higher limit. The numbers above the old limit are permuted separately."""
    pieces = scrambled(scheme)
    last = pieces[-1]
    if limit < last.limit:
        raise SchemeError(
            "cannot be lowered, because numbers above it may have been issued already", setting="limit", value=limit
        )
    if limit > last.limit:
        pieces.append(scrambling.KeySpan(last.limit + 1, last.key, last.fingerprint, limit))
    return _kept(scrambling.Scrambling(pieces, keys))


def _kept(scrambled_by: scrambling.Scrambling) -> list[dict[str, Any]]:
    return [
        {"from": piece.start, "key": piece.key, "fingerprint": piece.fingerprint, "limit": piece.limit}
        for piece in scrambled_by.pieces
    ]


def _named(scheme: dict[str, Any], before: Mapping[str, Any], tag: str, keys: Mapping[str, bytes]) -> dict[str, Any]:
    """Add an id to a scheme that converts counter values. The id is new if the conversion or limit has changed."""
    ways = {name: scheme[name] for name in _VALUES if name in scheme}
    was = {name: before[name] for name in _VALUES if name in before}
    if not ways:
        return scheme
    if ways == was and "id" in before:
        identity = before["id"]
    else:
        # A new limit alone does not change numbers, except scrambled ones: then the setting `scramble` has the limit,
        # too, and differs.
        same = {**ways, "limit": None} == {**was, "limit": None}
        identity = id_after(str(before.get("id", "")), same_values=same)
    found = {**scheme, "id": identity}
    probe = Tag(tag=tag, max=0, step=1, created=0, timestamp=0, version="", scheme=found)
    Scheme(probe, keys)  # raises SchemeError if the scheme is invalid
    return found
