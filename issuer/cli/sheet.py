"""What `issuer show` prints of one tag."""

from __future__ import annotations

import click

from issuer.cli.text import ago, duration, moment, plain, shortened, width
from issuer.core.inspection import Inspection, RedisState, Waste
from persistence.records import HIGHEST

#: Where values begin.
INDENT = 13


def sheet(seen: Inspection, *, direct: bool, now: int, room: int | None) -> str:
    """Return the tag's state as lines of `name  value`, shortened to `room` cells. `now` is in ms since 1970."""
    limit = "2^63-1" if seen.limit == HIGHEST else str(seen.limit)
    lines = [(seen.tag, ""), *([("", seen.description)] if seen.description else [])]
    lines += [
        ("order", f"{seen.order}, limit {limit}"),
        ("store max", f"{seen.store.max}{', HALTED: run `issuer recover`' if seen.store.halted else ''}"),
        ("step", _step(seen)),
        ("lease", _lease(seen)),
        ("changed", moment(seen.store.timestamp, now)),
        ("created", moment(seen.store.created, now)),
    ]
    if seen.last_extension is not None:
        lines.append(("extended", moment(seen.last_extension, now)))
    lines += _redis(seen, direct=direct)
    if not direct:
        lines.append(("remaining", _or_unknown(seen.remaining)))
    lines.append(("rate", _rate(seen.rate)))
    if not direct:
        lines.append(("runway", "unknown" if seen.runway is None else duration(seen.runway)))
    if seen.waste is not None:
        lines.append(("waste", _waste(seen.waste, now)))
    return "\n".join(_fitted(name, value, room) for name, value in lines)


def _waste(waste: Waste, now: int) -> str:
    return f"at least {waste.numbers} of the last {waste.of}, reserved since {ago(waste.since, now)}"


def _step(seen: Inspection) -> str:
    step, ahead = seen.store.step, seen.store.ahead
    return str(step) if ahead == 1 else f"{step}, {ahead} ahead: segments of {step * ahead}"


def _lease(seen: Inspection) -> str:
    if seen.order == "strict":
        return "never: strict"
    if seen.lease is None:
        return "as each process is set"
    return f"{seen.lease} ahead in each process" if seen.lease else "never"


def _redis(seen: Inspection, *, direct: bool) -> list[tuple[str, str]]:
    if direct:
        return [("redis", "direct (no Redis)")]
    if seen.redis is None:
        return [("redis", "can't be reached")]
    state = seen.redis
    if state.cur is None and state.max is None:
        return [("redis", "nothing drawn yet")]
    return [
        ("redis cur", _or_unknown(state.cur)),
        ("buffer 1", _buffer(state.cur, state.max) + _marked(state)),
        ("buffer 2", _buffer(state.next_cur, state.next_max)),
        ("fence", state.fence or "none"),
        ("born", state.born or "none"),
    ]


def _buffer(cur: int | None, last: int | None) -> str:
    if cur is None or last is None:
        return "empty"
    return f"{cur + 1}..{last}, {last - cur} left" if cur < last else f"used up to {last}"


def _marked(state: RedisState) -> str:
    if state.mark is None or state.cur is None or state.next_max is not None or state.cur >= state.mark:
        return ""
    return f", extends at {state.mark}"


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "unknown"
    return f"{per_second:.2g} per second" if per_second < 10 else f"{per_second:.0f} per second"  # noqa: PLR2004 - one digit


def _or_unknown(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _fitted(name: str, value: str, room: int | None) -> str:
    if not value:
        heading = plain(name)
        return click.style(heading if room is None else shortened(heading, room), bold=True)
    shown = plain(value)
    if room is not None:
        shown = shortened(shown, max(room - INDENT, INDENT))
    return f"{name}{' ' * (INDENT - width(name))}{shown}"
