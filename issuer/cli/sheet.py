"""Text that the commands `inspect`, `create`, `configure` and `machines` print about a tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from issuer.care.inspection import Inspection, RedisState, Waste
from issuer.cli.scheme_flags import described
from issuer.core.periods import SEQ_MOST
from issuer.core.scheme_record import counted, last_value
from issuer.strategies.snowflake.aside import MachineNumbers
from issuer.terminal import Column, ago, folded, listed, moment, numbered, plain, say, screen_width, stamp_utc, table
from issuer.times import lasting, rounded
from issuer.views import counts, supplied
from issuer_persistence.records import HIGHEST, PACING, StoredSettings, Tag, TagSettings

#: The default settings of a tag. Settings with these values are not printed.
_USUAL = TagSettings()

#: Column at which values begin.
INDENT = 13


def sheet(seen: Inspection, *, direct: bool, now: int, room: int | None) -> str:
    """Return the state of a tag as text, with a line `name value` for each fact. `direct`: the issuer has no Redis.

    `now`: in ms since 1970. `room`: longest line in terminal cells. None means any length.
    """
    lines = [(seen.tag, ""), *([("", seen.description)] if seen.description else []), *described(seen.scheme)]
    counter = seen.parts is None and counts(seen.scheme)
    if seen.parts is not None:
        lines.append(("parts", f"{seen.parts:,}; `issuer tags --all` lists them"))
    if seen.period is not None:
        lines.append(("period", seen.period))
    if seen.shared_with:
        lines.append(
            ("shared", f"with {seen.shared_with}, which halt and limit do not stop; order is within this issuer")
        )
    halted = ", HALTED: run `issuer recover`" if seen.store.halted else ""
    if counter or seen.parts is not None:
        lines += [("order", f"{seen.order}, limit {_limit(seen)}"), ("step", _step(seen)), ("lease", _lease(seen))]
        if not seen.store.drain:
            lines.append(("drain", "no: processes keep their unused numbers"))
    else:
        limit = "" if seen.limit == HIGHEST else f", limit {_limit(seen)}"
        lines.append(("order", f"{seen.order}{limit}{halted}"))
    if counter or (halted and seen.parts is not None):
        lines.append(("store max", f"{counted(seen.store.max, seen.scheme)}{halted}"))
    lines += [("changed", moment(seen.store.timestamp, now)), ("created", moment(seen.store.created, now))]
    if counter:
        lines += _counter(seen, direct=direct, now=now)
    elif seen.redis is None and not direct:
        lines.append(("redis", "can't be reached"))
    return "\n".join(line for name, value in lines for line in _fitted(name, value, room))


def _counter(seen: Inspection, *, direct: bool, now: int) -> list[tuple[str, str]]:
    lines = []
    if seen.last_extension is not None:
        lines.append(("extended", moment(seen.last_extension, now)))
    lines += _redis(seen, direct=direct)
    if not direct:
        lines.append(("remaining", "unknown" if seen.remaining is None else f"{seen.remaining:,}"))
    lines.append(("rate", "unknown" if seen.rate is None else f"{rounded(seen.rate)} per second"))
    if not direct:
        lines.append(("runway", "unknown" if seen.runway is None else lasting(seen.runway, 1)))
    if seen.waste is not None:
        lines.append(("waste", _waste(seen.waste, now)))
    return lines


def _limit(seen: Inspection) -> str:
    shown = "2^63-1" if seen.limit == HIGHEST else str(seen.limit)
    if "restart" in seen.scheme:
        return "2^40-1 in each period" if seen.limit > SEQ_MOST else f"{shown} in each period"
    return f"{shown} of each part" if seen.parts is not None else shown


def _waste(waste: Waste, now: int) -> str:
    last = numbered(waste.of, "number")
    return f"at least {waste.numbers:,} of the last {last}, first reserved {ago(waste.since, now)}"


def _step(seen: Inspection) -> str:
    step, ahead = seen.store.step, seen.store.ahead
    auto = seen.store.step_mode == "auto"
    shown = f"{step:,}, auto" if auto else f"{step:,}"
    names = ("target", "min_step", "max_step") if auto else ()
    for name in (*names, "refill_at", "survive"):
        if (value := getattr(seen.store, name)) != getattr(_USUAL, name):
            shown += f", {name} {lasting(value) if name in ('target', 'survive') else f'{value:,}'}"
    return shown if ahead == 1 else f"{shown}, ahead {ahead}: segments of {step * ahead:,} numbers"


def _lease(seen: Inspection) -> str:
    if seen.order == "strict":
        return "none: the tag is strict"
    if seen.lease_mode == "auto":
        return "auto, by the rate of each process"
    if seen.lease is None:
        return "the setting of each process"
    return f"{seen.lease:,} in each process" if seen.lease else "none"


def _redis(seen: Inspection, *, direct: bool) -> list[tuple[str, str]]:
    if direct:
        return [("redis", "direct (no Redis)")]
    if seen.redis is None:
        return [("redis", "can't be reached")]
    state = seen.redis
    if state.cur is None and state.max is None:
        lost = "no numbers since Redis restarted or failed over: the next draw loads a segment"
        return [("redis", "nothing drawn yet" if state.fence is None else lost)]
    return [
        ("redis cur", "unknown" if state.cur is None else counted(state.cur, seen.scheme)),
        ("buffer 1", _buffer(seen, state.cur, state.max) + _marked(seen, state)),
        ("buffer 2", _buffer(seen, state.next_cur, state.next_max)),
        ("fence", state.fence or "none"),
        ("born", state.born or "none"),
    ]


def _buffer(seen: Inspection, cur: int | None, last: int | None) -> str:
    if cur is None or last is None:
        return "empty"
    end = counted(last, seen.scheme)
    return f"{_short(seen, cur + 1)}..{end}, {last - cur:,} left" if cur < last else f"used up to {end}"


def _short(seen: Inspection, number: int) -> str:
    """Return a counter value as text. If the tag has periods, the text does not contain the period."""
    return counted(number, seen.scheme).partition(" ")[0]


def _marked(seen: Inspection, state: RedisState) -> str:
    if state.mark is None or state.cur is None or state.next_max is not None or state.cur >= state.mark:
        return ""
    return f", extends at {_short(seen, state.mark)}"


def say_supplied(found: Iterable[tuple[str, StoredSettings]]) -> None:
    """Print the settings that were chosen for tags of another program, and how to change them."""
    groups = dict[str, list[str]]()
    for tag, settings in found:
        text = ", ".join(f"{name}={value}" for name, value in supplied(settings).items())
        groups.setdefault(text, []).append(tag)
    for text, tags in groups.items():
        say(f"settings of {listed(tags)}: {text}")
    if groups:
        say("`issuer configure TAG` changes them, such as --step or --lease. The order of a tag stays")


def _fitted(name: str, value: str, room: int | None) -> Iterator[str]:
    if not value:
        yield from (click.style(line, bold=True) for line in folded(plain(name), room))
        return
    for at, line in enumerate(folded(plain(value), None if room is None else max(room - INDENT, INDENT))):
        yield f"{'' if at else name:{INDENT}}{line}"


def stands(now: Tag) -> str:
    last = last_value(now.scheme, now.limit)
    ends = "" if last == HIGHEST else f", limit {last}"
    if not counts(now.scheme):
        return f"{now.order}{ends}"
    return f"max {counted(now.max, now.scheme)}, step {now.step}{ends}"


def settings_of(tag: Tag) -> str:
    """Return the settings of a tag that are not defaults, as text. Each begins with a comma.

    The max, the step and the limit are left out, because `stands` returns them.
    """
    names = (*PACING, "lease") if counts(tag.scheme) else ()
    values = [(name, getattr(tag, name)) for name in names if getattr(tag, name) != getattr(_USUAL, name)]
    return "".join(f", {name} {plain(str(value))}" for name, value in [*values, *described(tag.scheme)])


def machine_table(found: MachineNumbers) -> str:
    columns = [Column("MACHINE", "right"), Column("HOLDER", flexible=True), Column("LEASE"), Column("USED UP TO")]
    columns.append(Column("AHEAD"))
    lease = {True: "held", False: "free", None: ""}
    rows = [
        (each.machine, each.holder, lease[each.held], stamp_utc(each.last),
         lasting(each.ahead / 1000) if each.ahead else "")
        for each in found.used
    ]  # fmt: skip
    return table(columns, rows, screen_width())
